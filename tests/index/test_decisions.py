"""Decisions about duplicates: remembered in the index, forgotten with their images."""

import shutil
import sqlite3
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.disks import disk, read_only
from helpers.indexes import codes_for, damage
from mchindex import MCHIndex, StoreDamagedError
from mchindex.index.duplicates import Decision
from mchindex.index.verify import verify

FIXTURES = Path(__file__).parents[1] / "fixtures"


def filled(path: Path | None, images: int = 6) -> MCHIndex:
    index = MCHIndex(bits=32) if path is None else MCHIndex.open(path, bits=32)
    for number in range(images):
        codes = codes_for(number)
        index.add_codes([number] * len(codes), codes)
    return index


def version(folder: Path) -> int:
    with sqlite3.connect(folder / "index.sqlite") as db:
        return int(db.execute("PRAGMA user_version").fetchone()[0])


def test_decisions_are_there_after_reopening(tmp_path: Path) -> None:
    with filled(tmp_path / "i.mch") as index:
        index.decide({3: "keep", 1: "discard"})
        index.decide({1: None, 2: "discard"})
    with MCHIndex.open(tmp_path / "i.mch") as index:
        assert index.decisions() == {2: "discard", 3: "keep"}
    assert verify(tmp_path / "i.mch").problems == []


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.sampled_from(["keep", "discard", None, "remove", "again"])),
        max_size=12,
    )
)
def test_decisions_follow_a_plain_dictionary(steps: list[tuple[int, str | None]]) -> None:
    with filled(None) as index:
        want: dict[int, Decision] = {}
        for id, step in steps:
            if step == "remove":
                index.remove([id])
                want.pop(id, None)
            elif step == "again":
                index.add_codes([id], codes_for(id)[:1])
                want.pop(id, None)
            elif id not in index:
                with pytest.raises(KeyError):
                    index.decide({id: "keep"})
            else:
                decision: Decision | None = (
                    "keep" if step == "keep" else "discard" if step == "discard" else None
                )
                index.decide({id: decision})
                want.pop(id, None)
                if decision is not None:
                    want[id] = decision
        assert index.decisions() == want


def test_nothing_is_stored_if_an_id_or_a_decision_is_wrong(tmp_path: Path) -> None:
    with filled(tmp_path / "i.mch") as index:
        with pytest.raises(KeyError):
            index.decide({1: "keep", 99: "keep"})
        with pytest.raises(ValueError, match="keep or discard, not 'burn'"):
            index.decide({1: "keep", 2: "burn"})  # type: ignore[dict-item]
        assert index.decisions() == {}
    assert version(tmp_path / "i.mch") == 2  # earlier versions can still open it


@pytest.mark.parametrize("format", ["format-1", "format-2"])
def test_an_old_index_takes_decisions(tmp_path: Path, format: str) -> None:
    folder = Path(shutil.copytree(FIXTURES / format / "photos.mch", tmp_path / "photos.mch"))
    with MCHIndex.open(folder) as index:
        assert index.decisions() == {}
        first = next(iter(index))
        index.decide({first: "discard"})
    assert version(folder) == 3
    with MCHIndex.open(folder) as index:
        assert index.decisions() == {first: "discard"}
        index.search(id=first)
    assert verify(folder).problems == []


def test_a_reader_that_is_open_sees_the_first_decision(tmp_path: Path) -> None:
    with filled(tmp_path / "i.mch") as index, MCHIndex.open(tmp_path / "i.mch") as reader:
        assert reader.decisions() == {}
        index.decide({3: "keep"})  # adds a table
        assert reader.decisions() == {3: "keep"}
        assert reader.search_codes(codes_for(3)[0], 1).ids == [3]


def test_decisions_are_read_from_a_read_only_disk(tmp_path: Path) -> None:
    with disk(tmp_path / "disk", 16) as place:
        filled(place / "i.mch").close()
        with MCHIndex.open(place / "i.mch") as index:
            index.decide({3: "keep"})
        with read_only(place), MCHIndex.open(place / "i.mch") as index:
            assert index.decisions() == {3: "keep"}


def test_a_damaged_decision_is_not_returned(tmp_path: Path) -> None:
    with filled(tmp_path / "i.mch") as index:
        index.decide({3: "keep"})
    damage(tmp_path / "i.mch", "UPDATE decisions SET decision = 'discard'")
    with (
        MCHIndex.open(tmp_path / "i.mch") as index,
        pytest.raises(StoreDamagedError, match="decision about image 3"),
    ):
        index.decisions()
