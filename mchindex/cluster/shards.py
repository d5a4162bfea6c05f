"""The shards of a cluster, however they are reached."""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mchindex.cluster.manifest import FILE, Manifest
from mchindex.cluster.shard import Shard, create
from mchindex.errors import ShardsMovedError
from mchindex.index.backup import MODEL_FOLDER


class Shards(ABC):
    """The shards of one generation of a cluster."""

    def __init__(self, folder: Path, manifest: Manifest, names: Sequence[str]) -> None:
        """`names` are the folders of the shards: those of the manifest, or those to be filled."""
        self.folder, self.manifest, self.names = folder, manifest, tuple(names)
        self._file = os.fspath(folder / FILE)
        self._looked_at: tuple[int, int] | None = None  # the file of the manifest

    def __len__(self) -> int:
        return len(self.names)

    def check_current(self) -> None:
        """Raises ShardsMovedError if a rebalance has replaced these shards."""
        seen = os.stat(self._file)
        if (now := (seen.st_ino, seen.st_mtime_ns)) != self._looked_at:
            if Manifest.read(self.folder).generation > self.manifest.generation:
                raise ShardsMovedError(f"{self.folder} has been rebalanced: open it again")
            self._looked_at = now

    @abstractmethod
    def ask(
        self, name: str, arguments: Mapping[int, Sequence[Any]], *, change: bool = False
    ) -> dict[int, Any]:
        """Calls a method of some shards, by their numbers, at the same time.

        A `change` is made by the shard itself, never by a replica. Raises what the method raises,
        ShardUnavailableError, and ShardsMovedError. The `answers` of a StaleWriteError and of a
        ShardUnavailableError are those of the other shards.
        """

    def all(self, name: str, *arguments: Any, change: bool = False) -> list[Any]:
        """Calls a method of all shards; returns their answers in the order of the shards."""
        found = self.ask(name, dict.fromkeys(range(len(self)), arguments), change=change)
        return [found[i] for i in range(len(self))]

    @abstractmethod
    def close(self) -> None:
        """Lets the shards go; they stay as they are."""


class Opener(ABC):
    """Creates, opens and deletes shards."""

    @abstractmethod
    def create(self, folder: Path, manifest: Manifest, names: Sequence[str]) -> None:
        """Creates the indexes of shards that do not exist yet."""

    @abstractmethod
    def open(
        self, folder: Path, manifest: Manifest, names: Sequence[str], *, filling: bool = False
    ) -> Shards:
        """Opens shards; with `filling` for this process alone, until it closes them or ends."""

    @abstractmethod
    def delete(self, folder: Path, manifest: Manifest, names: Sequence[str]) -> None:
        """Ends shards that nobody needs any more, and deletes their folders."""

    @abstractmethod
    def end_replicas(self, folder: Path, manifest: Manifest) -> None:
        """Ends the replicas that a manifest no longer names."""


class LocalOpener(Opener):
    """Opens shards in this process, without Ray."""

    def create(self, folder: Path, manifest: Manifest, names: Sequence[str]) -> None:
        for name in names:
            create(folder / name, manifest.facts, manifest.place(name), model_of(folder))

    def open(
        self, folder: Path, manifest: Manifest, names: Sequence[str], *, filling: bool = False
    ) -> Shards:
        return _LocalShards(folder, manifest, names)

    def delete(self, folder: Path, manifest: Manifest, names: Sequence[str]) -> None:
        for name in names:
            shutil.rmtree(folder / name, ignore_errors=True)

    def end_replicas(self, folder: Path, manifest: Manifest) -> None:
        """There are none: every process reads the shards itself."""


class _LocalShards(Shards):
    """Shards in this process."""

    def __init__(self, folder: Path, manifest: Manifest, names: Sequence[str]) -> None:
        super().__init__(folder, manifest, names)
        self._shards = [Shard(str(folder / name), manifest.place(name)) for name in self.names]

    def ask(
        self, name: str, arguments: Mapping[int, Sequence[Any]], *, change: bool = False
    ) -> dict[int, Any]:
        self.check_current()
        return {i: self._shards[i].call(name, *given) for i, given in arguments.items()}

    def close(self) -> None:
        for shard in self._shards:
            shard.close()


def model_of(folder: Path) -> Path | None:
    """The folder of a cluster's model, if it does not ship."""
    own = folder / MODEL_FOLDER
    return own if own.is_dir() else None
