"""A damaged index returns what was stored or raises one of our errors, and nothing else."""

import contextlib
import io
import os
import pickle
import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import mchindex
import mchindex.index.facade
import mchindex.index.table
import mchindex.storage.schema
import mchindex.storage.store
from helpers.indexes import (
    BITS,
    answers,
    assert_as_fresh,
    codes_for,
    content,
    drawn,
    fields_of,
    tiny_model,
)
from helpers.toys import Harm
from mchindex import MCHIndex
from mchindex.errors import (
    ModelError,
    NotAnIndexError,
    StoreBusyError,
    StoreDamagedError,
    StoreError,
    StoreVersionError,
)
from mchindex.models import MCHModel
from mchindex.storage.lock import FILE as LOCK
from mchindex.storage.records import Row
from mchindex.storage.rescue import salvage
from mchindex.storage.schema import FILE
from mchindex.storage.store import Store

QUERIES = np.random.default_rng(0).integers(0, 256, (6, BITS // 8), np.uint8)


def add_codes(index: MCHIndex, ids: range, version: int = 0) -> None:
    rows = [codes_for(i, version) for i in ids]
    index.add_codes(
        np.repeat(np.arange(ids.start, ids.stop), [len(r) for r in rows]),
        np.concatenate(rows),
        np.concatenate([np.arange(len(r)) for r in rows]),
        metadata=[{"version": version, "name": f"picture {i}"} for i in ids],
    )


class Original(NamedTuple):
    folder: Path
    states: list[tuple[Any, Any]]  # content and answers after each commit; the last is complete


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Original:
    """An index of codes and pictures, some replaced and some removed, with a snapshot and a model
    that does not ship. Part of it is in the database file, the rest in the write-ahead log."""
    folder = tmp_path_factory.mktemp("original")
    states = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mchindex.index.table, "SNAPSHOT_AFTER", 60)
        with MCHIndex.open(folder / "live", tiny_model()) as index:

            def done(_: object = None) -> None:
                states.append((content(index), answers(index, QUERIES)))

            add_codes(index, range(120))
            done()
            execute(folder / "live", "PRAGMA wal_checkpoint(TRUNCATE)")
            ids = [f"picture {i}" for i in range(9)]
            index.add([drawn(i) for i in range(9)], ids, batch=3, progress=done)
            index.remove([3, 4, 5])
            done()
            add_codes(index, range(20, 30), version=1)
            done()
            index.set_metadata("picture 1", {"set": "later"})
            done()
            assert_as_fresh(index)
            shutil.copytree(folder / "live", folder / "index")  # as a crash would leave it
    assert len(states) == 7
    assert (folder / "index" / f"{FILE}-wal").stat().st_size > 4096
    return Original(folder / "index", states)


KINDS = ("file", "log", "shared", "snapshot", "lock", "config", "weights")


def file_of(kind: str, folder: Path) -> Path:
    """The index's file of this kind."""
    if kind == "snapshot":
        return next(folder.glob("table-*"))
    name = {
        "file": FILE, "log": f"{FILE}-wal", "shared": f"{FILE}-shm", "lock": LOCK,
        "config": "model/config.json", "weights": "model/model.safetensors",
    }[kind]  # fmt: skip
    return folder / name


def copy_of(original: Original, to: Path) -> Path:
    shutil.rmtree(to, ignore_errors=True)

    def copy(source: str, target: str) -> None:
        if FILE in source or LOCK in source:
            shutil.copy(source, target)
        else:
            os.link(source, target)  # quick, and safe because `spoil` never changes it in place

    shutil.copytree(original.folder, to, copy_function=copy)
    return to


def spoil(path: Path, change: Callable[[bytes], bytes]) -> None:
    """Replaces a file with a changed copy."""
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(change(data))


def cut(length: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:length]


def replaced_by(other: bytes) -> Callable[[bytes], bytes]:
    return lambda data: other


def flipped(data: bytes, at: int, mask: int) -> bytes:
    return data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :]


def examine(folder: Path, original: Original, kind: str) -> str:
    """Fails if a damaged index returns what was not stored or raises an error that is not ours.

    Returns what the index turned out to be: "intact", "damaged", "earlier" (an earlier state), "no
    model", or the name of the error that opening it raised.
    """
    # A damaged log is read up to the damage. No other damage may give an earlier state.
    states = original.states if kind == "log" else original.states[-1:]
    whole = states[-1][0]
    verdict = "intact"
    try:
        with MCHIndex.open(folder) as index:
            try:
                got = content(index)
            except StoreDamagedError:
                verdict = "damaged"
            else:
                assert got in [images for images, _ in states]
                states = [state for state in states if state[0] == got]
                if got != whole:
                    verdict = "earlier"
            try:
                assert answers(index, QUERIES) in [hits for _, hits in states]
            except StoreDamagedError:
                verdict = "damaged"
            for id_ in list(whole)[::7]:
                try:
                    assert fields_of(index[id_]) in [images.get(id_) for images, _ in states]
                except KeyError:
                    assert any(id_ not in images for images, _ in states)
                except StoreDamagedError:
                    verdict = "damaged"
            if kind in ("config", "weights"):
                try:
                    assert index.model.fingerprint == tiny_model().fingerprint
                except ModelError:
                    verdict = "no model"
    except StoreError as error:
        verdict = type(error).__name__
    return verdict


def places(data: bytes, kind: str, count: int, seed: int) -> list[int]:
    """Which bytes to flip: half of them anywhere, half at the start of a page or a frame."""
    rng = np.random.default_rng(seed)
    size = {"file": 4096, "log": 4096 + 24}.get(kind, len(data))
    starts = np.arange(0, len(data), size)
    heads = (rng.choice(starts, count // 2) + rng.integers(0, 40, count // 2)) % len(data)
    return [*heads.tolist(), *rng.integers(0, len(data), count - count // 2).tolist()]


def flip_often(original: Original, folder: Path, kind: str, count: int, seed: int) -> set[str]:
    data = file_of(kind, original.folder).read_bytes()
    rng = np.random.default_rng(seed)
    verdicts = set()
    for at in places(data, kind, count, seed):
        mask = int(rng.choice([1, 0x80, 0xFF, int(rng.integers(1, 256))]))
        copy = copy_of(original, folder / "copy")
        spoil(file_of(kind, copy), partial(flipped, at=at, mask=mask))
        try:
            verdicts.add(examine(copy, original, kind))
        except BaseException as error:
            error.add_note(f"{kind}, byte {at} ^ {mask:#x}")
            raise
    return verdicts


EXPECTED = {  # the verdicts that flipped bytes in each file must lead to, at least
    "file": {"intact", "damaged", "StoreDamagedError"},
    "log": {"earlier"},
    "shared": {"intact"},
    "snapshot": {"intact"},
    "lock": {"intact"},
    "config": {"no model"},
    "weights": {"no model"},
}


@pytest.mark.parametrize("kind", KINDS)
def test_flipped_bytes_never_give_a_wrong_answer(
    kind: str, original: Original, tmp_path: Path
) -> None:
    count = {"file": 80, "log": 20}.get(kind, 8)
    assert flip_often(original, tmp_path, kind, count, seed=0) >= EXPECTED[kind]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_many_flipped_bytes_never_give_a_wrong_answer(
    kind: str, original: Original, tmp_path: Path
) -> None:
    count = {"file": 3000, "log": 500}.get(kind, 100)
    assert flip_often(original, tmp_path, kind, count, seed=1) >= EXPECTED[kind]


def cut_often(original: Original, folder: Path, kind: str, lengths: list[int]) -> list[str]:
    verdicts = []
    for length in lengths:
        copy = copy_of(original, folder / "copy")
        spoil(file_of(kind, copy), cut(length))
        verdicts.append(examine(copy, original, kind))
    return verdicts


def test_a_truncated_log_gives_an_earlier_state(original: Original, tmp_path: Path) -> None:
    size = file_of("log", original.folder).stat().st_size
    verdicts = cut_often(original, tmp_path, "log", [*range(0, size, size // 15), size])
    assert set(verdicts) == {"earlier", "intact"}


@pytest.mark.parametrize("kind", sorted({*KINDS} - {"log"}))
def test_truncated_files_never_give_a_wrong_answer(
    kind: str, original: Original, tmp_path: Path
) -> None:
    size = file_of(kind, original.folder).stat().st_size
    verdicts = cut_often(original, tmp_path, kind, [0, size // 3])
    harmless = kind in ("shared", "snapshot", "lock")
    assert all((verdict == "intact") == harmless for verdict in verdicts), verdicts


@pytest.mark.parametrize("kind", KINDS)
def test_missing_files_never_give_a_wrong_answer(
    kind: str, original: Original, tmp_path: Path
) -> None:
    copy = copy_of(original, tmp_path / "copy")
    file_of(kind, copy).unlink()
    verdict = examine(copy, original, kind)
    assert verdict == {"file": "NotAnIndexError", "log": "earlier"}.get(
        kind, "no model" if kind in ("config", "weights") else "intact"
    )


def test_foreign_files_never_give_a_wrong_answer(original: Original, tmp_path: Path) -> None:
    """Each file of an index is replaced by other content or by a folder."""
    for kind in KINDS:
        for other in (b"", b"x" * 5000, os.urandom(8192), sqlite_file(tmp_path)):
            copy = copy_of(original, tmp_path / "copy")
            spoil(file_of(kind, copy), replaced_by(other))
            verdict = examine(copy, original, kind)
            assert kind != "file" or verdict in ("NotAnIndexError", "StoreDamagedError")
        path = file_of(kind, copy_of(original, tmp_path / "copy"))
        path.unlink()
        path.mkdir()
        examine(tmp_path / "copy", original, kind)


def sqlite_file(folder: Path) -> bytes:
    """The database of another program."""
    path = folder / "other.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE IF NOT EXISTS images (a, b)")
        db.commit()
    return path.read_bytes()


# Damage that SQLite itself does not detect.


def execute(folder: Path, *statements: str) -> None:
    with contextlib.closing(sqlite3.connect(folder / FILE, isolation_level=None)) as db:
        for statement in statements:
            db.execute(statement)


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM images WHERE key = 7",
        "DELETE FROM images WHERE key > 125",
        "DELETE FROM meta WHERE name = 'state'",
        "DELETE FROM meta",
        "UPDATE meta SET value = replace(value, '3', '4')",
        "UPDATE meta SET value = '[1' WHERE name = 'state'",
        "UPDATE gone SET key = 8",
        "DELETE FROM gone WHERE seq = (SELECT max(seq) FROM gone)",
        "UPDATE images SET codes = zeroblob(length(codes))",
        "UPDATE images SET codes = 'text'",
        "UPDATE images SET codes = x''",
        "UPDATE images SET codes = (SELECT codes FROM images WHERE key = 9)",
        "UPDATE images SET metadata = '{}'",
        "UPDATE images SET metadata = cast(x'ff' AS TEXT)",
        "UPDATE images SET width = 1, path = 'p'",
        "UPDATE images SET key = key + 1000",
        "DROP TABLE gone",
        "DROP TABLE images",
        "DROP TABLE meta",
        "ALTER TABLE images RENAME COLUMN codes TO c",
        "CREATE INDEX other ON images (path)",
        "CREATE TRIGGER t AFTER INSERT ON images BEGIN DELETE FROM images; END",
    ],
)
@pytest.mark.parametrize("snapshot", [True, False], ids=["snapshot", "none"])
def test_changed_records_are_detected(
    statement: str, snapshot: bool, original: Original, tmp_path: Path
) -> None:
    copy = copy_of(original, tmp_path / "copy")
    if not snapshot:
        file_of("snapshot", copy).unlink()
    execute(copy, statement)
    verdict = examine(copy, original, "file")
    if re.search("(UPDATE|FROM) gone", statement) and not snapshot:
        assert verdict == "intact"  # a table built from scratch does not need the removals
    else:
        assert verdict in ("damaged", "StoreDamagedError")


def test_a_snapshot_of_another_index_is_not_used(original: Original, tmp_path: Path) -> None:
    copy = copy_of(original, tmp_path / "copy")
    table = mchindex.BucketTable(BITS)
    table.add([1, 2], codes_for(1)[:1].repeat(2, 0))
    table.save(tmp_path / "other")
    spoil(file_of("snapshot", copy), replaced_by((tmp_path / "other").read_bytes()))
    assert examine(copy, original, "snapshot") == "intact"


def test_salvage_gives_the_intact_records(original: Original, tmp_path: Path) -> None:
    copy = copy_of(original, tmp_path / "copy")
    with contextlib.closing(Store(copy)) as store:
        rows = [row for row in salvage(store) if row is not None]
    assert len(rows) == 126
    by_id = {row.id: row for row in rows}
    execute(
        copy, "UPDATE images SET codes = x'00' WHERE id = 7",
        "UPDATE images SET metadata = '{}' WHERE id = 8", "DELETE FROM meta",
    )  # fmt: skip
    with contextlib.closing(Store(copy)) as store:
        rescued = list(salvage(store))
    assert rescued.count(None) == 2
    assert {row.id: row for row in rescued if row is not None} == {
        id_: row for id_, row in by_id.items() if id_ not in (7, 8)
    }


def test_salvage_gives_the_records_outside_damaged_pages(tmp_path: Path) -> None:
    with MCHIndex.open(tmp_path / "i", bits=BITS) as index:
        add_codes(index, range(2000))
    with contextlib.closing(Store(tmp_path / "i")) as store:
        whole = {row.key: row for row in store.each()}
    pages = (tmp_path / "i" / FILE).stat().st_size // 4096
    torn = bytearray((tmp_path / "i" / FILE).read_bytes())
    for page in range(3, pages, 11):
        torn[page * 4096 : (page + 1) * 4096] = os.urandom(4096)
    (tmp_path / "i" / FILE).write_bytes(torn)
    with contextlib.closing(Store(tmp_path / "i")) as store:
        rescued = [row for row in salvage(store) if row is not None]
    assert 500 < len(rescued) < 2000
    assert all(whole[row.key] == row for row in rescued)


# Opening and creating an index.


def test_paths_that_hold_something_else_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(NotAnIndexError, match="is a file"):
        MCHIndex.open(tmp_path / "file", bits=8)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").write_text("x")
    with pytest.raises(NotAnIndexError, match="other files"):
        MCHIndex.open(tmp_path / "photos", bits=8)
    with pytest.raises(NotAnIndexError):
        MCHIndex.open(tmp_path / "none", bits=8, create=False)
    assert sorted(os.listdir(tmp_path)) == ["file", "photos"]
    with pytest.raises(StoreError, match="file"):
        MCHIndex.open(tmp_path / "file" / "index", bits=8)
    (tmp_path / "photos" / FILE).write_bytes(sqlite_file(tmp_path))
    with pytest.raises(NotAnIndexError):
        MCHIndex.open(tmp_path / "photos", bits=8)


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    MCHIndex.open(tmp_path / "i", bits=8).close()
    execute(tmp_path / "i", "PRAGMA user_version = 4")
    with pytest.raises(StoreVersionError, match="update mchindex"):
        MCHIndex.open(tmp_path / "i")


def set_page_limit(index: MCHIndex, pages: int) -> None:
    """Makes SQLite behave as if the disk had room for this many pages only."""
    assert index._store._write is not None
    with index._store._write.use() as db:
        db.execute(f"PRAGMA max_page_count = {pages}")


def test_a_full_disk_leaves_the_index_unchanged(tmp_path: Path) -> None:
    with MCHIndex.open(tmp_path / "i", bits=BITS) as index:
        add_codes(index, range(10))
        before = content(index)
        set_page_limit(index, 20)
        with pytest.raises(StoreError, match="full"):
            add_codes(index, range(10, 3000))
        assert content(index) == before
        set_page_limit(index, 1_000_000)
        add_codes(index, range(10, 3000))
        assert len(index) == 3000


def test_images_are_stored_even_if_a_snapshot_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mchindex.index.table, "SNAPSHOT_AFTER", 1)
    attempts = []

    def save(table: mchindex.BucketTable, path: Path) -> None:
        attempts.append(path)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(mchindex.BucketTable, "save", save)
    with MCHIndex.open(tmp_path / "i", bits=BITS) as index:
        add_codes(index, range(10))
        assert len(index) == 10
    assert attempts
    assert not list((tmp_path / "i").glob("table-*"))
    with MCHIndex.open(tmp_path / "i") as index:
        assert_as_fresh(index)


def test_snapshots_of_crashed_writers_are_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mchindex.index.table, "SNAPSHOT_AFTER", 1)
    with MCHIndex.open(tmp_path / "i", bits=BITS) as index:
        add_codes(index, range(10))
        (old,) = (tmp_path / "i").glob("table-*")
        for name in ("table-0123.snapshot", "table-4567.snapshot.tmp.99.0"):
            (tmp_path / "i" / name).write_bytes(old.read_bytes())
        add_codes(index, range(10, 20))
        (new,) = (tmp_path / "i").glob("table-*")
        assert new != old


def test_an_index_can_be_created_after_a_crash_while_creating_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    for where, name in ((mchindex.storage.schema, "create"), (os, "link"), (MCHModel, "save")):
        with monkeypatch.context() as patch:
            patch.setattr(where, name, crash)
            with pytest.raises(KeyboardInterrupt):
                MCHIndex.open(tmp_path / "i", tiny_model())
        (tmp_path / "i" / ".new-left").mkdir(exist_ok=True, parents=True)
    with MCHIndex.open(tmp_path / "i", tiny_model()) as index:
        index.add([drawn(0)])
    with MCHIndex.open(tmp_path / "i") as index:
        assert index.model.fingerprint == tiny_model().fingerprint


def test_an_index_can_be_created_without_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    with MCHIndex.open(tmp_path / "i", bits=BITS) as index:
        add_codes(index, range(3))
    with MCHIndex.open(tmp_path / "i") as index:
        assert len(index) == 3


# The store on its own.


@pytest.fixture
def store() -> Iterator[Store]:
    with contextlib.closing(Store(None)) as made:
        yield made


def test_transactions_need_the_writers_lock(store: Store) -> None:
    with pytest.raises(RuntimeError, match="lock"):
        store.insert([Row(1, b"x")])


def test_a_failed_transaction_is_rolled_back(store: Store) -> None:
    with store.writer():
        store.insert([Row(1, b"x")])

        def change_and_fail() -> None:
            with store.transaction() as db:
                db.execute("UPDATE images SET id = 2")
                db.execute("DELETE FROM meta")
                raise KeyError("something else")

        with pytest.raises(KeyError, match="something else"):
            change_and_fail()
        assert len(store) == 1
        assert [row.id for row in store.each()] == [1]


def test_keys_are_never_reused(store: Store) -> None:
    with store.writer():
        store.insert([Row(i, b"x") for i in range(3)])
        store.remove([2])
        store.insert([Row(2, b"y"), Row(0, b"z")])
    assert [(row.key, row.id) for row in store.each()] == [(2, 1), (4, 2), (5, 0)]
    assert store.removed(0).tolist() == [3, 1]


def test_only_one_store_can_write_at_a_time(tmp_path: Path) -> None:
    a = Store(tmp_path / "i")
    b = Store(tmp_path / "i")
    with a.writer():
        with pytest.raises(StoreBusyError, match=f"process {os.getpid()}"), b.writer():
            pass
        with pytest.raises(StoreBusyError, match="waited"), b.writer(0.01):
            pass
        with a.writer():  # the thread that holds the lock can take it again
            a.insert([Row(1, b"x")])
    with b.writer():
        b.insert([Row(2, b"x")])
    assert len(a) == len(b) == 2
    a.close()
    b.close()


# Pickles.


def test_the_package_never_unpickles() -> None:
    root = Path(mchindex.__file__).parent
    for path in root.rglob("*.py"):
        text = path.read_text("utf-8")
        assert not re.search(
            r"^\s*(import|from)\s+(pickle|dill|cloudpickle|shelve|marshal)", text, re.M
        )
        assert "allow_pickle=True" not in text, path
        for call in re.findall(r"torch\.load\(.*?\)", text, re.S):
            assert "weights_only=True" in call, path


def harmful(trace: Path) -> dict[str, bytes]:
    """Files that create the file `trace` if they are unpickled."""
    stream, archive = io.BytesIO(), io.BytesIO()
    torch.save({"x": Harm(trace)}, stream)
    np.savez(archive, x=np.array([Harm(trace)], object))
    return {
        "pickle": pickle.dumps(Harm(trace)), "pt": stream.getvalue(), "npz": archive.getvalue()
    }  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_pickles_in_an_index_are_never_loaded(
    kind: str, original: Original, tmp_path: Path
) -> None:
    trace = tmp_path / "trace"
    for data in harmful(trace).values():
        copy = copy_of(original, tmp_path / "copy")
        spoil(file_of(kind, copy), replaced_by(data))
        examine(copy, original, kind)
        assert not trace.exists()
    pickle.loads(harmful(trace)["pickle"])
    assert trace.exists()  # unpickling them does harm
