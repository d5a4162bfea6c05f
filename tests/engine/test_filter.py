"""Searches among some images only: lists of ids, and filters that are used again and again."""

import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import fine
from helpers.oracle import Oracle, assert_answer
from helpers.samples import STRATEGIES, clustered, queries_near, table_of, uniform
from mchindex import BucketTable
from mchindex._core import Filter, FineTable

BITS = 16  # so few that codes meet in one bucket
IDS = st.integers(0, 30)
CODES = st.integers(0, 5).map(lambda i: uniform(BITS, 6, seed=0)[i])
ROWS = st.lists(st.tuples(IDS, CODES, st.integers(0, 3)), min_size=1, max_size=20)

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), ROWS),
        st.tuples(st.just("remove"), st.lists(IDS, max_size=6)),
        st.tuples(st.just("optimize"), st.none()),
        st.tuples(st.just("filter"), st.sets(IDS)),
        st.tuples(st.just("search"), st.tuples(st.integers(1, 12), st.integers(0, BITS))),
    ),
    min_size=1,
    max_size=15,
)


@settings(deadline=None, max_examples=300)
@given(STEPS)
def test_filters_follow_every_change(steps: list[tuple[str, Any]]) -> None:
    """Answers with a filter are those of the oracle, whatever happened since it was made."""
    table, oracle = BucketTable(BITS), Oracle(BITS)
    filters: list[tuple[Filter, set[int]]] = [(table.filter([]), set()), (table.filter([1]), {1})]
    queries = uniform(BITS, 6, seed=0)[:2]
    for step, given_ in [*steps, ("search", (5, 3))]:
        if step == "add":
            ids, codes, regions = zip(*given_, strict=True)
            table.add(ids, np.array(codes), regions)
            oracle.add(ids, np.array(codes), regions)
        elif step == "remove":
            table.remove(given_)
            oracle.remove(given_)
        elif step == "optimize":
            table.optimize()
        elif step == "filter":
            filters.append((table.filter(given_), given_))
        else:
            k, radius = given_
            for filter, images in filters:
                for allowed in (filter, images):
                    found = table.search(queries, k, allowed=allowed)
                    assert_answer(found, oracle.search(queries, k, allowed=images), images)
                    inside = table.within(queries, radius, allowed=allowed)
                    assert_answer(inside, oracle.within(queries, radius, images), images)


@pytest.mark.parametrize("share", [0.001, 0.05, 0.5, 1.0])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_filters_on_a_larger_table(share: float, strategy: Any) -> None:
    """In several segments, with removed images, for few and for most images."""
    rng = np.random.default_rng(1)
    rows = clustered(64, 6000, seed=3, images=2000)
    table, oracle = BucketTable(64), Oracle(64)
    for span in (slice(0, 4000), slice(4000, 5500), slice(5500, None)):
        some = rows.take(span)
        table.add(some.ids, some.codes, some.regions)
        oracle.add(some.ids.tolist(), some.codes, some.regions.tolist())
    queries = queries_near(rows.codes, 4, seed=5)
    ids = rng.choice(2000, max(1, int(2000 * share)), replace=False)
    filter = table.filter(ids)
    for _ in range(3):
        answer = oracle.search(queries, 20, allowed=ids)
        for allowed in (filter, ids, ids[::-1].tolist()):
            assert_answer(table.search(queries, 20, allowed=allowed, strategy=strategy), answer)
        gone = rng.choice(2000, 50, replace=False)
        assert table.remove(gone) == oracle.remove(gone)


def test_a_filter_knows_its_ids() -> None:
    table = BucketTable(64)
    filter = table.filter([5, 3, 5, -(2**63), 2**63 - 1])
    assert len(filter) == 4
    assert repr(filter) == "Filter(4 ids)"
    assert all(i in filter for i in (5, 3, np.int64(5), -(2**63), 2**63 - 1))
    absent: list[Any] = [4, 2**63, "5", None, 5.0, [5]]
    assert not any(i in filter for i in absent)
    assert len(table.filter({1, 2})) == 2
    with pytest.raises(TypeError, match="ids must be integers"):
        table.filter(["a"])
    with pytest.raises(TypeError, match="No constructor"):
        Filter()


def test_ids_that_are_added_later_become_visible() -> None:
    codes = uniform(64, 3, seed=1)
    table = BucketTable(64)
    filter = table.filter([7, 9])
    assert table.search(codes[0], 2, allowed=filter).counts[0] == 0
    table.add([7, 8], codes[:2])
    assert table.search(codes[0], 2, allowed=filter).ids[0].tolist() == [7, -1]
    table.add([9], codes[2:])
    assert sorted(table.search(codes[0], 2, allowed=filter).ids[0]) == [7, 9]
    table.remove([7])
    assert table.search(codes[0], 2, allowed=filter).ids[0].tolist() == [9, -1]
    table.add([7], codes[:1])
    assert table.search(codes[0], 2, allowed=filter).ids[0].tolist() == [7, 9]


def test_a_filter_serves_other_tables() -> None:
    rows, wide = clustered(64, 300, seed=1), clustered(256, 300, seed=2)
    narrow, other, third = table_of(64, rows), table_of(64, rows), table_of(256, wide)
    other.remove(rows.ids[:50])
    ids = np.unique(rows.ids)[::2]
    filter = narrow.filter(ids)
    for _ in range(2):
        for table, codes in ((narrow, rows.codes), (other, rows.codes), (third, wide.codes)):
            got, want = (table.search(codes[:5], 8, allowed=a) for a in (filter, ids))
            np.testing.assert_array_equal(got.ids, want.ids)
            np.testing.assert_array_equal(got.candidates, want.candidates)


def test_few_allowed_images_need_one_map_of_the_segment() -> None:
    """The map from images to buckets is built once, reported, and takes about 4 bytes per code."""
    rows = clustered(64, 20_000, seed=4)
    table = table_of(64, rows)
    table.optimize()
    assert table.memory()["images"] == 0
    table.search(rows.codes[0], 3, allowed=rows.ids[:1])
    built = table.memory()["images"]
    assert 0 < built <= 5 * table.n_codes
    table.search(rows.codes[:9], 3, allowed=rows.ids[5:9])
    assert table.memory()["images"] == built


def test_a_filter_serves_tables_of_fine_codes() -> None:
    """While images are added and removed, and when their rows are numbered anew."""
    some = fine.images(40_000, 64, 64, 1, seed=1)
    table, empty = FineTable(64, 64, 1), BucketTable(64)
    asked = fine.queries(some, 3, 64, seed=2)
    ids = np.random.default_rng(3).choice(some.keys, 300, replace=False)
    filter = empty.filter(ids)
    lists = np.array([0, 50, 90, 100]), some.keys[:100]
    for end in (20_000, 40_000):
        more = some.take((np.arange(40_000) < end) & (np.arange(40_000) >= end - 20_000))
        table.add(more.keys, more.fine, more.counts, more.codes)
        for gone in (some.keys[:1], ids[:20], some.keys[: end * 3 // 5]):
            for candidates in (None, lists):
                got = table.rank(asked, 9, candidates=candidates, allowed=filter)
                want = table.rank(asked, 9, candidates=candidates, allowed=ids)
                np.testing.assert_array_equal(got.keys, want.keys)
                np.testing.assert_array_equal(got.looked_at, want.looked_at)
                assert set(got.keys.ravel().tolist()) <= {-1, *ids.tolist()}
            left = np.isin(ids, table.content()["keys"]).sum()
            assert (table.rank(asked, 9, allowed=filter).looked_at == left).all()
            table.remove(gone)


def test_threads_search_with_a_filter_while_others_write() -> None:
    """A search sees one state: of the pairs that are added and removed together, both or none."""
    codes = np.repeat(uniform(64, 1, seed=6), 2000, axis=0)
    table = BucketTable(64)
    table.add(np.arange(1000), codes[:1000])
    filter = table.filter([*range(0, 1000, 2), 5000, 5001])
    stop, failed = threading.Event(), list[str]()

    def write() -> None:
        rng = np.random.default_rng(0)
        for turn in range(300):
            table.add([5000, 5001], codes[:2])
            table.add(rng.integers(1001, 1999, 5) * 2 + 1, codes[:5])
            if turn % 50 == 0:
                table.optimize()
            table.remove([5000, 5001])
        stop.set()

    def search() -> None:
        while not stop.is_set():
            result = table.search(codes[:1], 600, allowed=filter, threads=1)
            found = result.ids[0, : result.counts[0]].tolist()
            if found[:500] != list(range(0, 1000, 2)) or found[500:] not in ([], [5000, 5001]):
                failed.append(str(found[490:]))
                return

    threads = [threading.Thread(target=search) for _ in range(3)]
    for thread in threads:
        thread.start()
    write()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not failed
