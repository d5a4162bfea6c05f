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
    """An image in the index.

    Attributes:
        id: Its id, as it was given, or the absolute path of its file.
        path: The file that it was read from; None for a picture in memory or your own codes.
        metadata: Its metadata.
        size: Width and height in pixels, upright; None if unknown.
        regions: The names of the regions that have a code.
        boxes: These regions in pixels, (x0, y0, x1, y1).
        keep: The probability with which the policy kept each region.
        codes: Their codes, (regions, bits // 8) uint8.
    """

    id: Id
    path: str | None
    metadata: dict[str, Any]
    size: tuple[int, int] | None
    regions: tuple[str, ...]
    boxes: tuple[PixelBox | None, ...]
    keep: NDArray[np.float32]
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
        """Creates an index in memory.

        Args:
            model: The name of a shipped model, the folder of a model, or a model.
            bits: Without a model: the width of your own codes, from 8 to 256.
            wait: How many seconds to wait for another thread that is writing.
            device: "cpu", "cuda", "cuda:1" …, or "auto".
            precision: "float", or "int8", which is faster.

        Raises:
            ModelError: The model does not exist or cannot be used.
        """
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
        """Opens the index in the folder `path`, or creates it.

        An index that cannot be written to, such as one on a read-only disk, can still be searched.

        Args:
            path: The folder of the index.
            model: The name of a shipped model, the folder of a model, or a model. By default, an
                existing index uses the model that filled it, and a new one uses coco-64.
            bits: For a new index without a model: the width of your own codes, from 8 to 256.
            create: Whether to create the index if there is none.
            wait: How many seconds to wait for another process that is writing before StoreBusyError
                is raised; `math.inf` waits for ever.
            device: "cpu", "cuda", "cuda:1" …, or "auto".
            precision: That of a new index: "float", or "int8", which is faster and which shipped
                models have by default on a CPU. An index keeps its precision.

        Returns:
            The index. Close it, or use it in a `with` statement.

        Raises:
            NotAnIndexError: There is no index, and `create` is false.
            ModelMismatchError: Another model filled the index.
            ModelError: The model does not exist or cannot be used.
            StoreVersionError: A newer version of mchindex wrote the index.
            StoreDamagedError: Its file is damaged.
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
        """Adds images. Those that have not changed since they were added are skipped.

        Committed images survive a crash. To continue an interrupted `add`, run it again.

        Args:
            images: Files, folders, patterns, bytes, file objects, Pillow images, arrays, tensors,
                or any iterable of these.
            ids: One per image, text or integers, all different. By default, the id of a file is its
                absolute path, and pictures in memory are numbered. An image whose id is already in
                the index is replaced if it has changed.
            metadata: One mapping for all images, an iterable with one mapping per image, or a
                function of the path (of the id, for a picture in memory).
            progress: A function that is called with a `Commit` after each commit, or whether to
                show a progress bar. None shows one on a terminal.
            batch: The largest number of images per commit.
            again: Whether to encode unchanged images, too, that have no fine codes yet, because an
                earlier version added them.

        Returns:
            What became of each image. Of several images, `failed` lists those that cannot be read,
            whose metadata cannot be stored, or whose id an earlier one has.

        Raises:
            ImageError: A single image was given and cannot be read.
            StoreBusyError: Another process is writing to the index.
            StoreError: The disk is full, or the index cannot be written to.
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
        """Like `add`, but encodes unchanged images again, and fails for ids not in the index.

        Args:
            images: As for `add`.
            ids: As for `add`.
            metadata: As for `add`.
            progress: As for `add`.
            batch: As for `add`.

        Returns:
            What became of each image; ids that are not in the index are in `failed`.

        Raises:
            ImageError: A single image was given and cannot be read.
            StoreError: The index cannot be written to.
        """
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
        """Adds images with your own codes, and replaces those that are already in the index.

        Args:
            ids: The image of each code, (n,). Rows with the same id are one image with several
                codes.
            codes: The codes, (n, bits // 8), as np.packbits makes them.
            regions: Numbers from 0 to 255 that say which part of its image each code describes,
                (n,).
            metadata: One entry per distinct id, in order of first appearance.

        Returns:
            The number of images.

        Raises:
            ValueError: Shapes, types or widths do not fit; nothing is added.
            StoreBusyError: Another process is writing to the index.
        """
        with self._live.writing(self.wait):
            rows = rows_of_codes(ids, codes, regions, metadata, self.bits)
            for group in self._commits(rows, BULK):
                self._live.insert(group)
        return len(rows)

    def add_records(
        self, rows: Iterable[Row], fine: tuple[int, str] | None = None
    ) -> tuple[int, int]:
        """Stores records of another index.

        The caller ensures that their codes come from the same model.

        Args:
            rows: The records.
            fine: What their fine codes are, by bits and fingerprint; if this index has others, they
                are left out.

        Returns:
            How many images were added, and how many replaced.

        Raises:
            ValueError: A record cannot be stored; those before it may have been.
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
        """Removes images from the index. Their files stay.

        Args:
            ids: An id or several. Ids that are not in the index are ignored.
            filter: Instead of ids: removes all images whose metadata matches.

        Returns:
            The number of images removed.

        Raises:
            StoreBusyError: Another process is writing to the index.
        """
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
        """Removes the images whose files no longer exist.

        Args:
            within: Only those of files in this folder. By default, all.

        Returns:
            The ids of the images removed.
        """
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
        """Replaces the metadata of an image.

        Args:
            id: The image.
            metadata: A mapping that JSON can hold.

        Raises:
            KeyError: The image is not in the index.
        """
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
        """Finds the k images that match best.

        Give one of `query`, `id`, `like` and `text`.

        Args:
            query: An image, or an iterable of images, which are answered together.
            k: The number of images to find.
            id: Finds more images like this one in the index, which is left out of the hits.
            region: Searches by a part of the query: a box (x0, y0, x1, y1) in pixels, or with `id`
                the name of one of its regions that has a code ("top-left").
            like: Several images, or ids of images in the index: finds what is like all of them.
                Text that is an id in the index means that image; other text is a file. A pair
                (image, region) means a part. Images given by id are left out of the hits.
            unlike: With `like`: pushes away what is like any of these.
            text: Finds things by their names: "dog", or "dog, sofa" for both, or "dog, -person" for
                one without the other. `words` lists the names that the model knows.
            rank: "best" puts first what looks most like the query, then what shows the same things;
                "fine" looks for the same picture, its copies and parts; "code" is the order of
                Algorithm 1, by the distance of codes alone. The default is "best" if all images
                have fine codes.
            offset: Hits to skip: `offset=10` gives the second page of ten.
            max_radius: The largest Hamming distance.
            max_buckets: The largest number of buckets to visit.
            filter: Conditions on the metadata: {"album": "2024", "year": {">=": 2020},
                "camera.model": "X100"}. A list of values means any of them.
            allowed: Restricts the search to these ids.
            exclude: Leaves these ids out.
            threads: The number of threads; 0 means all cores.

        Returns:
            The hits, best first; for several images, the hits of each. If a limit may have kept
            images out, `exact` is False and `limited_by` names the limit.

        Raises:
            ImageError: A query cannot be read.
            KeyError: `id` is not in the index.
            UnknownWordError: `text` holds a word that the model does not know.
            NoFineCodesError: The rank needs fine codes, and images have none.
            ModelMismatchError: The model is not the one that filled the index.
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
        """Finds all images within a Hamming radius of an image, nearest first.

        Args:
            query: An image.
            radius: The largest distance, inclusive.
            id: Instead of a query: an image in the index, which is left out of the hits.
            region: As for `search`.
            filter: As for `search`.
            allowed: As for `search`.
            threads: As for `search`.

        Returns:
            The hits, ordered by distance.

        Raises:
            ImageError: The query cannot be read.
            KeyError: `id` is not in the index.
            ValueError: There are more than 2^26 hits.
        """
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
        """Finds the k images nearest to each of your own codes.

        Args:
            codes: Packed codes, (n, bits // 8), or one code, (bits // 8,).
            k: The number of images to find.
            **limits: The options of `search`, from `rank` on.

        Returns:
            The hits of each code; of one code, its hits.

        Raises:
            ValueError: The codes have another width than the index.
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
        """Names the things that a query and each of its hits probably show.

        Args:
            hits: The answer to the query.
            query: The query, as it was given to `search`.
            id: As for `search`.
            region: As for `search`.

        Returns:
            At most three names per hit, by the ids of the hits, as specific as can be told. There
            are none if the model knows no words.
        """
        if (query is None) == (id is None):
            raise TypeError("in_common takes either a query or the id of an image in the index")
        return in_common(
            self._store, self._live, self._searcher, self._model, hits, query, id, region
        )

    def words(self, prefix: str = "") -> list[str]:
        """Lists the words that `search(text=…)` takes.

        Args:
            prefix: Only words that start with this.

        Returns:
            The words in alphabetical order.
        """
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
        """Finds groups of images of the same picture. Nothing is changed: see `discard`.

        The image to keep of a group is the one with the most pixels, then the largest file, then
        the oldest.

        Args:
            level: "copy" finds files saved again, resized or mildly edited; "similar" also finds
                stronger edits and shots taken one after the other, and makes more mistakes.
            filter: Compares only images with this metadata.
            progress: As for `add`.
            threads: As for `search`.

        Returns:
            The groups, largest first.
        """
        with reporting(progress) as report:
            return find_duplicates(
                self._store, self._live, self._searcher, self.identity, self._live.fine_kind, level,
                filter, report, threads,
            )  # fmt: skip

    def decide(self, decisions: Mapping[Id, Decision | None]) -> None:
        """Remembers what to do with images among duplicates. Nothing is done to the images.

        Args:
            decisions: "keep", "discard", or None for nothing, by id. A decision is forgotten when
                its image is removed or replaced.

        Raises:
            KeyError: An id is not in the index.
        """
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
        """Returns what was decided, by id, oldest first."""
        return {id: check_decision(what) for id, what in self._store.decisions().items()}

    def discard(
        self,
        groups: Iterable[DuplicateGroup],
        *,
        move_to: str | os.PathLike[str] | None = None,
        delete: bool = False,
        progress: bool | Progress | None = None,
    ) -> Discarded:
        """Moves or deletes the files of duplicates, and removes the images from the index.

        The image to keep of each group stays. A file that has changed since it was added stays, and
        so do the duplicates of a keeper whose file has. No file is overwritten: if its name is
        taken in the folder, a file gets a number.

        Args:
            groups: What `duplicates` returned, or some of it.
            move_to: The folder to move the files to.
            delete: Instead of a folder: deletes the files.
            progress: As for `add`.

        Returns:
            What was moved, deleted and removed, and in `failed` what was not touched, and why.

        Raises:
            TypeError: Neither a folder nor `delete` was given, or both.
            StoreBusyError: Another process is writing to the index.
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
        """Counts the images, or those that match a filter."""
        return len(self) if filter is None else len(self._searcher.matching(filter))

    def ids(self, filter: Filter | None = None) -> list[Id]:
        """Lists the ids of all images, or of those that match a filter, oldest first."""
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
        """Yields all images, oldest first."""
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
        """Describes the index.

        Returns:
            The numbers of images, codes and buckets, the space they take, and the model. `anhc` is
            the average number of codes per image. `fine_bits` is the width of the fine codes that
            images have or get from the model, 0 for none; `fine_images` have them. `segments` is
            the number of parts of the table of codes; one is the fastest to search, and they are
            merged in the background.
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

        Args:
            path: The folder to make.

        Raises:
            OSError: The folder exists or cannot be written to.
            StoreError: The disk of the folder is full.
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
