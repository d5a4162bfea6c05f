"""Codes to test with: mostly clustered, because uniform codes hardly ever share a bucket."""

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from helpers.oracle import Oracle
from mchindex import BucketTable

Strategy = Literal["auto", "probe", "substring", "scan"]

WIDTHS = range(8, 257, 8)
STRATEGIES: tuple[Strategy, ...] = ("auto", "probe", "substring", "scan")


class Rows(NamedTuple):
    ids: NDArray[np.int64]  # (n,)
    codes: NDArray[np.uint8]  # (n, bits // 8)
    regions: NDArray[np.int64]  # (n,)

    def take(self, which: slice | NDArray[np.bool_]) -> "Rows":
        return Rows(self.ids[which], self.codes[which], self.regions[which])


def uniform(bits: int, n: int, seed: int) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (n, bits // 8), np.uint8)


def near(
    codes: NDArray[np.uint8], n: int, flips: float, rng: np.random.Generator
) -> NDArray[np.uint8]:
    """n codes, each a random one of `codes` with `flips` bits flipped on average."""
    bits = np.unpackbits(codes[rng.integers(len(codes), size=n)], axis=1)
    return np.packbits(bits ^ (rng.random(bits.shape) < flips / bits.shape[1]), axis=1)


def clustered(
    bits: int,
    n: int,
    seed: int,
    images: int | None = None,
    centres: int = 4,
    flips: float = 2.0,
) -> Rows:
    """n codes around a few centres, about three per image; codes and whole rows may repeat."""
    rng = np.random.default_rng(seed)
    middle = rng.integers(0, 256, (centres, bits // 8), np.uint8)
    ids = rng.integers(0, images or n // 3 + 1, n)
    return Rows(ids, near(middle, n, flips, rng), rng.integers(0, 256, n))


def queries_near(codes: NDArray[np.uint8], n: int, seed: int) -> NDArray[np.uint8]:
    """A stored code, queries near stored codes, and the complement of the first code."""
    rng = np.random.default_rng(seed)
    return np.concatenate([codes[:1], near(codes, n - 2, 3.0, rng), ~codes[:1]])


def table_of(bits: int, rows: Rows) -> BucketTable:
    table = BucketTable(bits)
    table.add(rows.ids, rows.codes, rows.regions)
    return table


def oracle_of(bits: int, rows: Rows) -> Oracle:
    oracle = Oracle(bits)
    oracle.add(rows.ids.tolist(), rows.codes, rows.regions.tolist())
    return oracle
