"""Moves the images of a cluster to another number of shards.

New shards are filled while the old ones answer searches. The manifest names the new ones when they
are complete, in one step; then the old ones are deleted. Images keep their keys, so answers whose
records have not been read yet stay valid. Adding waits: the writer's lock is held all the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mchindex.cluster.manifest import Manifest, check_resources, spread
from mchindex.cluster.placing import by_shard, shard_of
from mchindex.cluster.shards import Shards
from mchindex.cluster.store import ClusterStore
from mchindex.progress import Progress, Step
from mchindex.storage.records import Row

PAGE = 1000  # images that are copied at a time
TOKEN = "rebalance"  # noqa: S105  # names the writer, see `Shard.begin`


def rebalance(
    store: ClusterStore,
    number: int,
    resources: Sequence[str] | None,
    wait: float,
    progress: Progress,
) -> None:
    store.rebalancing = True
    try:
        with store.writer(wait):
            _rebalance(store, number, resources, progress)
    finally:
        store.rebalancing = False


def _rebalance(
    store: ClusterStore, number: int, resources: Sequence[str] | None, progress: Progress
) -> None:
    manifest = replace(Manifest.read(store.folder_), replicas=store.manifest.replicas)
    needed = list(manifest.resources.values()) if resources is None else check_resources(resources)
    if number == len(manifest.shards) and spread(needed, manifest.shards) == manifest.resources:
        store.save(manifest.give_up_moving())
    elif len(manifest.moving) == number and _agrees(manifest, needed):
        store.save(manifest)
    else:
        names = manifest.more_shards(number)
        manifest = replace(
            manifest.give_up_moving(), moving=names,
            resources={**manifest.resources, **spread(needed, names)},
        )  # fmt: skip
        store.save(manifest)
    store.delete_leftovers()
    if store.manifest.moving:
        filled = store.shards_to_fill()
        try:
            _fill(store, filled, progress)
        finally:
            filled.close()
        store.save(store.manifest.moved())
        store.follow()
        store.delete_leftovers()


def _agrees(manifest: Manifest, resources: Sequence[str]) -> bool:
    """Whether the shards that are being filled need these resources."""
    needed = {name: manifest.resources.get(name) for name in manifest.moving}
    return needed == {name: None for name in manifest.moving} | spread(resources, manifest.moving)


def _fill(store: ClusterStore, filled: Shards, progress: Progress) -> None:
    """Copies all images. A shard is filled in the order of keys, so its last key says what it
    already has."""
    last = filled.all("begin", TOKEN, change=True)
    total, after = store.state().images, min(last)
    done = sum(state[0] for state in filled.all("state"))
    number = len(filled)
    while rows := store.copies(after, PAGE):
        missing = [row for row in rows if row.key > last[shard_of(row.id, number)]]
        groups = by_shard(missing, _id, number)
        calls = {i: (TOKEN, own, [row.key for row in own]) for i, own in groups.items()}
        filled.ask("insert", calls, change=True)
        after = rows[-1].key
        done += len(missing)
        progress(Step("moving", done, total, {}, "images"))
    decisions = by_shard(store.decisions().items(), lambda pair: pair[0], number)
    filled.ask("decide", {i: (dict(own),) for i, own in decisions.items()}, change=True)
    if (copied := sum(state[0] for state in filled.all("state"))) != total:
        raise AssertionError(f"{copied} of {total} images were copied")


def _id(row: Row) -> str | int:
    return row.id
