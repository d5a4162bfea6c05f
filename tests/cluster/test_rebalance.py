"""Moving the images of a cluster to another number of shards."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from helpers.clusters import KIND, cluster, query_of, row, told
from mchindex.cluster import ClusterIndex, rebalance
from mchindex.cluster.manifest import Manifest
from mchindex.errors import NotAnIndexError, StoreDamagedError, StoreVersionError


class StopError(Exception):
    """Stands for the end of the process."""


def filled(folder: Path, shards: int) -> ClusterIndex:
    index = cluster(folder, shards)
    index.add_records([row(i, i, 3) for i in range(60)], KIND)
    index.remove(range(0, 60, 7))
    index.decide({8: "keep", 9: "discard"})
    return index


def state(index: ClusterIndex) -> list[Any]:
    ranks: tuple[Any, ...] = ("code", "best", "fine")
    query = query_of(1, 3, 3)
    return [
        list(index), index.decisions(), [image.metadata for image in index.images()],
        *(told(index.queries.search(query, 20, (), rank=rank)) for rank in ranks),
    ]  # fmt: skip


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 2), (2, 5)])
def test_a_cluster_stays_the_same_with_other_shards(
    tmp_path: Path, before: int, after: int
) -> None:
    with filled(tmp_path / "c", before) as index:
        expected = state(index)
        waiting = index.queries.search(query_of(1, 3, 3), 5, ())  # its records are not read yet
        other = ClusterIndex.open(tmp_path / "c", address=None)
        index.rebalance(after, progress=False)
        assert index.shards == after
        assert state(index) == expected
        assert [hits.ids for hits in waiting] == [
            hits.ids for hits in index.queries.search(query_of(1, 3, 3), 5, ())
        ]
        with other:  # it was opened before, and follows
            assert state(other) == expected
            other.add_records([row(100, 1, 3)], KIND)
        assert 100 in index
        names = {path.name for path in (tmp_path / "c").glob("shard-*")}
        assert names == set(Manifest.read(tmp_path / "c").shards)


@pytest.mark.parametrize("changed", [False, True])
def test_an_interrupted_rebalance_can_be_continued(tmp_path: Path, changed: bool) -> None:
    with mock.patch.object(rebalance, "PAGE", 10), filled(tmp_path / "c", 2) as index:
        expected = state(index)
        for stop_at in (1, 2, 3):
            pages = 0

            def stop(step: Any, last: int = stop_at) -> None:
                nonlocal pages
                pages += 1
                if pages == last:
                    raise StopError

            with pytest.raises(StopError):
                index.rebalance(3, progress=stop)
            assert index.shards == 2
            with ClusterIndex.open(tmp_path / "c", address=None) as again:
                assert state(again) == expected
        begun = Manifest.read(tmp_path / "c").moving
        assert len(begun) == 3
        if changed:  # what was copied is outdated
            index.set_metadata(1, {"new": True})
            index.remove([2])
            expected = state(index)
        copied: list[int] = []
        index.rebalance(3, progress=lambda step: copied.append(step.done))
        assert (Manifest.read(tmp_path / "c").shards == begun) is not changed
        assert (copied[0] > 10) is not changed
        assert state(index) == expected
        assert len(list((tmp_path / "c").glob("shard-*"))) == 3


def test_a_manifest_that_is_damaged_or_new_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotAnIndexError):
        ClusterIndex.open(tmp_path / "none", address=None, create=False)
    filled(tmp_path / "c", 2).close()
    file = tmp_path / "c" / "cluster.json"
    good = file.read_text()
    for bad in ("{", "[]", good.replace("shard-000", "../shard"), good.replace('"shards"', '"x"')):
        file.write_text(bad)
        with pytest.raises(StoreDamagedError):
            ClusterIndex.open(tmp_path / "c", address=None)
    file.write_text(
        good.replace('"version": 1', '"version": 9').replace('"version":1', '"version":9')
    )
    with pytest.raises(StoreVersionError, match="update mchindex"):
        ClusterIndex.open(tmp_path / "c", address=None)
    file.write_text(good)
    with pytest.raises(ValueError, match="has 2 shards, not 3"):
        ClusterIndex.open(tmp_path / "c", address=None, shards=3)
    # Shards that have changed places would answer for images that they do not have.
    folder = tmp_path / "c"
    (folder / "shard-000.mch").rename(folder / "x")
    (folder / "shard-001.mch").rename(folder / "shard-000.mch")
    (folder / "x").rename(folder / "shard-001.mch")
    with pytest.raises(NotAnIndexError, match="belongs elsewhere"):
        ClusterIndex.open(folder, address=None)
