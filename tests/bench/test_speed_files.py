"""bench/file_codes.py and bench/codes.py: files with the codes of real images."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import codes
from common import Cell, draw
from file_codes import ImageCodes, read_codes, write_codes
from helpers.answer_run import write_dataset, write_model
from helpers.small_model import photo
from mchindex.models import MCHModel
from search import file_cells

CODES = np.arange(48, dtype=np.uint8).reshape(6, 8)
IMAGES = np.array([3, 3, 3, 7, 9, 9])
QUERIES = CODES[:2]


def test_a_file_is_read_as_it_was_written_with_images_numbered_anew(tmp_path: Path) -> None:
    regions = np.arange(6, dtype=np.int16)
    path = write_codes(tmp_path / "new" / "six.npz", ImageCodes(CODES, IMAGES, QUERIES, regions))
    found = read_codes(path)
    np.testing.assert_array_equal(found.codes, CODES)
    np.testing.assert_array_equal(found.queries, QUERIES)
    assert found.regions is not None
    np.testing.assert_array_equal(found.regions, regions)
    assert found.images.tolist() == [0, 0, 0, 1, 2, 2]
    assert found.sizes.tolist() == [3, 1, 2]
    assert found.bits == 64
    bare = write_codes(tmp_path / "bare.npz", ImageCodes(CODES, IMAGES, QUERIES))
    assert read_codes(bare).regions is None


def test_a_file_is_a_cell_named_after_it(tmp_path: Path) -> None:
    path = write_codes(tmp_path / "semantic-64.npz", ImageCodes(CODES, IMAGES, QUERIES))
    write_codes(tmp_path / "b.npz", ImageCodes(CODES, IMAGES, QUERIES))
    cell = Cell.of_file(path)
    assert (cell.name, cell.n, cell.images, cell.bits) == ("semantic-64", 6, 3, 64)
    assert cell.settings["data"] == "codes:semantic-64"
    assert len(draw(cell, 10, 0).queries) == 2
    assert len(draw(cell, 1, 0).queries) == 1
    assert [c.name for c in file_cells([tmp_path])] == ["b", "semantic-64"]
    assert file_cells([path, path]) == [cell, cell]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"codes": CODES.astype(np.int32)}, "codes are uint8"),
        ({"codes": CODES[0]}, "codes are uint8"),
        ({"queries": QUERIES[:, :4]}, "queries have 4 bytes, but codes have 8"),
        ({"queries": QUERIES[:0]}, "queries are uint8"),
        ({"images": IMAGES[:5]}, "images are one integer per code"),
        ({"images": IMAGES / 2}, "images are one integer per code"),
        ({"images": IMAGES[::-1]}, "ascending"),
        ({"regions": IMAGES[:2]}, "regions are one integer per code"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(
    tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    arrays = {"codes": CODES, "images": IMAGES, "queries": QUERIES} | change
    np.savez(tmp_path / "wrong.npz", **arrays)
    with pytest.raises(ValueError, match=said) as error:
        read_codes(tmp_path / "wrong.npz")
    assert "wrong.npz" in str(error.value)


def test_a_file_without_queries_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "wrong.npz", codes=CODES, images=IMAGES)
    with pytest.raises(ValueError, match=r"has no queries: write it by codes\.py"):
        read_codes(tmp_path / "wrong.npz")


def test_codes_of_images_windows_and_trained_methods(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_dataset(tmp_path / "data", queries=10, others=24, train=20)
    write_model(tmp_path / "model")
    monkeypatch.setattr(codes, "MODEL", str(tmp_path / "model"))
    out = tmp_path / "out"
    names = [*codes.NAMES[:4], "dch-32", "hashnet-128"]
    options = ["--data", tmp_path / "data", "--out", out, "--cache", tmp_path / "cache",
               "--windows", 60, "--epochs", 1, "--names", *names]  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["codes.py", *map(str, options)])
    codes.main()
    found = {name: read_codes(out / f"{name}.npz") for name in names}
    model = MCHModel.load(tmp_path / "model")
    assert model.fine is not None
    widths = {"semantic-64": model.bits, "fine-256": model.fine.bits, "dch-32": 32}
    for name, bits in widths.items():
        assert found[name].bits == bits
    for name in ("semantic-64", "fine-256", "dch-32", "hashnet-128"):
        assert len(found[name].sizes) == 44  # the database, which the training images belong to
        assert len(found[name].queries) == 10
        assert found[name].sizes.max() <= 6
    for name in codes.MANY:
        assert len(found[name].sizes) == 60
        assert len(found[name].queries) == 8  # windows are taken of the others
    for name in ("fine-256", "fine-256-million"):
        assert set(found[name].sizes.tolist()) == {6}
        regions = found[name].regions
        assert regions is not None
        assert regions[:12].tolist() == [0, 1, 2, 3, 4, 5] * 2
    semantic = found["semantic-64"].regions
    assert semantic is not None
    assert (semantic == 0).sum() == 44  # every image is stored as a whole


def test_stored_codes_are_those_of_the_images_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_dataset(tmp_path / "data", queries=4, others=24, train=8)
    write_model(tmp_path / "model")
    monkeypatch.setattr(codes, "MODEL", str(tmp_path / "model"))
    options = ["--data", tmp_path / "data", "--out", tmp_path, "--cache", tmp_path / "cache",
               "--names", "semantic-64"]  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["codes.py", *map(str, options)])
    codes.main()
    model, found = MCHModel.load(tmp_path / "model"), read_codes(tmp_path / "semantic-64.npz")
    wanted = model.encode([photo(i) for i in range(4, 36)])
    np.testing.assert_array_equal(found.codes, wanted.codes)
    np.testing.assert_array_equal(found.images, wanted.images)
    np.testing.assert_array_equal(found.regions, wanted.regions)
