"""The records of an index: images, their codes and metadata, in one SQLite file.

The bucket table is derived from the store (`Store.changes` says what was committed), so losing the
table loses nothing. SQLite checks its log but not its pages. Each row therefore has a checksum of
its own, and a damaged row raises an error and is never returned. The number of rows is stored too,
so that a lost row is detected.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mchindex.errors import (
    NotAnIndexError,
    StaleWriteError,
    StoreDamagedError,
    StoreError,
    StoreVersionError,
)
from mchindex.storage import connection, filters, schema
from mchindex.storage.connection import Connection
from mchindex.storage.folder import Folder
from mchindex.storage.lock import WriterLock
from mchindex.storage.records import (
    COLUMNS,
    Id,
    Known,
    Row,
    pack_fine,
    read_row,
    row_crc,
    row_values,
    unpack_codes,
)
from mchindex.storage.schema import FILE, FORMAT, PAGE, State, named_errors

GONE_KEPT = 100_000  # removals by which a reader may lag before it must read everything again
CHUNK = 50_000  # rows read at a time
RESERVE = 4 << 20  # bytes of the disk that adding leaves free, so that images can be removed

_PLENTY = 1 << 62  # bytes: the system does not say how much room there is
_UNWRITABLE = {  # SQLite cannot create or change what it needs beside the file
    sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_READONLY,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Position:
    """How far a table has followed the store."""

    key: int = 0  # of the last image it has added
    gone: int = 0  # removals it has seen
    keys: int = 0  # the sum of the keys of its images


@dataclass
class Change:
    """What brings a table up to date."""

    to: Position  # its position afterwards
    images: int  # the number of its images afterwards
    fine: int = 0  # the number of those that have fine codes
    removed: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    again: bool = False  # the table must be emptied first


class Chunk(NamedTuple):
    """Some images that were committed."""

    owners: NDArray[np.int64]  # the key of the image of each entry
    entries: NDArray[Any]  # of `code_type`
    keys: Sequence[int]  # of the images
    fine: Sequence[bytes | None]  # the packed fine codes of each image


@dataclass(frozen=True)
class Inserted:
    """What `Store.insert` did: rows with their keys, and the images they replaced."""

    rows: Sequence[Row]
    keys: Sequence[int]  # of the rows, ascending
    replaced: Mapping[Id, Known]


class Facet(NamedTuple):
    """A key of the metadata, and the values that images have under it."""

    name: str
    kind: str  # "text", "number" or "boolean"
    values: list[Any] | None  # in order; None if there are too many
    low: float | None  # of numbers
    high: float | None


_KINDS = {
    frozenset(types): kind
    for kind, several in {
        "text": [["text"]],
        "number": [["integer"], ["real"], ["integer", "real"]],
        "boolean": [["true"], ["false"], ["true", "false"]],
    }.items()
    for types in several
}


class Store:
    """The records of an index, for any number of readers and one writer at a time."""

    def __init__(self, folder: Path | None) -> None:
        """Opens the store in `folder`, or creates it; None creates one in memory."""
        self.name = "the index in memory" if folder is None else str(folder)
        # Absolute, because the process may change its current folder.
        self.folder = None if folder is None else Path(os.path.abspath(folder))
        self._place: Folder | None = None  # the folder itself, wherever it is moved
        self._reads = 0  # depth of `one_state`
        self._written = 0  # commits by this object
        self._checkpoint = -1  # pages in the log at which it is moved to the file
        self._process = os.getpid()
        self._read: Connection | None = None
        self._write: Connection | None = None
        self._still: tuple[object, ...] | None = None  # the files as opened, if only to be read
        try:
            if self.folder is None:
                self._read = self._write = Connection(connection.in_memory(), self.name)
                with self._read.use() as db:
                    schema.create(db)
            else:
                self._open(self.folder)
            self._writer = WriterLock(self._place, self.name)
            with self.reading() as db:
                version = schema.version(db)
            if version > FORMAT:
                raise StoreVersionError(
                    f"{self.name} was written by a newer mchindex (format {version}): "
                    "update mchindex"
                )
            if version < 1:  # `make_file` creates an index in one step
                raise NotAnIndexError(f"{self.name} is not an index: mchindex did not write {FILE}")
        except OSError as error:
            self.close()
            raise StoreError(f"{self.name}: {error.strerror or error}") from error
        except BaseException:
            self.close()
            raise

    @staticmethod
    def exists(folder: str | os.PathLike[str]) -> bool:
        """Whether a folder holds an index."""
        return os.path.isfile(os.path.join(folder, FILE))

    @classmethod
    def existing(cls, folder: str | os.PathLike[str]) -> Store:
        """Opens a store, which must exist."""
        if not cls.exists(folder):
            raise NotAnIndexError(f"{os.fspath(folder)} is not an index")
        return cls(Path(folder))

    def _open(self, folder: Path) -> None:
        """Opens the files, only to be read if they cannot be written."""
        if not self.exists(folder):
            schema.make_file(folder)
        self._place = Folder(folder)
        self._file = self._place.stat(FILE)
        with named_errors(self.name):
            try:
                write, read = self._live_connections(folder)
                self._write = Connection(write, self.name)
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF not in _UNWRITABLE:
                    raise
                self._still = self._signature()
                read = connection.to_read_still(folder / FILE)
            self._read = Connection(read, self.name)

    @staticmethod
    def _live_connections(folder: Path) -> tuple[sqlite3.Connection, sqlite3.Connection]:
        """Connections to write and to read."""
        write = connection.to_write(folder / FILE)
        try:
            return write, connection.to_read(folder / FILE)
        except BaseException:
            write.close()
            raise

    def _signature(self) -> tuple[object, ...]:
        """What changes if another process writes to the files of a store that is only read."""
        assert self._place is not None
        seen: list[object] = []
        for name in (FILE, f"{FILE}-wal"):
            try:
                facts = self._place.stat(name)
            except OSError:
                continue
            if facts.st_size:
                seen += [facts.st_ino, facts.st_size, facts.st_mtime_ns]
        return tuple(seen)

    def _try_to_write(self) -> bool:
        """Opens the files again, if they could only be read and can be written by now."""
        if self._still is None:
            return True
        assert self.folder is not None
        assert self._read is not None
        if not self.is_in_place():
            return False
        try:
            write, read = self._live_connections(self.folder)
        except sqlite3.OperationalError:
            return False
        if not self._read.replace(read):
            write.close()
            return False
        self._write, self._still = Connection(write, self.name), None
        self._written += 1  # the new connections see another state
        return True

    def close(self) -> None:
        """Waits for what other threads are doing with the store; afterwards they get ValueError."""
        # After a fork, the connections belong to the parent process and stay open, and a thread
        # of the parent may have held any lock.
        if self.forked:
            return
        several = [db for db in (self._read, self._write) if db is not None]
        if self.folder is not None and not self.is_in_place():
            # When the last connection that can write is closed, SQLite deletes the log by its path,
            # which may be that of another index by now. The connection that only reads does not.
            several.reverse()
        for db in several:
            db.close()
        if self._place is not None:
            self._place.close()

    def is_in_place(self) -> bool:
        """Whether the path of the store still leads to the files that are open."""
        return self._place is not None and self._place.is_in_place() and self._is_whole()

    def _is_whole(self) -> bool:
        """Whether the folder, wherever it is now, still holds the file that is open."""
        assert self._place is not None
        try:
            return os.path.samestat(self._place.stat(FILE), self._file)
        except (OSError, ValueError):
            return False

    def check_open(self) -> None:
        self._check_process()
        if self._read is None or self._read.closed:
            raise ValueError(f"{self.name} is closed")

    @property
    def forked(self) -> bool:
        """Whether this process is a copy of the one that opened the store."""
        return self._process != os.getpid()

    def _check_process(self) -> None:
        # Before any lock is taken: a thread that the fork left behind may have held it.
        if self.forked:
            raise StoreError(f"{self.name} was opened before this process forked: open it again")

    def check_schema(self) -> None:
        """Raises StoreDamagedError if the tables are not declared as in `schema`."""
        with self.one_state(), self.reading() as db:
            if not schema.is_as_declared(db):
                raise StoreDamagedError(f"{self.name} is damaged: its schema has been changed")

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A connection to read with, for one thread at a time."""
        self._check_process()
        assert self._read is not None
        with self._read.use() as db, named_errors(self.name):
            yield db

    # Writing.

    @contextlib.contextmanager
    def writer(self, wait: float = 0.0, spare: str | None = None) -> Iterator[None]:
        """Makes this the only writer. Waits up to `wait` seconds for another one to finish.

        Files whose names start with `spare` are deleted if the disk is too full to write at all.
        """
        self.check_open()
        with self._writer.hold(wait):
            self.check_open()
            if self._place is not None and not self._is_whole():
                self.check_open()
                raise StoreError(
                    f"{self.name} has been deleted or replaced since it was opened: open it again"
                )
            if not self._try_to_write():
                if self.room() >= 0:
                    raise StoreError(f"{self.name} is read-only: its folder cannot be written to")
                if not (spare and self.delete_files(spare) and self._try_to_write()):
                    raise StoreError(f"{self.name}: the disk is full: free some space")
            yield

    @contextlib.contextmanager
    def without_writers(self, wait: float = 0.0) -> Iterator[None]:
        """Keeps other processes from writing, if the lock file can be opened."""
        self.check_open()
        with self._writer.keep_out(wait):
            yield

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All or nothing, and on disk when it ends. Only within `writer`."""
        if not self._writer.held:
            raise RuntimeError("a transaction needs the writer's lock")
        self._check_process()
        assert self._write is not None
        with self._write.use() as db, named_errors(self.name):
            self._bound_log(db)
            try:
                db.execute("BEGIN IMMEDIATE")
                yield db
                db.execute("COMMIT")
                self._written += 1
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise

    def has_file(self, name: str) -> bool:
        return self._place is not None and name in self._place.names()

    def delete_files(self, prefix: str, keep: Collection[str] = ()) -> bool:
        """Deletes files of the folder whose names start with `prefix`; returns whether there were
        any."""
        deleted = False
        if self._place is not None:
            for name in self._place.names():
                if name.startswith(prefix) and name not in keep:
                    with contextlib.suppress(OSError):
                        self._place.delete(name)
                        deleted = True
        return deleted

    # Room on the disk.

    def room(self) -> int:
        """The bytes that may still be written to the disk, beyond the reserve for removals."""
        free = None if self._place is None else self._place.free()
        return _PLENTY if free is None else free - RESERVE

    def _bound_log(self, db: sqlite3.Connection) -> None:
        """Keeps the log small where the disk is: moving it to the file needs as much room again."""
        if self._place is not None:
            pages = min(schema.CHECKPOINT, max(1, self.room() // (8 * PAGE)))
            if pages != self._checkpoint:
                db.execute(f"PRAGMA wal_autocheckpoint = {pages}")
                db.execute(f"PRAGMA journal_size_limit = {pages * PAGE}")
                self._checkpoint = pages

    def empty_log(self) -> None:
        """Moves what is in the log to the file, and frees the room that the log takes."""
        if self._place is not None:
            assert self._write is not None
            with self._write.use() as db, named_errors(self.name):
                db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def check_room(self, rows: Sequence[Row]) -> None:
        """Raises StoreError if images would use up the room that removing images needs."""
        size = 2 * sum(map(_size, rows))  # pages are not full
        if self.room() >= 2 * size:  # in the log and in the file
            return
        self.empty_log()
        with self.reading() as db:
            unused = PAGE * int(db.execute("PRAGMA freelist_count").fetchone()[0])
        # The log takes its room only for a while, so it may use half of the reserve.
        room = self.room() - max(0, size - unused)
        if room < 0 or room + RESERVE // 2 < size:
            raise StoreError(
                f"{self.name}: the disk is full: {(self.room() + RESERVE) / 1e6:.1f} MB are free, "
                "which is too little to add these images: remove images or free some space"
            )

    def insert(self, rows: Sequence[Row], keys: Sequence[int] | None = None) -> Inserted:
        """Stores images, replacing those whose id is already stored.

        If several rows have the same id, the last one is stored. `keys` are those that the rows
        get, one per row, ascending and above all earlier ones; the ids must then differ. By
        default, they follow the last key.
        """
        self.check_room(rows)
        with self.transaction() as db:
            state = self._state(db)
            if keys is None:
                keys = range(state.key + 1, state.key + 1 + len(rows))
            elif len(keys) and keys[0] <= state.key:
                raise StaleWriteError(f"the key {keys[0]} is not above the last one, {state.key}")
            try:
                db.execute("SAVEPOINT fresh")
                self._insert(db, rows, keys, state)
                return Inserted(rows, keys, {})
            except sqlite3.IntegrityError:
                db.execute("ROLLBACK TO fresh")
            latest = {row.id: row for row in rows}
            known = _known(db, latest)
            state = self._drop(db, known, state)
            rows, keys = list(latest.values()), keys[: len(latest)]
            self._insert(db, rows, keys, state)
            return Inserted(rows, keys, known)

    def _insert(
        self, db: sqlite3.Connection, rows: Sequence[Row], keys: Sequence[int], state: State
    ) -> None:
        db.executemany(
            f"INSERT INTO images ({COLUMNS}) VALUES ({','.join('?' for _ in COLUMNS.split(','))})",
            (row_values(row, key) for key, row in zip(keys, rows, strict=True)),
        )
        fine = [
            (key, pack_fine(key, row.fine))
            for key, row in zip(keys, rows, strict=True)
            if row.fine is not None
        ]
        if fine:
            schema.migrate(db, schema.WITH_FINE)
            db.executemany("INSERT INTO fine (key, codes) VALUES (?, ?)", fine)
            self._count_fine(db, len(fine))
        last = keys[-1] if len(keys) else state.key
        total = state.keys + sum(keys)
        self._set_state(db, State(state.images + len(rows), last, state.gone, total))

    def _count_fine(self, db: sqlite3.Connection, more: int) -> None:
        """Records how many images have fine codes, so that lost ones are detected."""
        schema.set_fact(db, "fine_images", self._fine_images(db) + more)

    def _fine_images(self, db: sqlite3.Connection) -> int:
        count = self._get(db, "fine_images")
        if count is None:
            return 0
        if type(count) is not int:
            raise self.unreadable("fine_images")
        return count

    def next_id(self) -> int:
        """The smallest integer above all integer ids; 0 if there are none."""
        with self.reading() as db:
            # Integers sort before text in SQLite, so the index on ids has the answer.
            largest = db.execute(
                "SELECT id FROM images WHERE id < '' ORDER BY id DESC LIMIT 1"
            ).fetchone()
        if largest and largest[0] == 2**63 - 1:
            raise ValueError("no integer is left to number images with: give ids")
        return max(0, 1 + largest[0]) if largest else 0

    def remove(self, ids: Sequence[Id]) -> Mapping[Id, Known]:
        """Removes images; returns those that were stored."""
        with self.transaction() as db:
            known = _known(db, ids)
            self._drop(db, known, self._state(db))
            return known

    def _drop(self, db: sqlite3.Connection, known: dict[Id, Known], state: State) -> State:
        db.executemany("DELETE FROM images WHERE key = ?", [(k.key,) for k in known.values()])
        fine = [(k.key,) for k in known.values() if k.fine]
        if fine:
            db.executemany("DELETE FROM fine WHERE key = ?", fine)
            self._count_fine(db, -len(fine))
        if schema.has_decisions(db):
            keys = [(k.key,) for k in known.values()]
            db.executemany("DELETE FROM decisions WHERE key = ?", keys)
        db.executemany(
            "INSERT INTO gone (seq, key, id, crc) VALUES (?, ?, ?, ?)",
            [
                (seq, k.key, id_, row_crc(seq, id_, k.key))
                for seq, (id_, k) in enumerate(known.items(), state.gone + 1)
            ],
        )
        state = State(
            state.images - len(known), state.key, state.gone + len(known),
            state.keys - sum(k.key for k in known.values()),
        )  # fmt: skip
        self._set_state(db, state)
        return state

    def touch(self, ids: dict[Id, dict[str, Any]]) -> None:
        """Changes the size, the time or the metadata of images whose codes stay the same."""
        with self.transaction() as db:
            for row in list(_rows(db, "id", list(ids))):
                new = row._replace(**ids[row.id])
                crc = row_values(new, row.key)[-1]
                db.execute(
                    "UPDATE images SET size = ?, time = ?, metadata = ?, crc = ? WHERE key = ?",
                    (new.size, new.time, new.metadata, crc, row.key),
                )

    def decide(self, decisions: Mapping[Id, str | None]) -> list[Id]:
        """Stores decisions about images, or forgets them if they are None; returns the ids of those
        images that are stored. A decision goes when its image is removed or replaced."""
        with self.transaction() as db:
            known = _known(db, decisions)
            if any(decisions[id] is not None for id in known):
                schema.migrate(db, schema.WITH_DECISIONS)
            if schema.has_decisions(db):
                for id, image in known.items():
                    if (decision := decisions[id]) is None:
                        db.execute("DELETE FROM decisions WHERE key = ?", (image.key,))
                    else:
                        values = (image.key, decision, row_crc(image.key, decision))
                        db.execute("INSERT OR REPLACE INTO decisions VALUES (?, ?, ?)", values)
            return list(known)

    def decisions(self) -> dict[Id, str]:
        """The decisions about images, in the order of their keys."""
        with self.one_state(), self.reading() as db:
            if not schema.has_decisions(db):
                return {}
            query = (
                "SELECT id, decisions.key, decision, decisions.crc "
                "FROM decisions JOIN images ON images.key = decisions.key ORDER BY decisions.key"
            )
            found = {}
            for id, key, decision, crc in db.execute(query):
                if crc != row_crc(key, decision):
                    raise StoreDamagedError(
                        f"{self.name} is damaged: the decision about image {id!r} cannot be read"
                    )
                found[id] = decision
            return found

    def trim_removals(self) -> None:
        """Deletes old removals. A reader that lags behind them reads everything again."""
        with self.transaction() as db:
            db.execute("DELETE FROM gone WHERE seq <= ?", (self._state(db).gone - GONE_KEPT,))

    # Facts about the index itself.

    def get(self, name: str) -> Any:
        with self.reading() as db:
            return self._get(db, name)

    def _get(self, db: sqlite3.Connection, name: str) -> Any:
        try:
            return schema.get_fact(db, name)
        except ValueError:
            raise self.unreadable(name) from None

    def unreadable(self, name: str) -> StoreDamagedError:
        """The error for a fact that is not what was written."""
        return StoreDamagedError(f"{self.name} is damaged: its record of {name!r} cannot be read")

    def set(self, **facts: Any) -> None:
        with self.transaction() as db:
            for name, value in facts.items():
                schema.set_fact(db, name, value)

    def state(self) -> State:
        """How much the store holds. Raises StoreDamagedError."""
        with self.reading() as db:
            return self._state(db)

    def _state(self, db: sqlite3.Connection) -> State:
        state = self._get(db, "state")
        if state is None:
            raise StoreDamagedError(f"{self.name} is damaged: the number of its images is missing")
        if not isinstance(state, list) or len(state) != len(State._fields):
            raise self.unreadable("state")
        return State(*state)

    @staticmethod
    def _set_state(db: sqlite3.Connection, state: State) -> None:
        schema.set_fact(db, "state", list(state))

    # Reading.

    def __len__(self) -> int:
        with self.reading() as db:
            return self._state(db).images

    def known(self, ids: Iterable[Id]) -> dict[Id, Known]:
        with self.reading() as db:
            return _known(db, ids)

    def rows(self, keys: Sequence[int], *, missing_ok: bool = False) -> dict[int, Row]:
        """Images by their keys. Images that have since been removed have only an id.

        With `missing_ok`, keys that were never in this store, or are forgotten, are left out.
        """
        with self.one_state(), self.reading() as db:
            rows = {row.key: row for row in _rows(db, "key", keys)}
            lost = [key for key in keys if key not in rows]
            if lost:
                query = (
                    "SELECT seq, key, id, crc FROM gone "
                    "WHERE key IN (SELECT value FROM json_each(?))"
                )
                for seq, key, id_, crc in db.execute(query, (json.dumps(lost),)):
                    _check_gone(seq, key, id_, crc)
                    rows[key] = Row(id_, b"", key=key)
            for key in lost:
                if key not in rows and not missing_ok:
                    if self._trimmed(db):
                        raise StoreError("images were removed since the search: search again")
                    raise StoreDamagedError(
                        f"{self.name} is damaged: image number {key} is missing"
                    )
        return rows

    def rows_of(self, ids: Sequence[Id]) -> dict[Id, Row]:
        """Images by their ids; only those that are stored."""
        with self.reading() as db:
            return {row.id: row for row in _rows(db, "id", ids)}

    def page(self, after: int, limit: int, conditions: Mapping[str, Any] | None) -> list[Row]:
        """Up to `limit` images whose keys are above `after`, oldest first, that meet conditions."""
        text, values = ("1", []) if conditions is None else filters.where(conditions)
        query = f"SELECT {COLUMNS} FROM images WHERE key > ? AND {text} ORDER BY key LIMIT ?"
        with self.reading() as db:
            return [read_row(fields) for fields in db.execute(query, (after, *values, limit))]

    def facets(self, most: int, mixed: bool = False) -> list[Facet]:
        """The keys of the metadata of all images, and their values: those of text if there are at
        most `most` of them, and the range of numbers. Keys whose values are of several types are
        left out, unless `mixed` is true."""
        tops = (
            "SELECT m.key AS name, m.type AS type, m.atom AS atom FROM images, "
            "json_each(CASE WHEN json_valid(metadata) THEN metadata ELSE '{}' END) AS m"
        )
        facets = []
        with self.one_state(), self.reading() as db:
            kinds = (
                f"SELECT name, group_concat(DISTINCT type), count(DISTINCT atom), min(atom), "
                f"max(atom) FROM ({tops}) WHERE type NOT IN ('array', 'object', 'null') "
                "GROUP BY name ORDER BY name"
            )
            for name, types, count, low, high in db.execute(kinds).fetchall():
                kind = _KINDS.get(frozenset(types.split(",")))
                if kind is None:  # values of several types have no common order
                    if mixed:
                        facets.append(Facet(name, "mixed", None, None, None))
                    continue
                values: list[Any] | None = None
                if count <= most:
                    query = f"SELECT DISTINCT atom FROM ({tops}) WHERE name = ? ORDER BY atom"
                    values = [value for (value,) in db.execute(query, (name,)) if value is not None]
                if kind == "boolean":
                    values = [bool(value) for value in values or ()]
                number = kind == "number"
                facets.append(
                    Facet(name, kind, values, low if number else None, high if number else None)
                )
        return facets

    def row(self, id: Id) -> Row | None:
        with self.one_state(), self.reading() as db:
            row = next(_rows(db, "id", [id]), None)
            if row is None:  # look again without the index on ids, which may be damaged
                query = "SELECT key FROM images NOT INDEXED WHERE id = ?"
                if db.execute(query, (id,)).fetchone():
                    raise StoreDamagedError(f"{self.name} is damaged: its index of ids is wrong")
            return row

    def each(self) -> Iterator[Row]:
        """All images, oldest first."""
        last = count = total = 0
        self.version()  # before the read: a store that was only read may have to be opened again
        with self.one_state(), self.reading() as db:
            version, state = self.version(), self._state(db)
        while True:
            with self.reading() as db:
                query = f"SELECT {COLUMNS} FROM images WHERE key > ? ORDER BY key LIMIT 1000"
                rows = [read_row(values) for values in db.execute(query, (last,))]
            if not rows:
                break
            yield from rows
            last = rows[-1].key
            count += len(rows)
            total += sum(row.key for row in rows)
        if (count, total) != (state.images, state.keys) and version == self.version():
            raise self._images_missing()

    def matching(self, conditions: Mapping[str, Any]) -> NDArray[np.int64]:
        """The keys of the images whose metadata meets all conditions (see `filters`)."""
        text, values = filters.where(conditions)
        with self.reading() as db:
            try:
                keys = db.execute(f"SELECT key FROM images WHERE {text}", values).fetchall()
            except sqlite3.OperationalError:  # metadata that are not JSON count as none
                readable = "CASE WHEN json_valid(metadata) THEN metadata END AS metadata"
                query = f"SELECT key FROM (SELECT key, {readable} FROM images) WHERE {text}"
                keys = db.execute(query, values).fetchall()
            return np.array([key for (key,) in keys], np.int64)

    def ids(self, keys: Sequence[int]) -> list[Id]:
        """The ids of images, in the order of their keys."""
        query = "SELECT id FROM images WHERE key IN (SELECT value FROM json_each(?)) ORDER BY key"
        with self.reading() as db:
            return [id_ for (id_,) in db.execute(query, (_json(keys),))]

    @contextlib.contextmanager
    def one_state(self) -> Iterator[None]:
        """Makes all reads within it see the store as of one moment, whatever others write."""
        with self.reading() as db:
            if self._reads == 0:
                db.execute("BEGIN")
                db.execute("PRAGMA user_version").fetchone()  # the first read sets the moment
            self._reads += 1
            try:
                yield
            finally:
                self._reads -= 1
                if self._reads == 0 and db.in_transaction:
                    db.execute("ROLLBACK")  # COMMIT fails if the file is damaged

    def removed(self, since: int) -> NDArray[np.int64]:
        """The keys of the images removed after the first `since` removals."""
        with self.reading() as db:
            rows = db.execute("SELECT seq, key, id, crc FROM gone WHERE seq > ?", (since,))
            return np.array([_check_gone(*values) for values in rows], np.int64)

    def version(self) -> tuple[int, int]:
        """A value that changes with every commit, of this process or another."""
        if self._still is not None and self._still != self._signature():
            self.check_open()
            if not self._try_to_write():
                raise StoreError(f"{self.name} has changed since it was opened: open it again")
        with self.reading() as db:
            return db.execute("PRAGMA data_version").fetchone()[0], self._written

    @contextlib.contextmanager
    def changes(self, at: Position, bits: int) -> Iterator[tuple[Change, Iterator[Chunk]]]:
        """What was committed since a position, in one state: removals, and images in chunks."""
        with self.one_state(), self.reading() as db:
            state = self._state(db)
            to = Position(state.key, state.gone, state.keys)
            change = Change(to, state.images, self._fine_images(db))
            # A table that is ahead of the store holds what the store has lost.
            change.again = at.gone < self._trimmed(db) or at.gone > state.gone or at.key > state.key
            if at.key and not change.again:
                change.removed = self.removed(at.gone)

            def chunks() -> Iterator[Chunk]:
                start = 0 if change.again else at.key
                keys = 0 if change.again else at.keys
                keys -= int(change.removed[change.removed <= start].sum())
                fine = "(SELECT codes FROM fine WHERE fine.key = images.key)"
                query = (
                    f"SELECT key, codes, {fine if schema.has_fine(db) else 'NULL'} FROM images "
                    "WHERE key > ? ORDER BY key"
                )
                cursor = db.execute(query, (start,))
                while rows := cursor.fetchmany(CHUNK):
                    images, codes, blobs = zip(*rows, strict=True)
                    yield Chunk(*unpack_codes(images, codes, bits, any_region=True), images, blobs)
                    keys += sum(images)
                if keys != state.keys:
                    raise self._images_missing()

            yield change, chunks()

    def fine(self, keys: Sequence[int]) -> dict[int, bytes]:
        """The packed fine codes of images, for `unpack_fine`; only of those that have any."""
        with self.reading() as db:
            if not schema.has_fine(db):
                return {}
            query = "SELECT key, codes FROM fine WHERE key IN (SELECT value FROM json_each(?))"
            return dict(db.execute(query, (_json(keys),)))

    def fine_images(self) -> int:
        """How many images should have fine codes. Raises StoreDamagedError."""
        with self.reading() as db:
            return self._fine_images(db)

    def lone_fine(self) -> int:
        """How many images that are not stored have fine codes. Raises StoreDamagedError."""
        query = "SELECT count(*) FROM fine WHERE key NOT IN (SELECT key FROM images)"
        with self.reading() as db:
            return int(db.execute(query).fetchone()[0]) if schema.has_fine(db) else 0

    def _images_missing(self) -> StoreDamagedError:
        return StoreDamagedError(f"{self.name} is damaged: images are missing")

    def _trimmed(self, db: sqlite3.Connection) -> int:
        """How many removals `trim_removals` has deleted."""
        least = db.execute("SELECT min(seq) FROM gone").fetchone()[0]
        return self._state(db).gone if least is None else int(least) - 1

    def copy_to(self, file: Path) -> None:
        """Writes the store, as of one moment, to a new file. Others may write meanwhile."""
        with contextlib.ExitStack() as stack:
            if self.folder is None or self._still is not None or not self.is_in_place():
                source = stack.enter_context(self.reading())
            else:  # a connection of its own, so that readers in this process need not wait
                self.check_open()
                with named_errors(self.name):
                    source = connection.to_read(self.folder / FILE)
                stack.callback(source.close)
            with named_errors(self.name), contextlib.closing(connection.create(file)) as copy:
                source.backup(copy)

    def problems(self) -> list[str]:
        """What SQLite's integrity check finds wrong with the file."""
        with self.reading() as db:
            lines = [text for (text,) in db.execute("PRAGMA integrity_check(20)")]
        return [] if lines == ["ok"] else lines

    def bytes(self) -> int:
        """The size of the folder, or of SQLite's pages if the store is in memory."""
        if self.folder is None:
            with self.reading() as db:
                pages, size = (
                    db.execute(f"PRAGMA {what}").fetchone()[0]
                    for what in ("page_count", "page_size")
                )
            return int(pages * size)
        assert self._place is not None
        return self._place.size()


def _size(row: Row) -> int:
    """The bytes that a row takes in the file, roughly. The id is in the index of ids, too."""
    texts = (row.id, row.id, row.path, row.metadata)
    codes = len(row.codes) + (0 if row.fine is None else len(row.fine) + 16)
    return 64 + codes + sum(len(t) for t in texts if isinstance(t, str))


def _check_gone(seq: int, key: int, id: Id, crc: int) -> int:
    if crc != row_crc(seq, id, key):
        raise StoreDamagedError(f"the record of removal number {seq} is damaged")
    return key


def _known(db: sqlite3.Connection, ids: Iterable[Id]) -> dict[Id, Known]:
    fine = "key IN (SELECT key FROM fine)" if schema.has_fine(db) else "0"
    query = (
        f"SELECT id, key, size, time, hash, metadata, {fine} FROM images "
        "WHERE id IN (SELECT value FROM json_each(?))"
    )
    return {values[0]: Known(*values[1:]) for values in db.execute(query, (_json(ids),))}


def _rows(db: sqlite3.Connection, column: str, values: Sequence[Any]) -> Iterator[Row]:
    query = f"SELECT {COLUMNS} FROM images WHERE {column} IN (SELECT value FROM json_each(?))"
    wanted = set(values)
    for fields in db.execute(query, (_json(values),)):
        row = read_row(fields)
        if (row.id if column == "id" else row.key) not in wanted:
            raise StoreDamagedError(
                f"the record of image number {row.key} is stored under another {column}"
            )
        yield row


def _json(values: Iterable[Any]) -> str:
    return json.dumps(list(values), ensure_ascii=False)
