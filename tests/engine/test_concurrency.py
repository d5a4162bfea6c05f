"""Searching while others add and remove: no errors, and each answer fits one state of the table.

The writers do a fixed amount of work and the readers repeat until it is done, so these tests take
longer on a slow machine, but do not fail.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from helpers.samples import STRATEGIES, near, uniform
from helpers.script import run_script
from helpers.threads import run
from mchindex import BucketTable

STABLE = 400
GROUP = np.arange(10_000, 10_064)


class Scene:
    """Stable images with distinct codes, and a group that is added and removed at one code."""

    def __init__(self) -> None:
        self.table = BucketTable(64)
        self.stable = uniform(64, STABLE, seed=1)
        self.meeting = uniform(64, 1, seed=2)
        self.table.add(np.arange(STABLE), self.stable)

    def churn(self, rounds: int = 120) -> None:
        rng = np.random.default_rng(3)
        for turn in range(rounds):
            # The group has two codes per image, so half an add would show.
            codes = np.repeat(np.concatenate([self.meeting, ~self.meeting]), len(GROUP), axis=0)
            self.table.add(np.tile(GROUP, 2), codes, np.repeat([turn % 200, 200], len(GROUP)))
            # Noise near the stable codes keeps the merges busy.
            noise = rng.integers(20_000, 30_000, 700)
            self.table.add(noise, near(self.stable, 700, 2.0, rng))
            assert self.table.remove(GROUP) == len(GROUP)
            self.table.remove(noise[::2])
            if turn % 30 == 29:
                self.table.optimize(substring=turn % 60 == 59)


def assert_whole_group(lims: NDArray[np.int64], ids: NDArray[np.int64]) -> None:
    sizes = np.diff(lims)
    assert set(sizes.tolist()) in ({0}, {len(GROUP)}), sizes
    for start, stop in pairwise(lims):
        np.testing.assert_array_equal(ids[start:stop], GROUP[: stop - start])


def test_readers_see_whole_states() -> None:
    scene = Scene()
    table = scene.table

    def find_stable() -> None:
        for strategy in STRATEGIES:
            # They have the smallest ids, so each is the first hit whatever else is there.
            result = table.search(scene.stable[:100], k=1, strategy=strategy)
            np.testing.assert_array_equal(result.ids[:, 0], np.arange(100))
            assert not result.distances.any()
            assert result.exact.all()

    def find_group() -> None:
        for strategy in STRATEGIES:
            # One call sees one state: all or none, the same for each of its queries and codes.
            queries = np.concatenate([scene.meeting, ~scene.meeting, scene.meeting])
            found = table.within(queries, 0, allowed=GROUP, strategy=strategy)
            assert_whole_group(found.lims, found.ids)
            of_first_query = found.regions[: found.lims[1]]
            assert len(set(of_first_query.tolist())) <= 1, "regions of two different adds"

    def count() -> None:
        assert len(table) >= STABLE
        assert table.n_codes >= STABLE
        assert 7 in table
        assert -5 not in table
        assert table.memory()["total"] > 0

    run([scene.churn], [find_stable, find_group, count])
    assert table.remove(GROUP) == 0
    assert table.within(scene.meeting, 0).lims.tolist() == [0, 0]


def test_snapshots_hold_whole_states(tmp_path: Path) -> None:
    scene = Scene()

    def save_and_load() -> None:
        path = tmp_path / "table.mch"
        scene.table.save(path)
        loaded = BucketTable.load(path)
        found = loaded.within(np.concatenate([scene.meeting, ~scene.meeting]), 0, allowed=GROUP)
        assert_whole_group(found.lims, found.ids)
        result = loaded.search(scene.stable, k=1)
        np.testing.assert_array_equal(result.ids[:, 0], np.arange(STABLE))

    run([scene.churn], [save_and_load])


def test_writers_do_not_lose_each_others_work() -> None:
    table = BucketTable(64)
    writers, turns, n = 4, 60, 25

    def write(writer: int) -> None:
        for turn in range(turns):
            ids = 1_000_000 * writer + np.arange(turn * n, (turn + 1) * n)
            table.add(ids, uniform(64, n, seed=1000 * writer + turn))
            assert table.remove(ids[:5]) == 5
            assert int(ids[-1]) in table
            assert int(ids[0]) not in table

    def write_as(writer: int) -> Callable[[], None]:
        return lambda: write(writer)

    run([write_as(writer) for writer in range(writers)], [])
    assert len(table) == table.n_codes == writers * turns * (n - 5)
    for writer in range(writers):
        for turn in range(0, turns, 7):
            codes = uniform(64, n, seed=1000 * writer + turn)
            result = table.search(codes, k=1, max_radius=0)
            want = 1_000_000 * writer + np.arange(turn * n, (turn + 1) * n)
            want[:5] = -1
            np.testing.assert_array_equal(result.ids[:, 0], want)


def test_a_table_may_be_deleted_while_it_is_searched() -> None:
    codes = uniform(64, 20_000, seed=4)

    def search_and_drop() -> None:
        table = BucketTable(64)
        for at in range(0, 20_000, 2_000):
            table.add(np.arange(at, at + 2_000), codes[at : at + 2_000])
        with ThreadPoolExecutor(2) as pool:
            futures = [pool.submit(table.search, codes[:200], 3) for _ in range(4)]
            del table
            for future in futures:
                np.testing.assert_array_equal(future.result().ids[:, 0], np.arange(200))

    for _ in range(5):
        search_and_drop()


# Threads search, and others rank, while the main thread forks. Each child searches, changes its
# copies of the tables and ends; a child that hangs is ended after a minute.
FORKS = """
import os, sys, threading, time
import numpy as np
from mchindex import BucketTable
from mchindex._core import FineTable

rng = np.random.default_rng(0)
codes = rng.integers(0, 256, (400, 8), np.uint8)
fine = rng.integers(0, 256, (400, 2, 4), np.uint8)
queries = rng.random((40, 32), np.float32) - 0.5
table, images = BucketTable(64), FineTable(64, 32, 2)
table.add(np.arange(400), codes)
images.add(np.arange(400), fine, np.ones(400, np.int64), codes)
want = table.search(codes, 3).ids
ranked = images.rank(queries, 3).keys
over = threading.Event()

def repeat(call):
    while not over.is_set():
        call()

calls = 3 * [lambda: table.search(codes[:1], 1)]
calls += [lambda: table.search(codes, 9, threads=4), lambda: images.rank(queries, 3, threads=2)]
threads = [threading.Thread(target=repeat, args=(call,)) for call in calls]
for thread in threads:
    thread.start()
hung = 0
for turn in range(400):
    child = os.fork()
    if child == 0:
        same = np.array_equal(table.search(codes, 3, threads=2).ids, want)
        same &= np.array_equal(images.rank(queries, 3, threads=2).keys, ranked)
        table.add([1000], codes[:1])
        images.add([1000], fine[:1], [1], codes[:1])
        same &= 1000 in table and table.remove([0, 1]) == 2 and images.remove([0, 1]) == 2
        os._exit(0 if same else 3)
    deadline = time.monotonic() + 60
    while (done := os.waitpid(child, os.WNOHANG)) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(child, 9)
            hung += 1
        time.sleep(0.0002)
    if done[1]:
        break
over.set()
for thread in threads:
    thread.join()
assert not hung, f"the child of turn {turn} hung"
assert done[1] == 0, f"the child of turn {turn} ended with {done[1]}"
assert np.array_equal(table.search(codes, 3).ids, want)
"""


@pytest.mark.skipif(
    "libasan" in os.environ.get("LD_PRELOAD", ""),
    reason="a child may hang in a lock of the address sanitizer's own allocator",
)
def test_a_process_may_fork_while_its_threads_search(tmp_path: Path) -> None:
    run_script(FORKS, folder=tmp_path)
