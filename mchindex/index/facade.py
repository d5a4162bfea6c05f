"""MCHIndex: images in, hits out, nothing lost."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from mchindex._core import BucketTable
from mchindex.catalogue import shipped_name
from mchindex.errors import (
    ModelMismatchError,
    NotAnIndexError,
    SnapshotError,
    StoreDamagedError,
)
from mchindex.images import read_picture
from mchindex.index.adding import BATCH, Added, Adding, OnCommit, groups, json_of
from mchindex.index.inputs import Metadata, check_id, given, one_image
from mchindex.index.results import Answers, Hit, Hits, PixelBox
from mchindex.progress import reporting
from mchindex.regions import WHOLE, Box, Layout, in_pixels
from mchindex.storage.records import Id, Row, code_type, unpack_codes
from mchindex.storage.store import Position, Store

if TYPE_CHECKING:
    from mchindex.models import MCHModel

DEFAULT_MODEL = "coco-64"
MODEL_FOLDER = "model"
TABLE = "table-"  # a snapshot's name begins so
BULK = 50_000  # images by codes written at a time
RECORDS = 5_000  # and by whole records
SNAPSHOT_AFTER = 5_000  # codes that an opening may have to read one by one

_FILE = (None,) * 5  # what images by codes have none of: size, time, hash, width, height


@dataclass(frozen=True)
class Stored:
    """An image in the index."""

    id: Id
    path: str | None
    metadata: dict[str, Any]
    size: tuple[int, int] | None  # width and height
    regions: tuple[str, ...]  # of its codes
    boxes: tuple[PixelBox | None, ...]
    keep: NDArray[np.float32]  # the probability with which each was kept
    codes: NDArray[np.uint8]


class MCHIndex:
    """Images stored under several codes each, and found by any of them.

    `MCHIndex.open(path)` keeps them on disk, `MCHIndex(model)` in memory. Any number of processes
    and threads may search while one adds.
    """

    def __init__(
        self,
        model: MCHModel | str | os.PathLike[str] | None = None,
        *,
        bits: int | None = None,
        _store: Store | None = None,
        wait: float = 0.0,
        device: str | None = None,
    ) -> None:
        """An index in memory. Without a model, `bits` is the width of codes of your own."""
        self._store = Store(None) if _store is None else _store
        self.wait = wait
        self._device = device
        self._model: MCHModel | None = None
        self._lock = threading.RLock()
        self._position = Position()
        self._seen: tuple[int, int] | None = None
        self._moves = 0
        self._filters: dict[str, tuple[tuple[int, int], NDArray[np.int64]]] = {}
        self._closed = False
        try:
            self._store.check_schema()
            self._facts = self._settle(model, bits)
            self.bits: int = self._facts["bits"]
            names, boxes = self._facts["names"], self._facts["boxes"]
            self._layout = Layout(tuple(names), tuple(map(tuple, boxes))) if names else None
            self._table = BucketTable(self.bits)
            self._open_snapshot()
            self.refresh()
        except BaseException:
            self._store.close()
            raise

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        model: MCHModel | str | os.PathLike[str] | None = None,
        *,
        bits: int | None = None,
        create: bool = True,
        wait: float = 0.0,
        device: str | None = None,
    ) -> MCHIndex:
        """The index in the folder `path`, created if it is missing and `create` allows it.

        `model` is a name that ships, a model's folder or a model; None: the index knows its own,
        and a new one gets coco-64. A new index with `bits` and no model takes codes of your own.
        `wait`: seconds to wait for another process that is writing, before StoreBusyError.
        """
        folder = Path(path)
        if not create and not (folder / "index.sqlite").exists():
            raise NotAnIndexError(f"{folder} is not an index")
        return cls(model, bits=bits, _store=Store(folder), wait=wait, device=device)

    def _settle(
        self, model: MCHModel | str | os.PathLike[str] | None, bits: int | None
    ) -> dict[str, Any]:
        """What the index is of: read from it, or, where it is new, written to it."""
        facts: dict[str, Any] | None = self._store.get("model")
        if facts is None:
            if self._store.get("uuid") is None or len(self._store):
                raise StoreDamagedError(f"{self._store.name} is damaged: it names no model")
            with self._store.writer(max(self.wait, 10.0)):
                facts = self._store.get("model")  # another process may have been first
                if facts is None:
                    facts = self._found(model, bits)
                    self._keep_model()  # before it is named: a crash must not come between
                    self._store.set(model=facts)
                    return facts
        if bits is not None and bits != facts["bits"]:
            raise ModelMismatchError(
                f"{self._store.name} holds codes of {facts['bits']} bits, not of {bits}"
            )
        if model is not None:
            self._check(facts, model)
        return facts

    def _found(
        self, model: MCHModel | str | os.PathLike[str] | None, bits: int | None
    ) -> dict[str, Any]:
        if model is None and bits is not None:
            BucketTable(bits)  # refuses a width that cannot be
            return {"bits": bits, "fingerprint": None, "name": None, "names": [], "boxes": []}
        self._model = self._loaded(DEFAULT_MODEL if model is None else model)
        if bits is not None and bits != self._model.bits:
            raise ValueError(f"the model's codes have {self._model.bits} bits, not {bits}")
        layout = self._model.layout
        return {
            "bits": self._model.bits,
            "fingerprint": self._model.fingerprint,
            "name": shipped_name(self._model.fingerprint) or _name_of(model),
            "names": list(layout.names),
            "boxes": [list(box) for box in layout.boxes],
        }

    def _loaded(self, model: MCHModel | str | os.PathLike[str]) -> MCHModel:
        from mchindex.models import MCHModel

        if isinstance(model, MCHModel):
            return model
        return MCHModel.load(model, device=self._device)

    def _keep_model(self) -> None:
        """A model of the user's own is copied, so that the index needs nothing outside of it."""
        folder = self._store.folder
        if folder is None or self._model is None:
            return
        if shipped_name(self._model.fingerprint) is None:
            self._model.save(folder / MODEL_FOLDER)

    def _check(self, facts: dict[str, Any], model: MCHModel | str | os.PathLike[str]) -> None:
        loaded = self._loaded(model)
        if loaded.fingerprint != facts["fingerprint"]:
            raise ModelMismatchError(
                f"{self._store.name} was filled by "
                f"{facts['name'] or 'another model'} ({facts['fingerprint'] or 'own codes'}), not "
                f"by this one ({loaded.fingerprint}): open it without a model, or make a new index"
            )
        self._model = loaded

    @property
    def model(self) -> MCHModel:
        """The model that fills the index; loaded when it is first needed."""
        with self._lock:
            if self._model is None:
                facts, folder = self._facts, self._store.folder
                if facts["fingerprint"] is None:
                    raise ValueError(
                        f"{self._store.name} has no model, only codes: use add_codes and "
                        "search_codes"
                    )
                own = None if folder is None else folder / MODEL_FOLDER
                if own is not None and own.is_dir():
                    self._check(facts, own)
                else:
                    self._check(facts, facts["name"] or DEFAULT_MODEL)
            assert self._model is not None
            return self._model

    @property
    def layout(self) -> Layout | None:
        """The regions that codes are of; None for codes of your own."""
        return self._layout

    # The table and the store.

    def refresh(self) -> None:
        """Brings the table up to what is committed. Every search does it by itself."""
        if self._store.version() != self._seen:
            with self._lock, self._store.one_state():
                self._follow()

    def _follow(self) -> None:
        """Within the lock and one state of the store: the table as of that state."""
        version = self._store.version()
        if version == self._seen:
            return
        self._moves += 1  # odd: the table is between two states
        try:
            with self._store.changes(self._position, self.bits) as (change, parts):
                table = BucketTable(self.bits) if change.again else self._table
                read = 0
                for keys, entries in parts:
                    table.add(keys, entries["code"], entries["region"])
                    read += len(keys)
            if len(change.removed):
                table.remove(change.removed)
            if len(table) != change.images:
                raise StoreDamagedError(
                    f"{self._store.name} is damaged: {len(table)} of {change.images} images are "
                    "left"
                )
            if read > max(SNAPSHOT_AFTER, table.n_codes // 2):
                table.optimize()  # most of it is new: in one piece it is searched faster
            # Only now: what failed half-way is done again from the start, which does no harm.
            self._table, self._position, self._seen = table, change.to, version
        finally:
            self._moves += 1

    def _take_in(
        self, at: Position, images: NDArray[np.int64], count: int, entries: NDArray[Any]
    ) -> None:
        """What `_follow` would read, from memory: new images, numbered from 0, and their codes.

        Only by the writer, whose table was up to date, at `at`, before it stored them.
        """
        with self._lock:
            if self._position is not at:
                return  # a search in another thread has read them already
            keys = at.key + 1 + images
            self._moves += 1
            try:
                self._table.add(keys, entries["code"], entries["region"])
                total = at.keys + sum(range(at.key + 1, at.key + 1 + count))
                self._position = Position(at.key + count, at.gone, total)
                self._seen = self._store.version()
            finally:
                self._moves += 1

    def _open_snapshot(self) -> None:
        """Starts from the last snapshot of the table, if it is sound and of this store."""
        folder, facts = self._store.folder, self._store.get("snapshot")
        if folder is None or facts is None:
            return
        try:
            table = BucketTable.load(folder / facts["file"], mmap=True)
        except (SnapshotError, OSError):
            return  # the store has it all
        if table.bits == self.bits and table.n_codes == facts["codes"]:
            self._table = table
            self._position = Position(facts["key"], facts["gone"], facts["keys"])
            self._snapshot_at = facts["changes"]

    _snapshot_at = 0

    def _save_snapshot(self) -> None:
        """Within the writer's lock: a snapshot, where opening would otherwise take long."""
        folder = self._store.folder
        changes = self._position.key + self._position.gone
        if changes - self._snapshot_at < max(SNAPSHOT_AFTER, self._table.n_codes // 20):
            return
        if folder is not None:
            file = f"{TABLE}{uuid.uuid4().hex[:12]}.snapshot"
            self._table.optimize()
            try:
                self._table.save(folder / file)
            except OSError:
                return  # the disk is full, say: opening takes longer, and nothing is lost
            # The store names its snapshot: one that the store does not know of is never used.
            self._store.set(
                snapshot={
                    "file": file,
                    "codes": self._table.n_codes,
                    "key": self._position.key,
                    "gone": self._position.gone,
                    "keys": self._position.keys,
                    "changes": changes,
                }
            )
            for old in folder.glob(f"{TABLE}*"):  # those of writers that crashed, too
                if old.name != file:
                    old.unlink(missing_ok=True)
        self._store.trim_removals()
        self._snapshot_at = changes

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        with self._store.writer(self.wait):
            self.refresh()
            try:
                yield
            finally:
                self.refresh()
                self._save_snapshot()

    # Adding.

    def add(
        self,
        images: Any,
        ids: Any = None,
        *,
        metadata: Metadata | Iterable[Metadata | None] | Callable[[Any], Metadata] | None = None,
        progress: bool | OnCommit | None = None,
        batch: int = BATCH,
    ) -> Added:
        """Adds images: files, folders, patterns, Pillow images, arrays, tensors, or any iterable.

        `ids`: one an image, text or integers; without them files go by their absolute paths and
        pictures in memory are numbered. An image whose id is there is replaced if it has changed.
        `metadata`: a mapping for all, one for each, or a function of the path (or id).
        `progress`: a function that is called after each commit; True and False show a bar or do
        not, None shows one on a terminal.

        What a commit has stored survives a crash; an interrupted `add` is simply run again.
        """
        return self._add(images, ids, metadata, progress, batch, force=False)

    def update(
        self,
        images: Any,
        ids: Any = None,
        *,
        metadata: Metadata | Iterable[Metadata | None] | Callable[[Any], Metadata] | None = None,
        progress: bool | OnCommit | None = None,
        batch: int = BATCH,
    ) -> Added:
        """As `add`, but encodes every image again and fails for ids that are not there."""
        return self._add(images, ids, metadata, progress, batch, force=True)

    def _add(
        self,
        images: Any,
        ids: Any,
        metadata: Any,
        progress: bool | OnCommit | None,
        batch: int,
        force: bool,
    ) -> Added:
        if batch < 1:
            raise ValueError(f"a batch has at least 1 image, not {batch}")
        result = Added()
        with self._writing():
            items, total = given(images, ids, metadata, result.ignored)
            with reporting(progress) as step:
                Adding(self._store, self.model, self.refresh, result, batch, force).run(
                    items, total, step
                )
        return result

    def add_codes(
        self,
        ids: ArrayLike | Sequence[Id],
        codes: ArrayLike,
        regions: ArrayLike | None = None,
        *,
        metadata: Sequence[Metadata | None] | None = None,
    ) -> int:
        """Adds images by codes of your own: ids (n,), codes (n, bits // 8) as np.packbits packs.

        The same id in several rows is one image with several codes; `regions` (n,) numbers them.
        An image that is there is replaced. `metadata` has one entry for each distinct id, in order
        of first appearance. Returns the number of images.
        """
        with self._writing():
            packed = _checked_codes(codes, self.bits)
            names, where = _distinct(ids)
            if len(where) != len(packed):
                raise ValueError(f"{len(where)} ids and {len(packed)} codes were given")
            if metadata is not None and len(metadata) != len(names):
                raise ValueError(f"{len(metadata)} metadata for {len(names)} images were given")
            notes = [None] * len(names) if metadata is None else [json_of(m) for m in metadata]
            entries = np.zeros(len(packed), code_type(self.bits))
            entries["code"], entries["keep"] = packed, 1
            if regions is not None:
                numbers = np.asarray(regions)
                if numbers.shape != (len(packed),) or numbers.dtype.kind not in "iu":
                    raise ValueError(f"regions are {len(packed)} integers, one a code")
                if numbers.size and (numbers.min() < 0 or numbers.max() > 0xFF):
                    raise ValueError("regions are numbered 0 to 255")
                entries["region"] = numbers
            if len(names) != len(where):  # several codes an image: each image's together
                order = np.argsort(where, kind="stable")
                entries, where = entries[order], where[order]
            ends = np.searchsorted(where, np.arange(len(names) + 1)) * entries.itemsize
            raw, cuts = entries.tobytes(), ends.tolist()
            for start in range(0, len(names), BULK):
                part = range(start, min(start + BULK, len(names)))
                rows = [
                    Row(names[i], raw[cuts[i] : cuts[i + 1]], None, *_FILE, notes[i]) for i in part
                ]
                self.refresh()
                at = self._position
                if not self._store.insert(rows):
                    size = entries.itemsize
                    some = slice(cuts[start] // size, cuts[part.stop] // size)
                    self._take_in(at, where[some] - start, len(part), entries[some])
                self.refresh()
        return len(names)

    def add_records(self, rows: Iterable[Row]) -> tuple[int, int]:
        """Stores images as records of another index; how many were added and replaced.

        Their codes must be of this index's model: who calls it has made sure of that.
        """
        added = replaced = 0
        with self._writing():
            for part in groups(iter(rows), RECORDS):
                before = len(self._store.insert(part))
                added += len({row.id for row in part}) - before
                replaced += before
                self.refresh()
        return added, replaced

    def remove(self, ids: Id | Iterable[Id]) -> int:
        """Removes images; returns how many of them were there."""
        single = isinstance(ids, (str, int, np.integer, os.PathLike))
        wanted = self._resolved([ids] if single else ids)  # type: ignore[arg-type]
        with self._writing():
            return self._store.remove(wanted)

    def prune(self, within: str | os.PathLike[str] | None = None) -> list[Id]:
        """Removes the images whose files are gone, all or those within a folder; their ids."""
        root = None if within is None else os.path.join(os.path.abspath(within), "")
        with self._writing():
            lost = [
                row.id
                for row in self._store.each()
                if row.path is not None
                and (root is None or row.path.startswith(root))
                and _is_gone(row.path)
            ]
            if lost:
                self._store.remove(lost)
        return lost

    def set_metadata(self, id: Id, metadata: Metadata) -> None:
        """Gives an image other metadata."""
        (name,) = self._resolved([id])
        with self._writing():
            if not self._store.known([name]):
                raise KeyError(id)
            self._store.touch({name: {"metadata": json_of(metadata)}})

    # Searching.

    def search(
        self,
        query: Any = None,
        k: int = 10,
        *,
        id: Id | None = None,
        region: Sequence[float] | str | None = None,
        max_radius: int | None = None,
        max_buckets: int | None = None,
        filter: Mapping[str, Any] | None = None,
        allowed: Iterable[Id] | None = None,
        threads: int = 0,
    ) -> Any:
        """The k images nearest to an image: Hits; to several: a list-like of Hits.

        `region` searches by a part of the query: a box (x0, y0, x1, y1) in pixels.
        `id` instead of a query: more like an image of the index, which is left out of the hits;
        `region` is then the name of one of its regions that has a code ("top-left").
        `max_radius` bounds the distance, `max_buckets` the effort. `filter` compares metadata:
        {"album": "2024"}, or a list of values of which any will do. `allowed`: only these ids.
        """
        limits: dict[str, Any] = {
            "max_radius": max_radius, "max_buckets": max_buckets, "filter": filter,
            "allowed": allowed, "threads": threads,
        }  # fmt: skip
        if (query is None) == (id is None):
            raise TypeError("search takes a query or the id of an image in the index")
        if id is not None:
            return self._search_id(id, k, region, limits)
        if isinstance(region, str):
            raise TypeError("a region of a query is a box (x0, y0, x1, y1) in pixels")
        single = one_image(query)
        least = self.model.least if region is None else None  # of a part every pixel may count
        pictures = []
        for image in [query] if single else query:
            picture = read_picture(image, least)
            if region is not None:
                picture = picture._replace(image=_cut(picture.image, picture.size, region))
            pictures.append(picture.image)
        answers = self.search_codes(self.model.encode_query(pictures), k, **limits)
        return answers[0] if single else answers

    def _search_id(self, id: Id, k: int, region: Any, limits: dict[str, Any]) -> Hits:
        row = self._store.row(*self._resolved([id]))
        if row is None:
            raise KeyError(f"there is no image {id!r} in {self._store.name}")
        _, entries = unpack_codes([row.key], [row.codes], self.bits)
        name = self._region_name(int(entries["region"].min())) if region is None else region
        where = [i for i, r in enumerate(entries["region"]) if self._region_name(int(r)) == name]
        if not where:
            has = ", ".join(self._region_name(int(r)) for r in entries["region"])
            raise ValueError(f"image {id!r} has no code for {name!r}, only for: {has}")
        return self._search_codes(entries["code"][where[:1]], k, leave_out=row.id, **limits)[0]

    def search_codes(
        self,
        codes: ArrayLike,
        k: int = 10,
        *,
        max_radius: int | None = None,
        max_buckets: int | None = None,
        filter: Mapping[str, Any] | None = None,
        allowed: Iterable[Id] | None = None,
        threads: int = 0,
    ) -> Any:
        """The k images nearest to each code: codes (n, bits // 8) -> a list-like of Hits.

        One code, (bits // 8,), gives one Hits.
        """
        array = np.asarray(codes)
        answers = self._search_codes(
            array[None] if array.ndim == 1 else array, k, max_radius=max_radius,
            max_buckets=max_buckets, filter=filter, allowed=allowed, threads=threads,
        )  # fmt: skip
        return answers[0] if array.ndim == 1 else answers

    def _search_codes(
        self,
        codes: Any,
        k: int,
        *,
        max_radius: int | None,
        max_buckets: int | None,
        filter: Mapping[str, Any] | None,
        allowed: Iterable[Id] | None,
        threads: int,
        leave_out: Id | None = None,
    ) -> Answers:
        if k < 1:
            raise ValueError(f"k must be at least 1, not {k}")
        plain = filter is None and allowed is None and leave_out is None
        names = None if allowed is None else self._resolved(allowed)
        # Of one state: if the table has moved on meanwhile, again with it held fast.
        for held in (contextlib.nullcontext(), self._lock):
            with held:
                keys, lone = None, None
                if plain:
                    self.refresh()
                    moves, table = self._moves, self._table
                else:
                    with self._lock, self._store.one_state():
                        self._follow()
                        moves, table = self._moves, self._table
                        keys, lone = self._eligible(filter, names, leave_out)
                found = table.search(
                    codes, k + (lone is not None), max_radius=max_radius, max_buckets=max_buckets,
                    allowed=keys, threads=threads,
                )  # fmt: skip
            if moves % 2 == 0 and moves == self._moves:
                break
        return Answers(found, self._read, lone, k)

    def _eligible(
        self, filter: Mapping[str, Any] | None, names: list[Id] | None, leave_out: Id | None
    ) -> tuple[NDArray[np.int64] | None, int | None]:
        """Keys of the images that may be hits, if not all may, and of one that is found in vain."""
        keys: NDArray[np.int64] | None = None
        if filter is not None:
            keys = self._matching(filter)
        if names is not None:
            those = np.array([k.key for k in self._store.known(names).values()], np.int64)
            keys = those if keys is None else np.intersect1d(keys, those)
        lone = None if leave_out is None else self._store.known([leave_out]).get(leave_out)
        if lone is None or keys is None:
            return keys, None if lone is None else lone.key
        return keys[keys != lone.key], None

    def _matching(self, conditions: Mapping[str, Any]) -> NDArray[np.int64]:
        version, text = self._store.version(), repr(sorted(conditions.items(), key=repr))
        held = self._filters.get(text)
        if held is None or held[0] != version:
            if len(self._filters) > 8:
                self._filters.clear()
            held = (version, self._store.matching(dict(conditions)))
            self._filters[text] = held
        return held[1]

    def _read(self, keys: NDArray[np.int64], regions: NDArray[np.int16], distances: Any) -> Any:
        """Records of hits: a list for each query."""
        rows = self._store.rows(np.unique(keys[keys >= 0]).tolist())
        return [
            [
                self._hit(rows[key], int(region), int(distance))
                for key, region, distance in zip(*line, strict=True)
                if key in rows
            ]
            for line in zip(keys.tolist(), regions.tolist(), distances.tolist(), strict=True)
        ]

    def _hit(self, row: Row, region: int, distance: int) -> Hit:
        notes = json.loads(row.metadata) if row.metadata else {}
        name, box = self._region_name(region), self._box(row, region)
        return Hit(row.id, distance, name, box, row.path, notes)

    def _region_name(self, region: int) -> str:
        if self._layout is not None and region < len(self._layout):
            return self._layout.names[region]
        return "whole" if region == 0 else f"region {region}"

    def _box(self, row: Row, region: int) -> PixelBox | None:
        if self._layout is None or region >= len(self._layout) or not row.width or not row.height:
            return None
        return in_pixels(self._layout.boxes[region], row.width, row.height)

    # What is in it.

    def _resolved(self, ids: Iterable[Any]) -> list[Id]:
        """Ids as they are stored: a relative path stands for the absolute one."""
        if isinstance(ids, (str, bytes)):
            raise TypeError("give a list of ids: [id] for one")
        names = [check_id(id) for id in ids]
        full = {
            name: os.path.abspath(name)
            for name in names
            if isinstance(name, str) and not os.path.isabs(name)
        }
        found = self._store.known([*full, *full.values()]) if full else {}
        return [
            full[name] if name in full and name not in found and full[name] in found else name
            for name in names
        ]

    def __len__(self) -> int:
        self.refresh()
        return len(self._table)

    def __contains__(self, id: object) -> bool:
        self._store.check_open()
        try:
            names = self._resolved([id])
        except (TypeError, ValueError):
            return False
        return bool(self._store.known(names))

    def __iter__(self) -> Iterator[Id]:
        """The ids of all images, in the order in which they came."""
        return (row.id for row in self._store.each())

    def __getitem__(self, id: Id) -> Stored:
        row = self._store.row(*self._resolved([id]))
        if row is None:
            raise KeyError(id)
        return self._stored(row)

    def images(self) -> Iterator[Stored]:
        """All images, in the order in which they came."""
        return map(self._stored, self._store.each())

    def _stored(self, row: Row) -> Stored:
        _, entries = unpack_codes([row.key], [row.codes], self.bits)
        numbers = [int(r) for r in entries["region"]]
        return Stored(
            row.id,
            row.path,
            json.loads(row.metadata) if row.metadata else {},
            (row.width, row.height) if row.width and row.height else None,
            tuple(map(self._region_name, numbers)),
            tuple(self._box(row, r) for r in numbers),
            entries["keep"].copy(),
            entries["code"].copy(),
        )

    def stats(self) -> dict[str, Any]:
        """Figures about the index."""
        self.refresh()
        images, codes = len(self._table), self._table.n_codes
        folder = self._store.folder
        return {
            "path": None if folder is None else str(folder),
            "images": images,
            "codes": codes,
            "buckets": self._table.n_buckets,
            "anhc": codes / images if images else 0.0,
            "bits": self.bits,
            "bytes": self._store.bytes(),
            "memory": self._table.memory()["total"],
            "model": self._facts["name"],
            "fingerprint": self._facts["fingerprint"],
            "regions": [] if self._layout is None else list(self._layout.names),
        }

    def close(self) -> None:
        """Frees files and memory. What was added is on the disk long before."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._store.close()

    def __enter__(self) -> MCHIndex:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        where = self._store.folder or "in memory"
        if self._closed:
            return f"<MCHIndex {where}: closed>"
        return f"<MCHIndex {where}: {len(self):,} images, {self._table.n_codes:,} codes>"


def _name_of(model: Any) -> str | None:
    """What a person calls a model that was given by its folder."""
    return (
        os.path.basename(os.path.abspath(model)) if isinstance(model, (str, os.PathLike)) else None
    )


def _is_gone(path: str) -> bool:
    """Whether a file is surely not there, rather than out of reach."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def _checked_codes(codes: ArrayLike, bits: int) -> NDArray[np.uint8]:
    array = np.asarray(codes)
    if array.dtype != np.uint8 or array.ndim != 2 or array.shape[1] != bits // 8:
        raise ValueError(
            f"codes are uint8 of shape (n, {bits // 8}), as np.packbits makes them of {bits} bits, "
            f"not {array.dtype} of shape {array.shape}"
        )
    return array


def _distinct(ids: Any) -> tuple[list[Id], NDArray[np.int64]]:
    """The distinct ids in the order in which they come, and for each row which one it has."""
    if isinstance(ids, np.ndarray) and ids.dtype.kind in "iu" and ids.ndim == 1:
        names, first, where = np.unique(ids, return_index=True, return_inverse=True)
        rank = np.empty(len(names), np.int64)
        order = np.argsort(first, kind="stable")
        rank[order] = np.arange(len(names))
        if len(names):
            check_id(names[-1])  # the largest
        return names[order].tolist(), rank[where.reshape(-1)]
    if isinstance(ids, (str, bytes)) or getattr(ids, "ndim", 1) != 1:
        raise TypeError("ids are given one a code, in a list or an array")
    place: dict[Id, int] = {}
    where = np.array([place.setdefault(check_id(i), len(place)) for i in ids], np.int64)
    return list(place), where


def _cut(image: Image.Image, size: tuple[int, int], region: Sequence[float]) -> Image.Image:
    """The part of an image that a box in pixels of the whole picture names."""
    if len(region) != 4:
        raise ValueError("a region is a box (x0, y0, x1, y1) in pixels")
    x0, y0, x1, y1 = region
    width, height = size
    if not (0 <= x0 < x1 <= width and 0 <= y0 < y1 <= height):
        raise ValueError(
            f"the region {tuple(region)} does not lie within the picture of {width} x {height}"
        )
    box: Box = (x0 / width, y0 / height, x1 / width, y1 / height)
    return image if box == WHOLE else image.crop(in_pixels(box, *image.size))


__all__ = ["MCHIndex", "ModelMismatchError", "Stored"]
