"""The oracle itself, compared with a literal Algorithm 1 and with FAISS."""

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from helpers.oracle import Oracle, number, ranking
from helpers.samples import Rows, clustered, oracle_of, queries_near


def walk(oracle: Oracle, query: int, k: int, max_radius: int, max_buckets: int) -> dict[str, Any]:
    """Algorithm 1, bucket by bucket."""
    found: dict[int, tuple[int, int]] = {}
    visited = last = candidates = 0
    for radius in range(max_radius + 1):
        for flipped in combinations(range(oracle.bits), radius):
            if visited == max_buckets or len(found) >= k:
                break
            bucket = query ^ sum(1 << (oracle.bits - 1 - bit) for bit in flipped)
            visited, last = visited + 1, radius
            for i in sorted(i for i, codes in oracle.images.items() if bucket in codes):
                candidates += 1
                found.setdefault(i, (radius, oracle.images[i][bucket]))
    best = list(found)[:k]
    return {
        "ids": best + [-1] * (k - len(best)),
        "distances": [found[i][0] for i in best] + [-1] * (k - len(best)),
        "regions": [found[i][1] for i in best] + [-1] * (k - len(best)),
        "counts": len(best),
        "buckets": visited,
        "radius": last,
        "candidates": candidates,
        "exact": len(best) >= min(k, len(oracle.images)),
    }


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize(
    ("k", "max_radius", "max_buckets"),
    [(1, 99, 10**9), (5, 99, 10**9), (50, 99, 10**9), (9, 2, 10**9), (9, 99, 20), (3, 99, 0)],
)
def test_oracle_is_algorithm_1(bits: int, k: int, max_radius: int, max_buckets: int) -> None:
    rows = clustered(bits, 60, seed=bits)
    oracle = oracle_of(bits, rows)
    queries = queries_near(rows.codes, 4, seed=1)
    answer = oracle.search(queries, k, max_radius, max_buckets)
    for row, query in enumerate(queries):
        expected = walk(oracle, number(query), k, min(max_radius, bits), max_buckets)
        for field, values in expected.items():
            np.testing.assert_array_equal(answer[field][row], values, err_msg=field)


def faiss_distances(rows: Rows, query: NDArray[np.uint8]) -> NDArray[np.int64]:
    """The distance of each image (of its nearest code) according to FAISS, in ascending order."""
    faiss = pytest.importorskip("faiss")
    index = faiss.IndexBinaryFlat(rows.codes.shape[1] * 8)
    index.add(rows.codes)
    found, at = index.search(query[None], len(rows.codes))
    ids, first = np.unique(rows.ids[at[0]], return_index=True)
    assert len(ids) == len(np.unique(rows.ids))
    return np.sort(found[0][first]).astype(np.int64)


@pytest.mark.parametrize("bits", [8, 40, 64, 128, 256])
def test_both_oracles_agree_with_each_other_and_with_faiss(bits: int) -> None:
    rows = clustered(bits, 300, seed=bits)
    oracle = oracle_of(bits, rows)
    queries = queries_near(rows.codes, 5, seed=2)
    answer = oracle.search(queries, len(oracle.images))
    for row, query in enumerate(queries):
        ids, distances, regions = ranking(*rows, query)
        np.testing.assert_array_equal(answer["ids"][row], ids)
        np.testing.assert_array_equal(answer["distances"][row], distances)
        np.testing.assert_array_equal(answer["regions"][row], regions)
        np.testing.assert_array_equal(distances, faiss_distances(rows, query))
