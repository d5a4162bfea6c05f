"""The bucket table of an index, kept in step with its store.

The table is derived from the store and follows what this process and others commit to it. With a
snapshot on disk, opening an index need not read the whole store.
"""

from __future__ import annotations

import re
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from mchindex._core import BucketTable
from mchindex.errors import SnapshotError, StoreDamagedError, StoreError
from mchindex.files import open_file
from mchindex.storage.connection import is_full
from mchindex.storage.records import LAST_REGION, Id, Known, Row, code_type
from mchindex.storage.store import Position, Store

SNAPSHOT = "table-"  # file names of snapshots start with this
SNAPSHOT_AFTER = 5_000  # changes since the last snapshot that opening an index may have to read
MOST, FEWEST = 10_000, 50  # images removed in one commit
REMOVING = 16 << 10  # bytes of the log that removing an image may take

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
        saved = cls(**facts)
        name, *numbers = saved
        # A name with a slash would lead out of the folder.
        if not (isinstance(name, str) and re.fullmatch(rf"{SNAPSHOT}\w+\.snapshot", name)):
            raise store.unreadable("snapshot")
        if not all(type(number) is int for number in numbers):
            raise store.unreadable("snapshot")
        return saved


class LiveTable:
    """A BucketTable of everything that is committed to a store."""

    def __init__(self, store: Store, bits: int) -> None:
        self._store, self._bits = store, bits
        self._lock = threading.RLock()
        self._table = BucketTable(bits)
        self._position = Position()
        self._seen: tuple[int, int] | None = None  # the store's version at that position
        self._moves = 0  # odd while the table is between two states
        self._refused: frozenset[int] = frozenset()  # images that the table cannot hold
        self._snapshot_at = 0  # changes that the last snapshot covers
        self._load_snapshot()
        self.refresh()

    @property
    def current(self) -> BucketTable:
        """The table, up to date with the store."""
        self.refresh()
        return self._table

    @property
    def images(self) -> int:
        """The number of stored images, including those that no search can find."""
        self.refresh()
        return len(self._table) + len(self._refused)

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
            refused = set[int]() if change.again else set(self._refused)
            read = 0
            for keys, entries in chunks:
                refused |= _add(table, keys, entries)
                read += len(keys)
            if len(change.removed):
                table.remove(change.removed)
                refused.difference_update(change.removed.tolist())
            if (found := len(table) + len(refused)) != change.images:
                raise StoreDamagedError(
                    f"{self._store.name} is damaged: only {found} of {change.images} images can be "
                    "read"
                )
            if read > max(SNAPSHOT_AFTER, table.n_codes // 2):
                table.optimize()  # most of it is new: one segment is faster to search
            # Set last: if anything above fails, the next call starts over, which does no harm.
            self._table, self._position, self._seen = table, change.to, version
            self._refused = frozenset(refused)

    @contextmanager
    def _moving(self) -> Iterator[None]:
        self._moves += 1
        try:
            yield
        finally:
            self._moves += 1

    # Writing.

    @contextmanager
    def writing(self, wait: float, *, removing: bool = False) -> Iterator[None]:
        """Makes this the only writer. `insert` and `remove` may be called only within it.

        To remove images from a full disk, the snapshot is given up: it can be made again.
        """
        with self._store.writer(wait, SNAPSHOT if removing else None):
            self.refresh()
            if removing:
                self._forget_lost_snapshot()
            try:
                yield
            finally:
                self.refresh()
                self._save_snapshot()

    def insert(self, rows: Sequence[Row]) -> Mapping[Id, Known]:
        """Stores images and adds their codes to the table; returns the images they replaced."""
        self._check(rows)
        self.refresh()
        before = self._position
        done = self._store.insert(rows)
        codes = [row.codes for row in done.rows]
        entries = np.frombuffer(b"".join(codes), code_type(self._bits))
        counts = np.fromiter(map(len, codes), np.int64, len(codes)) // entries.itemsize
        keys = np.arange(done.first, done.first + len(codes), dtype=np.int64)
        self._apply(before, keys, np.repeat(keys, counts), entries, done.replaced)
        return done.replaced

    def _check(self, rows: Sequence[Row]) -> None:
        """Raises ValueError for images that, once stored, no search could find."""
        kind = code_type(self._bits)
        for row in rows:
            if not row.codes or len(row.codes) % kind.itemsize:
                raise ValueError(f"image {row.id!r} has no codes of {self._bits} bits")
        regions = np.frombuffer(b"".join([row.codes for row in rows]), kind)["region"]
        if wrong := ((regions < 0) | (regions > LAST_REGION)).sum():
            raise ValueError(
                f"the regions of images must be numbered from 0 to {LAST_REGION}, but {wrong} of "
                f"these codes have a region from {regions.min()} to {regions.max()}"
            )

    def remove(self, ids: Sequence[Id]) -> int:
        """Removes images; returns how many of them were in the store.

        Many images are removed in several steps, smaller ones where the disk has little room.
        """
        removed, waiting = 0, list(ids)
        together = max(FEWEST, min(MOST, self._store.room() // REMOVING))
        while waiting:
            try:
                removed += self._remove(waiting[:together])
                del waiting[:together]
            except StoreError as error:
                if not is_full(error) or not (self._make_room() or together > 1):
                    raise
                together = max(1, together // 2)
        return removed

    def _remove(self, ids: Sequence[Id]) -> int:
        self.refresh()
        before = self._position
        removed = self._store.remove(ids)
        none = np.empty(0, np.int64)
        self._apply(before, none, none, np.empty(0, code_type(self._bits)), removed)
        return len(removed)

    def _make_room(self) -> bool:
        """On a full disk: gives up the snapshot, which can be made again; says if there was one."""
        if not self._store.delete_files(SNAPSHOT):
            return False
        self._store.empty_log()
        self._forget_lost_snapshot()
        return True

    def _forget_lost_snapshot(self) -> None:
        saved = Saved.of_store(self._store)
        if saved is not None and not self._store.has_file(saved.file):
            self._store.set(snapshot=None)
            self._snapshot_at = 0

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
                refused = _add(self._table, owners, entries)
                self._refused = self._refused.difference(removed.tolist()) | refused
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
        self._store.check_open()  # a thread that a fork left behind may have held the lock
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
            table = load_snapshot(folder / saved.file)
        except (SnapshotError, OSError):
            return  # no harm done: the store has everything
        if table.bits == self._bits and table.n_codes == saved.codes:
            self._table, self._refused = table, _refused_before(self._store)
            self._position = Position(saved.key, saved.gone, saved.keys)
            self._snapshot_at = saved.changes

    def _save_snapshot(self) -> None:
        """Within the writer's lock: saves a snapshot if opening the index would take long."""
        store, folder = self._store, self._store.folder
        changes = self._position.key + self._position.gone
        if changes - self._snapshot_at < max(SNAPSHOT_AFTER, self._table.n_codes // 20):
            return
        if folder is not None:
            # Elsewhere, it might be stored in another index; on a full disk, it leaves no room.
            if not store.is_in_place() or store.room() < 2 * self._table.memory()["total"]:
                return
            file = f"{SNAPSHOT}{uuid.uuid4().hex[:12]}.snapshot"
            self._table.optimize()
            # A snapshot is used only if the store names it.
            at = self._position
            saved = Saved(file, self._table.n_codes, at.key, at.gone, at.keys, changes)
            try:
                self._table.save(folder / file)
                store.set(snapshot=saved._asdict(), refused=sorted(self._refused))
            except (OSError, StoreError) as error:
                if isinstance(error, StoreError) and not is_full(error):
                    raise
                return  # the disk is full: opening takes longer, but nothing is lost
            store.delete_files(SNAPSHOT, keep=file)  # including those of writers that crashed
        store.trim_removals()
        self._snapshot_at = changes


def load_snapshot(file: Path) -> BucketTable:
    """The table in a snapshot. Raises SnapshotError or OSError."""
    with open_file(file):  # raises OSError for a named pipe, which would block
        # A copy: reading a mapped file that another program has cut short ends the process.
        return BucketTable.load(file)


def _add(table: BucketTable, keys: NDArray[np.int64], entries: NDArray[Any]) -> set[int]:
    """Adds codes to a table; returns the images that it refuses, of which it then has none."""
    try:
        if len(keys):
            table.add(keys, entries["code"], entries["region"])
    except ValueError:
        images = np.unique(keys)
        if len(images) == 1:
            return {int(images[0])}
        low = keys < images[len(images) // 2]
        return _add(table, keys[low], entries[low]) | _add(table, keys[~low], entries[~low])
    return set()


def _refused_before(store: Store) -> frozenset[int]:
    """The stored images that the snapshot does not have, because a table cannot hold them."""
    keys = store.get("refused") or []
    if not isinstance(keys, list) or not all(type(key) is int for key in keys):
        raise store.unreadable("refused")
    return frozenset(keys)
