"""The results of a search."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

from mchindex._core import SearchResult
from mchindex.index.arguments import Rank
from mchindex.regions import PixelBox
from mchindex.storage.records import Id

Limit = Literal["max_radius", "max_buckets", "candidates"]
MOST = 2**63 - 1  # the engine counts no more buckets


@dataclass(frozen=True, slots=True)
class Hit:
    """An image that was found, and the region of it that is nearest to the query.

    Attributes:
        id: The image.
        distance: The Hamming distance between the query's code and the image's nearest code; -1 for
            words.
        region: The name of the region, "whole", "top-left" and so on.
        box: The region in pixels of the stored image, upright: x0, y0, x1, y1.
        path: The file; None for a picture in memory or your own codes.
        metadata: Its metadata.
        score: How well it matches, from 0 to 1.
        similarity: That of the region's fine code, at most 1; None if ranked by code.
        size: Width and height of the stored image.
    """

    id: Id
    distance: int
    region: str
    box: PixelBox | None
    path: str | None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    score: float = 0.0
    similarity: float | None = None
    size: tuple[int, int] | None = None

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON-compatible values."""
        return {
            "id": self.id,
            "score": self.score,
            "similarity": self.similarity,
            "distance": self.distance,
            "region": self.region,
            "box": None if self.box is None else list(self.box),
            "size": None if self.size is None else list(self.size),
            "path": self.path,
            "metadata": dict(self.metadata),
        }


@dataclass(frozen=True, repr=False)
class Hits(Sequence[Hit]):
    """The answer to one query: hits, best first, and the work that the search did.

    A sequence of `Hit`. A notebook shows it as a grid of pictures.

    Attributes:
        hits: The hits.
        buckets: The buckets that Algorithm 1 visits, including empty ones; 0 if ranked by fine
            codes.
        radius: The Hamming radius that was reached.
        candidates: The stored codes in the visited buckets; with fine codes, the images compared.
        exact: False if a limit may have kept images out.
        limited_by: The limit that did so.
        codes: The codes in the index.
        rank: How the hits are ordered.
        partial: Whether a part of a cluster did not answer.
    """

    hits: tuple[Hit, ...]
    buckets: int
    radius: int
    candidates: int
    exact: bool
    limited_by: Limit | None = None
    codes: int = 0
    rank: Rank = "code"
    partial: bool = False

    @property
    def ids(self) -> list[Id]:
        return [hit.id for hit in self.hits]

    @property
    def distances(self) -> list[int]:
        return [hit.distance for hit in self.hits]

    def __len__(self) -> int:
        return len(self.hits)

    @overload
    def __getitem__(self, place: int) -> Hit: ...
    @overload
    def __getitem__(self, place: slice) -> list[Hit]: ...
    def __getitem__(self, place: int | slice) -> Hit | list[Hit]:
        return list(self.hits[place]) if isinstance(place, slice) else self.hits[place]

    def effort(self) -> str:
        """The work that the search did, in words."""
        if self.rank != "code":
            return f"{self.candidates:,} image{'' if self.candidates == 1 else 's'} compared"
        text = f"{self.buckets:,} bucket{'' if self.buckets == 1 else 's'}, radius {self.radius}"
        if self.buckets > max(self.codes, 1):
            # Most of these buckets are empty, and the engine did not visit them.
            many = self.buckets >= 10**6
            visited = f"{self.buckets:.1e}".replace("+", "") if many else f"{self.buckets:,}"
            if self.buckets == MOST:
                visited = f"more than {visited}"
            text = (
                f"radius {self.radius}: a walk through all buckets would have visited {visited}; "
                f"the engine looked at {self.codes:,} codes at most"
            )
        return text

    def to_dict(self) -> dict[str, Any]:
        """All fields as JSON-compatible values."""
        return {
            "hits": [hit.to_dict() for hit in self.hits],
            "buckets": self.buckets,
            "radius": self.radius,
            "candidates": self.candidates,
            "exact": self.exact,
            "limited_by": self.limited_by,
            "codes": self.codes,
            "rank": self.rank,
            "partial": self.partial,
        }

    def __repr__(self) -> str:
        lines = [
            f"  {hit.score:.2f}  {'' if hit.distance < 0 else hit.distance:3}  {hit.region:<12}  "
            f"{hit.id}"
            for hit in self[:10]
        ]
        more = [f"  … {len(self) - 10} more"] if len(self) > 10 else []
        limit = f" (stopped by {self.limited_by})" if self.limited_by else ""
        count = f"{len(self)} hit{'' if len(self) == 1 else 's'}"
        return "\n".join([f"{count}, {self.effort()}{limit}", *lines, *more])

    def _repr_html_(self) -> str:
        """The hits as a grid of pictures, for notebooks."""
        from mchindex.index.notebook import hits_html

        return hits_html(self)


Reader = Callable[["Found"], list[list[Hit]]]


@dataclass(eq=False)
class Found:
    """What was found for each query, before the records of the hits are read.

    The arrays have one row per query; `keys` holds -1 where there are fewer hits than columns.
    """

    keys: NDArray[np.int64]  # (queries, k)
    distances: NDArray[np.int32]  # (queries, k)
    regions: NDArray[np.int16]  # (queries, k)
    scores: NDArray[np.float32]  # (queries, k)
    buckets: NDArray[np.int64]
    radius: NDArray[np.int32]
    candidates: NDArray[np.int64]
    exact: NDArray[np.bool_]
    codes: int
    rank: Rank = "code"
    similarities: NDArray[np.float32] | None = None  # (queries, k), of fine codes
    # What the hits are ordered by before their keys; `merged` needs it.
    order: NDArray[np.floating[Any]] | None = None  # (queries, k), largest first; None: by code
    partial: bool = False  # whether a part of a cluster did not answer

    @classmethod
    def of(cls, result: SearchResult, codes: int, bits: int) -> Found:
        scores = (1 - result.distances / np.float32(bits)).astype(np.float32)
        return cls(
            result.ids, result.distances, result.regions, scores, result.buckets, result.radius,
            result.candidates, result.exact, codes,
        )  # fmt: skip

    def with_rows(self, rows: NDArray[np.int64], other: Found) -> Found:
        """The answers to some queries replaced by those of a search for them alone."""
        width = max(self.keys.shape[1], other.keys.shape[1])
        before, after = self.wider(width), other.wider(width)
        columns: dict[str, Any] = {}
        for name in (*_PER_HIT, "buckets", "radius", "candidates", "exact"):
            if (column := getattr(before, name)) is not None:
                columns[name] = column.copy()  # what another process sent cannot be written to
                columns[name][rows] = getattr(after, name)
        return replace(before, **columns, partial=self.partial or other.partial)

    def columns(self, start: int, stop: int) -> Found:
        """The hits of each query from `start` to `stop`."""
        return self._at(slice(start, stop))

    def without(self, keys: Sequence[Sequence[int]], k: int) -> Found:
        """At most k hits of each query, without some images, which are listed for each."""
        if all(len(some) == 1 for some in keys):  # the query itself, in most searches
            out = self.keys == np.array(keys)
        else:
            out = np.stack([np.isin(*pair) for pair in zip(self.keys, keys, strict=True)])
        # Stable: what remains keeps its order, and what is left out comes last.
        order = np.argsort(out, axis=1, kind="stable")[:, :k]
        left = replace(self, keys=np.where(out, -1, self.keys))
        return left._each(lambda column: np.take_along_axis(column, order, 1))

    def wider(self, width: int) -> Found:
        """The same with at least so many columns, the further ones without hits."""
        queries, own = self.keys.shape
        if own >= width:
            return self

        def pad(name: str) -> NDArray[Any] | None:
            column = getattr(self, name)
            if column is None:
                return None
            wide = np.full((queries, width), -1 if name in _MISSING else 0, column.dtype)
            wide[:, :own] = column
            return wide

        columns: dict[str, Any] = {name: pad(name) for name in _PER_HIT}
        return replace(self, **columns)

    def _at(self, columns: slice) -> Found:
        return self._each(lambda column: column[:, columns])

    def _each(self, change: Callable[[NDArray[Any]], NDArray[Any]]) -> Found:
        """Every array that has one column per hit, changed."""
        columns = {name: getattr(self, name) for name in _PER_HIT}
        changed: dict[str, Any] = {
            name: change(own) for name, own in columns.items() if own is not None
        }
        return replace(self, **changed)


_MISSING = ("keys", "distances", "regions")  # -1 where there is no hit
_PER_HIT = ("keys", "distances", "regions", "scores", "similarities", "order")


class Answers(Sequence[Hits]):
    """The answers to several queries: `answers[i]` are the hits of query i.

    The arrays have one row per query: `distances` and `scores` are (queries, k), the others
    (queries,). The records of the hits are read, for all queries at once, when an answer is first
    used.
    """

    def __init__(self, found: Found, read: Reader, limit: Limit | None = None) -> None:
        """`limit` is the limit that made searches inexact."""
        self.found, self._limit = found, limit
        self._read: Reader | None = read
        self._hits: list[list[Hit]] = []
        self.distances = found.distances
        self.scores = found.scores
        self.counts: NDArray[np.int64] = (found.keys >= 0).sum(1)
        self.buckets = found.buckets
        self.radius = found.radius
        self.candidates = found.candidates
        self.exact = found.exact

    def load(self) -> None:
        """Reads the records of all hits, unless they have been read already."""
        read = self._read  # another thread may be loading them, too
        if read is not None:
            self._hits = read(self.found)
            self._read = None

    def __getstate__(self) -> dict[str, Any]:
        self.load()  # a copy, perhaps in another process, has no index to read from
        return self.__dict__

    def _at(self, row: int) -> Hits:
        self.load()
        return self._hits_with(tuple(self._hits[row]), row)

    def effort(self, row: int) -> Hits:
        """The work that a search did, without its hits, whose records need not be read for this."""
        return self._hits_with((), row)

    def _hits_with(self, hits: tuple[Hit, ...], row: int) -> Hits:
        exact = bool(self.exact[row])
        return Hits(
            hits,
            int(self.buckets[row]),
            int(self.radius[row]),
            int(self.candidates[row]),
            exact,
            None if exact else self._limit,
            self.found.codes,
            self.found.rank,
            self.found.partial,
        )

    def __len__(self) -> int:
        return len(self.counts)

    @overload
    def __getitem__(self, place: int) -> Hits: ...
    @overload
    def __getitem__(self, place: slice) -> list[Hits]: ...
    def __getitem__(self, place: int | slice) -> Hits | list[Hits]:
        rows = range(len(self))[place]
        return self._at(rows) if isinstance(rows, int) else [self._at(row) for row in rows]

    def __iter__(self) -> Iterator[Hits]:
        return (self._at(row) for row in range(len(self)))

    @property
    def ids(self) -> list[list[Id]]:
        """The ids of the hits, one list per query."""
        return [hits.ids for hits in self]

    def to_dict(self) -> list[dict[str, Any]]:
        """One dictionary per query; see `Hits.to_dict`."""
        return [hits.to_dict() for hits in self]

    def __repr__(self) -> str:
        return f"answers to {len(self)} queries"
