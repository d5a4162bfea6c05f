"""Checking an index: an intact index has no problems, and damage is always reported."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mchindex.index.facade
import mchindex.index.table
import mchindex.storage.schema
from helpers.indexes import codes_for, damage
from helpers.small_model import small_model, write_photos
from mchindex import BucketTable, MCHIndex
from mchindex.errors import NotAnIndexError, StoreBusyError
from mchindex.index.verify import verify
from mchindex.storage.store import Store

BITS = 32
Change = Callable[[Path], None]


def add(index: MCHIndex, seeds: range, version: int = 0) -> None:
    codes = [codes_for(seed, version, BITS) for seed in seeds]
    ids = [seed for seed, its in zip(seeds, codes, strict=True) for _ in its]
    index.add_codes(ids, np.concatenate(codes), [i for its in codes for i in range(len(its))])


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index with a snapshot, with images added and removed before it and after it."""
    folder = tmp_path_factory.mktemp("once") / "a.mch"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mchindex.index.table, "SNAPSHOT_AFTER", 100)
        with MCHIndex.open(folder, bits=BITS) as index:
            add(index, range(60))
            index.add_codes([70, 70], np.zeros((2, 4), np.uint8), [5, 2])  # equal codes
            index.remove([3, 4])
            add(index, range(10, 15), 1)
            add(index, range(100, 160))
        patch.setattr(mchindex.index.table, "SNAPSHOT_AFTER", 10**6)
        with MCHIndex.open(folder) as index:
            index.remove([5, 6, 101])
            add(index, range(20, 25), 1)
            add(index, range(200, 220))
    return folder


@pytest.fixture
def folder(once: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(once, tmp_path / once.name))


def snapshot(folder: Path) -> dict[str, Any]:
    store = Store(folder)
    facts: dict[str, Any] = store.get("snapshot")
    store.close()
    return facts


def test_an_intact_index_has_no_problems(folder: Path) -> None:
    assert snapshot(folder)["codes"] > 100
    report = verify(folder)
    assert (report.problems, report.notes) == ([], [])
    with MCHIndex.open(folder) as index:
        assert report.images == len(index) == 136
        assert report.codes == index.stats()["codes"] + 1  # the table holds equal codes once
    assert report.snapshot == snapshot(folder)["file"]


def test_an_empty_index_has_no_problems(tmp_path: Path) -> None:
    with MCHIndex.open(tmp_path / "a.mch", bits=BITS):
        pass
    report = verify(tmp_path / "a.mch")
    assert (report.problems, report.images, report.snapshot) == ([], 0, None)


def test_verify_does_not_create_an_index(tmp_path: Path) -> None:
    with pytest.raises(NotAnIndexError):
        verify(tmp_path / "none.mch")
    assert not (tmp_path / "none.mch").exists()


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        (
            "UPDATE images SET metadata = '{\"a\": 1}' WHERE id = 30",
            "match their checksums: 1",
        ),
        ("UPDATE images SET codes = zeroblob(14) WHERE id = 30", "match their checksums: 1"),
        ("UPDATE images SET id = 'other' WHERE id = 30", "match their checksums: 1"),
        ("DELETE FROM images WHERE id = 30", "the store should have 136 images, but has 135"),
        ("DELETE FROM gone", ""),
        ("UPDATE gone SET key = key + 1", ""),
        ("UPDATE meta SET value = '{}' WHERE name = 'snapshot'", "record of 'snapshot'"),
        ("UPDATE meta SET value = '{}' WHERE name = 'model'", "record of 'model'"),
        ("UPDATE meta SET value = '[]' WHERE name = 'state'", "record of 'state'"),
        ("DELETE FROM meta WHERE name = 'model'", "does not say which model"),
    ],
)
def test_a_damaged_store_is_reported(folder: Path, statement: str, message: str) -> None:
    damage(folder, statement)
    report = verify(folder)
    assert message in "; ".join(report.problems)
    assert report.problems


def test_a_flipped_bit_of_a_code_is_reported(folder: Path) -> None:
    """SQLite itself finds nothing wrong with the page."""
    damage(folder)
    file = folder / "index.sqlite"
    data = file.read_bytes()
    code = codes_for(30, 0, BITS)[0].tobytes()
    at = data.index(code)
    file.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    assert any("match their checksums: 1" in problem for problem in verify(folder).problems)


def test_a_destroyed_file_is_reported(folder: Path) -> None:
    damage(folder)
    data = bytearray((folder / "index.sqlite").read_bytes())
    data[4096 * 2 : 4096 * 4] = bytes(8192)
    (folder / "index.sqlite").write_bytes(data)
    assert verify(folder).problems
    (folder / "index.sqlite").write_bytes(b"nonsense" * 2000)
    assert verify(folder).problems


def truncated(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def flipped(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 4
    file.write_bytes(data)


def other_codes(file: Path) -> None:
    """A valid snapshot in which one image has other codes."""
    table = BucketTable.load(file)
    codes = codes_for(30, 0, BITS)
    key = int(table.within(codes[:1], 0).ids[0])
    table.remove([key])
    table.add([key] * len(codes), codes ^ 1, np.arange(len(codes)))
    table.save(file)


def other_regions(file: Path) -> None:
    """A valid snapshot in which the codes of one image have other regions."""
    table = BucketTable.load(file)
    codes = codes_for(30, 0, BITS)
    key = int(table.within(codes[:1], 0).ids[0])
    table.remove([key])
    table.add([key] * len(codes), codes, np.arange(len(codes)) + 1)
    table.save(file)


def test_a_missing_snapshot_is_noted(folder: Path) -> None:
    (folder / snapshot(folder)["file"]).unlink()
    report = verify(folder)
    assert report.problems == []
    assert any("is missing: opening takes longer" in note for note in report.notes)


@pytest.mark.parametrize("change", [truncated, flipped, other_codes, other_regions])
def test_a_wrong_snapshot_is_reported(folder: Path, change: Change) -> None:
    change(folder / snapshot(folder)["file"])
    report = verify(folder)
    assert len(report.problems) == 1
    assert report.problems[0].startswith("the snapshot table-")


def test_a_snapshot_with_too_many_codes_is_reported(folder: Path) -> None:
    facts = snapshot(folder)
    table = BucketTable.load(folder / facts["file"])
    table.add([10**6], np.ones((1, 4), np.uint8))
    table.save(folder / facts["file"])
    assert "codes instead of" in verify(folder).problems[0]
    store = Store(folder)
    with store.writer():
        store.set(snapshot=facts | {"codes": table.n_codes})
    store.close()
    assert "has 1 codes that the store does not have" in verify(folder).problems[0]


def test_an_unused_snapshot_is_only_noted(folder: Path, tmp_path: Path) -> None:
    (folder / "table-000000000000.snapshot").write_bytes(b"left by a crash")
    (note,) = verify(folder).notes
    assert note.startswith("table-000000000000.snapshot")


def test_a_missing_or_damaged_model_is_reported(tmp_path: Path) -> None:
    files = write_photos(tmp_path / "photos", 3)
    folder = tmp_path / "a.mch"
    with MCHIndex.open(folder, small_model()) as index:
        index.add(files)
    files[1].unlink()
    report = verify(folder)
    assert report.problems == []
    assert report.missing == 1
    assert report.notes == ["images whose files no longer exist: 1"]
    weights = folder / "model" / "model.safetensors"
    intact = weights.read_bytes()
    weights.write_bytes(intact[:-2] + bytes(2))
    assert "damaged" in verify(folder).problems[0]
    assert verify(folder, model=False).problems == []
    weights.write_bytes(intact)
    config = folder / "model" / "config.json"
    facts = json.loads(config.read_text())
    config.write_text(json.dumps(facts | {"fingerprint": "other"}))
    assert "did not fill the index: it is other, not " in verify(folder).problems[0]
    config.write_text("{")
    assert "cannot be read" in verify(folder).problems[0]
    shutil.rmtree(folder / "model")
    assert "is not installed" in verify(folder).problems[0]


def test_verify_waits_for_a_writer(folder: Path) -> None:
    store = Store(folder)
    with store.writer(), pytest.raises(StoreBusyError):
        verify(folder, wait=0.05)
    store.close()
    assert verify(folder, wait=0).problems == []
