"""What is searched: the codes of every image, and for one query each image's nearest code."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mchindex.evaluation.checks import check_codes, check_images, check_kept, check_labels
from mchindex.evaluation.words import Distances, Words, at_most, popcount, to_words


@dataclass(frozen=True, eq=False)
class Codes:
    """The codes that a database stores: one row a code, several rows an image."""

    codes: NDArray[np.uint8]  # (m, bits // 8), as np.packbits makes them
    images: NDArray[np.int64]  # (m,) the image 0 … n - 1 of each code, in any order
    kept: NDArray[np.int64] | None = None  # (n,) codes kept an image, equal ones counted each


class Labels:
    """Labels as bits in words, because `share a label` is then one AND a word."""

    def __init__(self, labels: NDArray[np.bool_]) -> None:
        self._words = self._pack(labels)

    @staticmethod
    def _pack(labels: NDArray[np.bool_]) -> Words:
        return to_words(np.packbits(labels, axis=1))

    def sharing(self, labels: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which images share at least one label with these (classes,)."""
        shared = np.zeros(self._words.shape[1], np.uint64)
        for word, wanted in zip(self._words, self._pack(labels[None])[:, 0], strict=True):
            if wanted:
                shared |= word & wanted
        alike: NDArray[np.bool_] = shared != 0
        return alike


class Database:
    """Distinct codes in layers: the first of every image, the second of those that have two, …

    A layer is compared with the best so far in a few whole-array operations, and layer 0 is in
    database order already. Equal codes of one image count once.
    """

    def __init__(self, given: Codes, labels: NDArray[np.bool_]) -> None:
        codes = check_codes(given.codes, "database.codes")
        n = len(check_labels(labels, None, "labels"))
        if n == 0:
            raise ValueError("the database is empty: give at least one image, its codes and labels")
        images = check_images(given.images, len(codes), n)
        if given.kept is not None:
            check_kept(given.kept, n)
        self.bits = 8 * codes.shape[1]
        self.labels = Labels(labels)
        self.n_images = n

        words = to_words(codes)
        order = np.lexsort((*words[::-1], images))
        words, images = words[:, order], images[order]
        again = (images[1:] == images[:-1]) & (words[:, 1:] == words[:, :-1]).all(0)
        new = np.concatenate([[True], ~again])
        words, images = words[:, new], images[new]
        self.n_codes = len(images)

        counts = np.bincount(images)
        layer = np.arange(len(images)) - np.repeat(np.cumsum(counts) - counts, counts)
        self._first = np.ascontiguousarray(words[:, layer == 0])  # (words, n)
        self._more = [
            (images[layer == i], np.ascontiguousarray(words[:, layer == i]))
            for i in range(1, int(counts.max()))
        ]

    def distances(self, query: Words) -> Distances:
        """(n,) the distance of every image: the least over its codes. `query` is (words, 1)."""
        nearest = popcount(self._first ^ query)
        for images, words in self._more:
            nearest[images] = np.minimum(nearest[images], popcount(words ^ query))
        return nearest

    def nearest(self, query: Words) -> tuple[Distances, Words]:
        """Of every image the code that is visited first: (n,) distances, (words, n) XOR masks."""
        masks = self._first ^ query
        distances = popcount(masks)
        for images, words in self._more:
            others = words ^ query
            theirs, least = popcount(others), distances[images]
            better = theirs < least
            tied = np.flatnonzero(theirs == least)  # then the larger mask is visited first
            better[tied] = at_most(masks[:, images[tied]], others[:, tied])
            at = images[better]
            distances[at] = theirs[better]
            masks[:, at] = others[:, better]
        return distances, masks
