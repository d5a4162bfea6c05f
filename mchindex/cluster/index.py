"""ClusterIndex: the methods of MCHIndex, for an index whose shards are actors of Ray."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial as bound
from pathlib import Path
from typing import Any

from mchindex.catalogue import Precision
from mchindex.cluster.actors import ActorOpener
from mchindex.cluster.encoding import ClusterAdding
from mchindex.cluster.manifest import (
    Manifest,
    check_replicas,
    check_resources,
    check_shards,
    shard_names,
    spread,
)
from mchindex.cluster.rebalance import rebalance
from mchindex.cluster.searching import ClusterSearcher
from mchindex.cluster.shards import LocalOpener
from mchindex.cluster.store import ClusterStore
from mchindex.cluster.table import ClusterTable
from mchindex.errors import NotAnIndexError, StoreError
from mchindex.index.adding import Adding
from mchindex.index.facade import MCHIndex
from mchindex.index.model import AnyModel
from mchindex.index.searching import Searcher
from mchindex.index.table import LiveTable
from mchindex.progress import Progress, reporting
from mchindex.storage.folder import Folder
from mchindex.storage.lock import WriterLock, checked_wait
from mchindex.storage.store import Store

SHARDS = 2  # of a new cluster
TIMEOUT = 60.0  # seconds in which a shard must answer


class ClusterIndex(MCHIndex):
    """An index in shards, with the methods of `MCHIndex`.

    An image belongs to a shard by a hash of its id. A search asks all shards, and its answer is the
    one that a single index of all images would give. Each shard answers as of one moment of its
    own, so a search that runs while images are added may see some of a commit.
    """

    _store: ClusterStore
    _opener: ActorOpener | None = None  # None: the shards are in this process
    _encoders: int | None = None
    _device: str | None = None

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        model: AnyModel | None = None,
        *,
        shards: int | None = None,
        replicas: int | None = None,
        resources: Sequence[str] | None = None,
        address: str | None = "auto",
        encoders: int | None = None,
        timeout: float = TIMEOUT,
        partial: bool = False,
        bits: int | None = None,
        create: bool = True,
        wait: float = 0.0,
        device: str | None = None,
        precision: Precision | None = None,
    ) -> ClusterIndex:
        """Opens the cluster in the folder `path`, or creates it.

        Args:
            path: The folder of the cluster.
            model: As for `MCHIndex.open`.
            shards: The number of shards of a new cluster, 2 by default; `rebalance` changes it.
            replicas: How many further processes search each shard, by default none. A replica runs
                on the machine of its shard and reads the same folder.
            resources: Names of resources of Ray, such as one per machine: the shards are spread
                over them, and each runs only where its resource is. By default, they run anywhere.
            address: That of a running Ray, "auto" for the one of this machine; "local" starts one
                that ends with this process. None opens the shards in this process, without Ray.
            encoders: How many processes encode images when many files are added: by default one per
                core that Ray has or, if `device` is "cuda", one per GPU.
            timeout: How many seconds a search waits for a shard that does not answer.
            partial: Whether a search then returns what the other shards found, with `partial` set
                in the answer, rather than raise ShardUnavailableError.
            bits: As for `MCHIndex.open`.
            create: As for `MCHIndex.open`.
            wait: As for `MCHIndex.open`.
            device: As for `MCHIndex.open`.
            precision: As for `MCHIndex.open`.

        Returns:
            The cluster. Close it, or use it in a `with` statement.

        Raises:
            NotAnIndexError: There is no cluster, and `create` is false.
            ShardUnavailableError: A shard cannot be started.
        """
        checked_wait(wait)
        if encoders is not None and (type(encoders) is not int or encoders < 1):
            raise ValueError(f"encoders must be an integer of at least 1, not {encoders!r}")
        if not timeout > 0:
            raise ValueError(f"timeout must be a number of seconds above 0, not {timeout!r}")
        folder = Path(os.path.abspath(path))
        manifest = _manifest(folder, shards, replicas, resources, create)
        opener = None if address is None else ActorOpener(address, timeout)
        store = ClusterStore(folder, manifest, opener or LocalOpener(), partial)
        index = cls(model, bits=bits, _store=store, wait=wait, device=device, precision=precision)
        index._opener, index._encoders, index._device = opener, encoders, device
        return index

    def _tables(self) -> tuple[LiveTable, Searcher]:
        if not isinstance(self._store, ClusterStore):
            raise TypeError("a cluster is a folder: call ClusterIndex.open(folder)")
        self._store.open_shards()
        live = ClusterTable(self._store, self.identity)
        return live, ClusterSearcher(self._store, live, self.identity)

    @contextmanager
    def _adding(self, batch: int, update: bool, again: bool) -> Iterator[Adding]:
        if self._opener is None:
            with super()._adding(batch, update, again) as adding:
                yield adding
            return
        start = bound(self._opener.encoders, self._store.folder_, self._store.manifest)
        adding = ClusterAdding(
            self._store,
            self._live,
            self.model,
            batch,
            update,
            again,
            start=bound(start, self._encoders, self._device),
        )  # fmt: skip
        try:
            yield adding
        finally:
            adding.close()

    @property
    def shards(self) -> int:
        """The number of shards."""
        return len(self._store.manifest.shards)

    def rebalance(
        self,
        shards: int | None = None,
        *,
        replicas: int | None = None,
        resources: Sequence[str] | None = None,
        progress: bool | Progress | None = None,
    ) -> None:
        """Moves the images to another number of shards, or to other resources.

        Searches go on; adding waits. If it is interrupted, the cluster stays as it is. Call it
        again to continue; it starts anew if images have been added, changed or removed meanwhile.

        Args:
            shards: The number of shards. By default, it stays.
            replicas: How many further processes search each shard. By default, it stays.
            resources: As for `open`.
            progress: As for `add`.
        """
        if shards is not None:
            check_shards(shards)
        if replicas is not None:
            check_replicas(replicas)
        with reporting(progress) as report:
            rebalance(self._store, shards, replicas, resources, self.wait, report)

    def stats(self) -> dict[str, Any]:
        """Like `MCHIndex.stats`, of all shards together.

        Returns:
            The sums over the shards, so a code that several shards have counts as several buckets,
            and the `shards` one by one.
        """
        parts = self._store.everywhere("stats")
        total = {
            name: sum(part[name] for part in parts)
            for name in ("images", "codes", "buckets", "bytes", "fine_images", "memory", "segments")
        }
        manifest = self._store.manifest
        anhc = total["codes"] / total["images"] if total["images"] else 0.0
        return {
            **parts[0], **total, "path": str(self.path), "anhc": anhc,
            "shards": [
                {"folder": name, "images": part["images"], "bytes": part["bytes"]}
                for name, part in zip(manifest.shards, parts, strict=True)
            ],
            "replicas": manifest.replicas,
        }  # fmt: skip

    def backup(self, path: str | os.PathLike[str]) -> None:
        """Refuses: back up each shard, an ordinary index, while nothing is added.

        Args:
            path: Not used.

        Raises:
            StoreError: Always.
        """
        raise StoreError(
            f"{self.path} is a cluster: back up each of its shards, an ordinary index, while "
            "nothing is added"
        )

    def __repr__(self) -> str:
        if self._closed:
            return f"<ClusterIndex {self.path}: closed>"
        return f"<ClusterIndex {self.path}: {len(self):,} images in {self.shards} shards>"


def _manifest(
    folder: Path,
    shards: int | None,
    replicas: int | None,
    resources: Sequence[str] | None,
    create: bool,
) -> Manifest:
    """What the cluster in a folder consists of; it is created if it is missing."""
    if shards is not None:
        check_shards(shards)
    if replicas is not None:
        check_replicas(replicas)
    wanted = None if resources is None else check_resources(resources)
    if not Manifest.exists(folder):
        if Store.exists(folder):
            raise NotAnIndexError(f"{folder} is an index of one process, not a cluster")
        if not create:
            raise NotAnIndexError(f"{folder} is not a cluster")
        folder.mkdir(parents=True, exist_ok=True)
        place = Folder(folder)
        try:
            with WriterLock(place, str(folder)).hold(10.0):
                if not Manifest.exists(folder):
                    names = shard_names(SHARDS if shards is None else shards)
                    Manifest(names, replicas or 0, spread(wanted or (), names)).write(folder)
        finally:
            place.close()
    manifest = Manifest.read(folder)
    if shards not in (None, len(manifest.shards)):
        raise ValueError(
            f"{folder} has {len(manifest.shards)} shards, not {shards}: rebalance changes that"
        )
    if wanted is not None and spread(wanted, manifest.shards) != manifest.resources:
        raise ValueError(
            f"the shards of {folder} need the resources {list(manifest.resources.values())}, not "
            f"{list(wanted)}: rebalance changes them"
        )
    if replicas not in (None, manifest.replicas):
        raise ValueError(
            f"{folder} has {manifest.replicas} replicas per shard, not {replicas}: rebalance "
            "changes that"
        )
    return manifest
