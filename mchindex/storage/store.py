"""What an index keeps on disk: images, their codes and metadata, in one SQLite file.

The table that searches run on is derived from it (`Store.changes` tells it what was committed), so
that losing the table loses nothing. SQLite checks its log but not its pages: rows carry checksums
of their own, and a damaged one is refused, never returned; the number of rows is written down, so
that none can get lost unnoticed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import sqlite3
import tempfile
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from mchindex.errors import (
    NotAnIndexError,
    StoreBusyError,
    StoreDamagedError,
    StoreError,
    StoreVersionError,
)
from mchindex.storage.records import (
    COLUMNS,
    Id,
    Known,
    Row,
    is_sound,
    read_row,
    row_crc,
    row_values,
    unpack_codes,
)

FORMAT = 1
FILE, LOCK = "index.sqlite", "writer.lock"
GONE_KEPT = 100_000  # removals that a reader may lag behind before it reads everything again
CHUNK = 50_000  # rows read at a time
CHECKPOINT = 8192  # pages in the log from which on they are moved to the file

_SCHEMA = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL, crc INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE images (
    key INTEGER PRIMARY KEY,                -- never given twice: a replaced image gets a new one
    id NOT NULL UNIQUE,                     -- text or integer, as the user gave it
    path TEXT,                              -- '': the same as the id
    size INTEGER, time INTEGER,             -- of the file, in bytes and in ns since the epoch
    hash BLOB,                              -- SHA-256 of the file's bytes or of the pixels
    width INTEGER, height INTEGER,          -- of the upright picture
    metadata TEXT,                          -- JSON
    codes BLOB NOT NULL,                    -- see `pack_codes`
    crc INTEGER NOT NULL                    -- of all but the codes, which have their own
);
CREATE TABLE gone (
    seq INTEGER PRIMARY KEY, key INTEGER NOT NULL, id NOT NULL, crc INTEGER NOT NULL
);
"""

# From each format to the next one. Creating an index is the first step.
MIGRATIONS = {0: _SCHEMA}


class _State(NamedTuple):
    """How much the store holds, so that a row that gets lost is missed."""

    images: int = 0
    key: int = 0  # the last one given
    gone: int = 0  # removals so far
    keys: int = 0  # the sum of all images' keys


@dataclass(frozen=True, slots=True)
class Position:
    """How far a table has followed the store."""

    key: int = 0  # the last image taken in
    gone: int = 0  # the last removal
    keys: int = 0  # the sum of the keys of the images that it has


@dataclass
class Change:
    """What to do to a table that stands at some position to bring it up to date."""

    to: Position  # where it stands then
    images: int  # that it has then
    removed: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    again: bool = False  # the table must be emptied first


@contextlib.contextmanager
def _named(where: str) -> Iterator[None]:
    """SQLite's errors by the names of ours."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        # Text that is no text has no code; a statement can only fail where the schema is damaged.
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise StoreBusyError(f"{where}: another process is writing to it") from error
        if code in _OUTSIDE:
            raise StoreError(f"{where}: {error}") from error
        raise StoreDamagedError(f"{where} is damaged: {error}") from error
    except UnicodeDecodeError as error:  # an error message that quotes a damaged schema
        raise StoreDamagedError(f"{where} is damaged: {error}") from error


# Not the file's fault but its surroundings'.
_OUTSIDE = {
    sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_FULL, sqlite3.SQLITE_INTERRUPT, sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY,
}  # fmt: skip


class Store:
    """An index's records. Any number of threads and processes read; one at a time writes."""

    def __init__(self, folder: Path | None) -> None:
        """Opens what is there, or creates it. None: in memory."""
        self.folder = folder
        self.name = "the index in memory" if folder is None else str(folder)
        self._lock = threading.RLock()
        self._writing = threading.RLock()
        self._lock_file: int | None = None
        self._depth = 0  # of `writer`
        self._reads = 0  # depth of `one_state`
        self._written = 0  # commits of this object's own
        self._process = os.getpid()
        self._open: list[sqlite3.Connection] = []
        try:
            if folder is not None and not (folder / FILE).exists():
                _make(folder)
            with _named(self.name):
                self._read = self._connect()
                self._write = self._read if folder is None else self._connect()
                if folder is None:
                    _create(self._read)
                version = self._read.execute("PRAGMA user_version").fetchone()[0]
            if version > FORMAT:
                raise StoreVersionError(
                    f"{self.name} was written by a newer mchindex (format {version}): "
                    "update mchindex"
                )
            if version < 1:  # an index comes into being whole, see `_make`
                raise NotAnIndexError(f"{self.name} has a file {FILE} that is not an index's")
            if version < FORMAT:
                with self.writer(10.0), self.transaction() as db:
                    _migrate(db)
        except OSError as error:
            self.close()
            raise StoreError(f"{self.name}: {error.strerror or error}") from error
        except BaseException:
            self.close()
            raise

    def _connect(self) -> sqlite3.Connection:
        where = ":memory:" if self.folder is None else str(self.folder / FILE)
        db = _connected(where)
        self._open.append(db)
        return db

    def close(self) -> None:
        with self._lock:
            # What belongs to another process (this is a fork of it) is left alone.
            if self._process == os.getpid():
                for db in self._open:
                    db.close()
                self._open.clear()

    def check_open(self) -> None:
        if not self._open:
            raise ValueError(f"{self.name} is closed")
        if self._process != os.getpid():
            raise StoreError(f"{self.name} was opened before this process forked: open it again")

    def check_schema(self) -> None:
        """Refuses tables that were declared otherwise: from them a column may come as another."""
        with self._reading() as db:
            if _declared(db) != _schema():
                raise StoreDamagedError(f"{self.name} is damaged: its tables are not as declared")

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock, _named(self.name):
            self.check_open()
            yield self._read

    # Writing.

    @contextlib.contextmanager
    def writer(self, wait: float = 0.0) -> Iterator[None]:
        """Makes this the one writer, after `wait` seconds at most."""
        self.check_open()
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
                    # Closing alone would leave it locked if another process was forked meanwhile.
                    fcntl.flock(self._lock_file, fcntl.LOCK_UN)
                    os.close(self._lock_file)
                    self._lock_file = None
        finally:
            self._writing.release()

    def _flock(self, deadline: float, wait: float) -> int:
        assert self.folder is not None
        try:
            file = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StoreError(f"{self.folder / LOCK}: {error.strerror}") from error
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
            state = self._state(db)
            try:
                db.execute("SAVEPOINT fresh")
                self._insert(db, rows, state)
                return []
            except sqlite3.IntegrityError:
                db.execute("ROLLBACK TO fresh")
            latest = {row.id: row for row in rows}  # an id twice in a batch: the last one counts
            known = _known(db, latest)
            state = self._drop(db, known, state)
            self._insert(db, list(latest.values()), state)
            return list(known)

    def _insert(self, db: sqlite3.Connection, rows: Sequence[Row], state: _State) -> None:
        db.executemany(
            f"INSERT INTO images ({COLUMNS}) VALUES (?,?,?,?,?,?,?,?,?,?,?)",
            (row_values(row, key) for key, row in enumerate(rows, state.key + 1)),
        )
        last = state.key + len(rows)
        keys = state.keys + sum(range(state.key + 1, last + 1))
        self._set_state(db, _State(state.images + len(rows), last, state.gone, keys))

    def next_id(self) -> int:
        """The smallest integer above all integers that are ids: 0 at first."""
        with self._reading() as db:
            # Integers come before text in SQLite's order, so the index on ids has the answer.
            found = db.execute(
                "SELECT id FROM images WHERE id < '' ORDER BY id DESC LIMIT 1"
            ).fetchone()
        if found and found[0] == 2**63 - 1:
            raise ValueError("no integer is left to number images by: give ids")
        return max(0, 1 + found[0]) if found else 0

    def remove(self, ids: Sequence[Id]) -> int:
        """Forgets images; returns how many of them were there."""
        with self.transaction() as db:
            known = _known(db, ids)
            self._drop(db, known, self._state(db))
            return len(known)

    def _drop(self, db: sqlite3.Connection, known: dict[Id, Known], state: _State) -> _State:
        db.executemany("DELETE FROM images WHERE key = ?", [(k.key,) for k in known.values()])
        db.executemany(
            "INSERT INTO gone (seq, key, id, crc) VALUES (?, ?, ?, ?)",
            [
                (seq, k.key, id_, row_crc(seq, id_, k.key))
                for seq, (id_, k) in enumerate(known.items(), state.gone + 1)
            ],
        )
        state = _State(
            state.images - len(known), state.key, state.gone + len(known),
            state.keys - sum(k.key for k in known.values()),
        )  # fmt: skip
        self._set_state(db, state)
        return state

    def touch(self, ids: dict[Id, dict[str, Any]]) -> None:
        """Changes columns of images whose codes stay: the file's time, the metadata."""
        with self.transaction() as db:
            for row in list(_rows(db, "id", list(ids))):
                kept = {"time": row.time, "size": row.size, "metadata": row.metadata}
                new = kept | ids[row.id]
                path = "" if row.path is not None and row.path == row.id else row.path
                crc = row_crc(
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
            db.execute("DELETE FROM gone WHERE seq <= ?", (self._state(db).gone - GONE_KEPT,))

    # Facts about the index itself.

    def get(self, name: str) -> Any:
        with self._reading() as db:
            return self._get(db, name)

    def _get(self, db: sqlite3.Connection, name: str) -> Any:
        found = db.execute("SELECT value, crc FROM meta WHERE name = ?", (name,)).fetchone()
        if found is None:
            return None
        if found[1] != crc32(f"{name} {found[0]}".encode()):
            raise StoreDamagedError(f"{self.name} is damaged: its record of {name!r} is")
        return json.loads(found[0])

    def set(self, **facts: Any) -> None:
        with self.transaction() as db:
            for name, value in facts.items():
                _set(db, name, value)

    def _state(self, db: sqlite3.Connection) -> _State:
        found = self._get(db, "state")
        if found is None:
            raise StoreDamagedError(f"{self.name} is damaged: it does not say how much it holds")
        return _State(*found)

    @staticmethod
    def _set_state(db: sqlite3.Connection, state: _State) -> None:
        _set(db, "state", list(state))

    # Reading.

    def __len__(self) -> int:
        with self._reading() as db:
            return self._state(db).images

    def known(self, ids: Iterable[Id]) -> dict[Id, Known]:
        with self._reading() as db:
            return _known(db, ids)

    def rows(self, keys: Sequence[int]) -> dict[int, Row]:
        """Images by their keys; of one that was removed since, the id only."""
        with self.one_state(), self._reading() as db:
            found = {row.key: row for row in _rows(db, "key", keys)}
            lost = [key for key in keys if key not in found]
            if lost:
                query = (
                    "SELECT seq, key, id, crc FROM gone "
                    "WHERE key IN (SELECT value FROM json_each(?))"
                )
                for seq, key, id_, crc in db.execute(query, (json.dumps(lost),)):
                    _check_gone(seq, key, id_, crc)
                    found[key] = Row(id_, b"", key=key)
            for key in lost:
                if key not in found:
                    if self._trimmed(db):
                        raise StoreError("images were removed since the search: search again")
                    raise StoreDamagedError(f"{self.name} is damaged: it lacks image number {key}")
        return found

    def row(self, id: Id) -> Row | None:
        with self.one_state(), self._reading() as db:
            row = next(_rows(db, "id", [id]), None)
            if row is None:  # looks a second time, past the index on ids, which may be damaged
                query = "SELECT key FROM images NOT INDEXED WHERE id = ?"
                if db.execute(query, (id,)).fetchone():
                    raise StoreDamagedError(f"{self.name} is damaged: its list of ids is")
            return row

    def each(self) -> Iterator[Row]:
        """All images in the order in which they came."""
        last = count = total = 0
        with self.one_state(), self._reading() as db:
            version, state = self.version(), self._state(db)
        while True:
            with self._reading() as db:
                query = f"SELECT {COLUMNS} FROM images WHERE key > ? ORDER BY key LIMIT 1000"
                part = [read_row(values) for values in db.execute(query, (last,))]
            if not part:
                break
            yield from part
            last = part[-1].key
            count += len(part)
            total += sum(row.key for row in part)
        if (count, total) != (state.images, state.keys) and version == self.version():
            raise self._lacking()

    def salvage(self) -> Iterator[Row | None]:
        """All images that can still be read, and None for each that cannot."""
        end = 1 + self._last_key()

        def part(low: int, high: int) -> Iterator[Row | None]:
            query = f"SELECT {COLUMNS} FROM images WHERE key >= ? AND key < ? ORDER BY key"
            try:
                with self._reading() as db:
                    found = db.execute(query, (low, high)).fetchall()
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
                    row = read_row(values)
                except StoreDamagedError:
                    yield None
                else:
                    yield row if is_sound(row.key, row.codes) else None

        for low in range(1, end, 1000):
            yield from part(low, min(low + 1000, end))

    def _last_key(self) -> int:
        """The largest key that there may be, by the best witness that can be read."""
        with contextlib.suppress(StoreError), self._reading() as db:
            return self._state(db).key
        with contextlib.suppress(StoreError), self._reading() as db:
            return int(db.execute("SELECT max(key) FROM images").fetchone()[0] or 0)
        assert self.folder is not None
        return (self.folder / FILE).stat().st_size // 20  # no row is shorter

    def matching(self, conditions: dict[str, Any]) -> NDArray[np.int64]:
        """Keys of the images whose metadata have these values; a list means any of them."""
        clauses, values = [], []
        for name, wanted in conditions.items():
            if not isinstance(name, str):
                raise ValueError(f"a filter's names are text, not {type(name).__name__}")
            several = isinstance(wanted, (list, tuple, set, frozenset))
            options = [_scalar(name, o) for o in (wanted if several else [wanted])]
            text = json.dumps([o for o in options if o is not None])
            # What json_each gives for an array or an object is its text, which is no value.
            found = (
                "EXISTS (SELECT 1 FROM json_each(metadata) AS m WHERE m.key = ? AND ("
                "m.atom IN (SELECT value FROM json_each(?)) OR "
                "m.type = 'array' AND EXISTS (SELECT 1 FROM json_each(m.value) AS e "
                "WHERE e.atom IN (SELECT value FROM json_each(?)))))"
            )
            values += [name, text, text]
            if None in options:
                found = (
                    f"({found} OR NOT EXISTS (SELECT 1 FROM json_each(coalesce(metadata, '{{}}')) "
                    "AS m WHERE m.key = ? AND m.type <> 'null'))"
                )
                values.append(name)
            clauses.append(found)
        with self._reading() as db:
            query = f"SELECT key FROM images WHERE {' AND '.join(clauses) or '1'}"
            return np.array([key for (key,) in db.execute(query, values)], np.int64)

    @contextlib.contextmanager
    def one_state(self) -> Iterator[None]:
        """Within it, all that is read is of one moment, whatever others write."""
        with self._lock:
            if self._reads == 0:
                with self._reading() as db:
                    db.execute("BEGIN")
                    db.execute("PRAGMA user_version").fetchone()  # the first read is the moment
            self._reads += 1
            try:
                yield
            finally:
                self._reads -= 1
                if self._reads == 0 and self._read.in_transaction:
                    with _named(self.name):
                        self._read.execute("ROLLBACK")  # of a damaged file, a COMMIT fails

    def removed(self, since: int) -> NDArray[np.int64]:
        """Keys of the images removed after that many removals."""
        with self._reading() as db:
            found = db.execute("SELECT seq, key, id, crc FROM gone WHERE seq > ?", (since,))
            return np.array([_check_gone(*values) for values in found], np.int64)

    def version(self) -> tuple[int, int]:
        """Changes with every commit, of this process or another."""
        with self._reading() as db:
            return db.execute("PRAGMA data_version").fetchone()[0], self._written

    @contextlib.contextmanager
    def changes(
        self, at: Position, bits: int
    ) -> Iterator[tuple[Change, Iterator[tuple[NDArray[np.int64], NDArray[Any]]]]]:
        """What was committed since a position, as one state: removals, and entries in parts."""
        with self.one_state(), self._reading() as db:
            state = self._state(db)
            change = Change(Position(state.key, state.gone, state.keys), state.images)
            # A table that is ahead stands at something that the store has lost.
            change.again = at.gone < self._trimmed(db) or at.gone > state.gone or at.key > state.key
            if at.key and not change.again:
                change.removed = self.removed(at.gone)

            def parts() -> Iterator[tuple[NDArray[np.int64], NDArray[Any]]]:
                start = 0 if change.again else at.key
                keys = 0 if change.again else at.keys
                keys -= int(change.removed[change.removed <= start].sum())
                query = "SELECT key, codes FROM images WHERE key > ? ORDER BY key"
                cursor = db.execute(query, (start,))
                while rows := cursor.fetchmany(CHUNK):
                    yield unpack_codes([key for key, _ in rows], [c for _, c in rows], bits)
                    keys += sum(key for key, _ in rows)
                if keys != state.keys:
                    raise self._lacking()

            yield change, parts()

    def _lacking(self) -> StoreDamagedError:
        return StoreDamagedError(f"{self.name} is damaged: it lacks images")

    def _trimmed(self, db: sqlite3.Connection) -> int:
        """How many removals were forgotten."""
        least = db.execute("SELECT min(seq) FROM gone").fetchone()[0]
        return self._state(db).gone if least is None else int(least) - 1

    def problems(self) -> list[str]:
        """What SQLite itself finds wrong with the file."""
        with self._reading() as db:
            found = [text for (text,) in db.execute("PRAGMA integrity_check(20)")]
        return [] if found == ["ok"] else found

    def bytes(self) -> int:
        """On the disk, the log included; in memory, SQLite's pages."""
        if self.folder is None:
            with self._reading() as db:
                pages, size = (
                    db.execute(f"PRAGMA {what}").fetchone()[0]
                    for what in ("page_count", "page_size")
                )
            return int(pages * size)
        total = 0
        for file in self.folder.rglob("*"):
            with contextlib.suppress(OSError):  # a snapshot or a log may go at any time
                total += file.stat().st_size if file.is_file() else 0
        return total


def _connected(where: str) -> sqlite3.Connection:
    db = sqlite3.connect(where, timeout=10, isolation_level=None, check_same_thread=False)
    try:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.execute("PRAGMA cache_size = -65536")  # KiB
        db.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT}")
    except BaseException:
        db.close()
        raise
    return db


def _make(folder: Path) -> None:
    """A new index, which comes into being at once: a crash or a rival leaves no part of one."""
    if folder.exists() and not folder.is_dir():
        raise NotAnIndexError(f"{folder} is a file: an index is a folder")
    folder.mkdir(parents=True, exist_ok=True)
    # A file that is gone is not made anew: what lies beside it would belong to another index.
    if any(not f.name.startswith(_NEW) for f in folder.iterdir()) and not (folder / FILE).exists():
        raise NotAnIndexError(f"{folder} holds other files and no index: give a new folder")
    with tempfile.TemporaryDirectory(prefix=_NEW, dir=folder) as own:
        new = Path(own) / FILE
        with _named(str(folder)), contextlib.closing(_connected(str(new))) as db:
            _create(db)
        try:
            os.link(new, folder / FILE)
        except FileExistsError:
            pass  # another process was first
        except OSError:  # a file system without links
            if not (folder / FILE).exists():
                os.rename(new, folder / FILE)
    sync = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(sync)
    finally:
        os.close(sync)


_NEW = ".new-"


def _create(db: sqlite3.Connection) -> None:
    db.execute("BEGIN")
    _migrate(db)
    _set(db, "uuid", str(uuid.uuid4()))
    _set(db, "state", list(_State()))
    db.execute("COMMIT")


def _declared(db: sqlite3.Connection) -> list[tuple[Any, ...]]:
    query = "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY name"
    return list(db.execute(query))


@cache
def _schema() -> list[tuple[Any, ...]]:
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        _create(db)
        return _declared(db)


def _migrate(db: sqlite3.Connection) -> None:
    for step in range(db.execute("PRAGMA user_version").fetchone()[0], FORMAT):
        for statement in MIGRATIONS[step].split(";\n"):
            db.execute(statement)
        db.execute(f"PRAGMA user_version = {step + 1}")


def _set(db: sqlite3.Connection, name: str, value: Any) -> None:
    text = json.dumps(value)
    crc = crc32(f"{name} {text}".encode())
    db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?, ?)", (name, text, crc))


def _check_gone(seq: int, key: int, id: Id, crc: int) -> int:
    if crc != row_crc(seq, id, key):
        raise StoreDamagedError(f"the record of removal number {seq} is damaged")
    return key


def _known(db: sqlite3.Connection, ids: Iterable[Id]) -> dict[Id, Known]:
    query = (
        "SELECT id, key, size, time, hash, metadata FROM images "
        "WHERE id IN (SELECT value FROM json_each(?))"
    )
    return {values[0]: Known(*values[1:]) for values in db.execute(query, (_json(ids),))}


def _rows(db: sqlite3.Connection, column: str, values: Sequence[Any]) -> Iterator[Row]:
    query = f"SELECT {COLUMNS} FROM images WHERE {column} IN (SELECT value FROM json_each(?))"
    wanted = set(values)
    for found in db.execute(query, (_json(values),)):
        row = read_row(found)
        if (row.id if column == "id" else row.key) not in wanted:
            raise StoreDamagedError(f"the record of image number {row.key} is found by another's")
        yield row


def _scalar(name: str, value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if value is not None and not isinstance(value, (str, int, float)):
        raise ValueError(
            f"a filter compares with text, numbers, true, false and null: {name!r} has "
            f"{type(value).__name__}"
        )
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"a filter compares with numbers that JSON has: {name!r} has {value}")
    return value


def _json(values: Iterable[Any]) -> str:
    return json.dumps(list(values), ensure_ascii=False)
