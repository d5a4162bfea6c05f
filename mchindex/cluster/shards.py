"""The shards of a cluster, however they are reached."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mchindex.cluster.manifest import Manifest
from mchindex.cluster.shard import Shard
from mchindex.index.backup import MODEL_FOLDER


class Shards(ABC):
    """The shards of one generation of a cluster."""

    def __init__(self, folder: Path, manifest: Manifest, names: Sequence[str]) -> None:
        """`names` are the folders of the shards: those of the manifest, or those to be filled."""
        self.folder, self.manifest, self.names = folder, manifest, tuple(names)

    def __len__(self) -> int:
        return len(self.names)

    @property
    def model(self) -> str | None:
        """The folder of a model that does not ship."""
        own = self.folder / MODEL_FOLDER
        return str(own) if own.is_dir() else None

    @abstractmethod
    def ask(
        self, name: str, arguments: Mapping[int, Sequence[Any]], *, change: bool = False
    ) -> dict[int, Any]:
        """Calls a method of some shards, by their numbers, at the same time.

        A `change` is made by the shard itself, never by a replica. Raises what the method raises,
        and ShardUnavailableError, whose `answers` are those of the other shards.
        """

    def all(self, name: str, *arguments: Any, change: bool = False) -> list[Any]:
        """Calls a method of all shards; returns their answers in the order of the shards."""
        found = self.ask(name, dict.fromkeys(range(len(self)), arguments), change=change)
        return [found[i] for i in range(len(self))]

    @abstractmethod
    def close(self) -> None:
        """Lets the shards go; they stay as they are."""

    @abstractmethod
    def delete(self) -> None:
        """Ends the shards and deletes their folders."""


Opener = Callable[[Path, Manifest, Sequence[str], bool], Shards]


class LocalShards(Shards):
    """Shards in this process, without Ray: to repair a cluster, and for tests."""

    def __init__(
        self, folder: Path, manifest: Manifest, names: Sequence[str], create: bool
    ) -> None:
        super().__init__(folder, manifest, names)
        facts = manifest.facts if create else None
        self._shards = [Shard(str(folder / name), facts, self.model) for name in self.names]

    def ask(
        self, name: str, arguments: Mapping[int, Sequence[Any]], *, change: bool = False
    ) -> dict[int, Any]:
        return {i: self._shards[i].call(name, *given) for i, given in arguments.items()}

    def close(self) -> None:
        for shard in self._shards:
            shard.close()

    def delete(self) -> None:
        for shard in self._shards:
            shard.delete()
