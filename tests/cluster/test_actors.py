"""A cluster on several nodes of Ray on this machine."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.clusters import KIND, PATIENCE, cluster, one_index, query_of, row, told, words_of
from mchindex.cluster import ClusterIndex
from mchindex.cluster.manifest import Manifest
from mchindex.errors import ShardUnavailableError
from mchindex.index import MCHIndex

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own

Open = Callable[..., ClusterIndex]


@pytest.fixture
def opened(nodes: Any, tmp_path: Path) -> Iterator[Open]:
    """Makes clusters, whose actors end with the test."""
    made: list[ClusterIndex] = []

    def make(shards: int, name: str = "cluster", **options: Any) -> ClusterIndex:
        made.append(cluster(tmp_path / name, shards, nodes.address, **options))
        return made[-1]

    yield make
    for index in made:
        end(index)


def end(index: ClusterIndex) -> None:
    assert index._opener is not None
    manifest = index._store.manifest
    index._opener.delete(index._store.folder_, manifest, manifest.shards + manifest.moving)
    index.close()


def pid(index: ClusterIndex, shard: int, copy: int = 0) -> int:
    shards: Any = index._store._shards
    found: int = shards._ray.get(shards._handle(shard, copy).call.remote("pid"))
    return found


@pytest.fixture(scope="module", params=[1, 2, 3, 5])
def pair(
    request: pytest.FixtureRequest, nodes: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[MCHIndex, MCHIndex]]:
    folder = tmp_path_factory.mktemp("pair")
    with one_index(folder / "one.mch") as one:
        many = cluster(folder / "many", request.param, nodes.address)
        yield one, many
        end(many)


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seeds=st.lists(st.integers(0, 40), min_size=1, max_size=30),
    spread=st.integers(1, 4),
    k=st.integers(1, 12),
    limits=st.sampled_from([{}, {"filter": {"kind": 1}}, {"exclude": [1, 2]}, {"offset": 2}]),
    radii=st.sampled_from([{}, {"max_radius": 3}, {"max_buckets": 40}]),
)
def test_a_cluster_answers_like_one_index(
    pair: tuple[MCHIndex, MCHIndex],
    seeds: list[int],
    spread: int,
    k: int,
    limits: dict[str, Any],
    radii: dict[str, Any],
) -> None:
    rows = [row(i, seed, spread) for i, seed in enumerate(seeds)]
    query, words = query_of(seeds[0], 3, spread), words_of(seeds[0], [True, False])
    answers = []
    for index in pair:
        index.add_records(rows, KIND)
        index.remove(range(3, 40, 5))
        ranks: tuple[Any, ...] = ("code", "best", "fine")
        answers.append(
            [told(index.queries.search(query, k, (), rank=r, **limits, **radii)) for r in ranks]
            + [told(index._searcher.by_words(words, k, **limits)), list(index)]
        )
    assert answers[0] == answers[1]


def test_a_killed_shard_opens_its_index_again(opened: Open) -> None:
    with opened(2) as index:
        index.add_records([row(i, i, 3) for i in range(50)], KIND)
        query = query_of(1, 2, 3)
        before, old = told(index.queries.search(query, 10, ())), pid(index, 0)
        os.kill(old, signal.SIGKILL)
        assert told(index.queries.search(query, 10, ())) == before
        assert pid(index, 0) != old
        # The restarted shard knows no writer; the next one introduces itself.
        assert index.add_records([row(i, i, 3) for i in range(40, 60)], KIND) == (10, 10)
        assert len(index) == 60


def test_a_shard_that_dies_while_images_are_added_has_each_once(opened: Open) -> None:
    with opened(2) as index:
        index.add_records([row(-1, 1, 3)], KIND)
        done, reported = threading.Event(), 0

        def kill() -> None:
            while not done.wait(0.7):
                os.kill(pid(index, 0), signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        try:
            until = time.monotonic() + 4
            while time.monotonic() < until:
                rows = [row(reported + i, i, 3) for i in range(20)]
                assert index.add_records(rows, KIND) == (20, 0)
                reported += 20
        finally:
            done.set()
            killer.join()
        # What a shard took after it had come back is newer than what the others took.
        assert sorted(index) == [-1, *range(reported)]


def test_a_replica_answers_while_its_shard_is_stopped(opened: Open) -> None:
    with opened(1, replicas=1) as index:
        index.add_records([row(i, i, 3) for i in range(50)], KIND)
        query = query_of(1, 2, 3)
        for _ in range(30):
            before = told(index.queries.search(query, 10, ()))
        stopped = pid(index, 0)
        os.kill(stopped, signal.SIGSTOP)
        try:
            for _ in range(3):
                assert told(index.queries.search(query, 10, ())) == before  # before PATIENCE
        finally:
            os.kill(stopped, signal.SIGCONT)
        # A replica follows what the shard commits.
        index.remove(range(10))
        for _ in range(4):
            assert len(index.queries.search(query, 50, ())[0]) == 40


def test_an_answer_without_a_shard_is_an_error_or_says_so(
    opened: Open, nodes: Any, tmp_path: Path
) -> None:
    with opened(2) as index:
        index.add_records([row(i, i, 3) for i in range(50)], KIND)
        query = query_of(1, 1, 3)
        whole = index.queries.search(query, 50, (), rank="code")[0]
        assert not whole.partial
        assert whole.to_dict()["partial"] is False
        folder = tmp_path / "cluster" / "shard-000.mch"
        shutil.move(folder, tmp_path / "away")
        os.kill(pid(index, 0), signal.SIGKILL)
        with pytest.raises(ShardUnavailableError, match="shard 0 did not answer"):
            index.queries.search(query, 50, ())
        allowed = ClusterIndex.open(
            tmp_path / "cluster", address=nodes.address, timeout=PATIENCE, partial=True
        )
        with allowed:
            some = allowed.queries.search(query, 50, (), rank="code")[0]
            assert some.partial
            assert not some.exact
            assert some.to_dict()["partial"] is True
            assert set(some.ids) < set(whole.ids)
            with pytest.raises(ShardUnavailableError):
                len(allowed)
        # An empty index in its place is not taken for it.
        assert not folder.exists()
        shutil.move(tmp_path / "away", folder)
        assert told(index.queries.search(query, 50, (), rank="code")) == told(whole)


def test_a_node_that_dies_takes_no_image_with_it(opened: Open, nodes: Any) -> None:
    node = nodes.add(1)
    with opened(3, replicas=1) as index:
        index.add_records([row(i, i, 3) for i in range(50)], KIND)
        nodes.remove(node)
        query = query_of(1, 2, 3)
        assert len(index.queries.search(query, 100, ())[0]) == 50
        assert index.add_records([row(i, i, 3) for i in range(50, 60)], KIND) == (10, 0)
        assert len(index) == 60


def test_a_rebalance_that_is_killed_leaves_no_process_behind(
    opened: Open, nodes: Any, tmp_path: Path
) -> None:
    with opened(2) as index:
        index.add_records([row(i, i, 3) for i in range(60)], KIND)
        folder = tmp_path / "cluster"
        script = f"""
import os, signal
from mchindex.cluster import ClusterIndex, rebalance
rebalance.PAGE = 10
index = ClusterIndex.open({str(folder)!r}, address={nodes.address!r})
index.rebalance(3, progress=lambda step: os.kill(os.getpid(), signal.SIGKILL))
"""
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]
        filled = [str(folder / name) for name in Manifest.read(folder).moving]
        assert len(filled) == 3
        until = time.monotonic() + PATIENCE
        while users(filled) and time.monotonic() < until:
            time.sleep(0.2)
        assert not users(filled)
        index.rebalance(3, progress=False)
        assert sorted(index) == list(range(60))
        assert users([str(folder / name) for name in Manifest.read(folder).shards])


def users(folders: list[str]) -> list[str]:
    """The processes that have files open in folders."""
    found = []
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if os.readlink(link).startswith(tuple(folders)):
                found.append(link.parts[2])
    return found


def test_a_ray_that_cannot_import_mchindex_is_a_clear_error(nodes: Any, tmp_path: Path) -> None:
    """Ray imports what is in the folder that a driver is started in."""
    sources = tmp_path / "clone" / "mchindex"
    sources.mkdir(parents=True)
    (sources / "__init__.py").write_text("import mchindex._core")
    script = tmp_path / "script.py"
    script.write_text(f"""
from helpers.clusters import cluster
from mchindex.errors import StoreError
from pathlib import Path
try:
    cluster(Path({str(tmp_path)!r}) / "index", 2, {nodes.address!r})
except StoreError as error:
    print(error)
""")
    done = subprocess.run(
        [sys.executable, script], cwd=sources.parent, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    )  # fmt: skip
    assert "a node of Ray cannot import mchindex: install" in done.stdout, done.stderr[-2000:]
