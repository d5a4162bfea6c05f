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

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mchindex._core import BucketTable, Filter, FineTable, RankResult
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


Allowed = NDArray[np.int64] | Filter  # keys of images


class Budget(NamedTuple):
    """Which images a search may look at."""

    max_radius: int | None
    max_buckets: int | None
    allowed: Allowed | None
    threads: int


def ranked(
    buckets: BucketTable, fine: FineTable, query: Query, k: int, rank: Rank, budget: Budget
) -> Found:
    """The k images with the largest scores for each query."""
    assert query.fine is not None
    n = len(query.codes)
    lists: Lists | None = None
    exact = np.ones(n, bool)
    near = 0
    if budget.max_radius is not None or budget.max_buckets is not None:
        lists, exact = _within_limits(buckets, query.codes, budget)
    elif rank == "best" and _too_many(fine, k, budget):
        lists, near = _nearest(buckets, query.codes, budget), NEAR
        exact[:] = False

    def search(rows: NDArray[np.int64] | slice, lists: Lists | None, near: int) -> RankResult:
        assert query.fine is not None
        return fine.rank(
            query.fine[rows], k, query.codes[rows], WEIGHTS[rank], lists, near, PROBES,
            budget.allowed, budget.threads,
        )  # fmt: skip

    found = search(slice(None), lists, near)
    if near:
        # Too few images were near these queries.
        few = np.flatnonzero(found.keys[:, -1] < 0)
        if len(few):
            complete = search(few, None, 0)
            for column in ("keys", "distances", "regions", "scores", "similarities", "looked_at"):
                getattr(found, column)[few] = getattr(complete, column)
            exact[few] = True
    scores = found.scores.clip(0, 1)
    return Found(
        found.keys,
        found.distances,
        found.regions,
        np.sqrt(scores) if rank == "best" else scores,
        np.full(n, buckets.n_buckets),
        np.where(found.keys >= 0, found.distances, 0).max(1, initial=0),
        found.looked_at,
        exact,
        buckets.n_codes,
        rank,
        found.similarities,
    )


def _too_many(fine: FineTable, k: int, budget: Budget) -> bool:
    """Whether "best" takes candidates rather than all images. They would be too few for large k."""
    images = len(fine) if budget.allowed is None else min(len(fine), len(budget.allowed))
    return images > ALL and k * fine.regions <= NEAR


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


def _nearest(buckets: BucketTable, codes: NDArray[np.uint8], budget: Budget) -> Lists:
    """Up to CANDIDATES images per query, by whole radii: which of those at one distance are taken
    would be arbitrary. If there are more at the smallest distance, it is left to the fine codes to
    choose among them."""
    counts, keys = [np.zeros(1, np.int64)], [np.empty(0, np.int64)]
    for start in range(0, len(codes), AT_A_TIME):
        found = buckets.search(
            codes[start : start + AT_A_TIME], CANDIDATES + 1, allowed=budget.allowed,
            threads=budget.threads,
        )  # fmt: skip
        cut = np.where(found.ids[:, -1:] >= 0, found.distances[:, -1:], buckets.bits + 1)
        inside = (found.ids >= 0) & (found.distances < cut)
        counts.append(inside.sum(1))
        keys.append(found.ids[inside])
    return np.cumsum(np.concatenate(counts)), np.concatenate(keys)
