"""Checks an index: its store, its snapshot, its model, and whether they agree."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from mchindex._core import FineTable
from mchindex.catalogue import listed, read_config
from mchindex.errors import SnapshotError, StoreDamagedError, StoreError
from mchindex.index.adding import groups
from mchindex.index.backup import MODEL_FOLDER
from mchindex.index.fine_snapshot import load_fine
from mchindex.index.identity import FineIdentity, Identity
from mchindex.index.table import SNAPSHOT, Saved, load_snapshot, new_fine_table
from mchindex.storage.records import Row, row_metadata, unpack_codes
from mchindex.storage.rescue import salvage, salvage_fine
from mchindex.storage.store import Store

BATCH = 5_000  # images compared with the snapshot at a time
T = TypeVar("T")


@dataclass
class Verified:
    """What a check found: problems, and notes about things that are not problems."""

    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    images: int = 0  # intact ones
    codes: int = 0
    fine: int = 0  # images with intact fine codes
    unreadable: int = 0
    missing: int = 0  # images whose files no longer exist
    snapshot: str | None = None
    fingerprint: str | None = None


def verify(path: str | os.PathLike[str], *, model: bool = True, wait: float = 10.0) -> Verified:
    """Reads a whole index without changing it. With `model`, the model is loaded too.

    Others may search and add meanwhile: the index is checked as of one moment. To fix that moment,
    `verify` waits up to `wait` seconds until no one is writing.
    """
    folder, report = Path(path), Verified()
    try:
        store = Store.existing(folder)
    except StoreDamagedError as error:
        report.problems.append(str(error))
        return report
    try:
        with ExitStack() as stack:
            with store.without_writers(
                wait
            ):  # otherwise the snapshot might be replaced before it is open
                stack.enter_context(store.one_state())
                snapshot = _Snapshot(store, report)
            report.problems += _integrity(store)
            identity = _read(partial(Identity.of_store, store), report)
            if identity is not None:
                fine = _Fine(store, identity, snapshot.saved, report)
                _rows(store, identity.bits, snapshot, fine, report)
                snapshot.end()
                fine.end()
                _model(folder, identity, model, report)
            elif not report.problems:
                report.problems.append(f"{folder} does not say which model filled it")
    finally:
        store.close()
    return report


def _integrity(store: Store) -> list[str]:
    """The problems that SQLite's own check finds, including duplicate ids."""
    try:
        return [f"SQLite: {text}" for text in store.problems()]
    except StoreError as error:
        return [str(error)]


def _read(what: Callable[[], T], report: Verified) -> T | None:
    try:
        return what()
    except StoreError as error:
        report.problems.append(str(error))
        return None


def _rows(store: Store, bits: int, snapshot: _Snapshot, fine: _Fine, report: Verified) -> None:
    """Checks every record and every code against its checksum and against the snapshot."""
    for group in groups(salvage(store), BATCH):
        intact = [row for row in group if row is not None]
        report.unreadable += len(group) - len(intact)
        report.missing += sum(r.path is not None and not os.path.exists(r.path) for r in intact)
        for row in intact:
            report.images += 1
            try:
                report.codes += len(unpack_codes([row.key], [row.codes], bits)[1])
                row_metadata(row)
            except StoreDamagedError as error:
                report.problems.append(f"image {row.id!r}: {error}")
        snapshot.compare(intact, bits)
        fine.compare(intact)
    try:
        lost = len(store) - report.images - report.unreadable
    except StoreError as error:
        report.problems.append(str(error))
    else:
        if lost and not report.unreadable:  # otherwise the message below says more
            report.problems.append(
                f"the store should have {len(store):,} images, but has {report.images:,}"
            )
    if report.unreadable:
        report.problems.append(
            f"images that cannot be read or do not match their checksums: {report.unreadable:,}"
        )
    if report.missing:
        report.notes.append(f"images whose files no longer exist: {report.missing:,}")


class _Snapshot:
    """The snapshot, compared with the codes that the store had when it was saved."""

    def __init__(self, store: Store, report: Verified) -> None:
        self._report, self._table = report, None
        assert store.folder is not None
        self.saved = saved = _read(partial(Saved.of_store, store), report)
        self._note_strays(store.folder, saved)
        if saved is None:
            return
        report.snapshot = saved.file
        try:
            table = load_snapshot(store.folder / saved.file)
        except FileNotFoundError:  # deleted to make room on a full disk
            report.notes.append(f"the snapshot {saved.file} is missing: opening takes longer")
            return
        except (SnapshotError, OSError) as error:
            # Nothing is lost: the store has everything.
            self._problem(f"cannot be used ({error}): opening the index takes longer")
            return
        if table.n_codes != saved.codes:
            self._problem(f"has {table.n_codes:,} codes instead of {saved.codes:,}")
            return
        self._table, self._last, self._codes = table, saved.key, 0
        try:
            table.remove(store.removed(saved.gone))
        except StoreError as error:
            report.problems.append(str(error))

    def _note_strays(self, folder: Path, saved: Saved | None) -> None:
        """Notes snapshots that the store does not name, such as those left by a crash."""
        used = () if saved is None else (saved.file, saved.fine is not None and saved.fine_file)
        files = [f.name for end in ("snapshot", "fine") for f in folder.glob(f"{SNAPSHOT}*.{end}")]
        strays = sorted(name for name in files if name not in used)
        self._report.notes += [f"{name} is not used by the index: delete it" for name in strays]

    def _problem(self, text: str) -> None:
        self._report.problems.append(f"the snapshot {self._report.snapshot} {text}")

    def compare(self, rows: Sequence[Row], bits: int) -> None:
        """Checks that the snapshot has exactly the codes of these images, with their regions."""
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
        """Checks by their number that the snapshot has no codes that the store does not have."""
        if self._table is not None and not self._report.unreadable:
            more = self._table.n_codes - self._codes
            if more:
                self._problem(f"has {more:,} codes that the store does not have")


class _Fine:
    """The fine codes: their checksums and number, and whether the snapshot has the same."""

    def __init__(
        self, store: Store, identity: Identity, saved: Saved | None, report: Verified
    ) -> None:
        self._store, self._report = store, report
        self._damaged = 0
        self._saved: dict[int, tuple[bytes, bytes]] | None = None  # fine codes and codes, by key
        self._last = 0 if saved is None else saved.key
        fine = _read(partial(FineIdentity.of_store, store), report)
        self._table = None if fine is None else new_fine_table(identity, fine)
        if self._table is None or saved is None:
            return
        assert store.folder is not None
        try:
            if saved.fine is not None:
                load_fine(self._table, store.folder / saved.fine_file, saved.fine, saved.key)
            self._table.remove(store.removed(saved.gone))
        except FileNotFoundError:  # deleted to make room on a full disk
            report.notes.append(f"the snapshot {saved.fine_file} is missing: opening takes longer")
        except (SnapshotError, OSError) as error:
            self._problem(f"cannot be used ({error}): opening the index takes longer")
        except StoreError:
            pass  # the check of the other snapshot has reported it
        else:
            self._saved = _by_image(self._table)

    def _problem(self, text: str) -> None:
        self._report.problems.append(f"the snapshot of the fine codes {text}")

    def compare(self, rows: Sequence[Row]) -> None:
        """Checks the fine codes of these images, and that the snapshot has the same."""
        if self._table is None:
            return
        size = self._table.regions * self._table.fine_bits // 8
        stored = salvage_fine(self._store, [row.key for row in rows], size)
        self._report.fine += sum(codes is not None for codes in stored.values())
        self._damaged += sum(codes is None for codes in stored.values())
        wrong = 0
        for row in rows:
            if self._saved is not None and row.key <= self._last:
                fine, saved = stored.get(row.key), self._saved.pop(row.key, None)
                want = None if fine is None else (fine, _codes(row, self._table.bits))
                wrong += saved != want
        if wrong and not self._damaged:
            self._problem(f"and the store disagree on {wrong:,} images")
            self._saved = None  # one such message is enough

    def end(self) -> None:
        """Checks the number of fine codes."""
        report = self._report
        if self._damaged:
            report.problems.append(
                f"images whose fine codes are damaged: {self._damaged:,}; mch export leaves only "
                "these fine codes out"
            )
        if self._saved and not report.unreadable and not self._damaged:
            self._problem(f"has {len(self._saved):,} images that the store does not have")
        expected = _read(self._store.fine_images, report)
        if expected is not None and not report.unreadable and not self._damaged:
            if self._table is None and expected:
                report.problems.append("the store does not say which fine codes its images have")
            elif expected != report.fine:
                report.problems.append(
                    f"the store should have the fine codes of {expected:,} images, but has those "
                    f"of {report.fine:,}"
                )
        if alone := _read(self._store.lone_fine, report):
            report.problems.append(f"fine codes of images that are not in the store: {alone:,}")
        if report.fine and (without := report.images - report.fine - self._damaged) > 0:
            report.notes.append(f"images without fine codes: {without:,}")


def _codes(row: Row, bits: int) -> bytes:
    """The codes of an image; none if they are damaged."""
    try:
        codes: bytes = unpack_codes([row.key], [row.codes], bits, any_region=True)[1][
            "code"
        ].tobytes()
    except StoreDamagedError:
        return b""
    return codes


def _by_image(table: FineTable) -> dict[int, tuple[bytes, bytes]]:
    """The fine codes and the codes of each image in a table."""
    content = table.content()
    ends = np.cumsum(content["counts"])[:-1]
    codes = np.split(content["codes"], ends) if len(content["keys"]) else []
    several = zip(content["keys"].tolist(), content["fine"], codes, strict=True)
    return {key: (fine.tobytes(), own.tobytes()) for key, fine, own in several}


def _model(folder: Path, identity: Identity, load: bool, report: Verified) -> None:
    """Checks that the model is available and is the one that filled the index."""
    report.fingerprint = fingerprint = identity.fingerprint
    place = folder / MODEL_FOLDER
    if fingerprint is None:
        return  # an index of your own codes has no model
    if not place.is_dir():
        installed = [m.path for m in listed() if m.config["fingerprint"] == fingerprint]
        if not installed:
            name = identity.name or "of the index"
            report.problems.append(f"the model {name} ({fingerprint}) is not installed")
            return
        place = installed[0]
    try:
        actual = read_config(place)["fingerprint"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        report.problems.append(f"the model in {place} cannot be read: {error}")
        return
    if actual != fingerprint:
        report.problems.append(
            f"the model in {place} did not fill the index: it is {actual}, not {fingerprint}"
        )
    elif load:
        from mchindex.errors import ModelError
        from mchindex.inference import GraphModel, load_model

        try:
            model = GraphModel.load(place, precision=identity.precision) or load_model(place)
            if isinstance(model, GraphModel):
                model.check()
            if model.int8_graph != identity.int8_graph:
                report.problems.append(
                    "another version of mchindex filled the index, whose int8 codes differ: create "
                    "a new index, or use that version"
                )
        except ModelError as error:
            report.problems.append(str(error))


__all__ = ["Verified", "verify"]
