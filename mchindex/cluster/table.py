"""The tables of a cluster: what `LiveTable` offers to an index, asked of the shards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

from mchindex._core import BucketTable, FineTable
from mchindex.cluster.shard import Facts
from mchindex.cluster.store import ClusterStore
from mchindex.index.identity import FineIdentity, Identity
from mchindex.index.table import LiveTable, S, T, Tables, new_fine_table
from mchindex.storage.records import Id, Known, Row


class ClusterTable(LiveTable):
    """The tables of all shards, which follow their stores themselves."""

    def __init__(self, store: ClusterStore, identity: Identity) -> None:
        self._cluster, self._identity = store, identity
        self.seen: Facts | None = None  # what the shards held when they were last asked

    def facts(self) -> Facts:
        """How much all shards hold, now."""
        self.seen = Facts.total(self._cluster.everywhere("facts"))
        return self.seen

    def refresh(self) -> None:
        self._cluster.check_open()

    @property
    def fine_kind(self) -> FineIdentity | None:
        return FineIdentity.of_store(self._cluster)

    @property
    def fine(self) -> FineTable | None:
        """An empty table of the same kind: the fine codes are in the shards."""
        kind = self.fine_kind
        return None if kind is None else new_fine_table(self._identity, kind)

    def use_fine(self, fine: FineIdentity) -> None:
        """Shards use what their stores say."""

    @property
    def without_fine(self) -> int:
        return (self.seen or self.facts()).without_fine

    @property
    def images(self) -> int:
        return self._cluster.state().images

    @property
    def current(self) -> BucketTable:
        raise NotImplementedError("the tables of a cluster are in its shards")

    @contextmanager
    def writing(self, wait: float, *, removing: bool = False) -> Iterator[None]:
        with self._cluster.writer(wait):
            self._cluster.forget_keys()
            yield

    def insert(
        self, rows: Sequence[Row], keys: Sequence[int] | None = None
    ) -> Mapping[Id, Known]:
        self.seen = None
        return self._cluster.insert_rows(rows)

    def remove(self, ids: Sequence[Id]) -> int:
        self.seen = None
        return self._cluster.remove_ids(ids)

    def consistently(
        self, select: Callable[[], S] | None, work: Callable[[Tables, S | None], T]
    ) -> T:
        """Runs what needs all fine codes at once, such as looking for duplicates: they are copied
        to the memory of this process."""
        fine = self.fine
        contents = [] if fine is None else self._cluster.everywhere("content")
        buckets = BucketTable(self._identity.bits)
        if fine is not None and contents:
            keys = np.concatenate([own["keys"] for own in contents])
            codes = [
                code for own in contents for code in np.split(own["codes"], np.cumsum(own["counts"])[:-1])
            ]
            order = np.argsort(keys)
            counts = np.concatenate([own["counts"] for own in contents])[order]
            if len(keys):
                packed = np.concatenate([codes[i] for i in order])
                every = np.concatenate([own["fine"] for own in contents])[order]
                fine.add(keys[order], every, counts, packed)
                buckets.add(np.repeat(keys[order], counts), packed)
        return work(Tables(buckets, fine), None if select is None else select())
