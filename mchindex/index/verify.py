"""Checking an index: its store, its snapshot and its model, each by itself and together."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from mchindex._core import BucketTable
from mchindex.catalogue import listed, read_config
from mchindex.errors import SnapshotError, StoreDamagedError, StoreError
from mchindex.index.adding import groups
from mchindex.index.backup import MODEL_FOLDER
from mchindex.index.identity import Identity
from mchindex.index.table import SNAPSHOT, Saved
from mchindex.storage.records import Row, unpack_codes
from mchindex.storage.store import Store

BATCH = 5_000  # images compared with the snapshot at a time
T = TypeVar("T")


@dataclass
class Verified:
    """What a check found: problems, and notes about things that are not problems."""

    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    images: int = 0  # that are intact
    codes: int = 0
    unreadable: int = 0
    missing: int = 0  # images whose files no longer exist
    snapshot: str | None = None
    fingerprint: str | None = None


def verify(path: str | os.PathLike[str], *, model: bool = True, wait: float = 10.0) -> Verified:
    """Reads a whole index and changes nothing. `model`: loads the model too.

    Others may search and add meanwhile: the index is checked as of one moment. To fix that moment,
    `verify` waits until no one is writing, `wait` seconds at most.
    """
    folder, found = Path(path), Verified()
    try:
        store = Store.existing(folder)
    except StoreDamagedError as error:
        found.problems.append(str(error))
        return found
    try:
        with ExitStack() as stack:
            with store.writer(wait):  # otherwise the snapshot might be replaced before it is open
                stack.enter_context(store.one_state())
                snapshot = _Snapshot(store, found)
            found.problems += _integrity(store)
            identity = _read(partial(Identity.of_store, store), found)
            if identity is not None:
                _rows(store, identity.bits, snapshot, found)
                snapshot.end()
                _model(folder, identity, model, found)
            elif not found.problems:
                found.problems.append(f"{folder} does not say which model filled it")
    finally:
        store.close()
    return found


def _integrity(store: Store) -> list[str]:
    """SQLite's own check, which includes that no id is there twice."""
    try:
        return [f"SQLite: {text}" for text in store.problems()]
    except StoreError as error:
        return [str(error)]


def _read(what: Callable[[], T], found: Verified) -> T | None:
    try:
        return what()
    except StoreError as error:
        found.problems.append(str(error))
        return None


def _rows(store: Store, bits: int, snapshot: _Snapshot, found: Verified) -> None:
    """Compares every record and every code with its checksum and with the snapshot."""
    for part in groups(store.salvage(), BATCH):
        sound = [row for row in part if row is not None]
        found.unreadable += len(part) - len(sound)
        found.missing += sum(r.path is not None and not os.path.exists(r.path) for r in sound)
        for row in sound:
            try:
                found.codes += len(unpack_codes([row.key], [row.codes], bits)[1])
                found.images += 1
            except StoreDamagedError as error:
                found.problems.append(f"{error}: they do not have {bits} bits")
        snapshot.compare(sound, bits)
    try:
        lost = len(store) - found.images - found.unreadable
    except StoreError as error:
        found.problems.append(str(error))
    else:
        if lost and not found.unreadable:  # otherwise the line below says more
            found.problems.append(
                f"the store counts {len(store):,} images and has {found.images:,}"
            )
    if found.unreadable:
        found.problems.append(
            f"images that cannot be read or do not match their checksums: {found.unreadable:,}"
        )
    if found.missing:
        found.notes.append(f"images whose files no longer exist: {found.missing:,}")


class _Snapshot:
    """The saved table, compared with the codes that the store had at that time."""

    def __init__(self, store: Store, found: Verified) -> None:
        self._found, self._table = found, None
        assert store.folder is not None
        saved = _read(partial(Saved.of_store, store), found)
        self._note_strays(store.folder, None if saved is None else saved.file)
        if saved is None:
            return
        found.snapshot = saved.file
        try:
            table = BucketTable.load(store.folder / saved.file, mmap=True)
        except (SnapshotError, OSError) as error:
            # The store has everything: only time is lost.
            self._problem(f"cannot be used ({error}): opening the index takes longer")
            return
        if table.n_codes != saved.codes:
            self._problem(f"has {table.n_codes:,} codes, and not {saved.codes:,}")
            return
        self._table, self._last, self._codes = table, saved.key, 0
        try:
            table.remove(store.removed(saved.gone))
        except StoreError as error:
            found.problems.append(str(error))

    def _note_strays(self, folder: Path, own: str | None) -> None:
        """Snapshots left by a crash, or by a writer that is about to name its new one."""
        strays = [f.name for f in sorted(folder.glob(f"{SNAPSHOT}*.snapshot")) if f.name != own]
        self._found.notes += [f"{name} is not used by the index: delete it" for name in strays]

    def _problem(self, text: str) -> None:
        self._found.problems.append(f"the snapshot {self._found.snapshot} {text}")

    def compare(self, rows: Sequence[Row], bits: int) -> None:
        """Every code of these images must be there, with its image and region, and no others."""
        if self._table is None or self._table.bits != bits:
            return
        wanted: dict[tuple[bytes, int], int] = {}
        for row in rows:
            if row.key <= self._last:
                try:
                    _, entries = unpack_codes([row.key], [row.codes], bits)
                except StoreDamagedError:
                    continue
                for code, region in zip(entries["code"], entries["region"].tolist(), strict=True):
                    # The table holds equal codes of an image once, under the first region.
                    place = (code.tobytes(), row.key)
                    wanted[place] = min(region, wanted.get(place, region))
        self._codes += len(wanted)
        if not wanted:
            return
        codes = sorted({code for code, _ in wanted})
        array = np.frombuffer(b"".join(codes), np.uint8).reshape(len(codes), bits // 8)
        keys = np.array(sorted({key for _, key in wanted}), np.int64)
        got = self._table.within(array, 0, allowed=keys)
        which = np.repeat(np.arange(len(codes)), np.diff(got.lims)).tolist()
        places = zip(which, got.ids.tolist(), strict=True)
        found = {
            (codes[i], key): region
            for (i, key), region in zip(places, got.regions.tolist(), strict=True)
        }
        if wrong := len(wanted.items() ^ found.items()):
            self._problem(f"and the store disagree on {wrong:,} codes")
            self._table = None  # one such message is enough

    def end(self) -> None:
        """Codes that the store does not have show only in their number."""
        if self._table is not None and not self._found.unreadable:
            more = self._table.n_codes - self._codes
            if more:
                self._problem(f"has {more:,} codes that the store does not have")


def _model(folder: Path, identity: Identity, load: bool, found: Verified) -> None:
    """The model must be there and be the one that filled the index."""
    found.fingerprint = fingerprint = identity.fingerprint
    own = folder / MODEL_FOLDER
    if fingerprint is None:
        return  # the codes are the user's own
    if not own.is_dir():
        known = [m.path for m in listed() if m.config["fingerprint"] == fingerprint]
        if not known:
            name = identity.name or "of the index"
            found.problems.append(f"the model {name} ({fingerprint}) is not installed")
            return
        own = known[0]
    try:
        said = read_config(own)["fingerprint"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        found.problems.append(f"the model in {own} cannot be read: {error}")
        return
    if said != fingerprint:
        found.problems.append(f"the model in {own} is another: {said}, not {fingerprint}")
    elif load:
        from mchindex.errors import ModelError
        from mchindex.models import MCHModel

        try:
            MCHModel.load(own)
        except ModelError as error:
            found.problems.append(str(error))


__all__ = ["Verified", "verify"]
