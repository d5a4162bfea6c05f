"""What a search found."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from mchindex._core import SearchResult

PixelBox = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Hit:
    """An image that was found, and the part of it that was nearest to the query."""

    id: str | int
    distance: int  # Hamming's, between the query's code and the nearest of the image's
    region: str  # "whole", "top-left", …
    box: PixelBox | None  # of the region: x0, y0, x1, y1 in pixels of the stored image
    path: str | None
    metadata: Mapping[str, Any] = field(default_factory=dict)


class Hits(Sequence[Hit]):
    """The answer to one query: hits in order, and what the search for them took.

    Records are read when a hit is first looked at, for all queries of a batch at once.
    """

    def __init__(self, answers: Answers, row: int) -> None:
        self._answers, self._row = answers, row

    @property
    def buckets(self) -> int:
        """Buckets that Algorithm 1 visits, empty ones included."""
        return int(self._answers.buckets[self._row])

    @property
    def radius(self) -> int:
        """The Hamming radius that was reached."""
        return int(self._answers.radius[self._row])

    @property
    def candidates(self) -> int:
        return int(self._answers.candidates[self._row])

    @property
    def exact(self) -> bool:
        """False where `max_buckets` cut the search short."""
        return bool(self._answers.exact[self._row])

    @property
    def ids(self) -> list[str | int]:
        return [hit.id for hit in self]

    @property
    def distances(self) -> list[int]:
        return [int(d) for d in self._answers.distances[self._row, : len(self)]]

    def __len__(self) -> int:
        return int(self._answers.counts[self._row])

    @overload
    def __getitem__(self, place: int) -> Hit: ...
    @overload
    def __getitem__(self, place: slice) -> list[Hit]: ...
    def __getitem__(self, place: int | slice) -> Hit | list[Hit]:
        return self._answers.hits(self._row)[place]

    def __repr__(self) -> str:
        lines = [f"  {hit.distance:3d}  {hit.region:<12}  {hit.id}" for hit in self[:10]]
        more = [f"  … {len(self) - 10} more"] if len(self) > 10 else []
        head = f"{len(self)} hits, {self.buckets:,} buckets, radius {self.radius}"
        return "\n".join([head, *lines, *more])


class Answers(Sequence[Hits]):
    """The answers to several queries: `answers[i]` are the hits of query i.

    The arrays have one row a query: `distances` is (queries, k), the others (queries,).
    """

    def __init__(
        self,
        found: SearchResult,
        read: Callable[[Any, Any, Any], list[list[Hit]]],
        leave_out: int | None = None,
        k: int | None = None,
    ) -> None:
        """`leave_out` is the key of an image that is no hit, for which one more was searched."""
        self._read = read
        self._hits: list[list[Hit]] | None = None
        self._found = found.ids, found.regions
        self.distances: NDArray[np.int32] = found.distances
        self.counts: NDArray[np.int64] = found.counts
        self.buckets: NDArray[np.int64] = found.buckets
        self.radius: NDArray[np.int32] = found.radius
        self.candidates: NDArray[np.int64] = found.candidates
        self.exact: NDArray[np.bool_] = found.exact
        if leave_out is not None:
            keep = found.ids[0] != leave_out
            keep[k if keep.all() else len(keep) :] = False
            self._found = found.ids[:, keep], found.regions[:, keep]
            self.distances = found.distances[:, keep]
            self.counts = (self._found[0] >= 0).sum(1)

    def hits(self, row: int) -> list[Hit]:
        if self._hits is None:
            self._hits = self._read(*self._found, self.distances)
        return self._hits[row]

    def __len__(self) -> int:
        return len(self.counts)

    @overload
    def __getitem__(self, place: int) -> Hits: ...
    @overload
    def __getitem__(self, place: slice) -> list[Hits]: ...
    def __getitem__(self, place: int | slice) -> Hits | list[Hits]:
        rows = range(len(self))[place]
        return Hits(self, rows) if isinstance(rows, int) else [Hits(self, row) for row in rows]

    def __iter__(self) -> Iterator[Hits]:
        return (Hits(self, row) for row in range(len(self)))

    def __repr__(self) -> str:
        return f"answers to {len(self)} queries"
