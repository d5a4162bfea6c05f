"""Searches by several pictures at once: like all of some, unlike others."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from helpers.fine_models import fine_model, with_fine
from helpers.small_model import photo, small_model
from mchindex import MCHIndex
from mchindex.errors import NoFineCodesError
from mchindex.index.mixture import _majority
from mchindex.storage.records import Row, code_type

FINE = fine_model(256, 300)
BITS = 256


def row(id: str, fine: NDArray[np.uint8]) -> Row:
    """An image with one code of zeros and the same fine code for all regions."""
    entry = np.zeros(1, code_type(16))
    return Row(id, entry.tobytes(), fine=np.tile(fine, len(FINE.layout)).tobytes())


@pytest.fixture
def index() -> Any:
    """Images whose fine codes are those of a, of b, of neither, and half of each."""
    rng = np.random.default_rng(0)
    a, b, c = (rng.integers(0, 2, BITS) for _ in range(3))
    half = np.arange(BITS) % 2 == 0
    noise = rng.random((4, BITS)) < 0.05
    signs = {
        "a": a, "b": b, "c": c, "like a": a ^ noise[0], "like b": b ^ noise[1],
        "like both": np.where(half, a, b), "like a and c": np.where(half, a, c),
    }  # fmt: skip
    with MCHIndex(FINE) as index:
        index.add([photo(0)], ids=["photo"])
        assert FINE.fine is not None
        index.add_records(
            [row(id, np.packbits(bits)) for id, bits in signs.items()],
            (BITS, FINE.fine.fingerprint),
        )
        index.remove("photo")
        yield index


@pytest.mark.parametrize("rank", ["best", "fine"])
def test_what_is_like_both_comes_before_what_is_like_one(index: MCHIndex, rank: Any) -> None:
    hits = index.search(like=["a", "b"], rank=rank)
    assert hits.ids[0] == "like both"
    assert set(hits.ids[1:3]) == {"like a", "like b"}
    assert {"a", "b"}.isdisjoint(hits.ids)
    assert index.search(like=["a"], rank=rank).ids[0] == "like a"


@pytest.mark.parametrize("rank", ["best", "fine"])
def test_unlike_pushes_away(index: MCHIndex, rank: Any) -> None:
    before = index.search(like=["a"], rank=rank)
    after = index.search(like=["a"], unlike=["c"], rank=rank)
    assert "c" not in after.ids
    assert before.ids.index("like a and c") < before.ids.index("like b")
    score = {hit.id: hit.score for hit in before}
    pushed = {hit.id: hit.score for hit in after}
    assert pushed["like a and c"] < score["like a and c"]
    assert after.ids.index("like both") < after.ids.index("like a and c")


def test_filters_pages_and_allowed_work(index: MCHIndex) -> None:
    every = index.search(like=["a", "b"]).ids
    assert index.search(like=["a", "b"], k=2, offset=1).ids == every[1:3]
    assert index.search(like=["a", "b"], allowed=["a", "like a", "c"]).ids == ["like a", "c"]
    index.set_metadata("like b", {"year": 2020})
    assert index.search(like=["a", "b"], filter={"year": 2020}).ids == ["like b"]


def test_a_single_picture_id_or_pair_need_not_be_in_a_list(tmp_path: Path) -> None:
    with MCHIndex(FINE) as index:
        index.add([photo(i) for i in range(8)])
        picture = np.asarray(photo(3))
        assert index.search(like=picture).ids[0] == 3
        assert index.search(like=3).ids == index.search(like=[3]).ids == index.search(id=3).ids
        box = (0, 0, 30, 20)
        assert index.search(like=(picture, box)).ids == index.search(picture, region=box).ids


def test_files_ids_and_regions_can_be_mixed(tmp_path: Path) -> None:
    for number in range(8):
        photo(number).save(tmp_path / f"{number}.png")
    photo(20).save(tmp_path / "other.png")
    with MCHIndex(FINE) as index:
        index.add([tmp_path / f"{number}.png" for number in range(8)])
        stored, other = str(tmp_path / "1.png"), tmp_path / "other.png"
        hits = index.search(like=[stored, other])
        assert stored not in hits.ids  # it was taken for the image in the index
        assert len(hits) == 7
        region = index[stored].regions[-1]
        assert len(index.search(like=[(stored, region), (other, (0, 0, 30, 20))])) == 7
        by_box = index.search(like=[(stored, (0, 0, 30, 20)), photo(20)])
        assert stored not in by_box.ids
        content = other.read_bytes()
        assert index.search(like=[content]).ids == index.search(other).ids


def test_without_fine_codes_the_majority_of_the_codes_decides() -> None:
    codes = np.array([[0b00000000], [0b00001111], [0b00000011]], np.uint8)
    with MCHIndex(bits=8) as index:
        index.add_codes(["a", "b", "c", "ab"], codes[[0, 1, 2, 2]])
        hits = index.search(like=["a", "b", "c"])
        assert [(hit.id, hit.distance) for hit in hits] == [("ab", 0)]
        with pytest.raises(ValueError, match="unlike works by fine codes"):
            index.search(like=["a"], unlike=["b"])


def test_unlike_is_never_ignored(tmp_path: Path) -> None:
    with MCHIndex(FINE) as index:
        index.add([photo(i) for i in range(4)])
        index.add_codes(["own"], np.zeros((1, 2), np.uint8))
        assert index.search(like=[photo(1)]).rank == "code"
        with pytest.raises(NoFineCodesError, match="1 of its images have no fine codes"):
            index.search(like=[photo(1)], unlike=[photo(2)])


def test_fine_codes_of_another_kind_are_not_mixed(tmp_path: Path) -> None:
    path = tmp_path / "a.mch"
    with MCHIndex.open(path, FINE) as index:
        index.add([photo(i) for i in range(4)])
    with MCHIndex.open(path, with_fine(small_model(), 64)) as index:
        assert index.search(like=[photo(1)]).rank == index.search(photo(1)).rank == "code"


def test_the_first_picture_decides_ties() -> None:
    codes = np.array([[0b11110000], [0b11001100]], np.uint8)
    assert _majority(codes).tolist() == [[0b11110000]]
    assert _majority(codes[::-1]).tolist() == [[0b11001100]]
    assert _majority(np.array([[3], [1], [1]], np.uint8)).tolist() == [[1]]


def test_what_makes_no_query_is_refused(index: MCHIndex) -> None:
    refused: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"like": []}, ValueError, "like is empty"),
        ({"text": "dog", "unlike": ["a"]}, TypeError, "unlike needs like"),
        ({"like": 3.5}, TypeError, "like must be images, ids or pairs"),
        ({"like": [99]}, KeyError, "there is no image 99"),
        ({"unlike": ["a"]}, TypeError, "images in like"),
        ({"query": photo(0), "unlike": ["a"]}, TypeError, "unlike needs like"),
        ({"like": ["a"], "id": "a"}, TypeError, "either a query, the id"),
        ({"like": ["a"], "region": "whole"}, TypeError, "takes regions with its images"),
        ({"like": [("a", "roof")]}, ValueError, "no code for 'roof'"),
        ({"like": [(photo(0), "whole")]}, ValueError, "must be a box"),
        ({"like": [("a", (0, 0, 5, 5))]}, ValueError, "has no file to take a box from"),
        ({"like": ["a"], "unlike": ["b"], "rank": "code"}, ValueError, "rank='code'"),
    ]
    for arguments, error, message in refused:
        with pytest.raises(error, match=message):
            index.search(**arguments)
