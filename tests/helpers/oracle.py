"""The answers a table must give, computed in a slow way that is easy to verify.

A code is a Python integer whose most significant bit is bit 0 of the code. An XOR mask is then a
number, and Algorithm 1 visits masks by growing popcount, then from the largest number down.
"""

from collections.abc import Iterable
from functools import cache, lru_cache
from math import comb
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mchindex import SearchResult

INT64_MAX = 2**63 - 1
DTYPES = {
    "ids": np.int64,
    "distances": np.int32,
    "regions": np.int16,
    "counts": np.int64,
    "buckets": np.int64,
    "radius": np.int32,
    "candidates": np.int64,
    "exact": np.bool_,
}

Answer = dict[str, NDArray[Any]]


def number(code: NDArray[np.uint8]) -> int:
    return int.from_bytes(code.tobytes(), "big")


@cache
def ball(bits: int, radius: int) -> int:
    """The number of buckets within a radius (inclusive)."""
    return sum(comb(bits, r) for r in range(min(radius, bits) + 1))


@lru_cache(100_000)
def rank(mask: int, bits: int) -> int:
    """The 1-based position of a bucket in visiting order.

    With b_1 < b_2 < … the positions of the mask's ones, counted from the low end, sum C(b_i, i) of
    the masks with as many ones are smaller (the combinatorial number system). These are visited
    after it.
    """
    ones = [b for b in range(bits) if mask >> b & 1]
    return ball(bits, len(ones)) - sum(comb(b, i) for i, b in enumerate(ones, 1))


class Oracle:
    """The table as a dictionary: image -> code -> region."""

    def __init__(self, bits: int) -> None:
        self.bits = bits
        self.images: dict[int, dict[int, int]] = {}

    def add(
        self, ids: Iterable[int], codes: NDArray[np.uint8], regions: Iterable[int] | None = None
    ) -> None:
        where = [0] * len(codes) if regions is None else regions
        for i, code, region in zip(ids, codes, where, strict=True):
            regions_of = self.images.setdefault(int(i), {})
            regions_of[number(code)] = min(int(region), regions_of.get(number(code), 255))

    def remove(self, ids: Iterable[int]) -> int:
        return sum(self.images.pop(int(i), None) is not None for i in ids)

    @property
    def n_codes(self) -> int:
        return sum(map(len, self.images.values()))

    @property
    def n_buckets(self) -> int:
        return len({code for codes in self.images.values() for code in codes})

    def _search_one(
        self, query: int, k: int, limit: int, allowed: set[int] | None
    ) -> dict[str, Any]:
        # rank -> (distance, region) of every eligible image's codes
        eligible = {
            i: {
                rank(query ^ code, self.bits): ((query ^ code).bit_count(), region)
                for code, region in codes.items()
            }
            for i, codes in self.images.items()
            if allowed is None or i in allowed
        }
        nearest = sorted((min(ranks), i) for i, ranks in eligible.items())
        hits = [(r, i) for r, i in nearest if r <= limit][:k]
        visited = hits[-1][0] if len(hits) == k else limit
        return {
            "ids": [i for _, i in hits],
            "distances": [eligible[i][r][0] for r, i in hits],
            "regions": [eligible[i][r][1] for r, i in hits],
            "counts": len(hits),
            "buckets": min(visited, INT64_MAX),
            "radius": next(r for r in range(self.bits + 1) if ball(self.bits, r) >= visited),
            "candidates": sum(r <= visited for ranks in eligible.values() for r in ranks),
            "exact": len(hits) >= min(k, len(eligible)),
        }

    def search(
        self,
        codes: NDArray[np.uint8],
        k: int = 10,
        max_radius: int | None = None,
        max_buckets: int | None = None,
        allowed: Iterable[int] | None = None,
    ) -> Answer:
        limit = ball(self.bits, self.bits if max_radius is None else max_radius)
        if max_buckets is not None and max_buckets <= INT64_MAX:
            limit = min(limit, max_buckets)
        chosen = None if allowed is None else {int(i) for i in allowed}
        rows = [self._search_one(number(code), k, limit, chosen) for code in codes]
        for row in rows:
            for field in ("ids", "distances", "regions"):
                row[field] += [-1] * (k - row["counts"])
        return {
            field: np.array([row[field] for row in rows], dtype) for field, dtype in DTYPES.items()
        }

    def within(
        self, codes: NDArray[np.uint8], radius: int, allowed: Iterable[int] | None = None
    ) -> Answer:
        result = self.search(codes, len(self.images) + 1, radius, None, allowed)
        inside = result["ids"] != -1
        lims = np.concatenate([[0], np.cumsum(result["counts"])])
        return {"lims": lims} | {f: result[f][inside] for f in ("ids", "distances", "regions")}


def ranking(
    ids: NDArray[np.int64],
    codes: NDArray[np.uint8],
    regions: NDArray[np.integer[Any]],
    query: NDArray[np.uint8],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.integer[Any]]]:
    """Every image once, in order: ids, distances, regions. In NumPy, for tables with many codes."""
    masks = codes ^ query
    distances = np.bitwise_count(masks).sum(1, dtype=np.int64)
    # lexsort sorts by its last key first: by distance, largest mask first, id, region
    order = np.lexsort((regions, ids, *(~masks.T[::-1]), distances))
    first = np.sort(np.unique(ids[order], return_index=True)[1])
    best = order[first]
    return ids[best], distances[best], regions[best]


def assert_ranked(
    result: SearchResult,
    rows: tuple[NDArray[np.int64], NDArray[np.uint8], NDArray[np.int64]],
    queries: NDArray[np.uint8],
    note: str = "",
) -> None:
    """Assert that the hits of each query are the first k images of ranking()."""
    k = result.ids.shape[1]
    for row, query in enumerate(queries):
        ids, distances, regions = (column[:k] for column in ranking(*rows, query))
        count = len(ids)
        assert result.counts[row] == count, note
        np.testing.assert_array_equal(result.ids[row, :count], ids, err_msg=note)
        np.testing.assert_array_equal(result.distances[row, :count], distances, err_msg=note)
        np.testing.assert_array_equal(result.regions[row, :count], regions, err_msg=note)


def assert_answer(result: object, expected: Answer, note: object = "") -> None:
    """Assert that every array of the result has the expected type, shape and values."""
    for field, want in expected.items():
        got = getattr(result, field)
        assert got.dtype == DTYPES.get(field, np.int64), f"{field}: {got.dtype}"
        np.testing.assert_array_equal(got, want, err_msg=f"{field} {note}", strict=False)
        assert got.shape == want.shape, f"{field}: {got.shape}, not {want.shape} {note}"
