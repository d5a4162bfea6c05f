"""What an index keeps on disk: images, their codes and metadata, in one SQLite file.

The table that searches run on is derived from it (`Feed` follows every committed change), so that
losing the table loses nothing. SQLite checks its log but not its pages: rows carry checksums of
their own, and a damaged one is refused, never returned.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sqlite3
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

Id: TypeAlias = str | int
FORMAT = 1
FILE, LOCK = "index.sqlite", "writer.lock"
GONE_KEPT = 100_000  # removals that a reader may lag behind before it reads everything again
CHUNK = 50_000  # rows read at a time

_SCHEMA = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL, crc INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE images (
    key INTEGER PRIMARY KEY AUTOINCREMENT,  -- never given twice: a replaced image gets a new one
    id NOT NULL UNIQUE,                     -- text or integer, as the user gave it
    path TEXT,                              -- '': the same as the id
    size INTEGER, time INTEGER,             -- of the file, in bytes and in ns since the epoch
    hash BLOB,                              -- SHA-256 of the file's bytes or of the pixels
    width INTEGER, height INTEGER,          -- of the upright picture
    metadata TEXT,                          -- JSON
    codes BLOB NOT NULL,                    -- see `pack_codes`
    crc INTEGER NOT NULL                    -- of all but the codes, which have their own
);
CREATE TABLE gone (seq INTEGER PRIMARY KEY AUTOINCREMENT, key INTEGER NOT NULL, id NOT NULL);
"""

# From each format to the next one. Creating an index is the first step.
MIGRATIONS = {0: _SCHEMA}


class StoreError(Exception):
    """An index on disk cannot be used. Base of the errors below."""


class NotAnIndexError(StoreError):
    """The path holds something else."""


class StoreVersionError(StoreError):
    """The index was written by a newer mchindex."""


class StoreDamagedError(StoreError):
    """What is stored does not match its checksums, or SQLite cannot read it."""


class StoreBusyError(StoreError):
    """Another process is writing."""


@dataclass(frozen=True, slots=True)
class CodeSet:
    """The codes of one image."""

    regions: NDArray[np.int16]  # (m,) numbers of the regions
    keep: NDArray[np.float32]  # (m,) the policy's probability of keeping each
    codes: NDArray[np.uint8]  # (m, bits // 8)


@dataclass(frozen=True, slots=True)
class Row:
    """An image as it is stored."""

    id: Id
    codes: bytes  # packed
    path: str | None = None
    size: int | None = None
    time: int | None = None
    hash: bytes | None = None
    width: int | None = None
    height: int | None = None
    metadata: str | None = None
    key: int = -1  # given by the store


@dataclass(frozen=True, slots=True)
class Known:
    """What decides whether an image must be encoded again."""

    key: int
    size: int | None
    time: int | None
    hash: bytes | None
    metadata: str | None


@dataclass
class Position:
    """How far a table has followed the store."""

    key: int = 0  # the last image taken in
    gone: int = 0  # the last removal


@dataclass
class Change:
    """What to do to a table that stands at some position to bring it up to date."""

    removed: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    again: bool = False  # the table must be emptied first


def code_type(bits: int) -> np.dtype[Any]:
    return np.dtype([("region", "<i2"), ("keep", "<f4"), ("code", "u1", (bits // 8,))])


def pack_codes(key: int, entries: bytes) -> bytes:
    """Entries of `code_type`, then the CRC-32 of the key and them."""
    return entries + crc32(entries, key & 0xFFFFFFFF).to_bytes(4, "little")


def unpack_codes(
    keys: Sequence[int], blobs: Sequence[bytes], bits: int
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """The images' keys, one an entry, and the entries; refuses what is damaged."""
    kind = code_type(bits)
    for key, blob in zip(keys, blobs, strict=True):
        if not _sound(key, blob) or len(blob) % kind.itemsize != 4 % kind.itemsize:
            raise StoreDamagedError(f"the codes of image number {key} are damaged")
    counts = np.array([len(b) // kind.itemsize for b in blobs], np.int64)
    entries = np.frombuffer(b"".join([b[:-4] for b in blobs]), kind)
    return np.repeat(np.array(keys, np.int64), counts), entries


def _sound(key: int, blob: Any) -> bool:
    """Whether packed codes, of whatever width, are as they were written."""
    if not isinstance(blob, bytes) or len(blob) < 5:
        return False
    return blob[-4:] == crc32(blob[:-4], key & 0xFFFFFFFF).to_bytes(4, "little")


def _row_crc(key: int, id: Id, *rest: Any) -> int:
    return crc32(f"{key}|{id!r}|{rest!r}".encode("utf-8", "surrogatepass"))


_COLUMNS = "key, id, path, size, time, hash, width, height, metadata, codes, crc"


def _row(values: tuple[Any, ...]) -> Row:
    key, id_, path, size, time_, hash_, width, height, metadata, codes, crc = values
    if crc != _row_crc(key, id_, path, size, time_, hash_, width, height, metadata):
        raise StoreDamagedError(f"the record of image number {key} is damaged")
    if path == "":
        path = str(id_)
    return Row(id_, codes, path, size, time_, hash_, width, height, metadata, key)


def _values(row: Row, key: int) -> tuple[Any, ...]:
    path = "" if row.path is not None and row.path == row.id else row.path
    rest = (path, row.size, row.time, row.hash, row.width, row.height, row.metadata)
    return (key, row.id, *rest, pack_codes(key, row.codes), _row_crc(key, row.id, *rest))


@contextlib.contextmanager
def _named(where: str) -> Iterator[None]:
    """SQLite's errors by the names of ours."""
    try:
        yield
    except sqlite3.OperationalError as error:
        text = str(error)
        if "locked" in text:
            raise StoreBusyError(f"{where}: another process is writing to it") from error
        if "malformed" in text or "no such" in text:
            raise StoreDamagedError(f"{where} is damaged: {text}") from error
        raise StoreError(f"{where}: {text}") from error
    except (sqlite3.DatabaseError, UnicodeDecodeError, OverflowError) as error:
        if isinstance(error, sqlite3.IntegrityError):
            raise
        raise StoreDamagedError(f"{where} is damaged: {error}") from error


class Store:
    """An index's records. Any number of threads and processes read; one at a time writes."""

    def __init__(self, folder: Path | None) -> None:
        """Opens what is there, or creates it. None: in memory."""
        self.folder = folder
        self.name = "the index in memory" if folder is None else str(folder)
        self._lock = threading.RLock()
        self._writing = threading.RLock()
        self._lock_file: int | None = None
        self._depth = 0
        self._written = 0  # commits of this object's own
        if folder is not None and not (folder / FILE).exists():
            self._make(folder)
        with _named(self.name):
            self._read = self._connect()
            self._write = self._read if folder is None else self._connect()
            version = self._read.execute("PRAGMA user_version").fetchone()[0]
        if version > FORMAT:
            self.close()
            raise StoreVersionError(
                f"{self.name} was written by a newer mchindex (format {version}): update mchindex"
            )
        if version < FORMAT:
            with self.writer(10.0), self.transaction() as db:
                version = db.execute("PRAGMA user_version").fetchone()[0]
                for step in range(version, FORMAT):
                    for statement in MIGRATIONS[step].split(";\n"):
                        db.execute(statement)
                    db.execute(f"PRAGMA user_version = {step + 1}")
                if version == 0:
                    self._set(db, "uuid", str(uuid.uuid4()))

    @staticmethod
    def _make(folder: Path) -> None:
        if folder.exists() and not folder.is_dir():
            raise NotAnIndexError(f"{folder} is a file: an index is a folder")
        if folder.is_dir() and any(f.name != LOCK for f in folder.iterdir()):
            raise NotAnIndexError(f"{folder} holds other files and no index: give a new folder")
        folder.mkdir(parents=True, exist_ok=True)

    def _connect(self) -> sqlite3.Connection:
        where = ":memory:" if self.folder is None else str(self.folder / FILE)
        db = sqlite3.connect(where, timeout=10, isolation_level=None, check_same_thread=False)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.execute("PRAGMA cache_size = -65536")  # KiB
        db.execute("PRAGMA wal_autocheckpoint = 8192")  # pages
        return db

    def close(self) -> None:
        with self._lock:
            self._read.close()
            self._write.close()

    # Writing.

    @contextlib.contextmanager
    def writer(self, wait: float = 0.0) -> Iterator[None]:
        """Makes this the one writer, after `wait` seconds at most."""
        deadline = time.monotonic() + wait
        if not self._writing.acquire(timeout=max(wait, 0)):
            raise StoreBusyError(self._busy(wait))
        try:
            if self._depth == 0 and self.folder is not None:
                self._lock_file = self._flock(deadline, wait)
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                if self._depth == 0 and self._lock_file is not None:
                    os.close(self._lock_file)
                    self._lock_file = None
        finally:
            self._writing.release()

    def _flock(self, deadline: float, wait: float) -> int:
        assert self.folder is not None
        file = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.truncate(file, 0)
                    os.pwrite(file, str(os.getpid()).encode(), 0)
                    return file
                except BlockingIOError:
                    if time.monotonic() >= deadline:
                        holder = os.pread(file, 20, 0).decode(errors="replace")
                        raise StoreBusyError(self._busy(wait, holder)) from None
                    time.sleep(min(0.05, max(0.001, deadline - time.monotonic())))
        except BaseException:
            os.close(file)
            raise

    def _busy(self, wait: float, holder: str = "") -> str:
        who = f"process {holder}" if holder else "another thread"
        waited = f" (waited {wait:g} s)" if wait else ""
        return f"{self.name}: {who} is writing to it{waited}; one writer at a time"

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All or nothing, and on the disk when it is over. Only within `writer`."""
        if self._depth == 0:
            raise RuntimeError("a transaction needs the writer's lock")
        with self._lock if self.folder is None else contextlib.nullcontext(), _named(self.name):
            db = self._write
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                db.execute("COMMIT")
                self._written += 1
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise

    def insert(self, rows: Sequence[Row]) -> list[Id]:
        """Stores images; those whose id is there already are replaced. Returns the replaced ids."""
        with self.transaction() as db:
            first = self._next(db, "images")
            try:
                db.execute("SAVEPOINT fresh")
                self._insert(db, rows, first)
                return []
            except sqlite3.IntegrityError:
                db.execute("ROLLBACK TO fresh")
            latest = {row.id: row for row in rows}  # an id twice in a batch: the last one counts
            known = _known(db, latest)
            self._drop(db, known)
            self._insert(db, list(latest.values()), first)
            return list(known)

    @staticmethod
    def _insert(db: sqlite3.Connection, rows: Sequence[Row], first: int) -> None:
        db.executemany(
            f"INSERT INTO images ({_COLUMNS}) VALUES (?,?,?,?,?,?,?,?,?,?,?)",
            (_values(row, key) for key, row in enumerate(rows, first)),
        )

    @staticmethod
    def _next(db: sqlite3.Connection, table: str) -> int:
        found = db.execute("SELECT seq FROM sqlite_sequence WHERE name = ?", (table,)).fetchone()
        return 1 + (found[0] if found else 0)

    def next_id(self) -> int:
        """The smallest integer above all integers that are ids: 0 at first."""
        with self._lock, _named(self.name):
            # Integers come before text in SQLite's order, so the index on ids has the answer.
            found = self._read.execute(
                "SELECT id FROM images WHERE id < '' ORDER BY id DESC LIMIT 1"
            ).fetchone()
        return max(0, 1 + found[0]) if found else 0

    def remove(self, ids: Sequence[Id]) -> int:
        """Forgets images; returns how many of them were there."""
        with self.transaction() as db:
            known = _known(db, ids)
            self._drop(db, known)
            return len(known)

    @staticmethod
    def _drop(db: sqlite3.Connection, known: dict[Id, Known]) -> None:
        db.executemany("DELETE FROM images WHERE key = ?", [(k.key,) for k in known.values()])
        gone = [(k.key, id_) for id_, k in known.items()]
        db.executemany("INSERT INTO gone (key, id) VALUES (?, ?)", gone)

    def touch(self, ids: dict[Id, dict[str, Any]]) -> None:
        """Changes columns of images whose codes stay: the file's time, the metadata."""
        with self.transaction() as db:
            for row in list(_rows(db, "id", list(ids))):
                kept = {"time": row.time, "size": row.size, "metadata": row.metadata}
                new = kept | ids[row.id]
                path = "" if row.path is not None and row.path == row.id else row.path
                crc = _row_crc(
                    row.key, row.id, path, new["size"], new["time"], row.hash, row.width,
                    row.height, new["metadata"],
                )  # fmt: skip
                db.execute(
                    "UPDATE images SET size = ?, time = ?, metadata = ?, crc = ? WHERE key = ?",
                    (new["size"], new["time"], new["metadata"], crc, row.key),
                )

    def trim_removals(self) -> None:
        """Forgets removals that every reader has long seen."""
        with self.transaction() as db:
            last = self._next(db, "gone") - 1
            db.execute("DELETE FROM gone WHERE seq <= ?", (last - GONE_KEPT,))

    # Facts about the index itself.

    def get(self, name: str) -> Any:
        with self._lock, _named(self.name):
            found = self._read.execute(
                "SELECT value, crc FROM meta WHERE name = ?", (name,)
            ).fetchone()
        if found is None:
            return None
        if found[1] != crc32(f"{name} {found[0]}".encode()):
            raise StoreDamagedError(f"{self.name} is damaged: its record of {name!r} is")
        return json.loads(found[0])

    def set(self, **facts: Any) -> None:
        with self.transaction() as db:
            for name, value in facts.items():
                self._set(db, name, value)

    @staticmethod
    def _set(db: sqlite3.Connection, name: str, value: Any) -> None:
        text = json.dumps(value)
        crc = crc32(f"{name} {text}".encode())
        db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?, ?)", (name, text, crc))

    # Reading.

    def __len__(self) -> int:
        with self._lock, _named(self.name):
            return int(self._read.execute("SELECT count(*) FROM images").fetchone()[0])

    def known(self, ids: Iterable[Id]) -> dict[Id, Known]:
        with self._lock, _named(self.name):
            return _known(self._read, ids)

    def rows(self, keys: Sequence[int]) -> dict[int, Row]:
        """Images by their keys; of one that was removed since, the id only."""
        with self._lock, _named(self.name):
            found = {row.key: row for row in _rows(self._read, "key", keys)}
            if lost := [key for key in keys if key not in found]:
                query = "SELECT key, id FROM gone WHERE key IN (SELECT value FROM json_each(?))"
                for key, id_ in self._read.execute(query, (json.dumps(lost),)):
                    found[key] = Row(id_, b"", key=key)
        return found

    def row(self, id: Id) -> Row | None:
        with self._lock, _named(self.name):
            return next(_rows(self._read, "id", [id]), None)

    def each(self) -> Iterator[Row]:
        """All images in the order in which they came."""
        last = 0
        while True:
            with self._lock, _named(self.name):
                query = f"SELECT {_COLUMNS} FROM images WHERE key > ? ORDER BY key LIMIT 1000"
                part = [_row(values) for values in self._read.execute(query, (last,))]
            if not part:
                return
            yield from part
            last = part[-1].key

    def salvage(self) -> Iterator[Row | None]:
        """All images that can still be read, and None for each that cannot."""

        def part(low: int, high: int) -> Iterator[Row | None]:
            query = f"SELECT {_COLUMNS} FROM images WHERE key >= ? AND key < ? ORDER BY key"
            try:
                with self._lock, _named(self.name):
                    found = self._read.execute(query, (low, high)).fetchall()
            except StoreError:
                if high - low <= 1:
                    yield None
                else:
                    middle = (low + high) // 2
                    yield from part(low, middle)
                    yield from part(middle, high)
                return
            for values in found:
                try:
                    row = _row(values)
                except StoreDamagedError:
                    yield None
                else:
                    yield row if _sound(row.key, row.codes) else None

        try:
            with self._lock, _named(self.name):
                end = self._next(self._read, "images")
        except StoreError:
            assert self.folder is not None
            end = (self.folder / FILE).stat().st_size // 20  # no row is shorter
        for low in range(1, end, 1000):
            yield from part(low, min(low + 1000, end))

    def matching(self, conditions: dict[str, Any]) -> NDArray[np.int64]:
        """Keys of the images whose metadata have these values; a list means any of them."""
        clauses, values = [], []
        for name, wanted in conditions.items():
            options = (
                list(wanted) if isinstance(wanted, (list, tuple, set, frozenset)) else [wanted]
            )
            for option in options:
                if option is not None and not isinstance(option, (str, int, float, bool)):
                    raise ValueError(
                        f"a filter compares with text, numbers, true, false and null: {name!r} "
                        f"has {type(option).__name__}"
                    )
            text = json.dumps([o for o in options if o is not None])
            found = (
                "EXISTS (SELECT 1 FROM json_each(metadata) AS m WHERE m.key = ? AND ("
                "m.value IN (SELECT value FROM json_each(?)) AND m.type <> 'array' OR "
                "m.type = 'array' AND EXISTS (SELECT 1 FROM json_each(m.value) AS e "
                "WHERE e.value IN (SELECT value FROM json_each(?)))))"
            )
            values += [name, text, text]
            if None in options:
                found = (
                    f"({found} OR NOT EXISTS (SELECT 1 FROM json_each(coalesce(metadata, '{{}}')) "
                    "AS m WHERE m.key = ? AND m.type <> 'null'))"
                )
                values.append(name)
            clauses.append(found)
        with self._lock, _named(self.name):
            query = f"SELECT key FROM images WHERE {' AND '.join(clauses) or '1'}"
            return np.array([key for (key,) in self._read.execute(query, values)], np.int64)

    @contextlib.contextmanager
    def one_state(self) -> Iterator[None]:
        """Within it, all that is read is of one moment, whatever others write."""
        with self._lock:
            with _named(self.name):
                self._read.execute("BEGIN")
                self._read.execute("PRAGMA user_version").fetchone()  # the moment is the first read
            try:
                yield
            finally:
                with _named(self.name):
                    self._read.execute("COMMIT")

    def removed(self, since: int) -> NDArray[np.int64]:
        """Keys of the images removed after that many removals."""
        with self._lock, _named(self.name):
            query = "SELECT key FROM gone WHERE seq > ?"
            return np.array([key for (key,) in self._read.execute(query, (since,))], np.int64)

    def version(self) -> tuple[int, int]:
        """Changes with every commit, of this process or another."""
        with self._lock, _named(self.name):
            return self._read.execute("PRAGMA data_version").fetchone()[0], self._written

    @contextlib.contextmanager
    def changes(
        self, at: Position, bits: int
    ) -> Iterator[tuple[Change, Iterator[tuple[NDArray[np.int64], NDArray[Any]]]]]:
        """What was committed since a position, as one state: removals, and entries in parts.

        `at` stands at that state's end when the entries have been read.
        """
        with self._lock, _named(self.name):
            db = self._read
            db.execute("BEGIN")
            try:
                last_gone = self._next(db, "gone") - 1
                least = db.execute("SELECT min(seq) FROM gone").fetchone()[0]
                change = Change(again=at.gone < (last_gone if least is None else least - 1))
                if change.again:
                    at.key = 0
                else:
                    query = "SELECT key FROM gone WHERE seq > ?"
                    change.removed = np.array(
                        [k for (k,) in db.execute(query, (at.gone,))], np.int64
                    )
                at.gone = last_gone
                cursor = db.execute(
                    "SELECT key, codes FROM images WHERE key > ? ORDER BY key", (at.key,)
                )

                def parts() -> Iterator[tuple[NDArray[np.int64], NDArray[Any]]]:
                    while rows := cursor.fetchmany(CHUNK):
                        keys = [key for key, _ in rows]
                        yield unpack_codes(keys, [codes for _, codes in rows], bits)
                        at.key = keys[-1]

                yield change, parts()
            finally:
                db.execute("COMMIT")

    def problems(self) -> list[str]:
        """What SQLite itself finds wrong with the file."""
        with self._lock, _named(self.name):
            found = [text for (text,) in self._read.execute("PRAGMA integrity_check(20)")]
        return [] if found == ["ok"] else found

    def bytes(self) -> int:
        """On the disk, the log included; in memory, SQLite's pages."""
        if self.folder is None:
            with self._lock:
                pages, size = (
                    self._read.execute(f"PRAGMA {what}").fetchone()[0]
                    for what in ("page_count", "page_size")
                )
            return int(pages * size)
        return sum(f.stat().st_size for f in self.folder.rglob("*") if f.is_file())


def _known(db: sqlite3.Connection, ids: Iterable[Id]) -> dict[Id, Known]:
    query = (
        "SELECT id, key, size, time, hash, metadata FROM images "
        "WHERE id IN (SELECT value FROM json_each(?))"
    )
    return {values[0]: Known(*values[1:]) for values in db.execute(query, (_json(ids),))}


def _rows(db: sqlite3.Connection, column: str, values: Sequence[Any]) -> Iterator[Row]:
    query = f"SELECT {_COLUMNS} FROM images WHERE {column} IN (SELECT value FROM json_each(?))"
    return map(_row, db.execute(query, (_json(values),)))


def _json(values: Iterable[Any]) -> str:
    return json.dumps(list(values), ensure_ascii=False)
