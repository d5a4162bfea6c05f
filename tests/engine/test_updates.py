"""Adding and removing: after any sequence of calls, the table equals a dictionary."""

import itertools
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from helpers.forgery import counts
from helpers.oracle import Oracle, assert_answer, assert_ranked
from helpers.samples import STRATEGIES, Rows, clustered, near, oracle_of, table_of, uniform
from helpers.threads import run
from mchindex import BucketTable

FEW_IDS = st.lists(st.integers(0, 30), max_size=8)
SEEDS = st.integers(0, 1000)


class TableMachine(RuleBasedStateMachine):
    """Random sequences of calls; every answer is compared with that of the dictionary."""

    @initialize(bits=st.sampled_from([8, 64, 136]))
    def create(self, bits: int) -> None:
        self.bits = bits
        self.table = BucketTable(bits)
        self.oracle = Oracle(bits)
        # A small pool, so that codes and images repeat often.
        self.pool = near(uniform(bits, 3, seed=bits), 40, 2.0, np.random.default_rng(bits))

    def _add(self, ids: list[int], seed: int) -> None:
        rng = np.random.default_rng(seed)
        codes = self.pool[rng.integers(len(self.pool), size=len(ids))]
        regions = rng.integers(0, 4, len(ids)).tolist()
        self.table.add(np.array(ids, np.int64), codes, regions)
        self.oracle.add(ids, codes, regions)

    @rule(ids=FEW_IDS, seed=SEEDS)
    def add_few(self, ids: list[int], seed: int) -> None:
        self._add(ids, seed)

    @rule(calls=st.integers(2, 40), seed=SEEDS)
    def add_one_by_one(self, calls: int, seed: int) -> None:
        for call in range(calls):
            self._add([(seed + call) % 50], seed + call)

    @rule(n=st.integers(100, 800), seed=SEEDS)
    def add_many(self, n: int, seed: int) -> None:
        self._add(np.random.default_rng(seed).integers(0, 300, n).tolist(), seed)

    @rule(ids=FEW_IDS)
    def remove_few(self, ids: list[int]) -> None:
        assert self.table.remove(np.array(ids, np.int64)) == self.oracle.remove(ids)

    @rule(start=st.integers(-5, 300), step=st.integers(1, 5))
    def remove_many(self, start: int, step: int) -> None:
        ids = range(start, 300, step)
        assert self.table.remove(np.array(ids, np.int64)) == self.oracle.remove(ids)

    @rule(ids=FEW_IDS, seed=SEEDS)
    def replace(self, ids: list[int], seed: int) -> None:
        self.remove_few(ids)
        self._add(ids, seed)

    @rule(substring=st.booleans())
    def optimize(self, substring: bool) -> None:
        self.table.optimize(substring=substring)

    @rule(mmap=st.booleans())
    def reload(self, mmap: bool) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "table.mch")
            self.table.save(path)
            self.table = BucketTable.load(path, mmap=mmap)

    @rule(k=st.integers(1, 40), seed=SEEDS, max_buckets=st.none() | st.integers(0, 200))
    def search(self, k: int, seed: int, max_buckets: int | None) -> None:
        queries = near(self.pool, 2, 1.0, np.random.default_rng(seed))
        expected = self.oracle.search(queries, k, None, max_buckets)
        for strategy in STRATEGIES:
            result = self.table.search(queries, k, max_buckets=max_buckets, strategy=strategy)
            assert_answer(result, expected, strategy)

    @rule(radius=st.integers(0, 9), allowed=st.none() | FEW_IDS)
    def within(self, radius: int, allowed: list[int] | None) -> None:
        expected = self.oracle.within(self.pool[:1], radius, allowed)
        for strategy in STRATEGIES:
            result = self.table.within(self.pool[:1], radius, allowed=allowed, strategy=strategy)
            assert_answer(result, expected, strategy)

    @invariant()
    def sizes(self) -> None:
        assert len(self.table) == len(self.oracle.images)
        assert self.table.n_codes == self.oracle.n_codes
        assert self.table.n_buckets == self.oracle.n_buckets
        for i in range(-2, 40, 3):
            assert (i in self.table) == (i in self.oracle.images)


TestTableMachine = TableMachine.TestCase
TestTableMachine.settings = settings(
    max_examples=25, stateful_step_count=25, deadline=None, derandomize=True, database=None
)


@pytest.mark.parametrize("step", [1, 7, 100])
def test_many_small_adds_equal_one_large_add(step: int) -> None:
    rows = clustered(64, 1500, seed=step, centres=30)
    pieces = BucketTable(64)
    for at in range(0, len(rows.ids), step):
        pieces.add(*rows.take(slice(at, at + step)))
    whole = table_of(64, rows)
    queries = near(rows.codes, 20, 2.0, np.random.default_rng(1))
    assert (len(pieces), pieces.n_codes, pieces.n_buckets) == (
        len(whole), whole.n_codes, whole.n_buckets
    )  # fmt: skip
    for strategy in STRATEGIES:
        a = pieces.search(queries, 9, strategy=strategy)
        b = whole.search(queries, 9)
        for field in ("ids", "distances", "regions", "buckets", "candidates"):
            np.testing.assert_array_equal(getattr(a, field), getattr(b, field))


def test_codes_of_one_image_may_come_in_several_calls() -> None:
    codes = uniform(64, 6, seed=1)
    table, oracle = BucketTable(64), Oracle(64)
    for region, code in enumerate(codes):
        table.add([42], code[None], [region])
        oracle.add([42], code[None], [region])
    assert (len(table), table.n_codes) == (1, 6)
    for strategy in STRATEGIES:
        assert_answer(table.search(codes, 2, strategy=strategy), oracle.search(codes, 2))
    assert table.remove([42]) == 1
    assert (len(table), table.n_codes, table.n_buckets) == (0, 0, 0)


@pytest.mark.parametrize("optimize", [False, True])
def test_a_removed_code_stays_removed_when_its_image_is_added_again(optimize: bool) -> None:
    old, new = uniform(64, 2, seed=2)[:, None]
    table = BucketTable(64)
    table.add([5, 6], np.concatenate([old, old]))
    assert table.remove([5]) == 1
    table.add([5], new)
    if optimize:
        table.optimize()
    for strategy in STRATEGIES:
        assert table.within(old, 0, strategy=strategy).ids.tolist() == [6]
        assert table.within(new, 0, strategy=strategy).ids.tolist() == [5]
        assert table.search(old, 1, strategy=strategy).candidates.tolist() == [1]
    assert (len(table), table.n_codes, table.n_buckets) == (2, 2, 2)


@pytest.mark.parametrize("optimize", [False, True])
def test_a_code_that_is_added_again_has_its_new_region(optimize: bool) -> None:
    code = uniform(64, 1, seed=3)
    table = BucketTable(64)
    table.add([5], code, [1])
    table.remove([5])
    table.add([5], code, [7])
    if optimize:
        table.optimize()
    assert table.search(code, 1).regions.tolist() == [[7]]
    assert (len(table), table.n_codes, table.n_buckets) == (1, 1, 1)


def test_remove_counts_images_once() -> None:
    table = BucketTable(64)
    table.add([1, 1, 2, 3], uniform(64, 4, seed=4))
    assert table.remove([1, 1, 9, 3, 1]) == 2
    assert table.remove([1, 9]) == 0
    assert len(table) == 1


def test_removed_images_leave_every_count() -> None:
    rows = clustered(64, 200, seed=5, images=40)
    table, oracle = table_of(64, rows), oracle_of(64, rows)
    gone = list(range(0, 40, 2))
    assert table.remove(gone) == oracle.remove(gone)
    for k in (3, 20, 21):
        for strategy in STRATEGIES:
            result = table.search(rows.codes[:5], k, strategy=strategy)
            assert_answer(result, oracle.search(rows.codes[:5], k), strategy)


def test_emptied_table_is_empty() -> None:
    rows = clustered(64, 3000, seed=6)
    table = table_of(64, rows)
    assert table.remove(rows.ids) == len(np.unique(rows.ids))
    for _ in range(2):
        assert (len(table), table.n_codes, table.n_buckets) == (0, 0, 0)
        for strategy in STRATEGIES:
            assert table.search(rows.codes[:2], 3, strategy=strategy).counts.tolist() == [0, 0]
        table.optimize()
    table.add(*rows)
    assert table.n_codes == oracle_of(64, rows).n_codes


@pytest.mark.parametrize("substring", [False, True], ids=["plain", "substring-index"])
def test_many_changes(substring: bool) -> None:
    """Adds of all sizes and removals in between, so that merges run during later calls."""
    bits, rng = 64, np.random.default_rng(7)
    table = BucketTable(bits)
    parts: list[Rows] = []
    middle = uniform(bits, 200, seed=7)
    for turn in range(120):
        n = int(rng.choice([1, 3, 50, 400, 3000]))
        fresh = Rows(rng.integers(0, 20_000, n), near(middle, n, 3.0, rng), rng.integers(0, 9, n))
        table.add(*fresh)
        parts.append(fresh)
        if turn % 5 == 4:
            gone = rng.integers(0, 20_000, 500)
            table.remove(gone)
            parts = [part.take(~np.isin(part.ids, gone)) for part in parts]
        if substring and turn == 60:
            table.optimize(substring=True)
    rows = Rows(
        np.concatenate([part.ids for part in parts]),
        np.concatenate([part.codes for part in parts]),
        np.concatenate([part.regions for part in parts]),
    )
    pairs = np.column_stack([rows.ids.astype(">i8").view(np.uint8).reshape(-1, 8), rows.codes])
    queries = near(middle, 5, 3.0, rng)
    for _ in range(2):
        assert len(table) == len(np.unique(rows.ids))
        assert table.n_codes == len(np.unique(pairs, axis=0))
        assert table.n_buckets == len(np.unique(rows.codes, axis=0))
        for strategy in STRATEGIES:
            result = table.search(queries, 25, strategy=strategy)
            assert_ranked(result, rows, queries, strategy)
        table.optimize(substring=substring)


def test_optimize_changes_no_answer() -> None:
    rows = clustered(64, 900, seed=8, centres=20)
    table, oracle = BucketTable(64), oracle_of(64, rows)
    for at in range(0, 900, 90):
        table.add(*rows.take(slice(at, at + 90)))
    expected = oracle.search(rows.codes[:6], 12)
    for substring in (False, True, True, False):
        table.optimize(substring=substring)
        for strategy in STRATEGIES:
            assert_answer(table.search(rows.codes[:6], 12, strategy=strategy), expected, strategy)


def test_tables_do_not_share() -> None:
    code = uniform(64, 1, seed=9)
    a, b = BucketTable(64), BucketTable(64)
    a.add([1], code)
    assert (len(a), len(b)) == (1, 0)
    assert b.search(code, 1).counts.tolist() == [0]


def test_the_table_keeps_its_own_copy() -> None:
    ids, codes, regions = np.array([1, 2]), uniform(64, 2, seed=10), np.array([3, 4])
    want = codes.copy()
    table = BucketTable(64)
    table.add(ids, codes, regions)
    ids[:], codes[:], regions[:] = 9, 0, 9
    result = table.search(want, 1)
    assert result.ids.tolist() == [[1], [2]]
    assert result.distances.tolist() == [[0], [0]]
    assert result.regions.tolist() == [[3], [4]]


def test_removing_one_image_of_many_takes_little_memory() -> None:
    """The bitmap of removed images has blocks; only those that hold a removed image take memory."""
    n = 600_000
    table = BucketTable(32)
    table.add(np.arange(n), uniform(32, n, seed=8))
    assert table.remove([7]) == 1
    first = table.memory()["removed"]
    assert 0 < first < n // 8 // 5  # a bit for each image would take n / 8 bytes
    assert table.remove([8, 9]) == 2  # in the same block
    assert table.memory()["removed"] == first
    assert table.remove([7, n - 1]) == 1
    assert first < table.memory()["removed"] <= 2 * first
    assert [i in table for i in (6, 7, 8, 9, 10, n - 2, n - 1)] == [1, 0, 0, 0, 1, 1, 0]


def save(table: BucketTable, path: Path) -> Path:
    table.save(path)
    return path


def parts_in(path: Path) -> int:
    return counts(path.read_bytes())[0]


def test_a_merge_ends_although_adds_lower_regions_all_the_time(tmp_path: Path) -> None:
    """Two large parts become one in the background, with the regions of the adds meanwhile."""
    n, path = 200_000, tmp_path / "t.mch"
    codes, table = uniform(64, 2 * n, seed=9), BucketTable(64)
    regions = np.full(2 * n, 255)
    removed = np.arange(0, 2 * n, 1000)
    table.add(np.arange(n), codes[:n], regions[:n])
    table.optimize()
    merged = threading.Event()

    def lower() -> None:
        rng = np.random.default_rng(10)
        table.add(np.arange(n, 2 * n), codes[n:], regions[n:])
        for turn in itertools.count():
            if merged.is_set() and turn >= len(removed):
                return
            some = rng.integers(0, 2 * n, 20)
            some = np.unique(some[some % 1000 > 0])
            regions[some] -= 1
            table.add(some, codes[some], regions[some])
            if turn < len(removed):
                table.remove(removed[turn : turn + 1])

    def wait() -> None:
        """Until the parts are one, or for two minutes."""
        deadline = time.monotonic() + 120
        while len(table) < n + 1 or parts_in(save(table, path)) > 1:
            if time.monotonic() > deadline:
                break
        merged.set()

    run([lower, wait], [])
    assert parts_in(path) == 1
    ids = np.setdiff1d(np.arange(2 * n), removed)
    found = table.search(codes[ids], 1, max_radius=0)
    np.testing.assert_array_equal(found.ids[:, 0], ids)
    np.testing.assert_array_equal(found.regions[:, 0], regions[ids])
    assert len(table) == len(ids)
