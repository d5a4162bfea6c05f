"""An oracle for `FineTable`, in plain NumPy, and codes to test with."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mchindex._core import FineTable, RankResult

LEVELS = 15  # a magnitude is rounded to this many steps
EPS = 1e-5  # by which a score in single precision may differ


@dataclass
class Images:
    """Images as `FineTable.add` takes them."""

    keys: NDArray[np.int64]  # (n,)
    fine: NDArray[np.uint8]  # (n, regions, fine bits // 8)
    counts: NDArray[np.int64]  # (n,)
    codes: NDArray[np.uint8]  # (counts.sum(), bits // 8)

    def take(self, which: NDArray[np.bool_]) -> "Images":
        owned = np.repeat(which, self.counts)
        return Images(
            self.keys[which], self.fine[which], self.counts[which], self.codes[owned]
        )  # fmt: skip

    def without(self, keys: Iterable[int]) -> "Images":
        return self.take(~np.isin(self.keys, list(keys)))


def images(
    n: int, bits: int, fine_bits: int, regions: int, seed: int, centres: int = 3, first: int = 0
) -> Images:
    """Images around a few centres; some have no codes, and some are equal."""
    rng = np.random.default_rng(seed)
    keys = first + np.cumsum(rng.integers(1, 5, n)) - 1
    middle = rng.integers(0, 256, (centres, regions, fine_bits // 8), np.uint8)
    flips = rng.random((n, regions, fine_bits)) < rng.choice([0, 0.02, 0.2], (n, 1, 1))
    fine = middle[rng.integers(centres, size=n)] ^ np.packbits(flips, axis=2)
    counts = rng.integers(0, 4, n)
    codes = rng.integers(0, 256, (centres, bits // 8), np.uint8)
    return Images(keys, fine, counts, codes[rng.integers(centres, size=counts.sum())])


def table_of(bits: int, fine_bits: int, regions: int, some: Images, cells: Any = None) -> FineTable:
    table = FineTable(bits, fine_bits, regions, cells)
    table.add(some.keys, some.fine, some.counts, some.codes)
    return table


def queries(some: Images, n: int, fine_bits: int, seed: int) -> NDArray[np.float32]:
    """Stored fine codes with noise, and random numbers."""
    rng = np.random.default_rng(seed)
    noise = rng.standard_normal((n, fine_bits))
    if not len(some.keys):
        return np.asarray(noise, np.float32)
    picked = some.fine[rng.integers(len(some.keys), size=n), 0]
    signs = np.unpackbits(picked, axis=1) * 2.0 - 1
    return np.asarray(signs * rng.choice([0, 1, 3], (n, 1)) + noise, np.float32)


@dataclass
class Scored:
    """What one query must find of each image."""

    scores: NDArray[np.float64]
    similarities: NDArray[np.float64]  # of the most similar region
    regions: NDArray[np.int64]
    distances: NDArray[np.int64]


def scored(
    some: Images,
    query: NDArray[np.float32],
    code: NDArray[np.uint8] | None,
    weights: Sequence[float],
) -> Scored:
    """The score of each image, as cpp/mch/fine.h defines it."""
    size = np.abs(query.astype(np.float32))
    cost = np.ones(len(query))
    if size.max() > 0:
        cost = np.floor(size / size.max() * LEVELS + np.float32(0.5))
    wrong = np.unpackbits(some.fine, axis=2) != (query > 0)
    costs = (wrong * cost).sum(2)
    similar = 1 - 2 * costs / cost.sum()
    best = similar.max(1, initial=-1)
    score = weights[1] * similar[:, 0] + weights[2] * best + weights[3] * np.clip(best, 0, 1) ** 4
    distances = np.full(len(some.keys), -1)
    if code is not None:
        bits = 8 * len(code)
        ends = np.cumsum(some.counts)
        each = np.bitwise_count(some.codes ^ code).sum(1)
        distances = np.array(
            [each[a:b].min(initial=bits) for a, b in zip(ends - some.counts, ends, strict=True)],
            np.int64,
        )
        score = score + weights[0] * (1 - 2 * distances / bits)
    return Scored(score, best, costs.argmin(1), distances)


def assert_best(
    result: RankResult,
    row: int,
    some: Images,
    want: Scored,
    only: Iterable[int] | None = None,
    note: str = "",
) -> None:
    """Asserts that a row of a result has the best of the images, in order.

    `only` are the keys that may be found. Scores that differ by rounding may change places.
    """
    keys, scores = result.keys[row], result.scores[row]
    found = int((keys >= 0).sum())
    allowed = np.ones(len(some.keys), bool) if only is None else np.isin(some.keys, list(only))
    assert found == min(len(keys), int(allowed.sum())), note
    assert (keys[found:] == -1).all(), note
    assert (result.regions[row, found:] == -1).all(), note
    keys, scores = keys[:found], scores[:found]
    assert (np.diff(scores) <= 0).all(), note
    assert (np.diff(keys)[np.diff(scores) == 0] > 0).all(), f"equal scores by key {note}"
    at = np.searchsorted(some.keys, keys)
    np.testing.assert_array_equal(some.keys[at], keys, note)
    assert allowed[at].all(), note
    np.testing.assert_allclose(scores, want.scores[at], atol=EPS, err_msg=note)
    np.testing.assert_allclose(
        result.similarities[row, :found], want.similarities[at], atol=EPS, err_msg=note
    )
    np.testing.assert_array_equal(result.regions[row, :found], want.regions[at], note)
    np.testing.assert_array_equal(result.distances[row, :found], want.distances[at], note)
    others = allowed.copy()
    others[at] = False
    if found and others.any():
        assert want.scores[others].max() <= scores[-1] + EPS, f"a better image is missing {note}"
