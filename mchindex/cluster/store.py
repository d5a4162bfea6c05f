"""The records of a cluster: what `Store` offers to an index, asked of the shards."""

from __future__ import annotations

import builtins
import contextlib
import heapq
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from mchindex.cluster.manifest import Manifest
from mchindex.cluster.placing import by_shard
from mchindex.cluster.shards import Opener, Shards
from mchindex.errors import (
    ShardsMovedError,
    ShardUnavailableError,
    StaleWriteError,
    StoreError,
)
from mchindex.storage.folder import Folder
from mchindex.storage.lock import WriterLock
from mchindex.storage.records import Id, Known, Row
from mchindex.storage.schema import State
from mchindex.storage.store import Facet, Store

CREATING = 60.0  # seconds to wait for another process that creates the same cluster
PAGE = 1000  # records read from a shard at a time
TRIES = 5  # with new shards, or new keys, before something else must be wrong
T = TypeVar("T")


class ClusterStore(Store):
    """The records of all shards. It has no connections of its own: each shard has a store."""

    def __init__(
        self, folder: Path, manifest: Manifest, opener: Opener, partial_ok: bool = False
    ) -> None:
        """With `partial_ok`, searches do without shards that do not answer."""
        self.name, self.folder = str(folder), folder
        self._place = Folder(folder)
        self._writer = WriterLock(self._place, self.name)
        self._opener, self._partial_ok = opener, partial_ok
        self._lock = threading.RLock()
        self._manifest = manifest
        self._shards: Shards | None = None
        self._closed = False
        self._token, self._next_key = "", 0  # within `writer`: see `Shard.begin`
        self.rebalancing = False

    @property
    def manifest(self) -> Manifest:
        return self._manifest

    def open_shards(self) -> None:
        """Opens the shards, which are created first if the cluster is new."""
        if not self._manifest.created:
            with self.writer(CREATING):
                if not self._manifest.created:  # another process may have been first
                    self._opener.create(self.folder_, self._manifest, self._manifest.shards)
                    self.save(replace(self._manifest, created=True))
        self._shards = self._opener.open(self.folder_, self._manifest, self._manifest.shards)

    @property
    def folder_(self) -> Path:
        assert self.folder is not None
        return self.folder

    def shards_to_fill(self) -> Shards:
        """New shards, or those that an interrupted rebalance has begun to fill."""
        manifest = self._manifest
        self._opener.create(self.folder_, manifest, manifest.moving)
        return self._opener.open(self.folder_, manifest, manifest.moving, filling=True)

    def start_filled(self) -> None:
        """Starts the processes of the shards that a rebalance has filled: searches that follow it
        would wait for them."""
        started = self._opener.open(self.folder_, self._manifest, self._manifest.moving)
        try:
            started.all("pid")
        finally:
            started.close()

    def delete_leftovers(self) -> None:
        """Within `writer`: deletes shards that are no longer needed."""
        manifest = self._manifest
        if manifest.leftover:
            self._opener.delete(self.folder_, manifest, manifest.leftover)
            self.save(manifest.clean())

    def save(self, manifest: Manifest) -> None:
        """Within `writer`: makes the cluster what a manifest says."""
        manifest.write(self.folder_)
        self._manifest = manifest

    def follow(self) -> None:
        """Asks the shards that a rebalance has filled from now on."""
        assert self._shards is not None
        self._reload(self._shards)
        self._opener.end_replicas(self.folder_, self._manifest)

    def run(self, work: Callable[[Shards], T]) -> T:
        """Runs what asks shards, again if a rebalance has replaced them meanwhile."""
        for _ in range(TRIES):
            self.check_open()
            shards = self._shards
            assert shards is not None
            try:
                return work(shards)
            except (ShardsMovedError, ShardUnavailableError):
                if not self._reload(shards):
                    raise
        raise StoreError(f"{self.name} is being rebalanced again and again: try later")

    def _reload(self, old: Shards) -> bool:
        """Looks the shards up again; returns whether they are others now."""
        with self._lock:
            if self._shards is not old:
                return True
            manifest = Manifest.read(self.folder_)
            if manifest.generation == old.manifest.generation:
                return False
            self._manifest = manifest
            self._shards = self._opener.open(self.folder_, manifest, manifest.shards)
            old.close()
            return True

    def answering(self, shards: Shards, name: str, *arguments: Any) -> list[Any]:
        """The answers of all shards, or of those that answer, if that is allowed."""
        try:
            return shards.all(name, *arguments)
        except ShardUnavailableError as error:
            if not self._partial_ok or not error.answers:
                raise
            return [error.answers[i] for i in sorted(error.answers)]

    def everywhere(self, name: str, *arguments: Any) -> list[Any]:
        """The answers of all shards."""
        return self.run(lambda shards: shards.all(name, *arguments))

    def _each(self, name: str, things: Iterable[Any], id_of: Callable[[Any], Id]) -> list[Any]:
        """The answers of the shards that things belong to, each asked for its own."""
        given = list(things)

        def work(shards: Shards) -> list[Any]:
            groups = by_shard(given, id_of, len(shards))
            return list(shards.ask(name, {i: (own,) for i, own in groups.items()}).values())

        return self.run(work)

    # Its life.

    @property
    def forked(self) -> bool:
        return False

    def close(self) -> None:
        with self._lock:
            if not self._closed:
                self._closed = True
                if self._shards is not None:
                    self._shards.close()
                assert self._place is not None
                self._place.close()

    def check_open(self) -> None:
        if self._closed:
            raise ValueError(f"{self.name} is closed")

    def check_schema(self) -> None:
        """Shards check theirs when they are opened."""

    def is_in_place(self) -> bool:
        return True

    @contextlib.contextmanager
    def reading(self) -> Iterator[Any]:
        raise StoreError(
            f"{self.name} is a cluster, whose shards have the records: this is not possible"
        )
        yield

    transaction = reading

    @contextlib.contextmanager
    def one_state(self) -> Iterator[None]:
        """Shards are asked one by one: each answers as of one moment of its own."""
        self.check_open()
        yield

    @contextlib.contextmanager
    def writer(self, wait: float = 0.0, spare: str | None = None) -> Iterator[None]:
        """Makes this the only writer of the cluster."""
        self.check_open()
        with self._writer.hold(wait):
            self._token = ""  # another process may have written meanwhile
            if self._shards is not None:
                self._reload(self._shards)
            if not self.rebalancing:
                self._manifest = Manifest.read(self.folder_)
                if self._manifest.moving:  # what a rebalance has copied would be outdated
                    self.save(self._manifest.give_up_moving())
            yield

    # Facts about the cluster itself.

    def get(self, name: str) -> Any:
        return self._manifest.uuid if name == "uuid" else self._manifest.facts.get(name)

    def set(self, **facts: Any) -> None:
        self.save(self._manifest.with_facts(**facts))
        if self._shards is not None:
            every = {i: [facts] for i in range(len(self._shards))}
            self._change("set_facts", every, lambda groups: {i: (facts,) for i in groups})

    def __len__(self) -> int:
        return 0 if self._shards is None else self.state().images

    def state(self) -> State:
        states = [State(*own) for own in self.everywhere("state")]
        total = State(*(sum(column) for column in zip(*states, strict=True)))
        return total._replace(key=max(state.key for state in states))

    def version(self) -> tuple[int, int]:
        return hash(tuple(map(tuple, self.everywhere("version")))), self._manifest.generation

    def bytes(self) -> int:
        return sum(stats["bytes"] for stats in self.everywhere("stats"))

    def room(self) -> int:
        return 1 << 62  # each shard looks after the disk that it is on

    # Reading.

    def known(self, ids: Iterable[Id]) -> dict[Id, Known]:
        return _joined(self._each("known", ids, _itself))

    def rows(self, keys: Sequence[int], *, missing_ok: bool = False) -> dict[int, Row]:
        wanted = list(keys)
        if not wanted:
            return {}
        found: dict[int, Row] = {}
        try:
            parts = self.everywhere("rows", wanted)
        except ShardUnavailableError as error:
            parts = list(error.answers.values())
            if len({key for rows in parts for key in rows}) < len(set(wanted)):
                raise
        for rows in parts:
            # A shard that an image has left only knows that it is gone.
            found.update({key: row for key, row in rows.items() if row.codes or key not in found})
        if len(found) < len(set(wanted)) and not missing_ok:
            raise StoreError("images were removed since the search: search again")
        return found

    def rows_of(self, ids: Sequence[Id]) -> dict[Id, Row]:
        return _joined(self._each("rows_of", ids, _itself))

    def row(self, id: Id) -> Row | None:
        return self.rows_of([id]).get(id)

    def fine(self, keys: Sequence[int]) -> dict[int, builtins.bytes]:
        return _joined(self.everywhere("fine", list(keys)))

    def page(self, after: int, limit: int, conditions: Mapping[str, Any] | None) -> list[Row]:
        pages = self.everywhere("page", after, limit, conditions)
        return list(heapq.merge(*pages, key=lambda row: row.key))[:limit]

    def each(self) -> Iterator[Row]:
        last = 0
        while rows := self.page(last, PAGE, None):
            yield from rows
            last = rows[-1].key

    def copies(self, after: int, limit: int) -> list[Row]:
        """Like `page`, with all codes, as `insert` takes them."""
        pages = self.everywhere("copies", after, limit)
        return list(heapq.merge(*pages, key=lambda row: row.key))[:limit]

    def matching(self, conditions: Mapping[str, Any]) -> NDArray[np.int64]:
        keys = self.everywhere("matching", dict(conditions))
        return np.sort(np.concatenate([np.array(own, np.int64) for own in keys]))

    def ids(self, keys: Sequence[int]) -> list[Id]:
        names: dict[int, Id] = _joined(self.everywhere("ids", list(keys)))
        return [names[key] for key in sorted(names)]

    def facets(self, most: int, mixed: bool = False) -> list[Facet]:
        several: dict[str, list[Facet]] = {}
        for facets in self.everywhere("facets", most):
            for facet in facets:
                several.setdefault(facet.name, []).append(facet)
        merged = [_merged_facet(own, most) for _, own in sorted(several.items())]
        return [facet for facet in merged if facet is not None]

    def decisions(self) -> dict[Id, str]:
        found: dict[Id, str] = _joined(self.everywhere("decisions"))
        keys = {id: known.key for id, known in self.known(found).items()}
        return {id: found[id] for id in sorted(keys, key=lambda id: keys[id])}

    def next_id(self) -> int:
        numbers: list[int] = self.everywhere("next_id")
        return max(numbers)

    # Writing, within `writer`.

    def insert_rows(self, rows: Sequence[Row]) -> dict[Id, Known]:
        """Stores images; returns those that they replaced. Their keys are above all others."""
        latest = {row.id: row for row in rows}

        def arguments(groups: Mapping[int, list[Row]]) -> dict[int, tuple[Any, ...]]:
            left = {row.id for own in groups.values() for row in own}
            ordered = [id for id in latest if id in left]
            keys = {id: self._next_key + i for i, id in enumerate(ordered)}
            self._next_key += len(left)
            return {i: (own, [keys[row.id] for row in own]) for i, own in groups.items()}

        groups = self._grouped(latest.values(), _id_of_row)
        return _joined(self._change("insert", groups, arguments))

    def remove_ids(self, ids: Sequence[Id]) -> int:
        there = self.known(ids)  # a shard that is asked again would have removed none
        self._change("remove", self._grouped(there, _itself), _each_as(list))
        return len(there)

    def touch(self, ids: dict[Id, dict[str, Any]]) -> None:
        self._change("touch", self._grouped(ids.items(), _first), _each_as(dict))

    def decide(self, decisions: Mapping[Id, str | None]) -> list[Id]:
        found = self._change("decide", self._grouped(decisions.items(), _first), _each_as(dict))
        return [id for ids in found for id in ids]

    def _grouped(self, things: Iterable[T], id_of: Callable[[T], Id]) -> dict[int, list[T]]:
        """Things by the shard that they belong to. No rebalance ends while this is the writer."""
        return by_shard(things, id_of, len(self._manifest.shards))

    def _change(
        self,
        name: str,
        groups: Mapping[int, list[T]],
        arguments: Callable[[Mapping[int, list[T]]], Mapping[int, tuple[Any, ...]]],
    ) -> list[Any]:
        """The answers of shards to a method that changes something, given what it is to change in
        each. `arguments` makes the arguments of that, without the writer's token."""
        answers: list[Any] = []
        for _ in range(TRIES):
            if not groups:
                return answers
            if not self._token:
                self._token = uuid.uuid4().hex
                last = self.run(lambda shards: shards.all("begin", self._token, change=True))
                self._next_key = 1 + max(last)
            calls = {i: (self._token, *own) for i, own in arguments(groups).items()}
            try:
                answers += self.run(partial(_called, name=name, calls=calls)).values()
                return answers
            except StaleWriteError as error:
                # A shard has been restarted, and knows no writer. The others are done.
                answers += error.answers.values()
                groups = {i: own for i, own in groups.items() if i not in error.answers}
                self._token = ""
        raise StoreError(f"{self.name}: another process writes to its shards: end it")


def _called(shards: Shards, name: str, calls: Mapping[int, Sequence[Any]]) -> dict[int, Any]:
    return shards.ask(name, calls, change=True)


def _each_as(kind: Callable[[list[Any]], Any]) -> Callable[[Mapping[int, list[Any]]], Any]:
    """Gives each shard its things as one argument."""
    return lambda groups: {i: (kind(own),) for i, own in groups.items()}


def _itself(id: Any) -> Id:
    name: Id = id
    return name


def _id_of_row(row: Row) -> Id:
    return row.id


def _first(pair: Any) -> Id:
    name: Id = pair[0]
    return name


def _joined(parts: Iterable[Mapping[Any, Any]]) -> dict[Any, Any]:
    return {key: value for part in parts for key, value in part.items()}


def _merged_facet(several: Sequence[Facet], most: int) -> Facet | None:
    first = several[0]
    if first.kind == "mixed" or any(facet.kind != first.kind for facet in several):
        return None
    values: list[Any] | None = None
    if all(facet.values is not None for facet in several):
        values = sorted({value for facet in several for value in facet.values or ()})
        if len(values) > most and first.kind != "boolean":
            values = None
    if first.kind != "number":
        return Facet(first.name, first.kind, values, None, None)
    lows = [facet.low for facet in several if facet.low is not None]
    highs = [facet.high for facet in several if facet.high is not None]
    return Facet(first.name, first.kind, values, min(lows), max(highs))
