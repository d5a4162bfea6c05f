"""MCHIndex: images in, hits out, nothing lost."""

from __future__ import annotations

import contextlib
import glob
import json
import math
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypedDict, Unpack, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from mchindex._core import BucketTable
from mchindex.catalogue import shipped_name
from mchindex.errors import (
    ImageError,
    ModelMismatchError,
    NotAnIndexError,
    StoreDamagedError,
    StoreError,
)
from mchindex.images import Source, Tensor
from mchindex.index.adding import BATCH, Added, Adding, OnCommit, groups, metadata_json
from mchindex.index.backup import MODEL_FOLDER, back_up
from mchindex.index.codes import rows_of_codes
from mchindex.index.identity import Identity
from mchindex.index.inputs import Metadata, check_id, one_image, to_items
from mchindex.index.results import Answers, Found, Hit, Hits, Limit
from mchindex.index.table import LiveTable
from mchindex.progress import reporting
from mchindex.regions import Layout, PixelBox
from mchindex.storage.records import Id, Row, unpack_codes
from mchindex.storage.store import Store

if TYPE_CHECKING:
    from mchindex.models import MCHModel

DEFAULT_MODEL = "coco-64"
BULK = 50_000  # images written at a time when they come as codes
RECORDS = 5_000  # and when they come as complete records
FILTERS = 8  # results of filters that are remembered

EachMetadata = Metadata | Iterable[Metadata | None] | Callable[[Any], Metadata | None]
Filter = Mapping[str, Any]
# For the type checker. The shape of an array is often not known: an array of pixels then counts as
# one image, and an array of codes as several.
OneImage = (
    str | os.PathLike[str] | bytes | bytearray | memoryview | IO[bytes] | Image.Image | Tensor
    | np.ndarray[tuple[int, int, int], np.dtype[Any]] | np.ndarray[tuple[int, int], np.dtype[Any]]
)  # fmt: skip
OneCode = np.ndarray[tuple[int], np.dtype[Any]]
ManyCodes = np.ndarray[tuple[int, int], np.dtype[Any]]


class Limits(TypedDict, total=False):
    """Options that every kind of search takes."""

    offset: int  # hits to skip: `offset=10` with `k=10` is the second page
    max_radius: int | None  # the largest Hamming distance
    max_buckets: int | None  # the largest number of buckets to visit
    filter: Filter | None  # conditions on the metadata
    allowed: Iterable[Id] | None  # only these ids
    threads: int  # 0: all cores


@dataclass(frozen=True)
class Stored:
    """An image in the index."""

    id: Id
    path: str | None
    metadata: dict[str, Any]
    size: tuple[int, int] | None  # width and height
    regions: tuple[str, ...]  # that have a code
    boxes: tuple[PixelBox | None, ...]  # of these regions
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
        """An index in memory. Without a model, `bits` is the width of your own codes."""
        self._store = Store(None) if _store is None else _store
        self.wait = wait
        self._device = device
        self._model: MCHModel | None = None
        self._lock = threading.RLock()
        self._filters: dict[str, tuple[tuple[int, int], NDArray[np.int64]]] = {}
        self._unread: weakref.WeakSet[Answers] = weakref.WeakSet()
        self._closed = False
        try:
            self._store.check_schema()
            self.identity: Identity = self._identified(model, bits)  # what the codes are
            self._live = LiveTable(self._store, self.bits)
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

        `model` is the name of a model that ships, a model's folder or a model. None: an existing
        index knows its own, and a new one gets coco-64. A new index with `bits` and no model takes
        your own codes. `wait`: seconds to wait for another process that is writing, before
        StoreBusyError.
        """
        folder = Path(path)
        if not create and not Store.exists(folder):
            raise NotAnIndexError(f"{folder} is not an index")
        return cls(model, bits=bits, _store=Store(folder), wait=wait, device=device)

    # Identity and model.

    def _identified(
        self, model: MCHModel | str | os.PathLike[str] | None, bits: int | None
    ) -> Identity:
        """The identity of the index: read from it, or written to it if it is new."""
        identity = Identity.of_store(self._store)
        if identity is None:
            if self._store.get("uuid") is None or len(self._store):
                raise StoreDamagedError(f"{self._store.name} is damaged: it names no model")
            with self._store.writer(max(self.wait, 10.0)):
                identity = Identity.of_store(self._store)  # another process may have been first
                if identity is None:
                    identity = self._new_identity(model, bits)
                    self._keep_model()  # first: an index that names a model must have it
                    self._store.set(model=identity.to_json())
                    return identity
        if bits is not None and bits != identity.bits:
            raise ModelMismatchError(
                f"{self._store.name} holds codes of {identity.bits} bits, not of {bits}"
            )
        if model is not None:
            self._use(model, identity)
        return identity

    def _new_identity(
        self, model: MCHModel | str | os.PathLike[str] | None, bits: int | None
    ) -> Identity:
        if model is None and bits is not None:
            return Identity.of_codes(bits)
        self._model = self._loaded(DEFAULT_MODEL if model is None else model)
        if bits is not None and bits != self._model.bits:
            raise ValueError(f"the model's codes have {self._model.bits} bits, not {bits}")
        name = shipped_name(self._model.fingerprint)
        if name is None and isinstance(model, (str, os.PathLike)):
            name = os.path.basename(os.path.abspath(model))
        return Identity.of_model(self._model, name)

    def _loaded(self, model: MCHModel | str | os.PathLike[str]) -> MCHModel:
        from mchindex.models import MCHModel

        if isinstance(model, MCHModel):
            return model
        return MCHModel.load(model, device=self._device)

    def _keep_model(self) -> None:
        """Copies a model that does not ship, so that the index needs nothing outside of it."""
        folder = self._store.folder
        if folder is None or self._model is None:
            return
        if shipped_name(self._model.fingerprint) is None:
            self._model.save(folder / MODEL_FOLDER)

    def _use(self, model: MCHModel | str | os.PathLike[str], identity: Identity) -> None:
        loaded = self._loaded(model)
        if loaded.fingerprint != identity.fingerprint:
            raise ModelMismatchError(
                f"{self._store.name} was filled by {identity.title}, not by this one "
                f"({loaded.fingerprint}): open it without a model, or create a new index"
            )
        self._model = loaded

    @property
    def model(self) -> MCHModel:
        """The model that fills the index. It is loaded when it is first needed."""
        with self._lock:
            if self._model is None:
                identity, folder = self.identity, self._store.folder
                if not identity.has_model:
                    raise ValueError(
                        f"{self._store.name} has no model, only codes: use add_codes and "
                        "search_codes"
                    )
                own = None if folder is None else folder / MODEL_FOLDER
                if own is not None and own.is_dir():
                    self._use(own, identity)
                else:
                    self._use(identity.name or DEFAULT_MODEL, identity)
            assert self._model is not None
            return self._model

    @property
    def bits(self) -> int:
        """The width of the codes."""
        return self.identity.bits

    @property
    def layout(self) -> Layout | None:
        """The regions that codes are of; None for your own codes."""
        return self.identity.layout

    @property
    def path(self) -> Path | None:
        """The folder of the index; None if it is in memory."""
        return self._store.folder

    def refresh(self) -> None:
        """Takes in what other processes have committed. Every search does this by itself."""
        self._live.refresh()

    # Adding and removing.

    def add(
        self,
        images: Any,
        ids: Any = None,
        *,
        metadata: EachMetadata | None = None,
        progress: bool | OnCommit | None = None,
        batch: int = BATCH,
    ) -> Added:
        """Adds images: files, folders, patterns, file objects, Pillow images, arrays, tensors, or
        any iterable of these.

        `ids`: one per image, text or integers. Without ids, files go by their absolute paths, and
        pictures in memory are numbered. An image whose id is already there is replaced if it has
        changed.
        `metadata`: a mapping for all, an iterable with one per image, or a function of the path (or
        the id).
        `progress`: a function that is called with a `Commit` after each commit. True and False show
        a bar or do not; None shows one on a terminal.

        A single image that cannot be read raises ImageError; among several, `failed` of the result
        says what could not be read. What a commit has stored survives a crash. To continue an
        interrupted `add`, run it again.
        """
        return self._add(images, ids, metadata, progress, batch, update=False)

    def update(
        self,
        images: Any,
        ids: Any = None,
        *,
        metadata: EachMetadata | None = None,
        progress: bool | OnCommit | None = None,
        batch: int = BATCH,
    ) -> Added:
        """Like `add`, but encodes every image again, and fails for ids that are not there."""
        return self._add(images, ids, metadata, progress, batch, update=True)

    def _add(
        self,
        images: Any,
        ids: Any,
        metadata: EachMetadata | None,
        progress: bool | OnCommit | None,
        batch: int,
        update: bool,
    ) -> Added:
        if batch < 1:
            raise ValueError(f"a batch has at least 1 image, not {batch}")
        result = Added()
        with self._live.writing(self.wait):
            items, total = to_items(images, ids, metadata, result.ignored)
            adding = Adding(self._store, self._live, self.model, batch, update)
            with reporting(progress) as report:
                adding.run(items, total, result, report)
        if result.failed and _is_one_picture(images):
            raise ImageError(str(result.failed[0]))
        return result

    def add_codes(
        self,
        ids: ArrayLike | Sequence[Id],
        codes: ArrayLike,
        regions: ArrayLike | None = None,
        *,
        metadata: Sequence[Metadata | None] | None = None,
    ) -> int:
        """Adds images by your own codes: ids (n,), codes (n, bits // 8) as np.packbits packs them.

        The same id in several rows is one image with several codes; `regions` (n,) numbers them. An
        image that is already there is replaced. `metadata` has one entry per distinct id, in order
        of first appearance. Returns the number of images.
        """
        with self._live.writing(self.wait):
            rows = rows_of_codes(ids, codes, regions, metadata, self.bits)
            for part in groups(iter(rows), BULK):
                self._live.insert(part)
        return len(rows)

    def add_records(self, rows: Iterable[Row]) -> tuple[int, int]:
        """Stores records of another index; returns how many images were added and replaced.

        The caller makes sure that their codes are from the same model.
        """
        added = replaced = 0
        with self._live.writing(self.wait):
            for part in groups(iter(rows), RECORDS):
                before = len(self._live.insert(part))
                added += len({row.id for row in part}) - before
                replaced += before
        return added, replaced

    def remove(self, ids: Id | Iterable[Id] | None = None, *, filter: Filter | None = None) -> int:
        """Removes images by ids, or all that match a filter; returns how many were removed."""
        if (ids is None) == (filter is None):
            raise TypeError("remove takes ids or a filter")
        if filter is not None:
            if not filter:
                raise ValueError("an empty filter matches every image: pass the ids to remove all")
            with self._live.writing(self.wait):
                return self._live.remove(self._store.ids(self._matching(filter).tolist()))
        single = isinstance(ids, (str, int, np.integer, os.PathLike))
        wanted = self._resolved([ids] if single else ids)  # type: ignore[arg-type]
        with self._live.writing(self.wait):
            return self._live.remove(wanted)

    def prune(self, within: str | os.PathLike[str] | None = None) -> list[Id]:
        """Removes the images whose files no longer exist, all or those in a folder; returns their
        ids."""
        root = None if within is None else os.path.join(os.path.abspath(within), "")
        with self._live.writing(self.wait):
            lost = [
                row.id
                for row in self._store.each()
                if row.path is not None
                and (root is None or row.path.startswith(root))
                and _is_gone(row.path)
            ]
            if lost:
                self._live.remove(lost)
        return lost

    def set_metadata(self, id: Id, metadata: Metadata) -> None:
        """Replaces the metadata of an image."""
        (name,) = self._resolved([id])
        with self._live.writing(self.wait):
            if not self._store.known([name]):
                raise KeyError(id)
            self._store.touch({name: {"metadata": metadata_json(metadata)}})

    # Searching.

    @overload
    def search(
        self, query: None = None, k: int = 10, *, id: Id, region: str | None = None,
        **limits: Unpack[Limits],
    ) -> Hits: ...  # fmt: skip
    @overload
    def search(  # type: ignore[overload-overlap]  # text is an iterable of text
        self, query: OneImage, k: int = 10, *, region: Sequence[float] | None = None,
        **limits: Unpack[Limits],
    ) -> Hits: ...  # fmt: skip
    @overload
    def search(
        self, query: Iterable[Source], k: int = 10, *, region: Sequence[float] | None = None,
        **limits: Unpack[Limits],
    ) -> Answers: ...  # fmt: skip
    def search(
        self,
        query: Source | Iterable[Source] | None = None,
        k: int = 10,
        *,
        id: Id | None = None,
        region: Sequence[float] | str | None = None,
        **limits: Unpack[Limits],
    ) -> Hits | Answers:
        """The k images nearest to an image (Hits), or to each of several images (Answers).

        `region` searches by a part of the query: a box (x0, y0, x1, y1) in pixels.
        `id` instead of a query finds more images like one in the index, which is left out of the
        hits; `region` is then the name of one of its regions that has a code ("top-left").

        `offset` skips hits: `offset=10` gives the second page of ten.
        `max_radius` bounds the distance, `max_buckets` the effort; where a limit may have kept
        images out, `exact` is False and `limited_by` names it.
        `filter` compares metadata: {"album": "2024", "year": {">=": 2020}, "camera.model": "X100"};
        a list of values means any of them. `allowed`: only these ids.
        """
        if (query is None) == (id is None):
            raise TypeError("search takes a query or the id of an image in the index")
        if id is not None:
            code, name = self._code_of(id, region)
            return self._search(code, k, name, **limits)[0]
        codes, single = self._query_codes(query, region)
        answers = self._search(codes, k, None, **limits)
        return answers[0] if single else answers

    def within(
        self,
        query: Source | None = None,
        radius: int = 0,
        *,
        id: Id | None = None,
        region: Sequence[float] | str | None = None,
        filter: Filter | None = None,
        allowed: Iterable[Id] | None = None,
        threads: int = 0,
    ) -> Hits:
        """All images within a Hamming radius (inclusive) of an image, nearest first."""
        if (query is None) == (id is None):
            raise TypeError("within takes a query or the id of an image in the index")
        if radius < 0:
            raise ValueError(f"a radius is at least 0, not {radius}")
        leave_out = None
        if id is not None:
            codes, leave_out = self._code_of(id, region)
        else:
            codes, single = self._query_codes(query, region)
            if not single:
                raise TypeError("within takes one query: call it for each of several")
        select = self._selection(filter, allowed, leave_out)

        def find(table: BucketTable, chosen: _Selected | None) -> Found:
            keys = None if chosen is None else chosen.keys
            inside = table.within(codes, radius, allowed=keys, threads=threads)
            # One more than there are, so that the search reports the effort for the whole ball.
            found = Found.of(
                table.search(
                    codes, len(inside.ids) + 1, max_radius=radius, allowed=keys, threads=threads
                ),
                table.n_codes,
            )
            found.exact = np.ones(1, bool)
            if chosen is not None and chosen.leave_out is not None:
                return found.without(chosen.leave_out, len(inside.ids))
            return found

        return self._answers(self._live.consistently(select, find), None)[0]

    @overload
    def search_codes(
        self, codes: ManyCodes, k: int = 10, **limits: Unpack[Limits]
    ) -> Answers: ...  # fmt: skip
    @overload
    def search_codes(self, codes: OneCode, k: int = 10, **limits: Unpack[Limits]) -> Hits: ...
    @overload
    def search_codes(self, codes: ArrayLike, k: int = 10, **limits: Unpack[Limits]) -> Answers: ...
    def search_codes(
        self, codes: ArrayLike, k: int = 10, **limits: Unpack[Limits]
    ) -> Hits | Answers:
        """The k images nearest to each code: codes (n, bits // 8) -> Answers.

        One code, (bits // 8,), gives Hits. The limits are those of `search`.
        """
        array = np.asarray(codes)
        answers = self._search(array[None] if array.ndim == 1 else array, k, None, **limits)
        return answers[0] if array.ndim == 1 else answers

    def _query_codes(self, query: Any, region: Any) -> tuple[NDArray[np.uint8], bool]:
        """The codes of one or several queries, and whether it was one."""
        if isinstance(region, str):
            raise TypeError("a region of a query is a box (x0, y0, x1, y1) in pixels")
        single = one_image(query)
        return self.model.encode_query([query] if single else query, region), single

    def _code_of(self, id: Id, region: Any) -> tuple[NDArray[np.uint8], Id]:
        """The code of an image of the index, as a row, and the id under which it is stored."""
        row = self._store.row(*self._resolved([id]))
        if row is None:
            raise KeyError(f"there is no image {id!r} in {self._store.name}")
        _, entries = unpack_codes([row.key], [row.codes], self.bits)
        names = [self.identity.region_name(int(r)) for r in entries["region"]]
        name = names[int(entries["region"].argmin())] if region is None else region
        if name not in names:
            raise ValueError(f"image {id!r} has no code for {name!r}, only for: {', '.join(names)}")
        return entries["code"][[names.index(name)]], row.id

    def _search(
        self,
        codes: Any,
        k: int,
        leave_out: Id | None,
        /,
        *,
        offset: int = 0,
        max_radius: int | None = None,
        max_buckets: int | None = None,
        filter: Filter | None = None,
        allowed: Iterable[Id] | None = None,
        threads: int = 0,
    ) -> Answers:
        if k < 1:
            raise ValueError(f"k must be at least 1, not {k}")
        if offset < 0:
            raise ValueError(f"offset must be at least 0, not {offset}")
        select = self._selection(filter, allowed, leave_out)
        wanted = offset + k

        def find(table: BucketTable, chosen: _Selected | None) -> Found:
            keys, lone = (None, None) if chosen is None else (chosen.keys, chosen.leave_out)
            found = Found.of(
                table.search(
                    codes, wanted + (lone is not None), max_radius=max_radius,
                    max_buckets=max_buckets, allowed=keys, threads=threads,
                ),
                table.n_codes,
            )  # fmt: skip
            found = found if lone is None else found.without(lone, wanted)
            return found.columns(offset, wanted) if offset else found

        limit = _first_limit(self.bits, max_radius, max_buckets)
        return self._answers(self._live.consistently(select, find), limit)

    def _selection(
        self, filter: Filter | None, allowed: Iterable[Id] | None, leave_out: Id | None
    ) -> Callable[[], _Selected] | None:
        """What finds out, in one state of the store, which images may be hits; None: all may."""
        if filter is None and allowed is None and leave_out is None:
            return None
        names = None if allowed is None else self._resolved(allowed)
        return partial(self._selected, filter, names, leave_out)

    def _selected(
        self, filter: Filter | None, names: list[Id] | None, leave_out: Id | None
    ) -> _Selected:
        keys: NDArray[np.int64] | None = None
        if filter is not None:
            keys = self._matching(filter)
        if names is not None:
            those = np.array([k.key for k in self._store.known(names).values()], np.int64)
            keys = those if keys is None else np.intersect1d(keys, those)
        lone = None if leave_out is None else self._store.known([leave_out]).get(leave_out)
        if lone is None:
            return _Selected(keys, None)
        return (
            _Selected(None, lone.key) if keys is None else _Selected(keys[keys != lone.key], None)
        )

    def _matching(self, conditions: Filter) -> NDArray[np.int64]:
        """The keys of the images that match a filter; remembered until the store changes."""
        if not isinstance(conditions, Mapping):
            raise TypeError(
                "a filter is a mapping of keys to values, such as {'album': '2024'}, not "
                f"{type(conditions).__name__}"
            )
        version, text = self._store.version(), repr(sorted(conditions.items(), key=repr))
        held = self._filters.get(text)
        if held is None or held[0] != version:
            if len(self._filters) > FILTERS:
                self._filters.clear()
            held = (version, self._store.matching(conditions))
            self._filters[text] = held
        return held[1]

    def _answers(self, found: Found, limit: Limit | None) -> Answers:
        answers = Answers(found, self._read, limit)
        with self._lock:
            self._unread.add(answers)
        return answers

    def _read(
        self,
        keys: NDArray[np.int64],
        regions: NDArray[np.int16],
        distances: NDArray[np.int32],
    ) -> list[list[Hit]]:
        """Reads the records of hits: a list per query."""
        rows = self._store.rows(np.unique(keys[keys >= 0]).tolist())
        return [
            [
                self._hit(rows[key], region, distance)
                for key, region, distance in zip(*line, strict=True)
                if key in rows
            ]
            for line in zip(keys.tolist(), regions.tolist(), distances.tolist(), strict=True)
        ]

    def _hit(self, row: Row, region: int, distance: int) -> Hit:
        identity = self.identity
        box = identity.region_box(region, row.width, row.height)
        name = identity.region_name(region)
        return Hit(row.id, distance, name, box, row.path, _metadata_of(row))

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

    def count(self, filter: Filter | None = None) -> int:
        """The number of images, all or those that match a filter."""
        return len(self) if filter is None else len(self._matching(filter))

    def ids(self, filter: Filter | None = None) -> list[Id]:
        """The ids of the images, all or those that match a filter, oldest first."""
        if filter is None:
            return list(self)
        with self._store.one_state():
            return self._store.ids(self._matching(filter).tolist())

    def __len__(self) -> int:
        return len(self._live.current)

    def __contains__(self, id: object) -> bool:
        self._store.check_open()
        try:
            names = self._resolved([id])
        except (TypeError, ValueError):
            return False
        return bool(self._store.known(names))

    def __iter__(self) -> Iterator[Id]:
        """The ids of all images, oldest first."""
        return (row.id for row in self._store.each())

    def __getitem__(self, id: Id) -> Stored:
        row = self._store.row(*self._resolved([id]))
        if row is None:
            raise KeyError(id)
        return self._stored(row)

    def images(self) -> Iterator[Stored]:
        """All images, oldest first."""
        return map(self._stored, self._store.each())

    def _stored(self, row: Row) -> Stored:
        _, entries = unpack_codes([row.key], [row.codes], self.bits)
        numbers = [int(r) for r in entries["region"]]
        return Stored(
            row.id,
            row.path,
            _metadata_of(row),
            (row.width, row.height) if row.width and row.height else None,
            tuple(map(self.identity.region_name, numbers)),
            tuple(self.identity.region_box(r, row.width, row.height) for r in numbers),
            entries["keep"].copy(),
            entries["code"].copy(),
        )

    def stats(self) -> dict[str, Any]:
        """Figures about the index."""
        table, identity = self._live.current, self.identity
        images, codes = len(table), table.n_codes
        return {
            "path": None if self.path is None else str(self.path),
            "images": images,
            "codes": codes,
            "buckets": table.n_buckets,
            "anhc": codes / images if images else 0.0,
            "bits": self.bits,
            "bytes": self._store.bytes(),
            "memory": table.memory()["total"],
            "model": identity.name,
            "fingerprint": identity.fingerprint,
            "regions": list(identity.regions),
        }

    def backup(self, path: str | os.PathLike[str]) -> None:
        """Writes a copy of the index, as of one moment, to a new folder.

        Others may search and add meanwhile. An index in memory is written to disk.
        """
        own = self.model if self.identity.has_model and self.path is None else None
        back_up(self._store, Path(path), own)

    def close(self) -> None:
        """Frees files and memory. Whatever was added is already on disk.

        Hits stay usable: the records of answers that are still in use are read first.
        """
        with self._lock:
            if self._closed:
                return
            for answers in list(self._unread):
                with contextlib.suppress(StoreError):  # looking at these answers will say why
                    answers.load()
            self._closed = True
            self._store.close()

    def __enter__(self) -> MCHIndex:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        where = self.path or "in memory"
        if self._closed:
            return f"<MCHIndex {where}: closed>"
        table = self._live.current
        return f"<MCHIndex {where}: {len(table):,} images, {table.n_codes:,} codes>"


@dataclass(frozen=True)
class _Selected:
    """The images that may be hits."""

    keys: NDArray[np.int64] | None  # None: all
    leave_out: int | None  # the key of an image that is not a hit although it may be found


def _first_limit(bits: int, max_radius: int | None, max_buckets: int | None) -> Limit | None:
    """The limit that a search reaches first."""
    if max_buckets is not None:
        radius = bits if max_radius is None else min(max_radius, bits)
        if max_buckets < sum(math.comb(bits, r) for r in range(radius + 1)):
            return "max_buckets"
    return None if max_radius is None else "max_radius"


def _metadata_of(row: Row) -> dict[str, Any]:
    return json.loads(row.metadata) if row.metadata else {}


def _is_one_picture(images: Any) -> bool:
    """Whether `add` was given one picture, rather than a folder, a pattern or several."""
    if isinstance(images, (str, os.PathLike)):
        return not os.path.isdir(images) and not glob.has_magic(os.fspath(images))
    return one_image(images)


def _is_gone(path: str) -> bool:
    """Whether a file surely does not exist, rather than being out of reach."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


__all__ = ["DEFAULT_MODEL", "MCHIndex", "Stored"]
