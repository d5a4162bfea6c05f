"""Photographs of phones and cameras in an index: HEIC, AVIF and RAW beside other files."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from helpers.camera_files import dng, drawing, heic
from helpers.fine_models import fine_model
from helpers.indexes import assert_as_fresh, painted, tiny_model
from helpers.pictures import encoded
from helpers.small_model import photo
from mchindex import MCHIndex, MissingDecoderError
from mchindex.index.adding import Failure
from mchindex.index.page import page_picture

ADVICE = 'its format needs an extra: pip install "mchindex[{}]"'


@pytest.fixture
def index() -> Iterator[MCHIndex]:
    with MCHIndex(tiny_model()) as made:
        yield made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The same drawing, turned, in each format, and two pictures that are something else."""
    upright, turned = drawing(1280, 960), drawing(960, 1280)
    files = {
        "phone.heic": heic(quarters=1),
        "camera.dng": dng(upright, upright, orientation=8),
        "undeveloped.DNG": dng(upright, orientation=8),
        "browser.avif": encoded(drawing().rotate(90, expand=True), "AVIF", quality=95),
        "same.png": encoded(drawing().rotate(90, expand=True), "PNG"),
        "other.png": encoded(painted(3), "PNG"),
        "other.jpg": encoded(turned, "JPEG"),
    }
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    return tmp_path


def test_they_are_added_and_found_like_other_files(index: MCHIndex, folder: Path) -> None:
    (folder / "broken.heic").write_bytes(heic()[:700])
    (folder / "broken.cr2").write_bytes(b"II*\0\x10\0\0\0CR\2\0" + bytes(300))
    added = index.add(folder)
    assert {Path(failure.name).name for failure in added.failed} == {"broken.heic", "broken.cr2"}
    assert all(failure.extra is None for failure in added.failed)
    assert added.ignored == []
    same = ["phone.heic", "camera.dng", "undeveloped.DNG", "browser.avif", "same.png"]
    sizes = {Path(str(id)).name: index[id].size for id in added}
    assert {sizes[name] for name in same} == {(96, 128), (960, 1280)}
    for name in same:
        hits = index.search(folder / name, 5, rank="code")
        assert {Path(str(hit.path)).name for hit in hits} == set(same)
        assert hits[0].distance == 0
        assert page_picture(str(folder / name)) is not None
    assert len(index.add(folder).skipped) == len(added)
    assert_as_fresh(index)


def test_a_region_of_a_query_is_one_of_the_upright_picture(index: MCHIndex, folder: Path) -> None:
    """Its pixels are those of what the camera recorded, though the preview has fewer."""
    small = dng(drawing(1280, 960), drawing(640, 480), orientation=8)
    (folder / "small preview.dng").write_bytes(small)
    index.add(folder / "same.png")
    corner = drawing().rotate(90, expand=True).crop((0, 0, 48, 42))
    want = index.search(corner, 1)[0].distance
    for name in ("camera.dng", "undeveloped.DNG", "small preview.dng"):
        (hit,) = index.search(folder / name, 1, region=(0, 0, 480, 420))
        assert hit.distance == want


def test_copies_in_other_formats_are_duplicates(tmp_path: Path) -> None:
    original = photo(0, 960, 640)
    (tmp_path / "camera.dng").write_bytes(dng(original, original.resize((720, 480))))
    original.save(tmp_path / "camera.jpg", quality=95)
    original.resize((480, 320), Image.Resampling.LANCZOS).save(tmp_path / "small.avif", quality=90)
    for number in range(1, 12):
        photo(number, 90, 60).save(tmp_path / f"{number}.png")
    with MCHIndex(fine_model(128, 300)) as index:
        assert not index.add(tmp_path).failed
        (group,) = index.duplicates()
    # A RAW file counts with the pixels that it recorded, so it is not taken for a smaller copy.
    names = [Path(str(image.path)).name for image in (group.keeper, *group.others)]
    assert names[0] == "camera.dng"
    assert sorted(names[1:]) == ["camera.jpg", "small.avif"]


def test_without_an_extra_its_files_are_reported(
    index: MCHIndex, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pi_heif", None)
    monkeypatch.setitem(sys.modules, "rawpy", None)
    (folder / "a JPEG.heic").write_bytes((folder / "other.jpg").read_bytes())
    added = index.add(folder)
    want = {"phone.heic": "heic", "camera.dng": "raw", "undeveloped.DNG": "raw"}
    assert sorted(added.failed, key=lambda failure: failure.name) == sorted(
        (Failure(str(folder / name), ADVICE.format(extra), extra) for name, extra in want.items()),
        key=lambda failure: failure.name,
    )
    assert len(added) == 5  # all others, the JPEG with the wrong name as well
    with pytest.raises(MissingDecoderError, match=r'phone\.heic: .*"mchindex\[heic\]"'):
        index.add(folder / "phone.heic")
    with pytest.raises(MissingDecoderError, match=r'camera\.dng: .*"mchindex\[raw\]"'):
        index.search(folder / "camera.dng")
    monkeypatch.undo()  # the extras are installed
    assert len(index.add(folder).added) == 3
