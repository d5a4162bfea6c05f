"""The figures of one query, from where its relevant images stand in the ranking."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Places = NDArray[np.int64]  # 0-based places of the relevant images in the ranking, ascending


def average_precision(places: Places) -> float:
    """Mean over the relevant images of the precision at each: the whole ranking counts."""
    return float(_precisions(places).mean())


def average_precision_at(places: Places, ks: Sequence[int]) -> Floats:
    """AP of the first k, for each k: divided by min(k, relevant there are), not by those found.

    So 1 means that no better list of k can be had, and missing a relevant image always costs.
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
    """The mean AP over all orders of the images that tie, exactly.

    `images` and `relevant` count those at each distance; `sums` is `harmonic(n)`, n images or more.
    McSherry & Najork, "Computing information retrieval performance measures efficiently in the
    presence of tied scores" (ECIR 2008): among g ties of which h are relevant, with t images and r
    relevant before them, place i holds a relevant one with chance h / g, and then (i - 1) of the
    other g - 1 stand before it, so the precision there is (r + 1 + (i - 1)(h - 1) / (g - 1)) / (t + i).
    Summed over i, only differences of harmonic numbers remain.
    """  # noqa: E501
    here = np.flatnonzero(relevant)
    g, h = images[here], relevant[here]
    t, r = np.cumsum(images)[here] - g, np.cumsum(relevant)[here] - h
    inverse = sums[t + g] - sums[t]  # sum over i of 1 / (t + i)
    slope = (h - 1) / np.maximum(g - 1, 1)
    expected = h / g * ((r + 1) * inverse + slope * (g - (t + 1) * inverse))
    return float(expected.sum() / h.sum())


def f1(found: NDArray[Any], hits: NDArray[Any], relevant: NDArray[Any]) -> Floats:
    """2PR / (P + R) of a set: `hits` of the `found` images are relevant, `relevant` there are.

    P = hits / found and R = hits / relevant, so it is 2 hits / (found + relevant), and 0 for none.
    """
    value: Floats = 2 * hits / (found + relevant)
    return value


def precision(found: NDArray[Any], hits: NDArray[Any]) -> Floats:
    """hits / found; a query that found nothing counts 0."""
    value: Floats = hits / np.maximum(found, 1)
    return value
