"""How much a search looks at, on codes that are hard for it. Work is counted, not timed."""

import numpy as np
import pytest
from numpy.typing import NDArray

from helpers.oracle import assert_ranked
from helpers.samples import Rows, Strategy, uniform
from mchindex import BucketTable


def collected(
    table: BucketTable, queries: NDArray[np.uint8], k: int, strategy: Strategy = "auto"
) -> float:
    """Buckets that a search collects per query."""
    before = table.stats()["buckets_collected"]
    table.search(queries, k, strategy=strategy)
    return (table.stats()["buckets_collected"] - before) / len(queries)


def equidistant(bits: int, n: int, seed: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Codes x ~x and queries y y: their distance is bits / 2, whatever x and y are."""
    halves = uniform(bits // 2, n, seed)
    asked = uniform(bits // 2, 5, seed + 1)
    return np.concatenate([halves, ~halves], axis=1), np.concatenate([asked, asked], axis=1)


@pytest.mark.parametrize("bits", [32, 64, 128, 256])
@pytest.mark.parametrize("strategy", ["auto", "scan", "substring"])
def test_ties_at_the_last_distance_are_not_all_collected(bits: int, strategy: Strategy) -> None:
    codes, queries = equidistant(bits, 20_000, seed=bits)
    table = BucketTable(bits)
    table.add(np.arange(len(codes)), codes)
    assert collected(table, queries, 10, strategy) < 2000
    rows = Rows(np.arange(len(codes)), codes, np.zeros(len(codes), np.int64))
    assert_ranked(table.search(queries, 10, strategy=strategy), rows, queries, strategy)


@pytest.mark.parametrize("bits", [64, 128, 256])
def test_of_many_ties_hardly_more_are_collected_than_asked_for(bits: int) -> None:
    codes, queries = equidistant(bits, 60_000, seed=bits + 1)
    table = BucketTable(bits)
    table.add(np.arange(len(codes)), codes)
    table.search(queries, 1000)  # tells how many codes hold so many images
    assert collected(table, queries, 1000) < 2000


def test_buckets_of_many_images_are_counted_by_their_images() -> None:
    codes, queries = equidistant(64, 20_000, seed=5)
    table = BucketTable(64)
    table.add(np.arange(20 * len(codes)), np.repeat(codes, 20, axis=0))
    assert collected(table, queries, 1000) < 1000
    rows = Rows(np.arange(20 * len(codes)), np.repeat(codes, 20, axis=0), np.zeros(400_000, int))
    assert_ranked(table.search(queries, 1000), rows, queries)


def test_ties_are_dropped_in_several_segments_too() -> None:
    codes, queries = equidistant(64, 30_000, seed=3)
    whole, parts = BucketTable(64), BucketTable(64)
    ids = np.arange(len(codes))
    whole.add(ids, codes)
    for span in (slice(0, 18_000), slice(18_000, 27_000), slice(27_000, None)):
        parts.add(ids[span], codes[span])
        parts.add(
            ids[span], codes[::-1][span]
        )  # a second code; some equal a code of another segment
        whole.add(ids[span], codes[::-1][span])
    assert collected(parts, queries, 100) < 6000
    np.testing.assert_array_equal(parts.search(queries, 100).ids, whole.search(queries, 100).ids)


def test_a_bucket_of_second_codes_bounds_a_search() -> None:
    # Every image has a code of its own with the smallest region, and one that all images share.
    n = 20_000
    own, shared = uniform(64, n, seed=1), uniform(64, 1, seed=2)
    table = BucketTable(64)
    ids = np.tile(np.arange(n), 2)
    table.add(ids, np.concatenate([own, np.repeat(shared, n, axis=0)]), np.repeat([0, 1], n))
    assert collected(table, shared, 10) <= 2
    assert table.search(shared, 10).radius.tolist() == [0]


def test_auto_builds_no_index_that_takes_hundreds_of_bytes_per_code() -> None:
    rng = np.random.default_rng(7)
    flat = rng.standard_normal((20_500, 8)) @ rng.standard_normal((8, 256))
    codes = np.packbits(flat > 0, axis=1)
    table = BucketTable(256)
    table.add(np.arange(20_000), codes[:20_000])
    for _ in range(20):
        table.search(codes[20_000:], 1000)
    while table.stats()["indexing"]:
        continue
    assert table.memory()["substring"] == 0
