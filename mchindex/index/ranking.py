"""Orders images by their fine codes.

The score of an image for "best" is the square root of a weighted mean of three numbers, each at
most 1. The root changes no order; it keeps the scores of images that are alike, but no copies,
apart from 0. The numbers are

- 1 - 2 d / bits, where d is the Hamming distance of the image's nearest code,
- the similarity of the fine code of the whole image,
- the fourth power of the similarity of the fine code of the most similar region, which is large
  only for copies and parts of the same picture.

The similarity of a fine code is 1 minus twice the share of its bits that differ from the query's,
where a bit counts the more, the surer the query's bit is. An image whose codes are exactly those of
the query has the score 1. For "fine", the score is the similarity of the most similar region. What
is below 0 counts as 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mchindex._core import BucketTable, Filter, FineTable
from mchindex.index.arguments import Rank
from mchindex.index.results import Found

# Of the code, the whole image, the most similar region, and its fourth power.
_BEST = np.array([64, 15, 0, 600], np.float64)  # chosen on validation images, see docs/answers.md
WEIGHTS = {"best": tuple(_BEST / _BEST.sum()), "fine": (0.0, 0.0, 1.0, 0.0)}
ALL = 65_536  # images up to which "best" compares all of them
CANDIDATES = 2_000  # images, at most, that are taken from the bucket table otherwise
NEAR, PROBES = 1536, 96  # fine codes whose images are added, and cells to find them in
MOST = 2**27  # hits that the bucket table returns, at most
AT_A_TIME = 1024  # queries whose candidates are looked up together

Lists = tuple[NDArray[np.int64], NDArray[np.int64]]  # limits and keys, as `within` returns them


@dataclass(frozen=True, eq=False)
class Query:
    """Queries as a search takes them, one row each."""

    codes: NDArray[np.uint8]  # (n, bits // 8)
    fine: NDArray[np.float32] | None = None  # (n, fine bits), see `FineTable.rank`

    def at(self, rows: NDArray[np.int64]) -> Query:
        return Query(self.codes[rows], None if self.fine is None else self.fine[rows])


Allowed = NDArray[np.int64] | Filter  # keys of images


class Budget(NamedTuple):
    """Which images a search may look at."""

    max_radius: int | None
    max_buckets: int | None
    allowed: Allowed | None
    threads: int

    @property
    def limited(self) -> bool:
        return self.max_radius is not None or self.max_buckets is not None


class Near(NamedTuple):
    """What is nearest to each query in a table, from which follows how far "best" reaches."""

    distances: NDArray[np.int32]  # (n, CANDIDATES + 1) of codes, ascending
    costs: NDArray[np.uint32]  # (n, NEAR) of fine codes, ascending


class Reach(NamedTuple):
    """How far "best" looks for candidates, for each query."""

    distances: NDArray[np.int32]  # images with a code below this distance
    costs: NDArray[np.uint32]  # images with a fine code up to this cost

    @classmethod
    def of(cls, parts: Sequence[Near]) -> Reach:
        """That of one table with the images of several."""
        distances = np.concatenate([part.distances for part in parts], 1)
        costs = np.concatenate([part.costs for part in parts], 1)
        return cls(
            np.partition(distances, CANDIDATES, 1)[:, CANDIDATES],
            np.partition(costs, NEAR - 1, 1)[:, NEAR - 1],
        )


def ranked(
    buckets: BucketTable, fine: FineTable, query: Query, k: int, rank: Rank, budget: Budget
) -> Found:
    """The k images with the largest scores for each query."""
    images = len(fine) if budget.allowed is None else min(len(fine), len(budget.allowed))
    if not takes_candidates(rank, k, budget, images, fine.regions):
        return compared(buckets, fine, query, k, rank, budget)
    lists = _nearest(buckets, query.codes, budget)
    found = _scored(buckets, fine, query, k, rank, budget, lists, NEAR)
    few = np.flatnonzero(found.keys[:, -1] < 0)  # too few images were near these queries
    if len(few):
        found = found.with_rows(few, compared(buckets, fine, query.at(few), k, rank, budget))
    return found


def takes_candidates(rank: Rank, k: int, budget: Budget, images: int, regions: int) -> bool:
    """Whether candidates are compared rather than all images that a search may return. They would
    be too few for large k."""
    return rank == "best" and not budget.limited and images > ALL and k * regions <= NEAR


def compared(
    buckets: BucketTable,
    fine: FineTable,
    query: Query,
    k: int,
    rank: Rank,
    budget: Budget,
    reach: Reach | None = None,
) -> Found:
    """The k images with the largest scores for each query: of those within the limits if there are
    any, of the candidates if `reach` is given, of all otherwise."""
    if budget.limited:
        lists, exact = _within_limits(buckets, query.codes, budget)
        return _scored(buckets, fine, query, k, rank, budget, lists, exact=exact)
    if reach is None:
        return _scored(buckets, fine, query, k, rank, budget)
    lists = _nearest(buckets, query.codes, budget, reach.distances)
    return _scored(buckets, fine, query, k, rank, budget, lists, costs=reach.costs)


def nearest(buckets: BucketTable, fine: FineTable, query: Query, budget: Budget) -> Near:
    """What is nearest to each query."""
    assert query.fine is not None
    parts = [np.empty((0, CANDIDATES + 1), np.int32)]
    for start in range(0, len(query.codes), AT_A_TIME):
        codes = query.codes[start : start + AT_A_TIME]
        found = buckets.search(
            codes, CANDIDATES + 1, allowed=budget.allowed, threads=budget.threads
        )
        parts.append(np.where(found.ids >= 0, found.distances, np.int32(buckets.bits + 1)))
    costs = fine.near_costs(query.fine, NEAR, PROBES, budget.allowed, budget.threads)
    return Near(np.concatenate(parts), costs)


def _scored(
    buckets: BucketTable,
    fine: FineTable,
    query: Query,
    k: int,
    rank: Rank,
    budget: Budget,
    lists: Lists | None = None,
    near: int = 0,
    costs: NDArray[np.uint32] | None = None,
    exact: NDArray[np.bool_] | None = None,
) -> Found:
    """The k images with the largest scores, of those in the lists and those that `near` or `costs`
    adds (see `FineTable.rank`), or of all."""
    assert query.fine is not None
    n = len(query.codes)
    found = fine.rank(
        query.fine, k, query.codes, WEIGHTS[rank], lists, near, PROBES, budget.allowed,
        budget.threads, costs,
    )  # fmt: skip
    scores = found.scores.clip(0, 1)
    return Found(
        found.keys,
        found.distances,
        found.regions,
        np.sqrt(scores) if rank == "best" else scores,
        np.zeros(n, np.int64),
        reached(found.keys, found.distances),
        found.looked_at,
        np.full(n, lists is None) if exact is None else exact,
        buckets.n_codes,
        rank,
        found.similarities,
        found.scores,
    )


def reached(keys: NDArray[np.int64], distances: NDArray[np.int32]) -> NDArray[np.int32]:
    """The largest distance of the hits of each query."""
    largest: NDArray[np.int32] = np.where(keys >= 0, distances, np.int32(0)).max(1, initial=0)
    return largest


def _within_limits(
    buckets: BucketTable, codes: NDArray[np.uint8], budget: Budget
) -> tuple[Lists, NDArray[np.bool_]]:
    """The images that a limited search reaches, and whether these are all."""
    most = min(len(buckets) + 1, MOST // max(1, len(codes)))
    found = buckets.search(
        codes, most, max_radius=budget.max_radius, max_buckets=budget.max_buckets,
        allowed=budget.allowed, threads=budget.threads,
    )  # fmt: skip
    lists = np.r_[0, np.cumsum(found.counts)], found.ids[found.ids >= 0]
    return lists, found.exact & (found.counts < most)


def _nearest(
    buckets: BucketTable,
    codes: NDArray[np.uint8],
    budget: Budget,
    below: NDArray[np.int32] | None = None,
) -> Lists:
    """Up to CANDIDATES images per query, by whole radii: which of those at one distance are taken
    would be arbitrary. If there are more at the smallest distance, it is left to the fine codes to
    choose among them. `below` are the distances that are not reached, if they are known."""
    counts, keys = [np.zeros(1, np.int64)], [np.empty(0, np.int64)]
    for start in range(0, len(codes), AT_A_TIME):
        some = slice(start, start + AT_A_TIME)
        found = buckets.search(
            codes[some], CANDIDATES + 1, allowed=budget.allowed, threads=budget.threads
        )
        if below is None:
            cut = np.where(found.ids[:, -1:] >= 0, found.distances[:, -1:], buckets.bits + 1)
        else:
            cut = below[some, None]
        inside = (found.ids >= 0) & (found.distances < cut)
        counts.append(inside.sum(1))
        keys.append(found.ids[inside])
    return np.cumsum(np.concatenate(counts)), np.concatenate(keys)
