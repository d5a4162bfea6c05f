"""The figures of one query, from the ranks of its relevant images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Places = NDArray[np.int64]  # 0-based ranks of the relevant images, ascending


def average_precision(places: Places) -> float:
    """AP over the whole ranking: the mean of the precisions at each relevant image."""
    return float(_precisions(places).mean())


def average_precision_at(places: Places, ks: Sequence[int]) -> Floats:
    """AP of the first k images, for each k.

    The sum is divided by min(k, number of relevant images), not by the number found: 1 means that
    no better list of k images exists, and every missed relevant image lowers the figure.
    """
    sums = np.concatenate([[0.0], np.cumsum(_precisions(places))])
    k = np.asarray(ks, np.int64)
    value: Floats = sums[np.searchsorted(places, k)] / np.minimum(k, len(places))
    return value


def _precisions(places: Places) -> Floats:
    """The precision at each relevant image."""
    value: Floats = np.arange(1, len(places) + 1) / (places + 1)
    return value


def harmonic(n: int) -> Floats:
    """H(0) … H(n), the sums of 1 / i."""
    return np.concatenate([[0.0], np.cumsum(1.0 / np.arange(1, n + 1))])


def tie_aware_average_precision(images: Places, relevant: Places, sums: Floats) -> float:
    """The exact mean of AP over all orders of the images that tie.

    `images` and `relevant` are the numbers of images and relevant images at each distance; `sums`
    is `harmonic(n)` for at least the total number of images.

    McSherry & Najork, "Computing information retrieval performance measures efficiently in the
    presence of tied scores" (ECIR 2008): consider g tied images, h of them relevant, which follow t
    images, r of them relevant. The image at place i of the tie is relevant with probability h / g.
    The i - 1 images before it in the tie then contain (i - 1)(h - 1) / (g - 1) relevant ones on
    average, so its precision is (r + 1 + (i - 1)(h - 1) / (g - 1)) / (t + i). The sum over i
    reduces to differences of harmonic numbers.
    """
    here = np.flatnonzero(relevant)
    g, h = images[here], relevant[here]
    t, r = np.cumsum(images)[here] - g, np.cumsum(relevant)[here] - h
    inverse = sums[t + g] - sums[t]  # sum over i of 1 / (t + i)
    slope = (h - 1) / np.maximum(g - 1, 1)
    expected = h / g * ((r + 1) * inverse + slope * (g - (t + 1) * inverse))
    return float(expected.sum() / h.sum())


TOP = 10  # images that a person sees first


def ndcg(gains: Floats, order: NDArray[np.int64]) -> float:
    """nDCG of the first TOP images: their discounted gains as a share of the most possible.

    `gains` (n,) are those of all images, at least one of them above 0; `order` has the images in
    the order of the ranking.
    """
    top = min(TOP, len(gains))
    discount = 1 / np.log2(np.arange(2, top + 2))
    ideal = -np.sort(np.partition(-gains, top - 1)[:top])  # in falling order
    return float(gains[order[:top]] @ discount / (ideal @ discount))


def f1(found: NDArray[Any], hits: NDArray[Any], relevant: NDArray[Any]) -> Floats:
    """F1 = 2PR / (P + R), where `hits` of the `found` images are relevant, out of `relevant`.

    With P = hits / found and R = hits / relevant, this is 2 hits / (found + relevant): 0 if nothing
    relevant was found.
    """
    value: Floats = 2 * hits / (found + relevant)
    return value


def precision(found: NDArray[Any], hits: NDArray[Any]) -> Floats:
    """hits / found; 0 for a query that found nothing."""
    value: Floats = hits / np.maximum(found, 1)
    return value
