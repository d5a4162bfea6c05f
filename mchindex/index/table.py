"""The bucket table of an index, kept in step with its store.

The table is derived from the store and follows what this process and others commit to it. With a
snapshot on disk, opening an index need not read the whole store.
"""

from __future__ import annotations

import re
import threading
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from mchindex._core import BucketTable, FineTable
from mchindex.errors import SnapshotError, StoreDamagedError, StoreError
from mchindex.files import open_file
from mchindex.index.fine_snapshot import load_fine, save_fine
from mchindex.index.identity import FineIdentity, Identity
from mchindex.storage.connection import is_full
from mchindex.storage.records import (
    LAST_REGION,
    Id,
    Known,
    Row,
    code_type,
    pack_fine,
    unpack_fine,
)
from mchindex.storage.store import Chunk, Position, Store

SNAPSHOT = "table-"  # file names of snapshots start with this
SNAPSHOT_AFTER = 500  # changes since the last snapshot that opening an index may have to read
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
    fine: int | None = None  # checksum of the fine codes, see `save_fine`; None: there are none

    @classmethod
    def of_store(cls, store: Store) -> Saved | None:
        """None if the store names no snapshot. Raises StoreDamagedError."""
        facts = store.get("snapshot")
        if facts is None:
            return None
        if not isinstance(facts, dict) or facts.keys() | {"fine"} != set(cls._fields):
            raise store.unreadable("snapshot")
        saved = cls(**facts)
        name, *numbers, fine = saved
        # A name with a slash would lead out of the folder.
        if not (isinstance(name, str) and re.fullmatch(rf"{SNAPSHOT}\w+\.snapshot", name)):
            raise store.unreadable("snapshot")
        if not all(type(number) is int for number in numbers) or type(fine) not in (int, NoneType):
            raise store.unreadable("snapshot")
        return saved

    def to_json(self) -> dict[str, Any]:
        facts = self._asdict()
        if self.fine is None:
            del facts["fine"]  # as in format 1
        return facts

    @property
    def fine_file(self) -> str:
        """The name of the file with the fine codes."""
        return self.file.removesuffix(".snapshot") + ".fine"


class Tables(NamedTuple):
    """What a search looks in."""

    buckets: BucketTable
    fine: FineTable | None  # None: the index has no fine codes


class LiveTable:
    """A BucketTable of everything that is committed to a store, and a FineTable of the fine codes
    if the index has any."""

    def __init__(self, store: Store, identity: Identity, fine: FineIdentity | None) -> None:
        self._store, self._bits, self._identity = store, identity.bits, identity
        self._lock = threading.RLock()
        self._fine_identity = fine
        self._moves = 0  # odd while the tables are between two states
        self._snapshot_at = 0  # changes that the last snapshot covers
        self._empty()
        self._load_snapshot()
        self.refresh()

    def _empty(self) -> None:
        """Starts with empty tables, which the next `refresh` fills from the store."""
        self._table = BucketTable(self._bits)
        self._fine = self._new_fine()
        self._position = Position()
        self._seen: tuple[int, int] | None = None  # the store's version at that position
        self._refused: frozenset[int] = frozenset()  # images that the table cannot hold

    def _new_fine(self) -> FineTable | None:
        if self._fine_identity is None:
            return None
        return new_fine_table(self._identity, self._fine_identity)

    def use_fine(self, fine: FineIdentity) -> None:
        """Takes in fine codes from now on, if it does not yet; there are none in the store then."""
        with self._lock:
            if self._fine_identity is None:
                self._fine_identity = fine
                self._fine = self._new_fine()

    @property
    def fine(self) -> FineTable | None:
        """The fine codes, up to date with the store; None if the index has none."""
        self.refresh()
        return self._fine

    @property
    def fine_kind(self) -> FineIdentity | None:
        """What the fine codes are; None if the index has none."""
        self.refresh()
        return self._fine_identity

    def fine_codes(self, keys: Sequence[int]) -> dict[int, NDArray[np.uint8]]:
        """The fine codes (regions, bytes) of those of the images that are there and have some."""
        found: dict[int, NDArray[np.uint8]] = {}
        if (table := self.fine) is None:
            return found
        for key in keys:
            try:
                found[key] = table.read([key])[0]
            except KeyError:
                continue
        return found

    def in_bucket(self, codes: NDArray[np.uint8]) -> list[int]:
        """How many images have each of some codes."""
        counts: list[int] = np.diff(self.current.within(codes, 0).lims).tolist()
        return counts

    @property
    def without_fine(self) -> int:
        """How many images that a search can find have no fine codes."""

        def missing(tables: Tables, _: None) -> int:
            return len(tables.buckets) - (0 if tables.fine is None else len(tables.fine))

        return self.consistently(None, missing)

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
        if self._fine_identity is None and (kind := FineIdentity.of_store(self._store)) is not None:
            self.use_fine(kind)  # another process has begun to store them
        with self._moving(), self._store.changes(self._position, self._bits) as (change, chunks):
            table = BucketTable(self._bits) if change.again else self._table
            fine = self._new_fine() if change.again else self._fine
            refused = set[int]() if change.again else set(self._refused)
            read = 0
            for chunk in chunks:
                more = _add(table, chunk.owners, chunk.entries)
                if fine is not None:
                    _add_fine(fine, chunk, more)
                refused |= more
                read += len(chunk.owners)
            if len(change.removed):
                table.remove(change.removed)
                if fine is not None:
                    fine.remove(change.removed)
                refused.difference_update(change.removed.tolist())
            if (found := len(table) + len(refused)) != change.images:
                raise StoreDamagedError(
                    f"{self._store.name} is damaged: only {found} of {change.images} images can be "
                    "read"
                )
            if fine is not None and not change.fine - len(refused) <= len(fine) <= change.fine:
                raise StoreDamagedError(
                    f"{self._store.name} is damaged: the fine codes of only {len(fine)} of "
                    f"{change.fine} images can be read"
                )
            if read > max(SNAPSHOT_AFTER, table.n_codes // 2):
                table.optimize()  # most of it is new: one segment is faster to search
            self._table, self._fine = table, fine
            self._position, self._seen = change.to, version
            self._refused = frozenset(refused)

    @contextmanager
    def _moving(self) -> Iterator[None]:
        """Brings the tables from one state to another. If that fails, they are empty afterwards,
        because they may hold half of a change."""
        self._moves += 1
        try:
            yield
        except BaseException:
            self._empty()
            raise
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

    def insert(self, rows: Sequence[Row], keys: Sequence[int] | None = None) -> Mapping[Id, Known]:
        """Stores images and adds their codes to the table; returns the images they replaced. `keys`
        is passed to `Store.insert`."""
        self._check(rows)
        self.refresh()
        before = self._position
        done = self._store.insert(rows, keys)
        codes = [row.codes for row in done.rows]
        entries = np.frombuffer(b"".join(codes), code_type(self._bits))
        counts = np.fromiter(map(len, codes), np.int64, len(codes)) // entries.itemsize
        images = list(done.keys)
        owners = np.repeat(np.array(images, np.int64), counts)
        fine = [
            None if row.fine is None else pack_fine(key, row.fine)
            for key, row in zip(images, done.rows, strict=True)
        ]
        self._apply(before, Chunk(owners, entries, images, fine), done.replaced)
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
        fine = self._fine
        size = 0 if fine is None else fine.regions * fine.fine_bits // 8
        for row in rows:
            if row.fine is not None and len(row.fine) != (size or -1):
                raise ValueError(
                    f"image {row.id!r} has {len(row.fine)} bytes of fine codes, but this index "
                    f"has {size} per image"
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
        nothing = Chunk(np.empty(0, np.int64), np.empty(0, code_type(self._bits)), [], [])
        self._apply(before, nothing, removed)
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

    def _apply(self, before: Position, chunk: Chunk, gone: Mapping[Id, Known]) -> None:
        """Does what `_follow` would do, without reading back what was just written.

        `before` is the table's position before the write.
        """
        with self._lock:
            if self._position is not before:
                return  # a search in another thread has already followed
            removed = np.array([known.key for known in gone.values()], np.int64)
            with self._moving():
                if len(removed):
                    self._table.remove(removed)
                    if self._fine is not None:
                        self._fine.remove(removed)
                refused = _add(self._table, chunk.owners, chunk.entries)
                if self._fine is not None:
                    _add_fine(self._fine, chunk, refused)
                self._refused = self._refused.difference(removed.tolist()) | refused
                self._position = Position(
                    chunk.keys[-1] if chunk.keys else before.key,
                    before.gone + len(removed),
                    before.keys + sum(chunk.keys) - int(removed.sum()),
                )
                self._seen = self._store.version()

    # Searching.

    def consistently(
        self, select: Callable[[], S] | None, work: Callable[[Tables, S | None], T]
    ) -> T:
        """Runs `work(tables, select())` on one state of the tables and the store.

        If the tables change meanwhile, the work is done again with the tables locked.
        """
        self._store.check_open()  # a thread that a fork left behind may have held the lock
        for lock in (nullcontext(), self._lock):
            with lock:
                if select is None:
                    self.refresh()
                    moves, chosen = self._moves, None
                else:
                    with self._lock, self._store.one_state():
                        self._follow()
                        moves, chosen = self._moves, select()
                result = work(Tables(self._table, self._fine), chosen)
            if moves % 2 == 0 and moves == self._moves:
                break
        return result

    # Snapshots.

    def _load_snapshot(self) -> None:
        """Starts from the last snapshot, if it is intact and belongs to this store."""
        folder, saved = self._store.folder, Saved.of_store(self._store)
        if folder is None or saved is None:
            return
        fine = self._new_fine()
        if fine is None and saved.fine is not None:
            return  # another process has stored the first fine codes meanwhile
        try:
            table = load_snapshot(folder / saved.file)
            if fine is not None and saved.fine is not None:
                load_fine(fine, folder / saved.fine_file, saved.fine, saved.key)
        except (SnapshotError, OSError):
            return  # no harm done: the store has everything
        if table.bits == self._bits and table.n_codes == saved.codes:
            self._table, self._fine = table, fine
            self._refused = _refused_before(self._store)
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
            size = self._table.memory()["total"] + (self._fine.memory() if self._fine else 0)
            if not store.is_in_place() or store.room() < 2 * size:
                return
            file = f"{SNAPSHOT}{uuid.uuid4().hex[:12]}.snapshot"
            self._table.optimize()
            # A snapshot is used only if the store names it.
            at = self._position
            saved = Saved(file, self._table.n_codes, at.key, at.gone, at.keys, changes)
            try:
                self._table.save(folder / file)
                if self._fine:
                    saved = saved._replace(fine=save_fine(self._fine, folder / saved.fine_file))
                store.set(snapshot=saved.to_json(), refused=sorted(self._refused))
            except (OSError, StoreError) as error:
                for name in (file, saved.fine_file):
                    with suppress(OSError):
                        (folder / name).unlink()
                if isinstance(error, StoreError) and not is_full(error):
                    raise
                return  # the disk is full: opening takes longer, but nothing is lost
            # Including those of writers that crashed.
            store.delete_files(SNAPSHOT, keep=(file, saved.fine_file))
        store.trim_removals()
        self._snapshot_at = changes


def new_fine_table(identity: Identity, fine: FineIdentity) -> FineTable:
    """An empty table for the fine codes of an index."""
    return fine.table(identity.bits, max(1, len(identity.regions)))


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


def _add_fine(table: FineTable, chunk: Chunk, refused: Collection[int]) -> None:
    """Adds the fine codes of images, but for those that the bucket table refuses."""
    some = [
        (key, blob)
        for key, blob in zip(chunk.keys, chunk.fine, strict=True)
        if blob is not None and key not in refused
    ]
    if not some:
        return
    keys = [key for key, _ in some]
    codes = unpack_fine(keys, [blob for _, blob in some], table.regions, table.fine_bits)
    starts = np.searchsorted(chunk.owners, keys)
    counts = np.searchsorted(chunk.owners, keys, "right") - starts
    table.add(keys, codes, counts, chunk.entries["code"][np.isin(chunk.owners, keys)])


def _refused_before(store: Store) -> frozenset[int]:
    """The stored images that the snapshot does not have, because a table cannot hold them."""
    keys = store.get("refused") or []
    if not isinstance(keys, list) or not all(type(key) is int for key in keys):
        raise store.unreadable("refused")
    return frozenset(keys)
