"""A sound index has no problems, whatever happened to it; a damaged one is never called sound."""

import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mchindex.index.facade
import mchindex.index.table
import mchindex.storage.schema
from helpers.indexes import codes_for
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
    """An index with a snapshot, and things that happened before it and after it."""
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


def harmed(folder: Path, *statements: str) -> None:
    db = sqlite3.connect(folder / "index.sqlite", isolation_level=None)
    for statement in statements:
        db.execute(statement)
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()


def test_a_sound_index(folder: Path) -> None:
    assert snapshot(folder)["codes"] > 100
    found = verify(folder)
    assert (found.problems, found.notes) == ([], [])
    with MCHIndex.open(folder) as index:
        assert found.images == len(index) == 136
        assert found.codes == index.stats()["codes"] + 1  # the table holds equal codes once
    assert found.snapshot == snapshot(folder)["file"]


def test_an_empty_one(tmp_path: Path) -> None:
    with MCHIndex.open(tmp_path / "a.mch", bits=BITS):
        pass
    found = verify(tmp_path / "a.mch")
    assert (found.problems, found.images, found.snapshot) == ([], 0, None)


def test_no_index_is_made(tmp_path: Path) -> None:
    with pytest.raises(NotAnIndexError):
        verify(tmp_path / "none.mch")
    assert not (tmp_path / "none.mch").exists()


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        (
            "UPDATE images SET metadata = '{\"a\": 1}' WHERE id = 30",
            "match their checksums: 1",
        ),
        ("UPDATE images SET codes = zeroblob(14) WHERE id = 30", "match their checksums: 1"),
        ("UPDATE images SET id = 'other' WHERE id = 30", "match their checksums: 1"),
        ("DELETE FROM images WHERE id = 30", "the store counts 136 images and has 135"),
        ("DELETE FROM gone", ""),
        ("UPDATE gone SET key = key + 1", ""),
        ("UPDATE meta SET value = '{}' WHERE name = 'snapshot'", "record of 'snapshot'"),
        ("UPDATE meta SET value = '{}' WHERE name = 'model'", "record of 'model'"),
        ("UPDATE meta SET value = '[]' WHERE name = 'state'", "record of 'state'"),
        ("DELETE FROM meta WHERE name = 'model'", "does not say which model"),
    ],
)
def test_a_harmed_store(folder: Path, statement: str, said: str) -> None:
    harmed(folder, statement)
    found = verify(folder)
    assert said in "; ".join(found.problems)
    assert found.problems


def test_any_byte_of_the_codes(folder: Path) -> None:
    """Bytes are flipped in a page that SQLite itself finds nothing wrong with."""
    harmed(folder)
    file = folder / "index.sqlite"
    data = file.read_bytes()
    code = codes_for(30, 0, BITS)[0].tobytes()
    at = data.index(code)
    file.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    assert any("match their checksums: 1" in problem for problem in verify(folder).problems)


def test_a_destroyed_file(folder: Path) -> None:
    harmed(folder)
    data = bytearray((folder / "index.sqlite").read_bytes())
    data[4096 * 2 : 4096 * 4] = bytes(8192)
    (folder / "index.sqlite").write_bytes(data)
    assert verify(folder).problems
    (folder / "index.sqlite").write_bytes(b"nonsense" * 2000)
    assert verify(folder).problems


def gone(file: Path) -> None:
    file.unlink()


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def flipped(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 4
    file.write_bytes(data)


def moved(file: Path) -> None:
    """A sound snapshot with one code that is another."""
    table = BucketTable.load(file)
    codes = codes_for(30, 0, BITS)
    key = int(table.within(codes[:1], 0).ids[0])
    table.remove([key])
    table.add([key] * len(codes), codes ^ 1, np.arange(len(codes)))
    table.save(file)


def renamed_region(file: Path) -> None:
    table = BucketTable.load(file)
    codes = codes_for(30, 0, BITS)
    key = int(table.within(codes[:1], 0).ids[0])
    table.remove([key])
    table.add([key] * len(codes), codes, np.arange(len(codes)) + 1)
    table.save(file)


@pytest.mark.parametrize("change", [gone, cut, flipped, moved, renamed_region])
def test_a_wrong_snapshot(folder: Path, change: Change) -> None:
    change(folder / snapshot(folder)["file"])
    found = verify(folder)
    assert len(found.problems) == 1
    assert found.problems[0].startswith("the snapshot table-")


def test_a_snapshot_of_too_many(folder: Path) -> None:
    facts = snapshot(folder)
    table = BucketTable.load(folder / facts["file"])
    table.add([10**6], np.ones((1, 4), np.uint8))
    table.save(folder / facts["file"])
    assert "codes, and not" in verify(folder).problems[0]
    store = Store(folder)
    with store.writer():
        store.set(snapshot=facts | {"codes": table.n_codes})
    store.close()
    assert "has 1 codes that the store does not have" in verify(folder).problems[0]


def test_what_is_no_problem(folder: Path, tmp_path: Path) -> None:
    (folder / "table-000000000000.snapshot").write_bytes(b"left by a crash")
    (note,) = verify(folder).notes
    assert note.startswith("table-000000000000.snapshot")


def test_its_model(tmp_path: Path) -> None:
    files = write_photos(tmp_path / "photos", 3)
    folder = tmp_path / "a.mch"
    with MCHIndex.open(folder, small_model()) as index:
        index.add(files)
    files[1].unlink()
    found = verify(folder)
    assert found.problems == []
    assert found.missing == 1
    assert found.notes == ["images whose files no longer exist: 1"]
    weights = folder / "model" / "model.safetensors"
    sound = weights.read_bytes()
    weights.write_bytes(sound[:-2] + bytes(2))
    assert "damaged" in verify(folder).problems[0]
    assert verify(folder, model=False).problems == []
    weights.write_bytes(sound)
    config = folder / "model" / "config.json"
    facts = json.loads(config.read_text())
    config.write_text(json.dumps(facts | {"fingerprint": "other"}))
    assert "is another: other, not " in verify(folder).problems[0]
    config.write_text("{")
    assert "cannot be read" in verify(folder).problems[0]
    shutil.rmtree(folder / "model")
    assert "is not installed" in verify(folder).problems[0]


def test_a_writer_is_waited_for(folder: Path) -> None:
    store = Store(folder)
    with store.writer(), pytest.raises(StoreBusyError):
        verify(folder, wait=0.05)
    store.close()
    assert verify(folder, wait=0).problems == []
