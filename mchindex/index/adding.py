"""Adding images: looked up, loaded, coded and stored, a batch at a time."""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from mchindex.index.inputs import Item, Metadata
from mchindex.progress import Step
from mchindex.storage.records import Id, Known, Row, code_type
from mchindex.storage.store import Store

if TYPE_CHECKING:
    from mchindex.models import MCHModel
    from mchindex.models.extract import Job

BATCH = 256  # images written at a time, at most
PATIENCE = 2.0  # seconds after which fewer are written
LOOKED_UP = 64  # images that the store is asked about at a time
T = TypeVar("T")


@dataclass(frozen=True)
class Failure:
    """An image that could not be added, and why."""

    name: str
    reason: str

    def __str__(self) -> str:
        # A name that is no text can be shown all the same.
        return f"{self.name}: {self.reason}".encode("utf-8", "backslashreplace").decode()


@dataclass
class Added(Sequence[Id]):
    """What `add` did. As a sequence: the ids of all images given that are in the index now, in the
    order in which they were given."""

    added: list[Id] = field(default_factory=list)
    replaced: list[Id] = field(default_factory=list)
    skipped: list[Id] = field(default_factory=list)  # unchanged since they were added
    failed: list[Failure] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)  # files in folders, no images by their names
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
    """A step of `add`. The images it reports are on disk."""

    ids: Sequence[Id] = ()  # stored since the last step
    failed: Sequence[Failure] = ()  # since the last step
    seconds: float = 0.0  # since the beginning


OnCommit = Callable[[Commit], None]


class Adding:
    """One run of `add`, within the writer's lock."""

    def __init__(
        self,
        store: Store,
        model: MCHModel,
        refresh: Callable[[], None],
        result: Added,
        batch: int,
        force: bool,
    ) -> None:
        """`refresh` brings the table up to date; `force` encodes what is unchanged, too."""
        self._store, self._model, self._refresh = store, model, refresh
        self._result, self._batch, self._force = result, batch, force
        self._boxes = model.layout.array()
        self._known: dict[int, Known | None] = {}  # by identity of the item, while it is under way
        self._under_way: Counter[Id] = Counter()
        self._pending: list[tuple[Item, bool]] = []  # and whether it could be loaded
        self._features: list[NDArray[np.float16]] = []  # of those that could

    def run(self, items: Iterator[Item], total: int | None, progress: OnCommit) -> None:
        began = last = time.monotonic()
        done = 0

        def write() -> None:
            nonlocal last
            ids, failed = self._write()
            last = time.monotonic()
            progress(Commit("adding", done, total, {}, "images", ids, failed, last - began))

        # Closed whatever happens: its threads must not go on behind an exception.
        stream = self._model.extractor.stream(self._looked_up(items), self._load, len(self._boxes))
        with contextlib.closing(stream) as parts:  # type: ignore[type-var]
            for part in parts:
                for item, loaded in zip(part.sources, part.loaded, strict=True):
                    item.source = None  # pictures are not kept beyond their batch
                    self._pending.append((item, loaded))
                self._features.append(part.features)
                done += len(part.sources)
                if len(self._pending) >= self._batch or time.monotonic() - last > PATIENCE:
                    write()
        if self._pending or not done:
            write()

    def _looked_up(self, items: Iterator[Item]) -> Iterator[Item]:
        """Items with what the store knows of them; many at a time, to ask it seldom."""
        numbers: Iterator[int] | None = None
        for group in groups(items, LOOKED_UP):
            for item in group:
                if item.id is None and item.error is None:
                    numbers = numbers or itertools.count(self._store.next_id())
                    item.id = next(numbers)
            found = self._store.known([i.id for i in group if i.id is not None and i.error is None])
            for item in group:
                its = found.get(item.id) if item.id is not None else None
                if its is not None and item.id in self._under_way:
                    its = replace(its, hash=None)  # which it will no longer have
                if item.id is not None:
                    self._under_way[item.id] += 1
                self._known[id(item)] = its
                yield item

    def _load(self, item: Item) -> Job | None:
        its = self._known[id(item)]
        if item.error is not None:
            return None
        if self._force and its is None:
            item.error = f"there is no image {item.id!r} to update"
            return None
        if its is not None and not self._force and its.hash is not None:
            if item.path is not None and item.stat() == (its.size, its.time):
                item.hash = its.hash
                return None
            picture = item.load(self._model.least, its.hash)
        else:
            picture = item.load(self._model.least)
        return None if picture is None else (picture.image, self._boxes)

    def _write(self) -> tuple[list[Id], list[Failure]]:
        """Commits what is pending; returns what was stored and what failed."""
        # All codes of a batch at once: small steps of torch's get in the backbone's way.
        codes = iter(self._coded())
        rows: list[Row] = []
        failed: list[Failure] = []
        touched: dict[Id, dict[str, Any]] = {}
        for item, loaded in self._pending:
            its = self._known.pop(id(item))
            if loaded:
                rows.append(_row(item, its, next(codes)))
            elif item.error is not None:
                failed.append(Failure(item.name, item.error))
            else:
                assert item.id is not None
                assert its is not None
                if new := _touched(item, its):
                    touched[item.id] = new
                self._result.skipped.append(item.id)
        if touched:
            self._store.touch(touched)
        stored = list(dict.fromkeys(row.id for row in rows))
        if rows:
            replaced = set(self._store.insert(rows))
            self._refresh()
            for id_ in stored:
                (self._result.replaced if id_ in replaced else self._result.added).append(id_)
        self._result.failed += failed
        for item, _ in self._pending:
            if item.id is not None:
                if item.error is None:
                    self._result._ids.append(item.id)
                self._under_way[item.id] -= 1
                if not self._under_way[item.id]:
                    del self._under_way[item.id]
        self._pending.clear()
        return stored, failed

    def _coded(self) -> list[bytes]:
        """Each loaded image's codes as the store packs them."""
        if not self._features:
            return []
        found = self._model.regions_of(np.concatenate(self._features))
        self._features.clear()
        encoded, bits = self._model.choose(found), self._model.bits
        entries = np.zeros(len(encoded), code_type(bits))
        entries["region"], entries["code"] = encoded.regions, encoded.codes
        entries["keep"] = encoded.keep[encoded.images, encoded.regions]
        ends = np.searchsorted(encoded.images, np.arange(len(encoded.kept) + 1))
        return [entries[a:b].tobytes() for a, b in itertools.pairwise(ends)]


def _row(item: Item, its: Known | None, codes: bytes) -> Row:
    assert item.id is not None
    # A file that has changed keeps its metadata, unless others are given.
    old = its.metadata if its is not None and item.metadata is None else None
    return Row(
        item.id, codes, item.path, item.size, item.time, item.hash, item.width, item.height,
        old or json_of(item.metadata),
    )  # fmt: skip


def _touched(item: Item, its: Known) -> dict[str, Any]:
    """What is new of an image whose codes stay."""
    new: dict[str, Any] = {}
    if item.time is not None and (item.size, item.time) != (its.size, its.time):
        new |= {"size": item.size, "time": item.time}
    if item.metadata is not None and json_of(item.metadata) != its.metadata:
        new["metadata"] = json_of(item.metadata)
    return new


def groups(items: Iterator[T], size: int) -> Iterator[list[T]]:
    """So many at a time."""
    while group := list(itertools.islice(items, size)):
        yield group


def json_of(metadata: Metadata | None) -> str | None:
    """As it is stored."""
    if metadata is None:
        return None
    try:
        text = json.dumps(dict(metadata), ensure_ascii=False, allow_nan=False)
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"metadata must be what JSON can hold: {error}") from None
    return text
