"""One query whose scan is shared by several threads gets the answer of a single thread."""

from functools import cache

import numpy as np
import pytest

from helpers.oracle import DTYPES
from helpers.samples import uniform
from mchindex import BucketTable, SearchResult

SHARED = 1 << 20  # words of codes from which a scan is shared


def assert_equal(a: SearchResult, b: SearchResult) -> None:
    for field in DTYPES:
        np.testing.assert_array_equal(getattr(a, field), getattr(b, field), field)


@cache
def large(bits: int) -> BucketTable:
    """Enough codes for a shared scan; some images have two codes, and some were removed."""
    n = SHARED // max(1, bits // 64) + 50_000
    table = BucketTable(bits)
    table.add(np.arange(n) % (n - 30_000), uniform(bits, n, seed=bits), np.arange(n) % 7)
    table.remove(np.arange(0, 40_000, 3))
    return table


@pytest.mark.parametrize("bits", [32, 64, 256])
@pytest.mark.parametrize("k", [1, 10, 700])
def test_a_shared_scan_gives_the_answer_of_one_thread(bits: int, k: int) -> None:
    table = large(bits)
    for query in uniform(bits, 5, seed=99):
        alone = table.search(query, k, strategy="scan", threads=1)
        assert_equal(table.search(query, k, strategy="scan", threads=3), alone)
        assert_equal(table.search(query, k), alone)


@pytest.mark.parametrize("threads", [2, 5])
def test_limits_hold_in_a_shared_scan(threads: int) -> None:
    table = large(64)
    allowed = np.arange(0, 900_000, 2)
    for query in uniform(64, 3, seed=5):
        for limits in ({"max_radius": 16}, {"max_buckets": 10**14}, {"allowed": allowed}):
            alone = table.search(query, 50, threads=1, strategy="scan", **limits)
            assert_equal(table.search(query, 50, threads=threads, strategy="scan", **limits), alone)


def test_ties_are_found_in_order_in_a_shared_scan() -> None:
    halves = uniform(32, SHARED + 1000, seed=1)  # codes x ~x: all at distance 32 from y y
    table = BucketTable(64)
    table.add(np.arange(len(halves)), np.concatenate([halves, ~halves], axis=1))
    half = uniform(32, 1, seed=2)
    query = np.concatenate([half, half], axis=1)
    alone = table.search(query, 100, threads=1, strategy="scan")
    assert (alone.distances == 32).all()
    assert_equal(table.search(query, 100, threads=4, strategy="scan"), alone)


def test_within_is_shared_too_and_stops_at_its_limit() -> None:
    table = large(64)
    query = uniform(64, 1, seed=8)
    alone = table.within(query, 18, threads=1)
    shared = table.within(query, 18, threads=3)
    assert len(alone.ids) > 100
    np.testing.assert_array_equal(alone.ids, shared.ids)
    np.testing.assert_array_equal(alone.distances, shared.distances)
    with pytest.raises(ValueError, match="max_hits"):
        table.within(query, 30, threads=3, max_hits=1000)
