"""What Algorithm 1 has found when it stops: after a number of buckets, or at the K-th image.

No bucket is enumerated. A stop after B buckets becomes a comparison with the mask of bucket B; a
stop at K images becomes a partial sort. Images at the same distance are put in order only if a stop
falls among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

import numpy as np
from numpy.typing import NDArray

from mchindex.evaluation.code_words import Words, at_most, number_to_words

MOST_BUCKETS = 2**63 - 1  # larger bucket counts are capped here, as in BucketTable


def default_budgets(bits: int) -> list[int]:
    """1, 2, 5, 10, 20, 50, … up to all 2^bits buckets, but at most 2^63 - 1."""
    most = min(2**bits, MOST_BUCKETS)
    steps = [digit * 10**power for power in range(19) for digit in (1, 2, 5)]
    return [step for step in steps if step < most] + [most]


def default_ks(images: int, values: int = 40) -> list[int]:
    """At most `values` log-spaced numbers from 1 to `images`."""
    return sorted({round(float(k)) for k in np.geomspace(1, images, values)})


def last_bucket(buckets: int, bits: int) -> tuple[int, int]:
    """The last of the first `buckets` buckets, as (radius, XOR mask): the inverse of its rank."""
    left = min(buckets, 2**bits) - 1
    radius = 0
    while left >= (ring := comb(bits, radius)):
        left -= ring
        radius += 1
    mask, ones = 0, radius
    for position in range(bits):
        # Masks with a one at this position come before masks with a zero.
        with_one = comb(bits - 1 - position, ones - 1) if ones else 0
        if left < with_one:
            mask |= 1 << (bits - 1 - position)
            ones -= 1
        else:
            left -= with_one
    return radius, mask


@dataclass(frozen=True, eq=False)
class Ranking:
    """The images of one query, ordered by distance; ties are in database order."""

    order: NDArray[np.int64]  # (n,) image numbers
    masks: Words  # (words, n) XOR mask of the first code that is visited, indexed by image
    relevant: NDArray[np.bool_]  # (n,) indexed by image
    starts: NDArray[np.int64]  # (bits + 2,) number of images nearer than each distance
    hits: NDArray[np.int64]  # (bits + 2,) number of relevant images nearer than each distance

    def at(self, distance: int) -> tuple[Words, NDArray[np.bool_]]:
        """Keys (see `code_words`) and relevance of the images at a distance, in database order."""
        images = self.order[self.starts[distance] : self.starts[distance + 1]]
        return ~self.masks[:, images], self.relevant[images]


class Budgets:
    """Evaluates rankings after given numbers of buckets."""

    def __init__(self, budgets: Sequence[int], bits: int) -> None:
        self._stops: dict[int, list[tuple[int, Words]]] = {}
        for i, budget in enumerate(budgets):
            radius, mask = last_bucket(budget, bits)
            stop = (i, ~number_to_words(mask, bits))
            self._stops.setdefault(radius, []).append(stop)
        self._n = len(budgets)

    def found(self, ranking: Ranking) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """For each budget, how many images its buckets contain, and how many are relevant."""
        images, hits = np.empty(self._n, np.int64), np.empty(self._n, np.int64)
        for radius, stops in self._stops.items():
            keys, relevant = ranking.at(radius)
            for i, last in stops:
                inside = at_most(keys, last)
                images[i] = ranking.starts[radius] + np.count_nonzero(inside)
                hits[i] = ranking.hits[radius] + np.count_nonzero(inside & relevant)
        return images, hits


def first_k(
    keys: Words, relevant: NDArray[np.bool_], ks: NDArray[np.int64]
) -> tuple[Words, NDArray[np.int64]]:
    """The k-th smallest key for each k, as (words, ks), and how many of the first k are relevant.

    Images with equal keys share a bucket and count in the order given.
    """
    out, hits = np.empty((len(keys), len(ks)), np.uint64), np.empty(len(ks), np.int64)
    high = keys[0]
    out[0] = np.partition(high, ks - 1)[ks - 1]
    for i, (k, value) in enumerate(zip(ks, out[0], strict=True)):
        before = high < value
        rest = k - np.count_nonzero(before)
        hits[i] = np.count_nonzero(before & relevant)
        tied = np.flatnonzero(high == value)
        if len(keys) > 1:  # the remaining words break the tie
            low, among = first_k(keys[1:, tied], relevant[tied], np.array([rest]))
            out[1:, i], among_hits = low[:, 0], among[0]
        else:
            among_hits = np.count_nonzero(relevant[tied[:rest]])
        hits[i] += among_hits
    return out, hits


def at_ks(ranking: Ranking, ks: NDArray[np.int64]) -> tuple[Words, NDArray[np.int64]]:
    """For ascending k: the XOR mask of the k-th image, and how many of the first k are relevant."""
    masks, hits = np.empty((len(ranking.masks), len(ks)), np.uint64), np.empty(len(ks), np.int64)
    distances = np.searchsorted(ranking.starts, ks) - 1
    for distance in np.unique(distances):
        here = distances == distance
        keys, relevant = ranking.at(distance)
        last, among = first_k(keys, relevant, ks[here] - ranking.starts[distance])
        masks[:, here] = ~last
        hits[here] = ranking.hits[distance] + among
    return masks, hits
