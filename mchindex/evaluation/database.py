"""The database under evaluation: finds the nearest code of every image for a query."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mchindex.evaluation.checks import check_codes, check_images, check_kept, check_labels
from mchindex.evaluation.code_words import Distances, Words, at_most, popcount, to_words


@dataclass(frozen=True, eq=False)
class Codes:
    """The codes of a database: one row per code, one or more rows per image."""

    codes: NDArray[np.uint8]  # (m, bits // 8), as np.packbits makes them
    images: NDArray[np.int64]  # (m,) the image number of each code, 0 … n - 1, in any order
    kept: NDArray[np.int64] | None = None  # (n,) codes kept per image, duplicates included


class Labels:
    """Labels packed into words: a test for a shared label is then one AND per word."""

    def __init__(self, labels: NDArray[np.bool_]) -> None:
        self._words = self._pack(labels)

    @staticmethod
    def _pack(labels: NDArray[np.bool_]) -> Words:
        return to_words(np.packbits(labels, axis=1))

    def sharing(self, labels: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which images share at least one label with the given ones, of shape (classes,)."""
        shared = np.zeros(self._words.shape[1], np.uint64)
        for word, wanted in zip(self._words, self._pack(labels[None])[:, 0], strict=True):
            if wanted:
                shared |= word & wanted
        alike: NDArray[np.bool_] = shared != 0
        return alike

    def overlap(self, labels: NDArray[np.bool_]) -> NDArray[np.float64]:
        """(n,) the Jaccard index of each image's labels and the given ones: the number of shared
        labels as a share of those that either has."""
        wanted = self._pack(labels[None])
        shared = popcount(self._words & wanted)
        either = popcount(self._words | wanted)
        out: NDArray[np.float64] = shared / np.maximum(either, 1)
        return out


class Database:
    """Distinct codes in layers: the first code of every image, the second of those with two, …

    A layer is compared with the best codes so far in a few whole-array operations; layer 0 is
    already in database order. Duplicate codes of an image count once.
    """

    def __init__(self, given: Codes, labels: NDArray[np.bool_]) -> None:
        codes = check_codes(given.codes, "database.codes")
        n = len(check_labels(labels, None, "labels"))
        if n == 0:
            raise ValueError("the database is empty: give at least one image with codes and labels")
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
        """(n,) the distance of each image, the smallest over its codes. `query` is (words, 1)."""
        nearest = popcount(self._first ^ query)
        for images, words in self._more:
            nearest[images] = np.minimum(nearest[images], popcount(words ^ query))
        return nearest

    def nearest(self, query: Words) -> tuple[Distances, Words]:
        """The first visited code of each image: (n,) distances and (words, n) XOR masks."""
        masks = self._first ^ query
        distances = popcount(masks)
        for images, words in self._more:
            others = words ^ query
            theirs, least = popcount(others), distances[images]
            better = theirs < least
            tied = np.flatnonzero(theirs == least)  # the larger mask is visited first
            better[tied] = at_most(masks[:, images[tied]], others[:, tied])
            at = images[better]
            distances[at] = theirs[better]
            masks[:, at] = others[:, better]
        return distances, masks
