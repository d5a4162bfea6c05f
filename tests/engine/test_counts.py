"""Large buckets: what is left of them is counted once, and kept right by every change."""

import numpy as np
import pytest

from helpers.oracle import Oracle, assert_answer
from helpers.samples import uniform
from mchindex import BucketTable

LARGE = 6000  # entries; buckets of more than 2048 are counted


def large(several: bool) -> tuple[BucketTable, Oracle]:
    """Two large buckets and a few small ones. With `several`, most images are in both, in two
    segments, so that one of the buckets has hardly a primary entry."""
    table, oracle = BucketTable(64), Oracle(64)
    codes = uniform(64, 2, seed=1)
    rest = uniform(64, 50, seed=2)
    ids = np.arange(LARGE)
    for rows in (
        (ids, np.repeat(codes[:1], LARGE, axis=0), ids % 5),
        (ids if several else ids + LARGE, np.repeat(codes[1:], LARGE, axis=0), ids % 3),
        (np.arange(50) * 100, rest, np.arange(50)),
    ):
        table.add(*rows)
        oracle.add(rows[0].tolist(), rows[1], rows[2].tolist())
    return table, oracle


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("optimized", [False, True])
def test_counts_follow_removals(several: bool, optimized: bool) -> None:
    table, oracle = large(several)
    rng = np.random.default_rng(3)
    queries = np.concatenate([uniform(64, 2, seed=1), uniform(64, 50, seed=2)[:1]])
    if optimized:
        table.optimize()
    allowed = rng.choice(2 * LARGE, LARGE)
    filter = table.filter(allowed)
    for step in range(8):
        for k in (1, 40, 2 * LARGE + 5):
            assert_answer(table.search(queries, k), oracle.search(queries, k), step)
        expected = oracle.search(queries, 40, allowed=allowed)
        for _ in range(2):
            assert_answer(table.search(queries, 40, allowed=filter), expected, step)
        gone = rng.choice(2 * LARGE, [1, 1, 5, 20, 400, 3000, 1, 9000][step])
        assert table.remove(gone) == oracle.remove(gone)
        if step == 3:  # an image comes back
            table.add(gone[:1], queries[:1])
            oracle.add([int(gone[0])], queries[:1])


def test_a_removal_does_not_make_searches_walk_large_buckets() -> None:
    table, oracle = large(several=False)
    query = uniform(64, 2, seed=1)[:1]
    walks = []
    for image in range(20):
        table.remove([image])
        oracle.remove([image])
        for _ in range(3):
            result = table.search(query, 10)
        walks.append(table.stats()["large_buckets_counted"])
        assert result.candidates[0] == LARGE - image - 1
    assert max(walks) <= 2  # each of the two once


def test_entries_that_are_not_primary_are_counted_once() -> None:
    table, _ = large(several=True)
    table.optimize()
    query = uniform(64, 2, seed=1)
    for _ in range(5):
        table.search(query, 10)
    assert table.stats()["large_buckets_counted"] <= 2
