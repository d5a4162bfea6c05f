"""MCHIndex, the public interface of an index."""

from __future__ import annotations

import glob
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mchindex import json_text
from mchindex.catalogue import Precision, find, names
from mchindex.errors import ImageError, MissingDecoderError, ModelError, NotAnIndexError
from mchindex.images import Source
from mchindex.index.adding import BATCH, Added, Adding, OnCommit
from mchindex.index.arguments import EachMetadata, Filter, Limits, ManyCodes, OneCode, OneImage
from mchindex.index.backup import back_up
from mchindex.index.codes import rows_of_codes
from mchindex.index.discard import Discarded, discard
from mchindex.index.duplicates import (
    Decision,
    DuplicateGroup,
    Duplicates,
    Level,
    check_decision,
    find_duplicates,
)
from mchindex.index.identity import FineIdentity, Identity
from mchindex.index.in_common import in_common
from mchindex.index.inputs import (
    Metadata,
    check_id,
    metadata_json,
    one_image,
    resolved_ids,
    to_items,
)
from mchindex.index.mixture import Like, Mixture
from mchindex.index.model import AnyModel, IndexModel
from mchindex.index.queries import Queries
from mchindex.index.ranking import Query
from mchindex.index.results import Answers, Hits
from mchindex.index.searching import Searcher
from mchindex.index.table import LiveTable
from mchindex.progress import Progress, reporting
from mchindex.regions import Layout, PixelBox
from mchindex.storage.lock import checked_wait
from mchindex.storage.records import Id, Row, row_metadata, unpack_codes
from mchindex.storage.store import Store

if TYPE_CHECKING:
    from mchindex.inference.encoder import Encoder

BULK = 50_000  # images per commit in `add_codes`
RECORDS = 5_000  # images per commit in `add_records`
COMMIT = 1 << 20  # bytes per commit in both, on a disk with little room


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
    """An index of images. Each image is stored under several codes and is found by any of them.

    `MCHIndex.open(path)` keeps the index on disk, `MCHIndex(model)` in memory. Any number of
    processes and threads may search while one adds.
    """

    def __init__(
        self,
        model: AnyModel | None = None,
        *,
        bits: int | None = None,
        _store: Store | None = None,
        wait: float = 0.0,
        device: str | None = None,
        precision: Precision | None = None,
    ) -> None:
        """Creates an index in memory. With `bits` and no model, it takes your own codes."""
        if _store is None:
            checked_wait(wait)
            _check_is_model(model)
        self._store = Store(None) if _store is None else _store
        self.wait = wait
        self._closing = threading.RLock()
        self._closed = False
        try:
            self._store.check_schema()
            self._model = IndexModel(self._store, model, bits, wait, device, precision)
            self._live, self._searcher = self._tables()
        except BaseException:
            self._store.close()
            raise

    def _tables(self) -> tuple[LiveTable, Searcher]:
        """What follows the store, and what searches it."""
        live = LiveTable(self._store, self.identity, self._model.fine)
        return live, Searcher(self._store, live, self.identity)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        model: AnyModel | None = None,
        *,
        bits: int | None = None,
        create: bool = True,
        wait: float = 0.0,
        device: str | None = None,
        precision: Precision | None = None,
    ) -> MCHIndex:
        """Opens the index in the folder `path`, or creates it if `create` is true.

        `model` is the name of a shipped model, the folder of a model, or a model. By default, an
        existing index uses the model that filled it, and a new one uses coco-64. A new index with
        `bits` and no model takes your own codes. `wait` is how many seconds to wait for another
        process that is writing before StoreBusyError is raised; `math.inf` waits for ever.
        `precision` is that of a new index: "float", or "int8", which is faster and which shipped
        models have by default on a CPU. An index keeps its precision.

        An index that cannot be written to, such as one on a read-only disk, can still be searched.
        """
        checked_wait(wait)
        folder = Path(path)
        if not create and not Store.exists(folder):
            raise NotAnIndexError(f"{folder} is not an index")
        return cls(
            model, bits=bits, _store=Store(folder), wait=wait, device=device, precision=precision
        )

    @property
    def model(self) -> Encoder:
        """The model that fills the index. It is loaded when it is first needed."""
        return self._model.model

    @property
    def identity(self) -> Identity:
        """What the codes are: their width, their model, their regions."""
        return self._model.identity

    @property
    def bits(self) -> int:
        """The width of the codes."""
        return self.identity.bits

    @property
    def layout(self) -> Layout | None:
        """The regions of an image that may have codes; None for your own codes."""
        return self.identity.layout

    @property
    def path(self) -> Path | None:
        """The folder of the index; None if it is in memory."""
        return self._store.folder

    def refresh(self) -> None:
        """Picks up what other processes have committed. Every search does this automatically."""
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
        again: bool = False,
    ) -> Added:
        """Adds images: files, folders, patterns, file objects, Pillow images, arrays, tensors, or
        any iterable of these.

        `ids`: one per image, text or integers, all different. By default, the id of a file is its
        absolute path, and pictures in memory are numbered. An image whose id is already in the
        index is replaced if it has changed.
        `metadata`: one mapping for all images, an iterable with one mapping per image, or a
        function of the path (of the id, for a picture in memory).
        `progress`: a function that is called with a `Commit` after each commit, or whether to show
        a progress bar. None shows one on a terminal.
        `again`: whether to encode unchanged images, too, that have no fine codes yet, because an
        earlier version added them.

        A single image that cannot be read raises ImageError. Of several images, those that cannot
        be read, whose metadata cannot be stored, or whose id an earlier one has, are listed in the
        result's `failed`. An exception of a metadata function is raised. Committed images survive a
        crash. To continue an interrupted `add`, run it again.
        """
        return self._add(images, ids, metadata, progress, batch, update=False, again=again)

    def update(
        self,
        images: Any,
        ids: Any = None,
        *,
        metadata: EachMetadata | None = None,
        progress: bool | OnCommit | None = None,
        batch: int = BATCH,
    ) -> Added:
        """Like `add`, but encodes unchanged images again, and fails for ids not in the index."""
        return self._add(images, ids, metadata, progress, batch, update=True)

    def _add(
        self,
        images: Any,
        ids: Any,
        metadata: EachMetadata | None,
        progress: bool | OnCommit | None,
        batch: int,
        update: bool,
        again: bool = False,
    ) -> Added:
        if batch < 1:
            raise ValueError(f"batch must be at least 1, not {batch}")
        result = Added()
        with self._live.writing(self.wait):
            items, total = to_items(images, ids, metadata, result.ignored)
            if (fine := self._model.take_fine()) is not None:
                self._live.use_fine(fine)
            with reporting(progress) as report, self._adding(batch, update, again) as adding:
                adding.run(items, total, result, report)
        if result.failed and _is_one_picture(images):
            failure = result.failed[0]
            if failure.extra is not None:
                raise MissingDecoderError(failure.extra, failure.name)
            raise ImageError(str(failure))
        return result

    @contextmanager
    def _adding(self, batch: int, update: bool, again: bool) -> Iterator[Adding]:
        yield Adding(self._store, self._live, self.model, batch, update, again)

    def add_codes(
        self,
        ids: ArrayLike | Sequence[Id],
        codes: ArrayLike,
        regions: ArrayLike | None = None,
        *,
        metadata: Sequence[Metadata | None] | None = None,
    ) -> int:
        """Adds images with your own codes: ids (n,), codes (n, bits // 8) as np.packbits makes.

        Rows with the same id are one image with several codes; `regions` (n,) numbers them. An
        image that is already in the index is replaced. `metadata` has one entry per distinct id, in
        order of first appearance. Returns the number of images.
        """
        with self._live.writing(self.wait):
            rows = rows_of_codes(ids, codes, regions, metadata, self.bits)
            for group in self._commits(rows, BULK):
                self._live.insert(group)
        return len(rows)

    def add_records(
        self, rows: Iterable[Row], fine: tuple[int, str] | None = None
    ) -> tuple[int, int]:
        """Stores records of another index; returns how many images were added and replaced.

        The caller ensures that their codes come from the same model. `fine` says what their fine
        codes are, by bits and fingerprint; if this index has others, they are left out.
        """
        added = replaced = 0
        with self._live.writing(self.wait):
            if not self._takes_fine(fine):
                rows = (row._replace(fine=None) for row in rows)
            for group in self._commits(map(_checked_record, rows), RECORDS):
                before = len(self._live.insert(group))
                added += len({row.id for row in group}) - before
                replaced += before
        return added, replaced

    def _takes_fine(self, kind: tuple[int, str] | None) -> bool:
        """Within the writer's lock: whether fine codes of a kind can be stored. An index without
        fine codes takes those that its model makes."""
        fine = FineIdentity.of_store(self._store)
        if kind is None or (fine is None and not self.identity.has_model):
            return False
        if fine is None:
            fine = FineIdentity.of_model(self.model)
            if fine is not None and (fine.bits, fine.fingerprint) == kind:
                self._model.take_fine()
        if fine is None or (fine.bits, fine.fingerprint) != kind:
            return False
        self._live.use_fine(fine)
        return True

    def _commits(self, rows: Iterable[Row], most: int) -> Iterator[list[Row]]:
        """Lists of rows to commit together: at most `most`, and fewer if they are large.

        A commit takes room in the log and in the file, so it is smaller where there is little.
        """
        largest = max(COMMIT, min(16 * COMMIT, self._store.room() // 16))
        group: list[Row] = []
        size = 0
        for row in rows:
            group.append(row)
            size += 64 + len(row.codes) + len(row.fine or b"") + len(row.metadata or "")
            if len(group) >= most or size >= largest:
                yield group
                group, size = [], 0
        if group:
            yield group

    def remove(self, ids: Id | Iterable[Id] | None = None, *, filter: Filter | None = None) -> int:
        """Removes images by id, or all that match a filter; returns how many were removed."""
        if (ids is None) == (filter is None):
            raise TypeError("remove takes ids or a filter")
        if filter is not None:
            if not filter:
                raise ValueError("an empty filter matches every image: to remove all, pass the ids")
            with self._live.writing(self.wait, removing=True):
                return self._live.remove(self._store.ids(self._searcher.matching(filter).tolist()))
        single = isinstance(ids, (str, int, np.integer, os.PathLike))
        wanted = resolved_ids(self._store, [ids] if single else ids)  # type: ignore[arg-type]
        with self._live.writing(self.wait, removing=True):
            return self._live.remove(wanted)

    def prune(self, within: str | os.PathLike[str] | None = None) -> list[Id]:
        """Removes the images whose files no longer exist, all or those in a folder; returns their
        ids."""
        root = None if within is None else os.path.join(os.path.abspath(within), "")
        with self._live.writing(self.wait, removing=True):
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
        (name,) = resolved_ids(self._store, [id])
        with self._live.writing(self.wait):
            if not self._store.known([name]):
                raise KeyError(id)
            self._store.touch({name: {"metadata": metadata_json(metadata)}})

    # Searching.

    @overload
    def search(
        self, query: None = None, k: int = 10, *, text: str, **limits: Unpack[Limits]
    ) -> Hits: ...  # fmt: skip
    @overload
    def search(
        self, query: None = None, k: int = 10, *, id: Id, region: str | None = None,
        **limits: Unpack[Limits],
    ) -> Hits: ...  # fmt: skip
    @overload
    def search(
        self, query: None = None, k: int = 10, *, like: Like | Sequence[Like],
        unlike: Like | Sequence[Like] = (), **limits: Unpack[Limits],
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
        like: Any = None,
        unlike: Any = (),
        text: str | None = None,
        **limits: Unpack[Limits],
    ) -> Hits | Answers:
        """The k images that match an image best (Hits), or each of several images (Answers).

        `region` searches by a part of the query: a box (x0, y0, x1, y1) in pixels.
        `id` instead of a query finds more images like one in the index, which is left out of the
        hits; `region` is then the name of one of its regions that has a code ("top-left").
        `like` instead of a query takes several images, or ids of images in the index, and finds
        what is like all of them; `unlike` pushes away what is like any of its images. Text that is
        an id in the index means that image; other text is a file. A pair (image, region) means a
        part: a box in pixels or, for an id, the name of a region. Images given by id are left out
        of the hits.
        `text` instead of a query finds things by their names: "dog", or "dog, sofa" for both, or
        "dog, -person" for one without the other. `words` lists the names that the model knows.

        `rank`: "best" puts first what looks most like the query, then what shows the same things;
        "fine" looks for the same picture, its copies and parts; "code" is the order of Algorithm 1,
        by the distance of codes alone. The default is "best" if all images have fine codes.
        `offset` skips hits: `offset=10` gives the second page of ten.
        `max_radius` limits the distance and `max_buckets` the work. If a limit may have kept images
        out, `exact` is False and `limited_by` names the limit.
        `filter` compares metadata: {"album": "2024", "year": {">=": 2020}, "camera.model": "X100"};
        a list of values means any of them. `allowed` restricts the search to these ids, and
        `exclude` leaves ids out.
        """
        if [query is None, id is None, text is None, like is None].count(False) != 1:
            raise TypeError(
                "search takes either a query, the id of an image in the index, text, or images in "
                "like"
            )
        if like is None and not (isinstance(unlike, tuple) and not unlike):
            raise TypeError("unlike needs like: name at least one image to look for")
        if text is not None:
            if region is not None:
                raise TypeError("text has no region: a hit says in which region the thing is")
            return self._searcher.by_words(self.queries.known_words().query(text), k, **limits)[0]
        if like is not None:
            if region is not None:
                raise TypeError("like takes regions with its images: like=[(image, region), …]")
            mixture = Mixture(self._store, self._searcher, self._model, self._live.fine_kind)
            one, left_out, far = mixture.query(like, unlike, limits.get("rank"))
            if far and limits.get("rank") is None:
                limits["rank"] = "best"  # the codes alone would ignore what to push away
            return self._searcher.search(one, k, [left_out], **limits)[0]
        if id is not None:
            one, name = self._searcher.query_of(id, region)
            return self._searcher.search(one, k, [[name]], **limits)[0]
        queries, single = self._queries(query, region)
        answers = self._searcher.search(queries, k, (), **limits)
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
            raise TypeError("within takes either a query or the id of an image in the index")
        leave_out: list[list[Id]] = []
        if id is not None:
            queries, name = self._searcher.query_of(id, region)
            leave_out = [[name]]
        else:
            queries, single = self._queries(query, region)
            if not single:
                raise TypeError("within takes one query: call it once per query")
        return self._searcher.within(
            queries.codes, radius, filter=filter, allowed=allowed, threads=threads,
            leave_out=leave_out,
        )  # fmt: skip

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
        query = Query(array[None] if array.ndim == 1 else array)
        answers = self._searcher.search(query, k, (), **limits)
        return answers[0] if array.ndim == 1 else answers

    def in_common(
        self,
        hits: Hits,
        query: Source | None = None,
        *,
        id: Id | None = None,
        region: Sequence[float] | str | None = None,
    ) -> dict[Id, list[str]]:
        """The names of things that a query and each of its hits probably show, by the hits' ids.

        The query is given as to `search`. A hit has three names at most, of things that are as
        specific as can be told. There are none if the model knows no words.
        """
        if (query is None) == (id is None):
            raise TypeError("in_common takes either a query or the id of an image in the index")
        return in_common(
            self._store, self._live, self._searcher, self._model, hits, query, id, region
        )

    def words(self, prefix: str = "") -> list[str]:
        """The words that `search(text=…)` takes and that start with `prefix`, in order."""
        return self.queries.known_words().starting(prefix)

    # Duplicates.

    def duplicates(
        self,
        level: Level = "copy",
        *,
        filter: Filter | None = None,
        progress: bool | Progress | None = None,
        threads: int = 0,
    ) -> Duplicates:
        """Groups of images of the same picture, each with the image to keep: the one with the most
        pixels, then the largest file, then the oldest.

        `level`: "copy" finds files saved again, resized or mildly edited; "similar" also finds
        stronger edits and shots taken one after the other, and makes more mistakes. `filter`
        compares only images with this metadata. `progress` and `threads` are as in `add` and
        `search`. Nothing is changed: see `discard`.
        """
        with reporting(progress) as report:
            return find_duplicates(
                self._store, self._live, self._searcher, self.identity, self._live.fine_kind, level,
                filter, report, threads,
            )  # fmt: skip

    def decide(self, decisions: Mapping[Id, Decision | None]) -> None:
        """Remembers what to do with images among duplicates: "keep", "discard", or None for
        nothing. Nothing is done to the images. Raises KeyError for an id that is not in the index;
        a decision is forgotten when its image is removed or replaced."""
        for decision in decisions.values():
            if decision is not None:
                check_decision(decision)
        names = resolved_ids(self._store, decisions)
        with self._live.writing(self.wait):
            known = self._store.known(names)
            for name in names:
                if name not in known:
                    raise KeyError(name)
            self._store.decide(dict(zip(names, decisions.values(), strict=True)))

    def decisions(self) -> dict[Id, Decision]:
        """The images about which something was decided, oldest first."""
        return {id: check_decision(what) for id, what in self._store.decisions().items()}

    def discard(
        self,
        groups: Iterable[DuplicateGroup],
        *,
        move_to: str | os.PathLike[str] | None = None,
        delete: bool = False,
        progress: bool | Progress | None = None,
    ) -> Discarded:
        """Moves the files of duplicates to a folder, or deletes them if `delete` is true, and
        removes the images from the index. The image to keep of each group stays.

        A file that has changed since it was added stays, and so do the duplicates of a keeper whose
        file has; they are listed in the result's `failed`. No file is overwritten: if its name is
        taken in the folder, a file gets a number.
        """
        if (move_to is None) != bool(delete):
            raise TypeError("discard takes either a folder, move_to, or delete=True")
        with reporting(progress) as report:
            folder = None if move_to is None else Path(move_to)
            return discard(self._store, self._live, self.wait, groups, folder, report)

    def _queries(self, query: Any, region: Any) -> tuple[Query, bool]:
        """One or several queries as the search takes them, and whether a single one was given."""
        if isinstance(region, str):
            raise TypeError("the region of a query must be a box (x0, y0, x1, y1) in pixels")
        single = one_image(query)
        images = [query] if single else query
        return self._model.encode_queries(images, region, self._live.fine_kind), single

    @property
    def queries(self) -> Queries:
        """Queries as objects, for a service that encodes and searches for many callers at once."""
        return Queries(self._store, self._live, self._searcher, self._model)

    # Contents.

    def count(self, filter: Filter | None = None) -> int:
        """The number of images, or of those that match a filter."""
        return len(self) if filter is None else len(self._searcher.matching(filter))

    def ids(self, filter: Filter | None = None) -> list[Id]:
        """The ids of all images, or of those that match a filter, oldest first."""
        if filter is None:
            return list(self)
        with self._store.one_state():
            return self._store.ids(self._searcher.matching(filter).tolist())

    def __len__(self) -> int:
        return self._live.images

    def __contains__(self, id: object) -> bool:
        self._store.check_open()
        try:
            names = resolved_ids(self._store, [id])
        except (TypeError, ValueError):
            return False
        return bool(self._store.known(names))

    def __iter__(self) -> Iterator[Id]:
        """The ids of all images, oldest first."""
        return (row.id for row in self._store.each())

    def __getitem__(self, id: Id) -> Stored:
        row = self._store.row(*resolved_ids(self._store, [id]))
        if row is None:
            raise KeyError(id)
        return self._stored(row)

    def images(self) -> Iterator[Stored]:
        """All images, oldest first."""
        return map(self._stored, self._store.each())

    def _stored(self, row: Row) -> Stored:
        _, entries = unpack_codes([row.key], [row.codes], self.bits, any_region=True)
        numbers = [int(r) for r in entries["region"]]
        return Stored(
            row.id,
            row.path,
            row_metadata(row),
            (row.width, row.height) if row.width and row.height else None,
            tuple(map(self.identity.region_name, numbers)),
            tuple(self.identity.region_box(r, row.width, row.height) for r in numbers),
            entries["keep"].copy(),
            entries["code"].copy(),
        )

    def stats(self) -> dict[str, Any]:
        """The numbers of images, codes and buckets, the space they take, and the model.

        `fine_bits` is the width of the fine codes that images have or get from the model, 0 for
        none; `fine_images` have them. `segments` is the number of parts of the table of codes; one
        is the fastest to search, and they are merged in the background.
        """
        table, identity = self._live.current, self.identity
        images, codes, fine = self._live.images, table.n_codes, self._live.fine
        return {
            "path": None if self.path is None else str(self.path),
            "images": images,
            "codes": codes,
            "buckets": table.n_buckets,
            "anhc": codes / images if images else 0.0,
            "bits": self.bits,
            "bytes": self._store.bytes(),
            "fine_bits": self._model.fine_bits if fine is None else fine.fine_bits,
            "fine_images": 0 if fine is None else len(fine),
            "memory": table.memory()["total"] + (0 if fine is None else fine.memory()),
            "segments": len(table.stats()["segments"]),
            "model": identity.name,
            "fingerprint": identity.fingerprint,
            "precision": identity.precision if identity.has_model else None,
            "regions": list(identity.regions),
        }

    def backup(self, path: str | os.PathLike[str]) -> None:
        """Writes a copy of the index, as of one moment, to a new folder.

        Others may search and add meanwhile. An index in memory can be saved this way.
        """
        own = self._store.is_in_place()  # its model is in its folder
        model = self._model.saved if self.identity.has_model and not own else None
        back_up(self._store, Path(path), model)

    def close(self) -> None:
        """Frees files and memory. Everything that was added is already on disk.

        Hits stay usable: the records of answers that are still referenced are read first. If other
        threads are using the index, `close` waits for the commit or the search they are at; what
        they do afterwards raises ValueError.
        """
        if self._store.forked:  # the files belong to the parent process, and so do the locks
            self._closed = True
            return
        with self._closing:
            if not self._closed:
                self._closed = True
                self._searcher.close()
                self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        where = self.path or "in memory"
        if self._closed:
            return f"<MCHIndex {where}: closed>"
        codes = self._live.current.n_codes
        return f"<MCHIndex {where}: {len(self):,} images, {codes:,} codes>"


def _checked_record(row: Row) -> Row:
    """A record whose id and metadata can be read back. Raises TypeError or ValueError."""
    check_id(row.id)
    if row.metadata is not None:
        try:
            valid = isinstance(json_text.loads(row.metadata), dict)
        except ValueError as error:
            raise ValueError(f"the metadata of image {row.id!r}: {error}") from None
        if not valid:
            raise ValueError(f"the metadata of image {row.id!r} must be a mapping")
    return row


def _check_is_model(model: Any) -> None:
    """Raises ModelError for the path of an index, which is not a model."""
    if not isinstance(model, (str, os.PathLike)):
        return
    path = os.fspath(model)
    how = f"to open or create an index on disk, call MCHIndex.open({path!r})"
    if Store.exists(path):
        raise ModelError(f"{path} is an index, not a model: {how}")
    if not os.path.exists(find(path)):
        raise ModelError(f"there is no model {path}: name one of {', '.join(names())}, or {how}")


def _is_one_picture(images: Any) -> bool:
    """Whether the `images` given to `add` are one picture, not a folder, a pattern or several."""
    if isinstance(images, (str, os.PathLike)):
        pattern = glob.has_magic(os.fspath(images)) and not os.path.lexists(images)
        return not pattern and not os.path.isdir(images)
    return one_image(images)


def _is_gone(path: str) -> bool:
    """Whether a file does not exist. A file that cannot be reached may still exist."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


__all__ = ["MCHIndex", "Stored"]
