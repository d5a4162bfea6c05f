"""The bucket table of an index, kept in step with its store.

The table is derived from the store and follows what this process and others commit to it. With a
snapshot on disk, opening an index need not read the whole store.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from mchindex._core import BucketTable
from mchindex.errors import SnapshotError, StoreDamagedError
from mchindex.storage.records import Id, Known, Row, code_type
from mchindex.storage.store import Position, Store

SNAPSHOT = "table-"  # file names of snapshots start with this
SNAPSHOT_AFTER = 5_000  # changes since the last snapshot that opening an index may have to read

S = TypeVar("S")
T = TypeVar("T")


class Saved(NamedTuple):
    """The snapshot that a store names, and the state of the store that it holds."""

    file: str
    codes: int
    key: int  # `key`, `gone` and `keys` are those of a Position
    gone: int
    keys: int
    changes: int  # so far: images given a key, and removals

    @classmethod
    def of_store(cls, store: Store) -> Saved | None:
        """None if the store names no snapshot. Raises StoreDamagedError."""
        facts = store.get("snapshot")
        if facts is None:
            return None
        if not isinstance(facts, dict) or facts.keys() != set(cls._fields):
            raise store.unreadable("snapshot")
        return cls(**facts)


class LiveTable:
    """A BucketTable of everything that is committed to a store."""

    def __init__(self, store: Store, bits: int) -> None:
        self._store, self._bits = store, bits
        self._lock = threading.RLock()
        self._table = BucketTable(bits)
        self._position = Position()
        self._seen: tuple[int, int] | None = None  # the store's version at that position
        self._moves = 0  # odd while the table is between two states
        self._snapshot_at = 0  # changes that the last snapshot covers
        self._load_snapshot()
        self.refresh()

    @property
    def current(self) -> BucketTable:
        """The table, up to date with the store."""
        self.refresh()
        return self._table

    # Following the store.

    def refresh(self) -> None:
        """Applies what has been committed since the last call."""
        if self._store.version() != self._seen:
            with self._lock, self._store.one_state():
                self._follow()

    def _follow(self) -> None:
        """Within the lock and one state of the store: brings the table to that state."""
        version = self._store.version()
        if version == self._seen:
            return
        with self._moving(), self._store.changes(self._position, self._bits) as (change, chunks):
            table = BucketTable(self._bits) if change.again else self._table
            read = 0
            for keys, entries in chunks:
                table.add(keys, entries["code"], entries["region"])
                read += len(keys)
            if len(change.removed):
                table.remove(change.removed)
            if len(table) != change.images:
                raise StoreDamagedError(
                    f"{self._store.name} is damaged: only {len(table)} of {change.images} images "
                    "can be read"
                )
            if read > max(SNAPSHOT_AFTER, table.n_codes // 2):
                table.optimize()  # most of it is new: one segment is faster to search
            # Set last: if anything above fails, the next call starts over, which does no harm.
            self._table, self._position, self._seen = table, change.to, version

    @contextmanager
    def _moving(self) -> Iterator[None]:
        self._moves += 1
        try:
            yield
        finally:
            self._moves += 1

    # Writing.

    @contextmanager
    def writing(self, wait: float) -> Iterator[None]:
        """Makes this the only writer. `insert` and `remove` may be called only within it."""
        with self._store.writer(wait):
            self.refresh()
            try:
                yield
            finally:
                self.refresh()
                self._save_snapshot()

    def insert(self, rows: Sequence[Row]) -> Mapping[Id, Known]:
        """Stores images and adds their codes to the table; returns the images they replaced."""
        width = code_type(self._bits).itemsize
        for row in rows:  # refused here, because in the store they would count as damaged
            if not row.codes or len(row.codes) % width:
                raise ValueError(f"image {row.id!r} has no codes of {self._bits} bits")
        self.refresh()
        before = self._position
        done = self._store.insert(rows)
        codes = [row.codes for row in done.rows]
        entries = np.frombuffer(b"".join(codes), code_type(self._bits))
        counts = np.fromiter(map(len, codes), np.int64, len(codes)) // entries.itemsize
        keys = np.arange(done.first, done.first + len(codes), dtype=np.int64)
        self._apply(before, keys, np.repeat(keys, counts), entries, done.replaced)
        return done.replaced

    def remove(self, ids: Sequence[Id]) -> int:
        """Removes images; returns how many of them were in the store."""
        self.refresh()
        before = self._position
        removed = self._store.remove(ids)
        none = np.empty(0, np.int64)
        self._apply(before, none, none, np.empty(0, code_type(self._bits)), removed)
        return len(removed)

    def _apply(
        self,
        before: Position,
        keys: NDArray[np.int64],
        owners: NDArray[np.int64],
        entries: NDArray[Any],
        gone: Mapping[Id, Known],
    ) -> None:
        """Does what `_follow` would do, without reading back what was just written.

        `before` is the table's position before the write; `owners` has the image key of each entry.
        """
        with self._lock:
            if self._position is not before:
                return  # a search in another thread has already followed
            removed = np.array([known.key for known in gone.values()], np.int64)
            with self._moving():
                if len(removed):
                    self._table.remove(removed)
                if len(entries):
                    self._table.add(owners, entries["code"], entries["region"])
                self._position = Position(
                    int(keys[-1]) if len(keys) else before.key,
                    before.gone + len(removed),
                    before.keys + int(keys.sum()) - int(removed.sum()),
                )
                self._seen = self._store.version()

    # Searching.

    def consistently(
        self, select: Callable[[], S] | None, work: Callable[[BucketTable, S | None], T]
    ) -> T:
        """Runs `work(table, select())` on one state of the table and the store.

        If the table changes meanwhile, the work is done again with the table locked.
        """
        for lock in (nullcontext(), self._lock):
            with lock:
                if select is None:
                    self.refresh()
                    moves, table, chosen = self._moves, self._table, None
                else:
                    with self._lock, self._store.one_state():
                        self._follow()
                        moves, table, chosen = self._moves, self._table, select()
                result = work(table, chosen)
            if moves % 2 == 0 and moves == self._moves:
                break
        return result

    # Snapshots.

    def _load_snapshot(self) -> None:
        """Starts from the last snapshot, if it is intact and belongs to this store."""
        folder, saved = self._store.folder, Saved.of_store(self._store)
        if folder is None or saved is None:
            return
        try:
            table = BucketTable.load(folder / saved.file, mmap=True)
        except (SnapshotError, OSError):
            return  # no harm done: the store has everything
        if table.bits == self._bits and table.n_codes == saved.codes:
            self._table = table
            self._position = Position(saved.key, saved.gone, saved.keys)
            self._snapshot_at = saved.changes

    def _save_snapshot(self) -> None:
        """Within the writer's lock: saves a snapshot if opening the index would take long."""
        folder = self._store.folder
        changes = self._position.key + self._position.gone
        if changes - self._snapshot_at < max(SNAPSHOT_AFTER, self._table.n_codes // 20):
            return
        if folder is not None:
            file = f"{SNAPSHOT}{uuid.uuid4().hex[:12]}.snapshot"
            self._table.optimize()
            try:
                self._table.save(folder / file)
            except OSError:
                return  # the disk may be full: opening takes longer, but nothing is lost
            # A snapshot is used only if the store names it.
            at = self._position
            saved = Saved(file, self._table.n_codes, at.key, at.gone, at.keys, changes)
            self._store.set(snapshot=saved._asdict())
            for old in folder.glob(f"{SNAPSHOT}*"):  # including those of writers that crashed
                if old.name != file:
                    old.unlink(missing_ok=True)
        self._store.trim_removals()
        self._snapshot_at = changes
