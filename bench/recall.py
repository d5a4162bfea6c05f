"""Recall by distance, computed from the returned ids alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from common import Codes, Ids


class Judge:
    """Measures recall; an image as near as the true K-th one counts, whichever was returned.

    Distances are recomputed from the codes, so that no contender's distances are trusted.
    `images` holds the image of each code, as `draw_images` returns it; `exact` holds the ids that
    an exact search returned for the first queries, at the largest K.
    """

    def __init__(self, codes: Codes, images: Ids, queries: Codes, exact: Ids) -> None:
        self.codes, self.queries = codes, queries
        self.sizes = np.bincount(images)
        self.first = np.cumsum(self.sizes) - self.sizes
        self.far = codes.shape[1] * 8 + 1
        self.truth = np.sort(self.distances(exact), axis=1)

    def distances(self, ids: Ids) -> NDArray[np.int32]:
        """(q, k): the distance of each image's nearest code; `far` for -1 and for repeated ids."""
        out = np.full(ids.shape, self.far, dtype=np.int32)
        for i, row in enumerate(ids):
            known, at = np.unique(row, return_index=True)
            known, at = known[known >= 0], at[known >= 0]
            for j in range(int(self.sizes.max())):
                has = self.sizes[known] > j
                codes = self.codes[self.first[known[has]] + j]
                apart = np.bitwise_count(codes ^ self.queries[i]).sum(axis=1, dtype=np.int32)
                out[i, at[has]] = np.minimum(out[i, at[has]], apart)
        return out

    def recall(self, ids: Ids, k: int) -> float:
        """The share of the K nearest images that `ids`, (q, k), holds for the first q queries."""
        bound = self.truth[: len(ids), :k]
        hits = self.distances(ids) <= bound[:, -1:]
        return float(hits.sum() / bound.size)
