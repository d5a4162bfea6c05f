"""The table of fine codes gives the answers of a plain computation, whatever happens to it."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.fine import Images, assert_best, images, queries, scored, table_of
from helpers.threads import run
from mchindex._core import FineTable, cpu_path, cpu_paths, use_cpu_path

WEIGHTS = [(0.17, 0.08, 0.08, 0.67), (0.0, 0.0, 1.0, 0.0), (1.0, 0.0, 0.0, 0.0)]


@pytest.fixture(autouse=True)
def restore() -> Iterator[None]:
    before = cpu_path()
    yield
    use_cpu_path(before)


@st.composite
def cases(draw: Callable[[Any], Any]) -> dict[str, Any]:
    return {
        "bits": 8 * draw(st.integers(1, 32)),
        "fine_bits": draw(st.sampled_from([8, 56, 64, 72, 128, 248, 256, 264, 512, 1024])),
        "regions": draw(st.sampled_from([1, 2, 5, 6, 7, 9, 17])),
        "n": draw(st.integers(0, 60)),
        "k": draw(st.integers(1, 70)),
        "seed": draw(st.integers(0, 1000)),
        "path": draw(st.sampled_from(cpu_paths())),
        "weights": draw(st.sampled_from(WEIGHTS)),
        "threads": draw(st.sampled_from([0, 1, 2, 5])),
    }


@settings(max_examples=60, deadline=None)
@given(cases())
def test_ranks_as_the_oracle(case: dict[str, Any]) -> None:
    use_cpu_path(case["path"])
    bits, fine_bits, regions, seed = (case[i] for i in ("bits", "fine_bits", "regions", "seed"))
    some = images(case["n"], bits, fine_bits, regions, seed)
    table = table_of(bits, fine_bits, regions, some)
    assert len(table) == case["n"]
    rng = np.random.default_rng(seed)
    gone = rng.choice(some.keys, case["n"] // 3, replace=False) if case["n"] else np.empty(0, int)
    assert table.remove(np.r_[gone, gone, some.keys.max(initial=0) + 1]) == len(gone)
    left = some.without(gone.tolist())
    later = images(3, bits, fine_bits, regions, seed + 1, first=int(some.keys.max(initial=0)) + 1)
    table.add(later.keys, later.fine, later.counts, later.codes)
    left = Images(*map(np.concatenate, zip(vars(left).values(), vars(later).values(), strict=True)))
    asked = queries(left, 4, fine_bits, seed)
    codes = rng.integers(0, 256, (4, bits // 8), np.uint8)
    allowed = rng.choice(int(left.keys.max()) + 5, 20).tolist()
    lists = [rng.choice(int(left.keys.max()) + 5, size) for size in (0, 1, 20, 9)]
    lims = np.cumsum([0, *map(len, lists)])
    k, weights, threads = case["k"], case["weights"], case["threads"]
    several = (lims, np.concatenate(lists))
    every = table.rank(asked, k, codes, weights, threads=threads)
    some_only = table.rank(asked, k, codes, weights, allowed=allowed, threads=threads)
    listed = table.rank(asked, k, codes, weights, candidates=several, threads=threads)
    both = table.rank(asked, k, codes, weights, several, allowed=allowed, threads=threads)
    bare = table.rank(asked, k, weights=weights, threads=threads)
    for i in range(4):
        want = scored(left, asked[i], codes[i], weights)
        assert_best(every, i, left, want, note="all")
        assert_best(some_only, i, left, want, allowed, "allowed")
        assert_best(listed, i, left, want, lists[i].tolist(), "candidates")
        assert_best(both, i, left, want, {*lists[i].tolist()} & {*allowed}, "both")
        assert_best(bare, i, left, scored(left, asked[i], None, weights), note="without codes")
    assert (every.looked_at == len(left.keys)).all()


@settings(max_examples=40, deadline=None)
@given(cases(), st.integers(1, 20))
def test_cells_find_what_is_near(case: dict[str, Any], n_cells: int) -> None:
    use_cpu_path(case["path"])
    bits, fine_bits, regions, seed = (case[i] for i in ("bits", "fine_bits", "regions", "seed"))
    some = images(case["n"] + 1, bits, fine_bits, regions, seed)
    rng = np.random.default_rng(seed)
    cells = rng.integers(0, 256, (n_cells, fine_bits // 8), np.uint8)
    table = table_of(bits, fine_bits, regions, some, cells)
    assert table.n_cells == n_cells
    asked = queries(some, 3, fine_bits, seed)
    none: Any = (np.zeros(4, np.int64), np.empty(0, np.int64))
    everything = len(some.keys) * regions
    found = table.rank(
        asked, case["k"], weights=case["weights"], candidates=none, near=everything, probes=n_cells
    )
    for i in range(3):
        assert_best(found, i, some, scored(some, asked[i], None, case["weights"]))
    # The code that is most like a stored one is itself, and it lies in the nearest cell.
    image, region = rng.integers(len(some.keys)), rng.integers(regions)
    own = np.unpackbits(some.fine[image, region]) * np.float32(2) - 1
    one: Any = (np.zeros(2, np.int64), np.empty(0, np.int64))
    (first,) = table.rank(own[None], 1, candidates=one, near=1, probes=1).keys.tolist()
    equal = (some.fine == some.fine[image, region]).all(2).any(1)
    assert first == [some.keys[equal][0]]
    # Candidates and those that are near are ranked together.
    near = table.rank(asked[:1], 1, candidates=one, near=4, probes=2).keys[0]
    keys = np.unique(np.r_[near[near >= 0], some.keys[:2]])
    lists: Any = (np.array([0, len(some.keys[:2])]), some.keys[:2])
    joint = table.rank(asked[:1], len(some.keys), candidates=lists, near=4, probes=2)
    assert set(keys.tolist()) <= set(joint.keys[0].tolist())
    assert joint.looked_at[0] == (joint.keys[0] >= 0).sum()


def test_what_is_near_lies_in_many_blocks_of_memory() -> None:
    regions, n = 3, 40_000  # a block has 16,384 images
    some = images(n, 64, 64, regions, 0)
    cells = np.random.default_rng(0).integers(0, 256, (3, 8), np.uint8)
    table = table_of(64, 64, regions, some, cells)
    table.remove(some.keys[5::7])
    asked = queries(some, 12, 64, 0)
    none: Any = (np.zeros(13, np.int64), np.empty(0, np.int64))
    near = table.rank(asked, 20, candidates=none, near=n * regions, probes=3)
    every = table.rank(asked, 20)
    for name in ("keys", "scores", "regions"):
        np.testing.assert_array_equal(getattr(near, name), getattr(every, name))
    assert near.looked_at.tolist() == every.looked_at.tolist() == 12 * [len(table)]
    few = table.rank(asked, 20, candidates=none, near=50, probes=3, allowed=some.keys[::2])
    only = table.rank(asked, 20, allowed=some.keys[::2])
    np.testing.assert_array_equal(few.scores[:, :5], only.scores[:, :5])


def test_every_path_gives_the_same_numbers() -> None:
    some = images(300, 64, 256, 6, seed=1)
    table = table_of(64, 256, 6, some)
    asked = queries(some, 20, 256, seed=2)
    codes = np.random.default_rng(3).integers(0, 256, (20, 8), np.uint8)
    results = []
    for path in cpu_paths():
        use_cpu_path(path)
        for threads in (1, 2, 7):
            found = table.rank(asked, 50, codes, WEIGHTS[0], threads=threads)
            results.append((found.keys, found.scores, found.distances, found.regions))
    for other in results[1:]:
        for mine, theirs in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(mine, theirs)


def test_many_queries_are_shared_by_threads() -> None:
    some = images(5000, 16, 64, 2, seed=4)
    table = table_of(16, 64, 2, some)
    asked = queries(some, 30, 64, seed=5)
    alone = table.rank(asked, 20, threads=1)
    together = table.rank(asked, 20, threads=4)
    np.testing.assert_array_equal(alone.keys, together.keys)
    np.testing.assert_array_equal(alone.scores, together.scores)


def test_equal_images_come_by_key() -> None:
    table = FineTable(8, 64, 3)
    fine = np.random.default_rng(0).integers(0, 256, (1, 3, 8), np.uint8).repeat(50, 0)
    table.add(np.arange(50) * 7, fine, np.ones(50, int), np.zeros((50, 1), np.uint8))
    found = table.rank(np.ones((1, 64), np.float32), 20, np.zeros((1, 1), np.uint8), WEIGHTS[0])
    assert found.keys[0].tolist() == [7 * i for i in range(20)]
    assert len(set(found.scores[0].tolist())) == 1


def test_a_code_with_all_the_expected_bits_has_the_score_one() -> None:
    some = images(40, 64, 256, 6, seed=6)
    table = table_of(64, 256, 6, some)
    for scale in (1e-40, 1.0, 3e38):  # whatever the size of the numbers
        own = ((np.unpackbits(some.fine[5, 3]) * 2.0 - 1) * scale).astype(np.float32)
        found = table.rank(own[None], 1)
        assert found.scores.tolist() == found.similarities.tolist() == [[1.0]]
    assert table.rank(np.zeros((1, 256), np.float32), 40).keys.min() >= 0


def test_keys_that_are_not_there_are_not_found() -> None:
    """Keys are looked up by guessing their place, which must end for every gap."""
    rng = np.random.default_rng(7)
    for turn in range(300):
        high = (20, 300, 10**6, 2**62)[turn % 4]
        keys = np.unique(rng.integers(0, high, 12))
        table = FineTable(8, 8, 1)
        n = len(keys)
        table.add(keys, np.zeros((n, 1, 1), np.uint8), np.zeros(n, int), np.zeros((0, 1), np.uint8))
        asked = np.r_[rng.integers(0, high, 40), keys[:3], keys[:3] + 1, -1, 0, 2**63 - 1]
        found = table.rank(np.ones((1, 8), np.float32), 20, allowed=asked).keys[0]
        assert found[found >= 0].tolist() == np.intersect1d(keys, asked).tolist()


def test_removing_most_frees_memory_and_changes_nothing_else() -> None:
    n = 40_000
    rng = np.random.default_rng(8)
    some = Images(
        np.arange(n) * 2,
        rng.integers(0, 256, (n, 2, 8), np.uint8),
        rng.integers(0, 3, n),
        np.empty((0, 1), np.uint8),
    )
    some.codes = rng.integers(0, 256, (int(some.counts.sum()), 1), np.uint8)
    cells = rng.integers(0, 256, (30, 8), np.uint8)
    table = table_of(8, 64, 2, some, cells)
    before = table.memory()
    keep = rng.choice(some.keys, 3000, replace=False)
    assert table.remove(np.setdiff1d(some.keys, keep)) == n - 3000
    assert table.memory() < before / 2
    left = some.take(np.isin(some.keys, keep))
    np.testing.assert_array_equal(table.read(left.keys), left.fine)
    later = images(5, 8, 64, 2, seed=9, first=2 * n)
    table.add(later.keys, later.fine, later.counts, later.codes)
    left = Images(*map(np.concatenate, zip(vars(left).values(), vars(later).values(), strict=True)))
    asked = queries(left, 5, 64, seed=10)
    codes = rng.integers(0, 256, (5, 1), np.uint8)
    found = table.rank(asked, 30, codes, WEIGHTS[0])
    none: Any = (np.zeros(6, np.int64), np.empty(0, np.int64))
    near = table.rank(asked, 30, codes, WEIGHTS[0], none, near=10**6, probes=30)
    for i in range(5):
        want = scored(left, asked[i], codes[i], WEIGHTS[0])
        assert_best(found, i, left, want)
        assert_best(near, i, left, want, note="by cells")


@pytest.mark.parametrize("n_cells", [0, 5])
def test_the_content_makes_an_equal_table(n_cells: int) -> None:
    some = images(50, 24, 72, 3, seed=11)
    cells = np.random.default_rng(0).integers(0, 256, (n_cells, 9), np.uint8) if n_cells else None
    table = table_of(24, 72, 3, some, cells)
    table.remove(some.keys[::4])
    left = some.without(some.keys[::4].tolist())
    content = table.content()
    np.testing.assert_array_equal(content["keys"], left.keys)
    np.testing.assert_array_equal(content["fine"], left.fine)
    np.testing.assert_array_equal(content["counts"], left.counts)
    np.testing.assert_array_equal(content["codes"], left.codes)
    again = FineTable(24, 72, 3, cells)
    again.add(**content)
    assert again.content().keys() == content.keys()
    for name, values in again.content().items():
        np.testing.assert_array_equal(values, content[name])
    asked = queries(left, 4, 72, seed=12)
    none: Any = (np.zeros(5, np.int64), np.empty(0, np.int64))
    for options in ({}, {"candidates": none, "near": 10, "probes": 2}):
        one, other = table.rank(asked, 9, **options), again.rank(asked, 9, **options)
        np.testing.assert_array_equal(one.keys, other.keys)


def test_an_empty_table_answers() -> None:
    table = FineTable(64, 256, 6)
    found = table.rank(np.ones((2, 256), np.float32), 3, np.zeros((2, 8), np.uint8))
    assert found.keys.tolist() == [[-1] * 3] * 2
    assert (len(table), table.remove([1, 2]), table.content()["keys"].tolist()) == (0, 0, [])
    assert table.rank(np.empty((0, 256), np.float32)).keys.shape == (0, 10)
    table.add([], np.empty((0, 6, 32), np.uint8), [], np.empty((0, 8), np.uint8))
    assert len(table) == 0


GOOD: dict[str, Any] = {
    "keys": [5, 6], "fine": np.zeros((2, 3, 8), np.uint8), "counts": [1, 2],
    "codes": np.zeros((3, 2), np.uint8),
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"keys": [6, 5]}, ValueError),
        ({"keys": [5, 5]}, ValueError),
        ({"keys": [-1, 5]}, ValueError),
        ({"keys": [3, 5]}, ValueError),  # 3 is there
        ({"keys": [5]}, ValueError),
        ({"keys": [5.0, 6.0]}, TypeError),
        ({"keys": ["5", "6"]}, TypeError),
        ({"keys": [[5, 6]]}, ValueError),
        ({"keys": None}, TypeError),
        ({"keys": np.array([5, 2**63], np.uint64)}, ValueError),
        ({"fine": np.zeros((2, 3, 8))}, TypeError),
        ({"fine": np.zeros((2, 3, 8), np.int64)}, TypeError),
        ({"fine": np.zeros((2, 3, 7), np.uint8)}, ValueError),
        ({"fine": np.zeros((2, 24), np.uint8)}, ValueError),
        ({"fine": np.zeros((1, 3, 8), np.uint8)}, ValueError),
        ({"counts": [1, 1]}, ValueError),
        ({"counts": [4, -1]}, ValueError),
        ({"counts": [2**62, 2**62]}, ValueError),
        ({"counts": [1, 2, 0]}, ValueError),
        ({"counts": [1.0, 2.0]}, TypeError),
        ({"codes": np.zeros((3, 3), np.uint8)}, ValueError),
        ({"codes": np.zeros((3, 2))}, (TypeError, ValueError)),
        ({"cells": np.zeros((2, 3), int)}, None),
        ({"cells": np.full((2, 3), 4)}, ValueError),
        ({"cells": np.full((2, 3), 65536)}, ValueError),  # 0 in 16 bits
        ({"cells": np.full((2, 3), -1)}, ValueError),
        ({"cells": np.zeros((2, 2), int)}, ValueError),
        ({"cells": np.zeros((2, 3))}, TypeError),
    ],
)
def test_adding_refuses_what_does_not_fit(change: dict[str, Any], error: Any) -> None:
    table = FineTable(16, 64, 3, np.zeros((4, 8), np.uint8))
    first = GOOD | {"keys": [3, 4]}
    table.add(**first)
    if error is None:
        table.add(**(GOOD | change))
        assert len(table) == 4
        return
    with pytest.raises(error):
        table.add(**(GOOD | change))
    assert table.content()["keys"].tolist() == [3, 4]
    table.add(**GOOD)
    assert len(table) == 4


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"queries": np.full((1, 64), np.nan)}, ValueError),
        ({"queries": np.full((1, 64), np.inf)}, ValueError),
        ({"queries": np.zeros((1, 63))}, ValueError),
        ({"queries": np.zeros(64)}, ValueError),
        ({"queries": "x"}, (TypeError, ValueError)),
        ({"queries": None}, (TypeError, ValueError)),
        ({"k": 0}, ValueError),
        ({"k": -1}, ValueError),
        ({"k": 2**27 + 1}, ValueError),
        ({"k": 2**70}, ValueError),
        ({"k": 1.5}, TypeError),
        ({"k": 2**26, "queries": np.zeros((3, 64))}, ValueError),
        ({"codes": np.zeros((2, 2), np.uint8)}, ValueError),
        ({"codes": np.zeros((1, 3), np.uint8)}, ValueError),
        ({"weights": (1, 2, 3)}, TypeError),
        ({"weights": (1, 2, 3, "x")}, TypeError),
        ({"weights": (1, 2, 3, np.nan)}, ValueError),
        ({"weights": (np.inf, 2, 3, 4)}, ValueError),
        ({"candidates": ([0, 1], [3, 4])}, None),
        ({"candidates": ([0, 3], [3, 4])}, ValueError),
        ({"candidates": ([1, 0], [3, 4])}, ValueError),
        ({"candidates": ([-1, 0], [3, 4])}, ValueError),
        ({"candidates": ([0], [3, 4])}, ValueError),
        ({"candidates": ([0, 1], [3.5])}, TypeError),
        ({"candidates": [3, 4, 5]}, (TypeError, ValueError, RuntimeError)),
        ({"near": -1}, ValueError),
        ({"probes": -1}, ValueError),
        ({"threads": -1}, ValueError),
        ({"threads": 10**9}, None),
        ({"allowed": [1.5]}, TypeError),
        ({"allowed": [[1]]}, ValueError),
        ({"allowed": []}, None),
    ],
)
def test_ranking_refuses_what_does_not_fit(change: dict[str, Any], error: Any) -> None:
    table = FineTable(16, 64, 3, np.zeros((4, 8), np.uint8))
    table.add(**GOOD)
    arguments: dict[str, Any] = {"queries": np.ones((1, 64)), "k": 2} | change
    if error is None:
        assert table.rank(**arguments).keys.shape == (1, 2)
    else:
        with pytest.raises(error):
            table.rank(**arguments)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((0, 64, 1), ValueError),
        ((12, 64, 1), ValueError),
        ((264, 64, 1), ValueError),
        ((64, 0, 1), ValueError),
        ((64, 12, 1), ValueError),
        ((64, 1032, 1), ValueError),
        ((64, 64, 0), ValueError),
        ((64, 64, 257), ValueError),
        ((64.0, 64, 1), TypeError),
        ((64, 64, 1, np.zeros((2, 7), np.uint8)), ValueError),
        ((64, 64, 1, np.zeros((65537, 8), np.uint8)), ValueError),
    ],
)
def test_tables_that_cannot_be(arguments: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        FineTable(*arguments)


def test_reading_images_that_are_not_there() -> None:
    table = FineTable(16, 64, 3)
    table.add(**GOOD)
    table.remove([5])
    assert table.read([6]).shape == (1, 3, 8)
    for keys in ([5], [6, 7], [-1]):
        with pytest.raises(KeyError):
            table.read(keys)


def test_ranking_while_others_add_and_remove() -> None:
    """Each answer fits one state: a group that is added and removed is there as a whole."""
    table = FineTable(8, 64, 2, np.random.default_rng(0).integers(0, 256, (8, 8), np.uint8))
    stable = images(200, 8, 64, 2, seed=13)
    table.add(stable.keys, stable.fine, stable.counts, stable.codes)
    first, size = int(stable.keys[-1]) + 1, 40
    centre = np.random.default_rng(1).integers(0, 256, (1, 1, 8), np.uint8)
    fine = np.broadcast_to(centre, (size, 2, 8))
    query = (np.unpackbits(centre[0, 0]) * 2.0 - 1).astype(np.float32)[None]
    none: Any = (np.zeros(2, np.int64), np.empty(0, np.int64))

    def churn() -> None:
        for turn in range(60):
            keys = first + turn * size + np.arange(size)
            table.add(keys, fine, np.ones(size, int), np.zeros((size, 1), np.uint8))
            assert table.remove(keys) == size

    def whole(found: Any) -> None:
        there = found.keys[0][found.scores[0] == 1]
        assert len(there) in (0, size)
        assert (np.diff(there) == 1).all()

    def rank() -> None:
        whole(table.rank(query, size + 5, threads=2))
        whole(table.rank(query, size + 5, candidates=none, near=200, probes=8))

    def read() -> None:
        np.testing.assert_array_equal(table.read(stable.keys[:3]), stable.fine[:3])
        content = table.content()
        assert len(content["keys"]) in (len(stable.keys), len(stable.keys) + size)
        assert table.memory() > 0
        assert len(table) >= len(stable.keys)

    run([churn], [rank, read])
    assert len(table) == len(stable.keys)
