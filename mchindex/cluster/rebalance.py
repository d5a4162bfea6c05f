"""Moves the images of a cluster to another number of shards.

New shards are filled while the old ones answer searches. The manifest names the new ones when they
are complete, in one step; then the old ones are deleted. Images keep their keys, so answers whose
records have not been read yet stay valid. Adding waits: the writer's lock is held all the time.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace

from mchindex.cluster.manifest import Manifest, check_resources, spread
from mchindex.cluster.placing import by_shard, shard_of
from mchindex.cluster.shards import Shards
from mchindex.cluster.store import ClusterStore
from mchindex.errors import StaleWriteError, StoreDamagedError
from mchindex.progress import Progress, Step
from mchindex.storage.records import Row

PAGE = 1000  # images that are copied at a time


def rebalance(
    store: ClusterStore,
    number: int | None,
    replicas: int | None,
    resources: Sequence[str] | None,
    wait: float,
    progress: Progress,
) -> None:
    """See `ClusterIndex.rebalance`; None leaves something as it is."""
    store.rebalancing = True
    try:
        with store.writer(wait):
            _prepare(store, number, replicas, resources)
            store.delete_leftovers()
            if store.manifest.moving:
                filled = store.shards_to_fill()
                try:
                    _fill(store, filled, progress)
                finally:
                    filled.close()
                store.start_filled()
                store.save(store.manifest.moved())
                store.follow()
                store.delete_leftovers()
    finally:
        store.rebalancing = False


def _prepare(
    store: ClusterStore,
    number: int | None,
    replicas: int | None,
    resources: Sequence[str] | None,
) -> None:
    """Decides which shards to fill: none, those that an earlier call began with, or new ones."""
    manifest = Manifest.read(store.folder_)
    if replicas not in (None, manifest.replicas):
        assert replicas is not None
        manifest = replace(manifest, replicas=replicas, generation=manifest.generation + 1)
        store.save(manifest)
        store.follow()
    number = len(manifest.shards) if number is None else number
    own = manifest.resources
    needed = check_resources(resources or [own[name] for name in manifest.shards if name in own])
    if number == len(manifest.shards) and _run_on(manifest, manifest.shards, needed):
        store.save(manifest.give_up_moving())
    elif len(manifest.moving) == number and _run_on(manifest, manifest.moving, needed):
        store.save(manifest)
    else:
        names = manifest.more_shards(number)
        manifest = replace(
            manifest.give_up_moving(), moving=names,
            resources={**manifest.resources, **spread(needed, names)},
        )  # fmt: skip
        store.save(manifest)


def _run_on(manifest: Manifest, names: Sequence[str], resources: Sequence[str]) -> bool:
    """Whether shards need these resources."""
    needed = spread(resources, names)
    return all(manifest.resources.get(name) == needed.get(name) for name in names)


def _fill(store: ClusterStore, filled: Shards, progress: Progress) -> None:
    """Copies all images. A shard is filled in the order of keys, so its last key says what it
    already has."""
    token = uuid.uuid4().hex  # names the writer, see `Shard.begin`
    last: list[int] = filled.all("begin", token, change=True)
    total, number, after = store.state().images, len(filled), min(last)
    while rows := store.copies(after, PAGE):
        missing = [row for row in rows if row.key > last[shard_of(row.id, number)]]
        groups = by_shard(missing, _id, number)
        calls = {i: (token, own, [row.key for row in own]) for i, own in groups.items()}
        try:
            filled.ask("insert", calls, change=True)
        except StaleWriteError:  # a shard was restarted
            last = filled.all("begin", token, change=True)
            continue
        after = rows[-1].key
        done = sum(state[0] for state in filled.all("state"))
        progress(Step("moving", done, total, {}, "images"))
    decisions = by_shard(store.decisions().items(), lambda pair: pair[0], number)
    while decisions:
        try:
            filled.ask(
                "decide", {i: (token, dict(own)) for i, own in decisions.items()}, change=True
            )
            break
        except StaleWriteError:
            filled.all("begin", token, change=True)
    if (copied := sum(state[0] for state in filled.all("state"))) != total:
        raise StoreDamagedError(f"{store.name}: only {copied} of {total} images could be copied")


def _id(row: Row) -> str | int:
    return row.id
