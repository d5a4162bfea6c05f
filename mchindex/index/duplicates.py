"""Finds images of the same picture by their fine codes.

Two codes that differ in few bits need not be of the same picture: where many pictures look alike,
all their codes do, and where few do, the codes of a copy differ in more bits. So each bit is
weighed by what similar pictures have there. The cells of the model, which are the centres of
groups of fine codes, say that: if the eight cells nearest to a code all have its bit, agreement in
this bit says little, and a difference says much. From the shares of bits that differ, measured
among copies and among other pictures that look alike, follows how much each bit speaks for a copy:
the logarithm of the ratio of the two probabilities. The mean over the bits of all regions is the
evidence, and a level is the least evidence that counts. docs/duplicates.md has the measurements.

Images are taken in the order in which they would be kept. Each that is in no group yet becomes the
keeper of those after it that match it. So every image in a group matches its keeper, and an image
in a group is not compared any further.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from mchindex._core import BucketTable, FineTable
from mchindex.errors import NoFineCodesError
from mchindex.index.arguments import Filter, mapping, whole
from mchindex.index.identity import FineIdentity, Identity
from mchindex.index.searching import Searcher
from mchindex.index.table import LiveTable, Tables
from mchindex.progress import Progress, Step, silent
from mchindex.regions import Box
from mchindex.storage.records import Id, Row
from mchindex.storage.store import Store

Level = Literal["copy", "similar"]
Decision = Literal["keep", "discard"]
Codes = NDArray[np.uint8]
LEVELS: dict[Level, float] = {"copy": 0.04, "similar": 0.013}  # the least evidence per bit

AROUND = 8  # cells that are asked about each bit
_SHARE = np.arange(AROUND + 1) / AROUND  # of these cells that have the bit
# The share of bits that differ, depending on that: measured on edited images, and on other images
# that look alike (see docs/duplicates.md).
_IN_COPIES = 0.03 + 0.24 * (1 - _SHARE)
_IN_OTHERS = 0.06 + 0.88 * (1 - _SHARE)
_AGREE = np.log((1 - _IN_COPIES) / (1 - _IN_OTHERS)).astype(np.float32)
_DIFFER = np.log(_IN_COPIES / _IN_OTHERS).astype(np.float32)

REACH = 2.6  # codes of copies differ in at most this many times the bits expected of them
WIDEST = 256  # bits that a BucketTable takes: of longer codes, it is given the first
ASPECT = 1.2  # the largest ratio between the aspect ratios of two copies
BATCH = 1024  # images compared at a time
MOST_NEAR = 1 << 25  # pairs looked at together
TOGETHER = 1 << 15  # pairs compared together, about
VERIFIED = 2048  # pairs verified together
ROWS = 1000  # records read together


@dataclass(frozen=True)
class Duplicate:
    """An image in a group of duplicates."""

    id: Id
    path: str | None
    size: tuple[int, int] | None  # width and height
    bytes: int | None  # of its file
    similarity: float  # of its fine codes to those of the keeper: 1 if all bits agree
    key: int = field(repr=False, default=-1)  # changes when the image is replaced

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON-compatible values."""
        return {
            "id": self.id,
            "path": self.path,
            "size": None if self.size is None else list(self.size),
            "bytes": self.bytes,
            "similarity": self.similarity,
        }


@dataclass(frozen=True)
class DuplicateGroup:
    """Images of the same picture: the one to keep, and the others, most similar first."""

    keeper: Duplicate
    others: tuple[Duplicate, ...]

    @property
    def ids(self) -> list[Id]:
        return [self.keeper.id, *(image.id for image in self.others)]

    def to_dict(self) -> dict[str, Any]:
        return {
            "keeper": self.keeper.to_dict(),
            "others": [image.to_dict() for image in self.others],
        }


@dataclass(frozen=True, repr=False)
class Duplicates(Sequence[DuplicateGroup]):
    """The groups that were found, largest first."""

    groups: tuple[DuplicateGroup, ...]
    level: Level
    compared: int  # images
    without_fine: int  # images that have no fine codes and were not compared

    @property
    def images(self) -> int:
        """How many images there are besides the keepers."""
        return sum(len(group.others) for group in self.groups)

    def __len__(self) -> int:
        return len(self.groups)

    @overload
    def __getitem__(self, place: int) -> DuplicateGroup: ...
    @overload
    def __getitem__(self, place: slice) -> list[DuplicateGroup]: ...
    def __getitem__(self, place: int | slice) -> DuplicateGroup | list[DuplicateGroup]:
        return list(self.groups[place]) if isinstance(place, slice) else self.groups[place]

    def to_dict(self) -> dict[str, Any]:
        """All fields as JSON-compatible values."""
        return {
            "level": self.level,
            "compared": self.compared,
            "without_fine": self.without_fine,
            "groups": [group.to_dict() for group in self.groups],
        }

    def __repr__(self) -> str:
        lines = [f"  {group.keeper.id}: {len(group.others)} more" for group in self[:10]]
        more = [f"  … {len(self) - 10} more"] if len(self) > 10 else []
        count = f"{len(self)} group{'' if len(self) == 1 else 's'}"
        return "\n".join([f"{count}, {self.compared:,} images compared", *lines, *more])


def check_level(level: Any) -> Level:
    if level not in LEVELS:
        raise ValueError(f"level must be one of {', '.join(LEVELS)}, not {level!r}")
    checked: Level = level
    return checked


def check_decision(decision: Any) -> Decision:
    if decision not in ("keep", "discard"):
        raise ValueError(f"a decision must be keep or discard, not {decision!r}")
    checked: Decision = decision
    return checked


def find_duplicates(
    store: Store,
    live: LiveTable,
    searcher: Searcher,
    identity: Identity,
    fine: FineIdentity | None,
    level: Level,
    filter: Filter | None,
    progress: Progress,
    threads: int,
) -> Duplicates:
    """The groups of duplicates in an index, or among the images that match a filter."""
    level, threads = check_level(level), whole("threads", threads, 0)
    if filter is not None:
        mapping(filter)
    select = None if filter is None else lambda: searcher.matching(filter)

    def content(
        tables: Tables, chosen: NDArray[np.int64] | None
    ) -> tuple[NDArray[np.int64], Codes, int]:
        table, images = tables.fine, len(tables.buckets) if chosen is None else len(chosen)
        keys, codes = _content(table, chosen)
        return keys, codes, images - len(keys)

    keys, codes, without_fine = live.consistently(select, content)
    if fine is None or (without_fine and not len(keys)):
        raise NoFineCodesError(f"{store.name} has no fine codes, by which duplicates are found")
    facts = _Facts.read(store, keys)
    keys, codes = keys[facts.there], codes[facts.there]
    order = facts.order()
    groups = find_groups(
        codes[order], fine.cells, level, facts.aspects[order], mirrored(identity.boxes), progress,
        threads,
    )  # fmt: skip
    groups.sort(key=lambda group: (-len(group), group[0][0]))
    found = tuple(_groups(store, [[(int(keys[order[i]]), s) for i, s in g] for g in groups]))
    return Duplicates(found, level, len(keys), without_fine)


def _content(
    table: FineTable | None, chosen: NDArray[np.int64] | None
) -> tuple[NDArray[np.int64], Codes]:
    """The keys and the fine codes of all images in a table, or of the chosen ones."""
    if table is None:
        return np.empty(0, np.int64), np.empty((0, 1, 1), np.uint8)
    all_of_it = table.content()
    keys, codes = all_of_it["keys"], all_of_it["fine"]
    if chosen is not None:
        some = np.isin(keys, chosen)
        keys, codes = keys[some], codes[some]
    return keys, codes


class _Facts(NamedTuple):
    """What decides which image of a group is kept.

    All but `there` have one entry per image that is still in the store.
    """

    there: NDArray[np.bool_]  # whether each image is still in the store
    pixels: NDArray[np.int64]
    bytes: NDArray[np.int64]
    times: NDArray[np.int64]
    aspects: NDArray[np.float64]  # logarithms of width / height; NaN if unknown

    @classmethod
    def read(cls, store: Store, keys: NDArray[np.int64]) -> _Facts:
        there = np.zeros(len(keys), bool)
        lines: list[tuple[int, int, int, float]] = []
        for start in range(0, len(keys), ROWS):
            some = keys[start : start + ROWS].tolist()
            rows = store.rows(some)
            for place, key in enumerate(some, start):
                row = rows[key]
                if not row.codes:
                    continue  # it has been removed in the meantime
                there[place] = True
                width, height = row.width or 0, row.height or 0
                aspect = np.log(width / height) if width and height else np.nan
                latest = np.iinfo(np.int64).max
                time = latest if row.time is None else row.time
                lines.append((width * height, row.size or 0, time, aspect))
        columns = list(zip(*lines, strict=True)) or [()] * 4
        pixels, sizes, times = (np.array(column, np.int64) for column in columns[:3])
        return cls(there, pixels, sizes, times, np.array(columns[3], np.float64))

    def order(self) -> NDArray[np.int64]:
        """The images in the order in which they would be kept: most pixels, largest file, oldest
        file, and of equal ones the one that was added first."""
        return np.lexsort((self.times, -self.bytes, -self.pixels))


def _groups(
    store: Store, groups: Sequence[Sequence[tuple[int, float]]]
) -> Iterator[DuplicateGroup]:
    """Groups of keys and similarities, the keeper first, as the records of their images."""
    for group in groups:
        rows = store.rows([key for key, _ in group])
        keeper, *others = [_duplicate(rows[key], similarity) for key, similarity in group]
        yield DuplicateGroup(keeper, tuple(others))


def _duplicate(row: Row, similarity: float) -> Duplicate:
    size = (row.width, row.height) if row.width and row.height else None
    return Duplicate(row.id, row.path, size, row.size, round(similarity, 4), row.key)


def mirrored(boxes: Sequence[Box]) -> list[int] | None:
    """For each region, the one in its place when the image is flipped left to right; None if the
    layout is not symmetric."""
    places = {_rounded(box): place for place, box in enumerate(boxes)}
    found = [places.get(_rounded((1 - x1, y0, 1 - x0, y1))) for x0, y0, x1, y1 in boxes]
    return [place for place in found if place is not None] if None not in found else None


def _rounded(box: Box) -> tuple[float, ...]:
    return tuple(round(side, 6) + 0.0 for side in box)


# Everything below knows only codes, in the order in which the images would be kept.


def find_groups(
    codes: Codes,
    cells: Codes,
    level: Level,
    aspects: NDArray[np.float64],
    mirror: Sequence[int] | None = None,
    progress: Progress = silent,
    threads: int = 0,
) -> list[list[tuple[int, float]]]:
    """Groups of at least two images, each as their rows in `codes` and similarities to the first.

    codes    (n, regions, bits // 8): fine codes
    cells    (cells, bits // 8): centres of groups of codes; there may be none
    aspects  (n,): logarithms of width / height, NaN where unknown
    """
    first, classes = _equal(codes, aspects)
    comparison = _Comparison(codes[first], cells, level, aspects[first], mirror, threads)
    members: dict[int, list[tuple[int, float]]] = {}
    free = np.ones(len(first), bool)  # not in the group of another
    batch = max(1, min(BATCH, MOST_NEAR // max(1, len(first))))
    for start in range(0, len(first), batch):
        rows = np.arange(start, min(start + batch, len(first)))
        for some in _in_parts(comparison.near(rows[free[rows]], free)):
            # The groups made of earlier parts have left few images to look at.
            pairs, similarities = comparison.matches(some[free[some].all(1)])
            for (a, b), similarity in zip(pairs.tolist(), similarities.tolist(), strict=True):
                if free[a] and free[b]:
                    free[b] = False
                    members.setdefault(a, []).append((b, similarity))
        progress(Step("comparing", int(rows[-1]) + 1, len(first), unit="images"))
    sizes = np.bincount(classes, minlength=len(first))
    rows_of = np.split(np.argsort(classes, kind="stable"), np.cumsum(sizes)[:-1])
    groups = []
    for a in np.flatnonzero(free & ((sizes > 1) | np.isin(np.arange(len(first)), list(members)))):
        same = [(int(row), 1.0) for row in rows_of[a]]
        others = [(int(row), s) for b, s in members.get(int(a), []) for row in rows_of[b]]
        groups.append([*same, *sorted(others, key=lambda image: (-image[1], image[0]))])
    return groups


def _equal(
    codes: Codes, aspects: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The first row of each class of equal codes, and the class of each row.

    There may be thousands of copies of one file, so only one of them is compared with others.
    """
    if not len(codes):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    shape = np.nan_to_num(np.round(aspects * 50), nan=1000.0).astype(np.int16)
    joined = np.column_stack([codes.reshape(len(codes), -1), shape.view(np.uint8).reshape(-1, 2)])
    lines = np.ascontiguousarray(joined).view(f"V{joined.shape[1]}").ravel()
    _, first, inverse = np.unique(lines, return_index=True, return_inverse=True)
    order = np.argsort(first)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return first[order], place[inverse]


def _in_parts(pairs: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Pairs, in ascending order, in parts of about TOGETHER, all pairs of an image in one part."""
    starts = np.flatnonzero(np.diff(pairs[:, 0], prepend=-1))
    while len(starts):
        first = starts[0]
        later = starts[starts >= first + TOGETHER]
        yield pairs[first : later[0] if len(later) else len(pairs)]
        starts = later


class _Comparison:
    """Finds the images that match others."""

    def __init__(
        self,
        codes: Codes,
        cells: Codes,
        level: Level,
        aspects: NDArray[np.float64],
        mirror: Sequence[int] | None,
        threads: int,
    ) -> None:
        self._codes, self._level, self._aspects = codes, level, aspects
        self._mirror, self._threads = mirror, threads
        self._part = min(codes.shape[-1], WIDEST // 8)
        self._cells = np.unpackbits(cells, axis=-1)
        self._cell_table: BucketTable | None = None
        if len(cells) >= AROUND:
            self._cell_table = BucketTable(8 * self._part)
            self._cell_table.add(np.arange(len(cells)), cells[:, : self._part])
        self._whole = np.ascontiguousarray(codes[:, 0, : self._part])
        self._table = BucketTable(8 * self._part)
        if len(codes):
            self._table.add(np.arange(len(codes)), self._whole)
        expected = [
            _IN_COPIES[self._shared(codes[a : a + BATCH, :1])[:, 0, : 8 * self._part]].sum(1)
            for a in range(0, len(codes), BATCH)
        ]
        self._reach = REACH * np.concatenate([np.empty(0), *expected])

    def _shared(self, codes: Codes) -> NDArray[np.uint8]:
        """(…, bits): how many of the cells nearest to each code have the same bit as it.

        Without cells, nothing is known, and half of them is assumed.
        """
        bits = np.unpackbits(codes, axis=-1)
        if self._cell_table is None:
            return np.full_like(bits, AROUND // 2)
        flat = codes.reshape(-1, codes.shape[-1])[:, : self._part]
        near = self._cell_table.search(flat, AROUND, threads=self._threads).ids
        total = np.zeros((len(flat), bits.shape[-1]), np.uint8)
        for column in near.T:
            total += self._cells[column]
        ones = total.reshape(bits.shape)
        return np.where(bits == 1, ones, AROUND - ones).astype(np.uint8)

    def near(self, rows: NDArray[np.int64], free: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Pairs (n, 2) of one of the rows and a free row after it whose whole images have codes
        that differ in few bits, in ascending order of the former."""
        radii = np.ceil(self._reach[rows] / 4).astype(np.int64) * 4  # few different ones
        parts = [np.empty((0, 2), np.int64)]
        for radius in np.unique(radii).tolist():
            some = rows[radii == radius]
            radius = min(radius, 8 * self._part)
            found = self._table.within(self._whole[some], radius, threads=self._threads)
            own = np.repeat(some, np.diff(found.lims))
            other = found.ids
            near = (other > own) & free[other] & (found.distances <= self._limit(own, other))
            parts.append(np.column_stack([own[near], other[near]]))
        pairs = np.concatenate(parts)
        return pairs[np.argsort(pairs[:, 0], kind="stable")]

    def matches(self, pairs: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Those of the pairs that match, in ascending order, and the similarity of each."""
        share = self._distances(pairs)[0] / (8 * self._codes.shape[-1])
        pairs = pairs[share * 8 * self._part <= self._limit(*pairs.T)]
        parts = [self._verified(pairs[a : a + VERIFIED]) for a in range(0, len(pairs), VERIFIED)]
        kept = np.concatenate([pairs[:0], *(some for some, _ in parts)])
        similarities = np.concatenate([np.empty(0), *(some for _, some in parts)])
        order = np.lexsort(kept.T[::-1])
        return kept[order], similarities[order]

    def _limit(self, a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.minimum(self._reach[a], self._reach[b])

    def _distances(self, pairs: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """How many bits of a region differ, on average, and whether that is less if one image is
        flipped left to right."""
        a, b = (self._codes[column] for column in pairs.T)
        straight = np.bitwise_count(a ^ b).mean((1, 2), dtype=np.float64)
        flipped = straight
        if self._mirror is not None:
            flipped = np.bitwise_count(a ^ b[:, self._mirror]).mean((1, 2), dtype=np.float64)
        return np.minimum(straight, flipped) * self._codes.shape[-1], flipped < straight

    def _verified(self, pairs: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Those of the pairs for which there is enough evidence, and their similarities."""
        distances, flipped = self._distances(pairs)
        involved, places = np.unique(pairs, return_inverse=True)
        shared = self._shared(self._codes[involved])
        places = places.reshape(pairs.shape)
        turn = np.tile(np.arange(self._codes.shape[1]), (len(pairs), 1))
        if self._mirror is not None:
            turn[flipped] = self._mirror
        a = self._codes[pairs[:, 0]]
        b = np.take_along_axis(self._codes[pairs[:, 1]], turn[:, :, None], 1)
        differ = np.unpackbits(a ^ b, axis=-1).astype(bool)
        of_a = shared[places[:, 0]]
        of_b = np.take_along_axis(shared[places[:, 1]], turn[:, :, None], 1)
        evidence = np.minimum(*(
            np.where(differ, _DIFFER[of], _AGREE[of]).mean((1, 2)) for of in (of_a, of_b)
        ))  # fmt: skip
        enough = evidence >= LEVELS[self._level]
        if self._level == "copy":
            apart = np.abs(np.diff(self._aspects[pairs], axis=1)[:, 0])
            enough &= ~(apart > np.log(ASPECT))  # an unknown one is no reason to refuse
        similarity = 1 - 2 * distances / (8 * self._codes.shape[-1])
        return pairs[enough], similarity[enough]
