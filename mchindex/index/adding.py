"""Adds images to an index: looks them up, decodes, encodes and stores them, in batches."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from mchindex.index.inputs import Item
from mchindex.index.table import LiveTable
from mchindex.progress import Step
from mchindex.storage.records import Id, Known, Row, code_type
from mchindex.storage.store import Store

if TYPE_CHECKING:
    from mchindex.inference.encoder import Encoder

BATCH = 256  # images per commit, at most
PATIENCE = 2.0  # seconds after which a smaller batch is committed
LOOKED_UP = 64  # images looked up in the store at a time
HELD = 64 << 20  # bytes of pictures in memory after which fewer are looked up
T = TypeVar("T")
Codes = tuple[bytes, bytes | None]  # the codes and the fine codes of an image, as a `Row` has them


@dataclass(frozen=True)
class Failure:
    """An image that could not be added, and why.

    Attributes:
        name: Its file or its number.
        reason: What is wrong.
        extra: The extra that reads its format, if it is not installed.
    """

    name: str
    reason: str
    extra: str | None = None

    def __str__(self) -> str:
        # A file name need not be valid text.
        return f"{self.name}: {self.reason}".encode("utf-8", "backslashreplace").decode()


@dataclass
class Added(Sequence[Id]):
    """The result of `add`.

    As a sequence, it holds the ids of the given images that are now in the index, in the order in
    which they were given.

    Attributes:
        added: New images.
        replaced: Images that were in the index, and have changed.
        skipped: Images that have not changed.
        failed: Images that could not be added.
        ignored: Files in folders that are not images.
    """

    added: list[Id] = field(default_factory=list)
    replaced: list[Id] = field(default_factory=list)
    skipped: list[Id] = field(default_factory=list)
    failed: list[Failure] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    _ids: list[Id] = field(default_factory=list, repr=False)

    def __len__(self) -> int:
        return len(self._ids)

    @overload
    def __getitem__(self, place: int) -> Id: ...
    @overload
    def __getitem__(self, place: slice) -> list[Id]: ...
    def __getitem__(self, place: int | slice) -> Id | list[Id]:
        return self._ids[place]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Added):
            return self is other
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return (
            f"{len(self.added)} added, {len(self.replaced)} replaced, "
            f"{len(self.skipped)} unchanged, {len(self.failed)} failed"
        )


@dataclass(frozen=True)
class Commit(Step):
    """A step of `add`. The images that it reports are on disk.

    Attributes:
        ids: Stored since the last step.
        failed: Those that could not be added since the last step.
        seconds: Since the start.
    """

    ids: Sequence[Id] = ()
    failed: Sequence[Failure] = ()
    seconds: float = 0.0


OnCommit = Callable[[Commit], None]


class Encoding:
    """Decodes and encodes images."""

    def __init__(self, model: Encoder, batch: int, update: bool, again: bool = False) -> None:
        """With `update`, unchanged images are encoded too. With `again`, unchanged images are
        encoded if they have no fine codes, and the model makes them."""
        self._model, self._batch, self._update = model, batch, update
        self._again = again and model.fine_kind is not None
        self._boxes = model.layout.array()

    def _forced(self, item: Item) -> bool:
        """Whether to encode it even if it has not changed."""
        again = self._again and item.known is not None and not item.known.fine
        return self._update or again

    def _skip(self, item: Item) -> bool:
        """Whether there is nothing to read."""
        return item.error is not None or (not self._forced(item) and item.is_unchanged())

    def _decode(self, item: Item) -> tuple[Any, NDArray[np.float64]] | None:
        """The picture and the boxes to encode; None if there is nothing to encode."""
        picture = item.load(self._model.least, force=self._forced(item))
        return None if picture is None else (picture.image, self._boxes)

    def encoded(self, items: Iterator[Item]) -> Iterator[tuple[list[Item], list[Codes]]]:
        """Yields batches of items in their order, and the codes of those that were decoded."""
        for batch, features in self._batches(items):
            # One call for the whole batch: many small calls slow down the backbone.
            yield batch, self._encoded(features)

    def _batches(
        self, items: Iterator[Item]
    ) -> Iterator[tuple[list[Item], list[NDArray[np.float16]]]]:
        """Yields batches of items in their order, and the features of those that were decoded."""
        batch: list[Item] = []
        features: list[NDArray[np.float16]] = []
        last = time.monotonic()
        stream = self._model.extractor.stream(
            items, self._decode, len(self._boxes), Item.bytes_held, self._skip
        )
        # Always closed: its threads must not outlive an exception.
        with contextlib.closing(stream) as chunks:  # type: ignore[type-var]
            for chunk in chunks:
                for item, loaded in zip(chunk.sources, chunk.loaded, strict=True):
                    item.source, item.decoded = None, loaded  # frees the picture
                    batch.append(item)
                if len(chunk.features):
                    features.append(chunk.features)
                if len(batch) >= self._batch or time.monotonic() - last > PATIENCE:
                    yield batch, features
                    batch, features, last = [], [], time.monotonic()
        if batch:
            yield batch, features

    def _encoded(self, features: Sequence[NDArray[np.float16]]) -> list[Codes]:
        """The codes and the fine codes of each decoded image, as a `Row` holds them."""
        if not features:
            return []
        joined = np.concatenate(features)
        encoded, bits = self._model.choose(self._model.regions_of(joined)), self._model.bits
        entries = np.zeros(len(encoded), code_type(bits))
        entries["region"], entries["code"] = encoded.regions, encoded.codes
        entries["keep"] = encoded.keep[encoded.images, encoded.regions]
        ends = np.searchsorted(encoded.images, np.arange(len(encoded.kept) + 1))
        codes = [entries[a:b].tobytes() for a, b in itertools.pairwise(ends)]
        if (hash_ := self._model.fine) is None:
            return [(code, None) for code in codes]
        fine = hash_.codes(joined)
        return [(code, some.tobytes()) for code, some in zip(codes, fine, strict=True)]


class Adding(Encoding):
    """One run of `add`, within the writer's lock."""

    def __init__(
        self,
        store: Store,
        table: LiveTable,
        model: Encoder,
        batch: int,
        update: bool,
        again: bool = False,
    ) -> None:
        """With `update`, ids that are not stored fail; see `Encoding`."""
        super().__init__(model, batch, update, again)
        self._store, self._table = store, table
        self._under_way: Counter[Id] = Counter()

    def run(
        self, items: Iterator[Item], total: int | None, result: Added, progress: OnCommit
    ) -> None:
        """Adds the items and records the outcome of each in `result`."""
        began = time.monotonic()
        done = 0
        for batch, codes in self.encoded(self._looked_up(items)):
            done += len(batch)
            ids, failed = self._write(batch, codes, result)
            spent = time.monotonic() - began
            progress(Commit("adding", done, total, {}, "images", ids, failed, spent))
        if not done:
            progress(Commit("adding", 0, total, {}, "images"))

    def _looked_up(self, items: Iterator[Item]) -> Iterator[Item]:
        """Yields the items with `known` set; looks up many at a time."""
        numbers: Iterator[int] | None = None
        for group in _small_groups(items):
            for item in group:
                if item.id is None and item.error is None:
                    numbers = numbers or itertools.count(self._store.next_id())
                    item.id = next(numbers)
            known = self._store.known([i.id for i in group if i.id is not None and i.error is None])
            for item in group:
                if item.id is not None:
                    item.known = known.get(item.id)
                    if item.known is not None and item.id in self._under_way:
                        # An earlier item is about to replace it.
                        item.known = replace(item.known, hash=None)
                    self._under_way[item.id] += 1
                if self._update and item.known is None and item.error is None:
                    item.error = f"there is no image {item.id!r} to update"
                yield item

    def _write(
        self, batch: Sequence[Item], encoded: Sequence[Codes], result: Added
    ) -> tuple[list[Id], list[Failure]]:
        """Commits a batch; returns what was stored and what failed."""
        codes = iter(encoded)
        rows: list[Row] = []
        failed: list[Failure] = []
        touched: dict[Id, dict[str, Any]] = {}
        for item in batch:
            if item.decoded:
                rows.append(_row(item, *next(codes)))
            elif item.error is not None:
                failed.append(Failure(item.name, item.error, item.extra))
            else:
                assert item.id is not None
                assert item.known is not None
                if new := _touched(item, item.known):
                    touched[item.id] = new
                result.skipped.append(item.id)
        if touched:
            self._store.touch(touched)
        stored = list(dict.fromkeys(row.id for row in rows))
        replaced: Mapping[Id, Known] = self._table.insert(rows) if rows else {}
        for id_ in stored:
            (result.replaced if id_ in replaced else result.added).append(id_)
        result.failed += failed
        for item in batch:
            if item.id is not None:
                if item.error is None:
                    result._ids.append(item.id)
                self._under_way[item.id] -= 1
                if not self._under_way[item.id]:
                    del self._under_way[item.id]
        return stored, failed


def _row(item: Item, codes: bytes, fine: bytes | None) -> Row:
    assert item.id is not None
    # A changed file keeps its metadata unless new metadata is given.
    old = item.known.metadata if item.known is not None and item.metadata is None else None
    return Row(
        item.id, codes, item.path, item.size, item.time, item.hash, item.width, item.height,
        item.metadata if old is None else old, fine=fine,
    )  # fmt: skip


def _touched(item: Item, known: Known) -> dict[str, Any]:
    """The columns that change for an image whose codes stay the same."""
    new: dict[str, Any] = {}
    if item.time is not None and (item.size, item.time) != (known.size, known.time):
        new |= {"size": item.size, "time": item.time}
    if item.metadata is not None and item.metadata != known.metadata:
        new["metadata"] = item.metadata
    return new


def _small_groups(items: Iterator[Item]) -> Iterator[list[Item]]:
    """Yields lists of items that hold little memory; an item that holds much is alone."""
    group: list[Item] = []
    held = 0
    for item in items:
        group.append(item)
        held += item.bytes_held()
        if len(group) == LOOKED_UP or held > HELD:
            yield group
            group, held = [], 0
    if group:
        yield group


def groups(items: Iterator[T], size: int) -> Iterator[list[T]]:
    """Yields lists of `size` items; the last one may be shorter."""
    while group := list(itertools.islice(items, size)):
        yield group
