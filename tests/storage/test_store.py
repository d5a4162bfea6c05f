"""Damage: an index that lost bytes or files gives what was stored, or an error of its own."""

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
    of,
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
    states: list[tuple[Any, Any]]  # content and answers after every commit; the last is whole


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Original:
    """Images by codes and by pictures, some replaced and some removed, with a snapshot and a model
    of its own; some of it in the file, and the rest in the log."""
    folder = tmp_path_factory.mktemp("original")
    states = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mchindex.index.table, "SNAPSHOT_AFTER", 60)
        with MCHIndex.open(folder / "live", tiny_model()) as index:

            def done(_: object = None) -> None:
                states.append((content(index), answers(index, QUERIES)))

            add_codes(index, range(120))
            done()
            index._store._write.execute("PRAGMA wal_checkpoint(TRUNCATE)")
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


def named(kind: str, folder: Path) -> Path:
    """One file of every kind that an index has."""
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
            os.link(source, target)  # never changed in place

    shutil.copytree(original.folder, to, copy_function=copy)
    return to


def spoil(path: Path, change: Callable[[bytes], bytes]) -> None:
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(change(data))


def cut(length: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:length]


def exchanged(other: bytes) -> Callable[[bytes], bytes]:
    return lambda data: other


def flipped(data: bytes, at: int, mask: int) -> bytes:
    return data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :]


def examine(folder: Path, original: Original, kind: str) -> str:
    """Fails if a damaged index says anything but what was stored, or with an error not ours."""
    # A broken log ends where it is broken; nothing else excuses an earlier state.
    states = original.states if kind == "log" else original.states[-1:]
    whole = states[-1][0]
    verdict = "sound"
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
                    assert of(index[id_]) in [images.get(id_) for images, _ in states]
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
    """Where to flip: anywhere, and above all where a page or a frame begins."""
    rng = np.random.default_rng(seed)
    size = {"file": 4096, "log": 4096 + 24}.get(kind, len(data))
    starts = np.arange(0, len(data), size)
    heads = (rng.choice(starts, count // 2) + rng.integers(0, 40, count // 2)) % len(data)
    return [*heads.tolist(), *rng.integers(0, len(data), count - count // 2).tolist()]


def flip_often(original: Original, folder: Path, kind: str, count: int, seed: int) -> set[str]:
    data = named(kind, original.folder).read_bytes()
    rng = np.random.default_rng(seed)
    verdicts = set()
    for at in places(data, kind, count, seed):
        mask = int(rng.choice([1, 0x80, 0xFF, int(rng.integers(1, 256))]))
        copy = copy_of(original, folder / "copy")
        spoil(named(kind, copy), partial(flipped, at=at, mask=mask))
        try:
            verdicts.add(examine(copy, original, kind))
        except BaseException as error:
            error.add_note(f"{kind}, byte {at} ^ {mask:#x}")
            raise
    return verdicts


SEEN = {  # what flips in each file lead to
    "file": {"sound", "damaged", "StoreDamagedError"},
    "log": {"earlier"},
    "shared": {"sound"},
    "snapshot": {"sound"},
    "lock": {"sound"},
    "config": {"no model"},
    "weights": {"no model"},
}


@pytest.mark.parametrize("kind", KINDS)
def test_flipped_bytes(kind: str, original: Original, tmp_path: Path) -> None:
    count = {"file": 80, "log": 20}.get(kind, 8)
    assert flip_often(original, tmp_path, kind, count, seed=0) >= SEEN[kind]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_many_flipped_bytes(kind: str, original: Original, tmp_path: Path) -> None:
    count = {"file": 3000, "log": 500}.get(kind, 100)
    assert flip_often(original, tmp_path, kind, count, seed=1) >= SEEN[kind]


def cut_often(original: Original, folder: Path, kind: str, lengths: list[int]) -> list[str]:
    verdicts = []
    for length in lengths:
        copy = copy_of(original, folder / "copy")
        spoil(named(kind, copy), cut(length))
        verdicts.append(examine(copy, original, kind))
    return verdicts


def test_a_log_cut_anywhere_gives_an_earlier_state(original: Original, tmp_path: Path) -> None:
    size = named("log", original.folder).stat().st_size
    verdicts = cut_often(original, tmp_path, "log", [*range(0, size, size // 15), size])
    assert set(verdicts) == {"earlier", "sound"}


@pytest.mark.parametrize("kind", sorted({*KINDS} - {"log"}))
def test_files_cut_short(kind: str, original: Original, tmp_path: Path) -> None:
    size = named(kind, original.folder).stat().st_size
    verdicts = cut_often(original, tmp_path, kind, [0, size // 3])
    sound = kind in ("shared", "snapshot", "lock")
    assert all((verdict == "sound") == sound for verdict in verdicts), verdicts


@pytest.mark.parametrize("kind", KINDS)
def test_files_lost(kind: str, original: Original, tmp_path: Path) -> None:
    copy = copy_of(original, tmp_path / "copy")
    named(kind, copy).unlink()
    verdict = examine(copy, original, kind)
    assert verdict == {"file": "NotAnIndexError", "log": "earlier"}.get(
        kind, "no model" if kind in ("config", "weights") else "sound"
    )


def test_files_put_in_the_place_of_others(original: Original, tmp_path: Path) -> None:
    """Whatever stands where a file of ours should be."""
    for kind in KINDS:
        for other in (b"", b"x" * 5000, os.urandom(8192), sqlite_file(tmp_path)):
            copy = copy_of(original, tmp_path / "copy")
            spoil(named(kind, copy), exchanged(other))
            verdict = examine(copy, original, kind)
            assert kind != "file" or verdict in ("NotAnIndexError", "StoreDamagedError")
        path = named(kind, copy_of(original, tmp_path / "copy"))
        path.unlink()
        path.mkdir()
        examine(tmp_path / "copy", original, kind)


def sqlite_file(folder: Path) -> bytes:
    """Of another program."""
    path = folder / "other.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE IF NOT EXISTS images (a, b)")
        db.commit()
    return path.read_bytes()


# Beyond the surface: damage that SQLite itself would not notice.


def changed(folder: Path, *statements: str) -> None:
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
def test_records_that_are_not_as_they_were_written(
    statement: str, snapshot: bool, original: Original, tmp_path: Path
) -> None:
    copy = copy_of(original, tmp_path / "copy")
    if not snapshot:
        named("snapshot", copy).unlink()
    changed(copy, statement)
    verdict = examine(copy, original, "file")
    if re.search("(UPDATE|FROM) gone", statement) and not snapshot:
        assert verdict == "sound"  # who starts from nothing needs to forget nothing
    else:
        assert verdict in ("damaged", "StoreDamagedError")


def test_a_snapshot_of_another_index_is_not_used(original: Original, tmp_path: Path) -> None:
    copy = copy_of(original, tmp_path / "copy")
    table = mchindex.BucketTable(BITS)
    table.add([1, 2], codes_for(1)[:1].repeat(2, 0))
    table.save(tmp_path / "other")
    spoil(named("snapshot", copy), exchanged((tmp_path / "other").read_bytes()))
    assert examine(copy, original, "snapshot") == "sound"


def test_salvage(original: Original, tmp_path: Path) -> None:
    copy = copy_of(original, tmp_path / "copy")
    with contextlib.closing(Store(copy)) as store:
        rows = [row for row in store.salvage() if row is not None]
    assert len(rows) == 126
    by_id = {row.id: row for row in rows}
    changed(
        copy, "UPDATE images SET codes = x'00' WHERE id = 7",
        "UPDATE images SET metadata = '{}' WHERE id = 8", "DELETE FROM meta",
    )  # fmt: skip
    with contextlib.closing(Store(copy)) as store:
        rescued = list(store.salvage())
    assert rescued.count(None) == 2
    assert {row.id: row for row in rescued if row is not None} == {
        id_: row for id_, row in by_id.items() if id_ not in (7, 8)
    }


def test_salvage_of_a_file_with_torn_pages(tmp_path: Path) -> None:
    with MCHIndex.open(tmp_path / "i", bits=BITS) as index:
        add_codes(index, range(2000))
        whole = {row.key: row for row in index._store.each()}
    pages = (tmp_path / "i" / FILE).stat().st_size // 4096
    torn = bytearray((tmp_path / "i" / FILE).read_bytes())
    for page in range(3, pages, 11):
        torn[page * 4096 : (page + 1) * 4096] = os.urandom(4096)
    (tmp_path / "i" / FILE).write_bytes(torn)
    with contextlib.closing(Store(tmp_path / "i")) as store:
        rescued = [row for row in store.salvage() if row is not None]
    assert 500 < len(rescued) < 2000
    assert all(whole[row.key] == row for row in rescued)


# What is not an index, or not ours to open.


def test_places_that_hold_something_else(tmp_path: Path) -> None:
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


def test_a_newer_format(tmp_path: Path) -> None:
    MCHIndex.open(tmp_path / "i", bits=8).close()
    changed(tmp_path / "i", "PRAGMA user_version = 2")
    with pytest.raises(StoreVersionError, match="update mchindex"):
        MCHIndex.open(tmp_path / "i")


def test_a_full_disk(tmp_path: Path) -> None:
    with MCHIndex.open(tmp_path / "i", bits=BITS) as index:
        add_codes(index, range(10))
        before = content(index)
        index._store._write.execute("PRAGMA max_page_count = 20")
        with pytest.raises(StoreError, match="full"):
            add_codes(index, range(10, 3000))
        assert content(index) == before
        index._store._write.execute("PRAGMA max_page_count = 1000000")
        add_codes(index, range(10, 3000))
        assert len(index) == 3000


def test_no_room_for_a_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mchindex.index.table, "SNAPSHOT_AFTER", 1)
    with MCHIndex.open(tmp_path / "i", bits=BITS) as index:
        table = index._live._table

        class Full:
            n_codes = 0

            def __getattr__(self, name: str) -> Any:
                return getattr(table, name)

            def __len__(self) -> int:
                return len(table)

            def save(self, path: Path) -> None:
                raise OSError(28, "No space left on device")

        index._live._table = Full()  # type: ignore[assignment]
        add_codes(index, range(10))
        assert len(index) == 10
    assert not list((tmp_path / "i").glob("table-*"))


def test_snapshots_of_crashed_writers_are_cleared_away(
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


def test_creating_is_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash while an index is made leaves nothing that is in the way of making it."""

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


def test_a_disk_without_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    with MCHIndex.open(tmp_path / "i", bits=BITS) as index:
        add_codes(index, range(3))
    with MCHIndex.open(tmp_path / "i") as index:
        assert len(index) == 3


# The store by itself.


@pytest.fixture
def store() -> Iterator[Store]:
    with contextlib.closing(Store(None)) as made:
        yield made


def test_transactions_need_the_writers_lock(store: Store) -> None:
    with pytest.raises(RuntimeError, match="lock"):
        store.insert([Row(1, b"x")])


def test_a_failed_transaction_leaves_nothing(store: Store) -> None:
    with store.writer():
        store.insert([Row(1, b"x")])

        def add_and_fail() -> None:
            with store.transaction() as db:
                store._insert(db, [Row(2, b"x")], store._state(db))
                raise KeyError("something else")

        with pytest.raises(KeyError, match="something else"):
            add_and_fail()
        assert len(store) == 1
        assert [row.id for row in store.each()] == [1]


def test_keys_are_never_given_twice(store: Store) -> None:
    with store.writer():
        store.insert([Row(i, b"x") for i in range(3)])
        store.remove([2])
        store.insert([Row(2, b"y"), Row(0, b"z")])
    assert [(row.key, row.id) for row in store.each()] == [(2, 1), (4, 2), (5, 0)]
    assert store.removed(0).tolist() == [3, 1]


def test_a_writer_waits_for_another(tmp_path: Path) -> None:
    a = Store(tmp_path / "i")
    b = Store(tmp_path / "i")
    with a.writer():
        with pytest.raises(StoreBusyError, match=f"process {os.getpid()}"), b.writer():
            pass
        with pytest.raises(StoreBusyError, match="waited"), b.writer(0.01):
            pass
        with a.writer():  # one's own lock is no obstacle
            a.insert([Row(1, b"x")])
    with b.writer():
        b.insert([Row(2, b"x")])
    assert len(a) == len(b) == 2
    a.close()
    b.close()


# No pickle.


def test_no_source_unpickles() -> None:
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
    """Files that do harm if they are unpickled."""
    stream, archive = io.BytesIO(), io.BytesIO()
    torch.save({"x": Harm(trace)}, stream)
    np.savez(archive, x=np.array([Harm(trace)], object))
    return {
        "pickle": pickle.dumps(Harm(trace)), "pt": stream.getvalue(), "npz": archive.getvalue()
    }  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_files_that_bite(kind: str, original: Original, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    for data in harmful(trace).values():
        copy = copy_of(original, tmp_path / "copy")
        spoil(named(kind, copy), exchanged(data))
        examine(copy, original, kind)
        assert not trace.exists()
    pickle.loads(harmful(trace)["pickle"])
    assert trace.exists()  # it would have bitten
