"""search() and within() agree with the oracle and FAISS at every width, with every strategy."""

from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from helpers.oracle import (
    DTYPES,
    INT64_MAX,
    Answer,
    Oracle,
    assert_answer,
    assert_ranked,
    ball,
    ranking,
)
from helpers.samples import (
    STRATEGIES,
    WIDTHS,
    Rows,
    clustered,
    near,
    oracle_of,
    queries_near,
    table_of,
    uniform,
)
from mchindex import BucketTable


def assert_search(
    table: BucketTable, oracle: Oracle, queries: NDArray[np.uint8], k: int, **limits: Any
) -> Answer:
    """Every strategy gives the eight arrays of the oracle, on one thread and on several."""
    expected = oracle.search(queries, k, **limits)
    for strategy in STRATEGIES:
        for threads in (0, 1, 3):
            result = table.search(queries, k, **limits, strategy=strategy, threads=threads)
            assert_answer(result, expected, f"({strategy}, {threads} threads, k={k}, {limits})")
    return expected


def assert_within(
    table: BucketTable, oracle: Oracle, queries: NDArray[np.uint8], radius: int, **allowed: Any
) -> Answer:
    expected = oracle.within(queries, radius, **allowed)
    for strategy in STRATEGIES:
        for threads in (0, 1, 3):
            result = table.within(queries, radius, **allowed, strategy=strategy, threads=threads)
            assert_answer(result, expected, f"({strategy}, {threads} threads, radius={radius})")
    return expected


@pytest.mark.parametrize("substring", [False, True], ids=["plain", "substring-index"])
@pytest.mark.parametrize("bits", WIDTHS)
def test_every_width(bits: int, substring: bool) -> None:
    rows = clustered(bits, 90, seed=bits)
    table, oracle = table_of(bits, rows), oracle_of(bits, rows)
    if substring:
        table.optimize(substring=True)
    queries = queries_near(rows.codes, 5, seed=bits + 1)
    for k in (1, 7, 100):
        assert_search(table, oracle, queries, k)
    assert_search(table, oracle, queries, 7, max_radius=3)
    assert_search(table, oracle, queries, 7, max_buckets=bits)
    assert_search(table, oracle, queries, 4, allowed=range(0, 30, 3))
    for radius in (0, 3, bits):
        assert_within(table, oracle, queries, radius)


class Case(NamedTuple):
    bits: int
    rows: Rows
    queries: NDArray[np.uint8]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A few codes, each differing from one of a few centres in a few bits or in all of them."""
    bits = 8 * draw(st.sampled_from([1, 1, 2, 3, 4, 7, 8, 8, 9, 16, 17, 31, 32]))
    centres = draw(st.lists(st.binary(min_size=bits // 8, max_size=bits // 8), min_size=1))
    flips = st.one_of(
        st.sets(st.integers(0, bits - 1), max_size=4), st.just(frozenset(range(bits)))
    )
    code = st.tuples(st.sampled_from(centres), flips)
    image = st.one_of(st.integers(0, 9), st.sampled_from([-2, -(2**63), INT64_MAX]))
    rows = draw(st.lists(st.tuples(image, code, st.integers(0, 255)), max_size=25))
    queries = draw(st.lists(code, min_size=1, max_size=3))

    def pack(chosen: list[tuple[bytes, set[int] | frozenset[int]]]) -> NDArray[np.uint8]:
        out = np.empty((len(chosen), bits // 8), np.uint8)
        for row, (centre, flipped) in enumerate(chosen):
            unpacked = np.unpackbits(np.frombuffer(centre, np.uint8))
            unpacked[sorted(flipped)] ^= 1
            out[row] = np.packbits(unpacked)
        return out

    ids = np.array([row[0] for row in rows], np.int64)
    regions = np.array([row[2] for row in rows], np.int64)
    return Case(bits, Rows(ids, pack([row[1] for row in rows]), regions), pack(queries))


BUDGETS = st.one_of(
    st.none(), st.integers(0, 300), st.sampled_from([10**5, INT64_MAX, INT64_MAX + 1, 2**70])
)


@settings(max_examples=150)
@given(cases(), st.integers(1, 15), st.none() | st.integers(0, 260), BUDGETS, st.booleans())
def test_search_equals_the_oracle(
    case: Case, k: int, max_radius: int | None, max_buckets: int | None, substring: bool
) -> None:
    table, oracle = table_of(case.bits, case.rows), oracle_of(case.bits, case.rows)
    if substring:
        table.optimize(substring=True)
    limits = {"max_radius": max_radius, "max_buckets": max_buckets}
    assert_search(table, oracle, case.queries, k, **limits)
    assert_search(table, oracle, case.queries, k, **limits, allowed=[*range(4), 77, INT64_MAX])
    assert_within(table, oracle, case.queries, case.bits if max_radius is None else max_radius)


def test_empty_table() -> None:
    for bits in WIDTHS:
        table, oracle = BucketTable(bits), Oracle(bits)
        expected = assert_search(table, oracle, uniform(bits, 3, 0), 5)
        assert expected["buckets"].tolist() == [min(2**bits, INT64_MAX)] * 3
        assert expected["radius"].tolist() == [bits] * 3
        assert expected["exact"].all()
        assert_within(table, oracle, uniform(bits, 3, 0), bits)


def test_no_queries() -> None:
    table = table_of(64, clustered(64, 20, seed=0))
    result = table.search(np.empty((0, 8), np.uint8), k=4)
    assert len(result) == 0
    assert result.ids.shape == result.distances.shape == result.regions.shape == (0, 4)
    for field in ("counts", "buckets", "radius", "candidates", "exact"):
        assert getattr(result, field).shape == (0,)
    found = table.within(np.empty((0, 8), np.uint8), 3)
    assert found.lims.tolist() == [0]
    assert len(found.ids) == len(found) == 0


def test_one_query_may_be_one_dimensional() -> None:
    rows = clustered(64, 60, seed=0)
    table, oracle = table_of(64, rows), oracle_of(64, rows)
    assert_answer(table.search(rows.codes[3], k=5), oracle.search(rows.codes[3:4], 5))
    assert_answer(table.within(rows.codes[3], 5), oracle.within(rows.codes[3:4], 5))


def test_len_is_the_number_of_queries() -> None:
    table = table_of(64, clustered(64, 20, seed=0))
    assert len(table.search(uniform(64, 7, 1))) == 7
    assert len(table.within(uniform(64, 7, 1), 30)) == 7


@pytest.mark.parametrize("bits", [8, 64, 256])
def test_all_codes_equal(bits: int) -> None:
    code = uniform(bits, 1, seed=3)
    rows = Rows(np.arange(40)[::-1].copy(), np.repeat(code, 40, axis=0), np.arange(40))
    table, oracle = table_of(bits, rows), oracle_of(bits, rows)
    queries = np.concatenate([code, ~code])
    for k in (1, 39, 40, 41):
        assert_search(table, oracle, queries, k)
    result = table.search(code, k=3)
    # Within a bucket the smaller id comes first, and `candidates` counts the whole bucket.
    assert result.ids.tolist() == [[0, 1, 2]]
    assert result.candidates.tolist() == [40]
    assert (table.n_buckets, table.n_codes, len(table)) == (1, 40, 40)


@pytest.mark.parametrize("bits", WIDTHS)
def test_codes_at_the_greatest_distance(bits: int) -> None:
    code = uniform(bits, 1, seed=bits)
    rows = Rows(np.array([5]), ~code, np.array([2]))
    table, oracle = table_of(bits, rows), oracle_of(bits, rows)
    expected = assert_search(table, oracle, code, 1)
    assert expected["distances"].tolist() == [[bits]]
    assert expected["buckets"].tolist() == [min(2**bits, INT64_MAX)]
    assert assert_search(table, oracle, code, 1, max_radius=bits - 1)["exact"].tolist() == [False]
    assert_within(table, oracle, code, bits)
    assert_within(table, oracle, code, bits - 1)


def test_ties_at_the_last_radius_follow_the_visiting_order() -> None:
    # All 64 neighbours at distance 1, with ids in the reverse of the visiting order.
    masks = np.packbits(np.eye(64, dtype=np.uint8), axis=1)
    code = uniform(64, 1, seed=4)
    rows = Rows(np.arange(64)[::-1].copy(), code ^ masks, np.zeros(64, np.int64))
    table, oracle = table_of(64, rows), oracle_of(64, rows)
    for k in (1, 10, 63, 64, 65):
        assert_search(table, oracle, code, k)
    result = table.search(code, k=10)
    assert result.ids.tolist() == [list(range(63, 53, -1))]
    assert result.buckets.tolist() == [11]
    assert result.candidates.tolist() == [10]


def test_an_image_appears_once_at_its_first_code() -> None:
    code = uniform(64, 1, seed=5)
    flip = np.packbits(np.eye(64, dtype=np.uint8), axis=1)
    table = BucketTable(64)
    # Two codes are at distance 1; the one with the earlier flipped bit is visited first.
    table.add([7, 7, 7], np.concatenate([code ^ flip[60], code ^ flip[2], ~code]), [1, 9, 0])
    result = table.search(code, k=3)
    assert result.ids.tolist() == [[7, -1, -1]]
    assert result.distances.tolist() == [[1, -1, -1]]
    assert result.regions.tolist() == [[9, -1, -1]]
    assert result.counts.tolist() == [1]
    assert result.exact.tolist() == [True]


def test_equal_pairs_are_stored_once_with_the_smallest_region() -> None:
    code = uniform(64, 1, seed=6)
    table = BucketTable(64)
    for region in (9, 4, 200):
        table.add([1, 1, 2], np.repeat(code, 3, axis=0), [region, region + 1, 7])
    assert (len(table), table.n_codes, table.n_buckets) == (2, 2, 1)
    for strategy in STRATEGIES:
        result = table.search(code, k=2, strategy=strategy)
        assert result.regions.tolist() == [[4, 7]]
        assert result.candidates.tolist() == [2]


def test_a_budget_of_zero_visits_nothing() -> None:
    rows = clustered(64, 30, seed=7)
    table, oracle = table_of(64, rows), oracle_of(64, rows)
    expected = assert_search(table, oracle, rows.codes[:2], 3, max_buckets=0)
    for field in ("counts", "buckets", "radius", "candidates", "exact"):
        assert expected[field].tolist() == [0, 0]


@pytest.mark.parametrize("bits", [8, 16, 64, 128])
def test_a_larger_budget_only_adds_hits(bits: int) -> None:
    rows = clustered(bits, 80, seed=bits, flips=4.0)
    table, oracle = table_of(bits, rows), oracle_of(bits, rows)
    queries = queries_near(rows.codes, 5, seed=1)
    full = table.search(queries, k=12)
    before = np.zeros(len(queries), np.int64)
    # Around the end of each of the first radii, where an off-by-one error would show.
    budgets = [ball(bits, radius) + step for radius in range(4) for step in (-1, 0, 1)]
    for budget in sorted(set(budgets)):
        expected = assert_search(table, oracle, queries, 12, max_buckets=budget)
        counts = expected["counts"]
        assert (counts >= before).all()
        for row, count in enumerate(counts):
            np.testing.assert_array_equal(expected["ids"][row, :count], full.ids[row, :count])
        before = counts


@pytest.mark.parametrize("bits", [8, 64, 200])
def test_a_radius_limit_is_inclusive(bits: int) -> None:
    rows = clustered(bits, 80, seed=bits, flips=4.0)
    table, oracle = table_of(bits, rows), oracle_of(bits, rows)
    queries = queries_near(rows.codes, 4, seed=2)
    for radius in (0, 1, 2, 5, bits - 1, bits, bits + 1, 10**6):
        expected = assert_search(table, oracle, queries, 50, max_radius=radius)
        assert expected["distances"].max() <= radius
        assert_within(table, oracle, queries, radius)


def test_budgets_at_the_end_of_int64() -> None:
    code = uniform(64, 1, seed=8)
    rows = Rows(np.array([1]), ~code, np.array([0]))
    table, oracle = table_of(64, rows), oracle_of(64, rows)
    # The last of 2**64 buckets is beyond every limit that fits int64; a larger one is no limit.
    for budget, count in ((INT64_MAX - 1, 0), (INT64_MAX, 0), (INT64_MAX + 1, 1), (10**40, 1)):
        expected = assert_search(table, oracle, code, 1, max_buckets=budget)
        assert expected["counts"].tolist() == [count]


@pytest.mark.parametrize("bits", [8, 64, 256])
def test_allowed(bits: int) -> None:
    rows = clustered(bits, 120, seed=bits, images=50)
    table, oracle = table_of(bits, rows), oracle_of(bits, rows)
    queries = queries_near(rows.codes, 4, seed=3)
    choices: list[list[int]] = [[], [10**12], [3], [3, 3, 3], list(range(49, -1, -1)), [7, 8, 99]]
    for allowed in choices:
        for k in (1, 2, 60):
            expected = assert_search(table, oracle, queries, k, allowed=allowed)
            assert set(expected["ids"].ravel().tolist()) <= {*allowed, -1}
        assert_search(table, oracle, queries, 2, allowed=allowed, max_buckets=5, max_radius=4)
        assert_within(table, oracle, queries, 4, allowed=allowed)
    nothing = table.search(queries, k=2, allowed=np.empty(0, np.int64))
    assert nothing.counts.tolist() == nothing.candidates.tolist() == [0] * 4
    assert nothing.exact.all()


def test_k_beyond_the_table() -> None:
    rows = clustered(64, 30, seed=9)
    table, oracle = table_of(64, rows), oracle_of(64, rows)
    for k in (len(oracle.images) - 1, len(oracle.images), len(oracle.images) + 1, 5000):
        assert_search(table, oracle, rows.codes[:3], k)


@pytest.mark.parametrize("substring", [False, True], ids=["plain", "substring-index"])
@pytest.mark.parametrize(
    ("bits", "n", "centres"), [(16, 20_000, 50), (32, 20_000, 200), (64, 60_000, 500),
                               (64, 60_000, 60_000), (128, 30_000, 300), (256, 20_000, 100),
                               (32, 20_000, 4), (64, 20_000, 4), (128, 9_000, 3), (256, 20_000, 4)]
)  # fmt: skip
def test_large_tables(bits: int, n: int, centres: int, substring: bool) -> None:
    """From crowded buckets to no shared ones, so that each strategy has a table that suits it."""
    faiss = pytest.importorskip("faiss")
    rows = clustered(bits, n, seed=bits, centres=centres, flips=3.0)
    table = table_of(bits, rows)
    if substring:
        table.optimize(substring=True)
    queries = near(rows.codes, 8, 2.0, np.random.default_rng(1))

    index = faiss.IndexBinaryFlat(bits)
    index.add(rows.codes)
    distances, at = index.search(queries, n)

    for k in (1, 30):
        results = [table.search(queries, k, strategy=strategy) for strategy in STRATEGIES]
        for strategy, result in zip(STRATEGIES, results, strict=True):
            assert_ranked(result, rows, queries, strategy)
            for field in DTYPES:
                np.testing.assert_array_equal(getattr(result, field), getattr(results[0], field))
        for row in range(len(queries)):
            _, first = np.unique(rows.ids[at[row]], return_index=True)
            best = np.sort(distances[row][first])[:k]
            np.testing.assert_array_equal(results[0].distances[row], best)


def test_large_ranges() -> None:
    faiss = pytest.importorskip("faiss")
    rows = clustered(64, 40_000, seed=1, centres=300, flips=4.0)
    table = table_of(64, rows)
    queries = near(rows.codes, 6, 2.0, np.random.default_rng(2))
    index = faiss.IndexBinaryFlat(64)
    index.add(rows.codes)
    for radius in (0, 2, 9, 25):
        lims, _, at = index.range_search(queries, radius + 1)  # FAISS excludes the radius itself
        for strategy in STRATEGIES:
            found = table.within(queries, radius, strategy=strategy)
            for row, query in enumerate(queries):
                ids, distances, regions = ranking(*rows, query)
                inside = distances <= radius
                span = slice(found.lims[row], found.lims[row + 1])
                np.testing.assert_array_equal(found.ids[span], ids[inside])
                np.testing.assert_array_equal(found.distances[span], distances[inside])
                np.testing.assert_array_equal(found.regions[span], regions[inside])
                by_faiss = rows.ids[at[lims[row] : lims[row + 1]]]
                assert set(found.ids[span].tolist()) == set(by_faiss.tolist())


def test_many_queries_keep_their_rows() -> None:
    rows = clustered(64, 500, seed=2, centres=40)
    table = table_of(64, rows)
    queries = near(rows.codes, 700, 2.0, np.random.default_rng(3))
    whole = table.search(queries, k=4, threads=3)
    for row in range(0, 700, 37):
        alone = table.search(queries[row], k=4)
        for field in DTYPES:
            np.testing.assert_array_equal(
                getattr(whole, field)[row : row + 1], getattr(alone, field)
            )


def test_results_outlive_the_table() -> None:
    rows = clustered(64, 60, seed=3)
    table, oracle = table_of(64, rows), oracle_of(64, rows)
    result = table.search(rows.codes[:4], k=5)
    ids = result.ids
    expected = oracle.search(rows.codes[:4], 5)
    table.remove(rows.ids)
    del table
    assert_answer(result, expected)
    del result
    np.testing.assert_array_equal(ids, expected["ids"])
