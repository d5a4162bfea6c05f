"""The tables of a cluster: what `LiveTable` offers to an index, asked of the shards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
        self._kind: FineIdentity | None = None
        self._empty_fine: FineTable | None = None
        self.seen: Facts | None = None  # what the shards held when they were last asked

    def facts(self) -> Facts:
        """How much the shards hold, now."""
        store = self._cluster
        self.seen = Facts.total(store.run(lambda s: store.answering(s, "facts")))
        return self.seen

    def refresh(self) -> None:
        self._cluster.check_open()

    @property
    def fine_kind(self) -> FineIdentity | None:
        if self._kind is None:  # an index that has fine codes keeps their kind
            self._kind = FineIdentity.of_store(self._cluster)
        return self._kind

    @property
    def fine(self) -> FineTable | None:
        """An empty table of the same kind: the fine codes are in the shards."""
        if self._empty_fine is None and (kind := self.fine_kind) is not None:
            self._empty_fine = new_fine_table(self._identity, kind)
        return self._empty_fine

    def fine_codes(self, keys: Sequence[int]) -> dict[int, NDArray[np.uint8]]:
        found = self._cluster.everywhere("fine_codes", list(keys))
        return {key: codes for own in found for key, codes in own.items()}

    def in_bucket(self, codes: NDArray[np.uint8]) -> list[int]:
        found = self._cluster.everywhere("in_bucket", codes)
        return [sum(counts) for counts in zip(*found, strict=True)]

    def use_fine(self, fine: FineIdentity) -> None:
        """Shards use what their stores say."""

    @property
    def without_fine(self) -> int:
        if self.seen is not None and not self.seen.without_fine:
            return 0
        return self.facts().without_fine

    @property
    def images(self) -> int:
        return self._cluster.state().images

    @contextmanager
    def writing(self, wait: float, *, removing: bool = False) -> Iterator[None]:
        with self._cluster.writer(wait):
            yield

    def insert(self, rows: Sequence[Row], keys: Sequence[int] | None = None) -> Mapping[Id, Known]:
        self.seen = None
        return self._cluster.insert_rows(rows)

    def remove(self, ids: Sequence[Id]) -> int:
        self.seen = None
        return self._cluster.remove_ids(ids)

    def consistently(
        self, select: Callable[[], S] | None, work: Callable[[Tables, S | None], T]
    ) -> T:
        """Runs what needs all fine codes at once, such as looking for duplicates: they are copied
        to the memory of this process. The bucket table has the images, but not their codes."""
        buckets = BucketTable(self._identity.bits)
        kind = self.fine_kind
        fine = None if kind is None else new_fine_table(self._identity, kind)
        contents: list[dict[str, NDArray[Any]]] = []
        for keys, content in self._cluster.everywhere("content"):
            if len(keys):
                buckets.add(keys, np.zeros((len(keys), self._identity.bits // 8), np.uint8))
            if content is not None and len(content["keys"]):
                contents.append(content)
        if fine is not None and contents:
            keys, every, counts, codes = (
                np.concatenate([own[name] for own in contents])
                for name in ("keys", "fine", "counts", "codes")
            )
            order = np.argsort(keys)
            owners = np.argsort(np.repeat(keys, counts), kind="stable")
            fine.add(keys[order], every[order], counts[order], codes[owners])
        return work(Tables(buckets, fine), None if select is None else select())
