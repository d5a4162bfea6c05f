"""One pass over the queries: ranks the database for each and records what it found."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed

import numpy as np
from numpy.typing import NDArray

from mchindex._core import bucket_ranks
from mchindex.evaluation.checks import whole
from mchindex.evaluation.code_words import Words, to_codes
from mchindex.evaluation.curves import MOST_BUCKETS, Budgets, Ranking, at_ks
from mchindex.evaluation.database import Database
from mchindex.evaluation.metrics import (
    TOP,
    average_precision,
    average_precision_at,
    harmonic,
    ndcg,
    tie_aware_average_precision,
)
from mchindex.progress import Progress, Step

Counts = NDArray[np.int64]

BLOCK = 8  # queries per task: hides the cost of a task, and still spreads evenly over threads


class Tally:
    """What each query found, one row per query. Threads write to different rows."""

    def __init__(
        self,
        queries: int,
        database: Database,
        radius: int,
        at: list[int],
        ks: list[int],
        budgets: list[int],
    ) -> None:
        self._database, self._at = database, at
        # The first distances outside the query's bucket and outside the radius.
        self._beyond = [1, radius + 1]
        self._budgets = Budgets(budgets, database.bits)
        # If there are fewer than K images, every bucket is visited in search of the K-th.
        self._within = sum(k <= database.n_images for k in ks)
        self._ks = np.array(ks[: self._within], np.int64)
        self._sums = harmonic(database.n_images)

        def counts(columns: int) -> Counts:
            return np.zeros((queries, columns), np.int64)

        self.relevant = np.zeros(queries, np.int64)
        self.ap, self.ap_tie_aware = np.zeros(queries), np.zeros(queries)
        self.ap_at = np.zeros((queries, len(at)))
        self.ndcg, self.p_top = np.zeros(queries), np.zeros(queries)
        self.found, self.hits = counts(2), counts(2)  # query's bucket, radius
        self.budget_found, self.budget_hits = counts(len(budgets)), counts(len(budgets))
        self.k_hits, self.k_buckets = counts(len(ks)), counts(len(ks))
        self.k_buckets[:, self._within :] = min(2**database.bits, MOST_BUCKETS)

    def add(self, first: int, codes: Words, labels: NDArray[np.bool_]) -> None:
        """Evaluates a block of queries, whose first one has the number `first`.

        `codes` is (words, block), `labels` is (block, classes).
        """
        for column, row in enumerate(labels):
            self._one(first + column, codes[:, column : column + 1], row)

    def _one(self, i: int, code: Words, labels: NDArray[np.bool_]) -> None:
        alike = self._database.labels.sharing(labels)
        self.relevant[i] = np.count_nonzero(alike)
        if not self.relevant[i]:
            return
        distances, masks = self._database.nearest(code)
        order = np.argsort(distances, kind="stable")
        steps = np.arange(self._database.bits + 2, dtype=distances.dtype)
        starts = np.searchsorted(distances[order], steps)
        places = np.flatnonzero(alike[order])
        ranking = Ranking(order, masks, alike, starts, np.searchsorted(places, starts))

        self.ap[i] = average_precision(places)
        self.ndcg[i] = ndcg(self._database.labels.overlap(labels), order)
        self.p_top[i] = alike[order[:TOP]].mean()
        self.ap_at[i] = average_precision_at(places, self._at)
        self.ap_tie_aware[i] = tie_aware_average_precision(
            np.diff(starts), np.diff(ranking.hits), self._sums
        )
        self.found[i], self.hits[i] = starts[self._beyond], ranking.hits[self._beyond]
        self.budget_found[i], self.budget_hits[i] = self._budgets.found(ranking)
        last, hits = at_ks(ranking, self._ks)
        within = slice(self._within)
        self.k_hits[i, within], self.k_hits[i, self._within :] = hits, self.relevant[i]
        self.k_buckets[i, within] = bucket_ranks(to_codes(last, self._database.bits))


def for_each_block(
    work: Callable[[int, int], None], queries: int, threads: int, progress: Progress
) -> None:
    """Calls work(first, last) for every block of queries, in threads: NumPy releases the GIL."""
    threads = whole(threads, "threads", 0)
    if not threads:
        # The cores that this process may use, if the system can tell.
        affinity = getattr(os, "sched_getaffinity", None)
        threads = len(affinity(0)) if affinity else os.cpu_count() or 1
    done = 0
    with ThreadPoolExecutor(threads) as pool:
        sizes = {}
        for first in range(0, queries, BLOCK):
            last = min(first + BLOCK, queries)
            sizes[pool.submit(work, first, last)] = last - first
        try:
            for future in as_completed(sizes):
                future.result()
                done += sizes[future]
                progress(Step("evaluation", done, queries))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
