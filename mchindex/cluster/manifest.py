"""What a cluster consists of: one small file in its folder, which is replaced atomically."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mchindex import json_text
from mchindex.errors import NotAnIndexError, StoreDamagedError, StoreVersionError
from mchindex.files import read_file, write_file

FILE = "cluster.json"
FORMAT, VERSION = "mchindex-cluster", 1
LARGEST = 16 << 20  # bytes: the cells of fine codes are most of it
MOST_SHARDS, MOST_REPLICAS = 1024, 64


@dataclass(frozen=True)
class Manifest:
    """What a cluster consists of."""

    shards: tuple[str, ...]  # the names of their folders
    replicas: int = 0  # of each shard, besides the one that writes
    resources: Mapping[str, str] = field(default_factory=dict)  # of Ray, that shards need
    uuid: str = field(default_factory=lambda: uuid.uuid4().hex)
    generation: int = 1  # grows when the shards become others
    facts: dict[str, Any] = field(default_factory=dict)  # what the codes are, as in a store
    created: bool = False  # whether the folders of the shards have been made
    moving: tuple[str, ...] = ()  # the shards that a rebalance is filling
    leftover: tuple[str, ...] = ()  # shards that are to be deleted

    @classmethod
    def exists(cls, folder: str | os.PathLike[str]) -> bool:
        """Whether a folder holds a cluster."""
        return os.path.isfile(os.path.join(folder, FILE))

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Raises NotAnIndexError, StoreDamagedError or StoreVersionError."""
        try:
            facts = json_text.loads(read_file(folder / FILE, LARGEST).decode())
            if not isinstance(facts, dict) or facts.get("format") != FORMAT:
                raise ValueError(f"it is not of the format {FORMAT}")
        except (FileNotFoundError, NotADirectoryError):
            raise NotAnIndexError(f"{folder} is not a cluster: it has no {FILE}") from None
        except (OSError, ValueError) as error:
            raise StoreDamagedError(f"{folder / FILE} cannot be read: {error}") from None
        if facts.get("version") != VERSION:
            raise StoreVersionError(
                f"{folder} was written by a newer mchindex (format {facts.get('version')}): "
                "update mchindex"
            )
        try:
            return cls._of_json(facts)
        except (KeyError, TypeError, ValueError) as error:
            raise StoreDamagedError(f"{folder / FILE} is damaged: {error}") from None

    @classmethod
    def _of_json(cls, facts: dict[str, Any]) -> Manifest:
        made = cls(
            tuple(facts["shards"]), facts["replicas"], facts["resources"], facts["uuid"],
            facts["generation"], facts["facts"], facts["created"], tuple(facts["moving"]),
            tuple(facts["leftover"]),
        )  # fmt: skip
        # A name with a slash would lead out of the folder.
        names = made.shards + made.moving + made.leftover
        if not all(re.fullmatch(r"shard-\d{3,6}\.mch", name) for name in names):
            raise ValueError("shards must be named like shard-000.mch")
        if not 1 <= len(made.shards) <= MOST_SHARDS or len(set(made.shards)) < len(made.shards):
            raise ValueError(f"there must be 1 to {MOST_SHARDS} shards, all different")
        if type(made.generation) is not int or type(made.created) is not bool:
            raise ValueError("its generation, or whether it was created, is invalid")
        if not isinstance(made.facts, dict):
            raise ValueError("its facts are invalid")
        if not re.fullmatch(r"[0-9a-f]{32}", made.uuid):
            raise ValueError("its uuid is invalid")
        check_replicas(made.replicas)
        if not isinstance(made.resources, dict):
            raise ValueError("its resources are invalid")
        check_resources(list(made.resources.values()))
        return made

    def write(self, folder: Path) -> None:
        facts = {
            "format": FORMAT, "version": VERSION, "uuid": self.uuid, "generation": self.generation,
            "shards": list(self.shards), "replicas": self.replicas,
            "resources": dict(self.resources), "created": self.created, "moving": list(self.moving),
            "leftover": list(self.leftover), "facts": self.facts,
        }  # fmt: skip
        write_file(folder / FILE, json_text.dumps(facts))

    def with_facts(self, **facts: Any) -> Manifest:
        return replace(self, facts={**self.facts, **facts})

    def place(self, name: str) -> list[Any]:
        """What the index of a shard records, so that no shard is taken for another."""
        names = self.moving if name in self.moving else self.shards
        return [self.uuid, name, len(names)]

    def give_up_moving(self) -> Manifest:
        """Without the shards that a rebalance is filling."""
        return replace(self, moving=(), leftover=self.leftover + self.moving)

    def moved(self) -> Manifest:
        """With the shards that a rebalance has filled."""
        return replace(
            self, shards=self.moving, moving=(), leftover=self.leftover + self.shards,
            generation=self.generation + 1,
        )  # fmt: skip

    def clean(self) -> Manifest:
        """Once the leftover shards have been deleted."""
        left = {n: r for n, r in self.resources.items() if n not in self.leftover}
        return replace(self, leftover=(), resources=left)

    def more_shards(self, number: int) -> tuple[str, ...]:
        """The names of new shards: no shard has had them before."""
        last = max(int(name[6:-4]) for name in self.shards + self.moving + self.leftover)
        return shard_names(number, last + 1)


def shard_names(number: int, first: int = 0) -> tuple[str, ...]:
    return tuple(f"shard-{i:03}.mch" for i in range(first, first + number))


def spread(resources: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """Which resource each shard needs."""
    return {name: resources[i % len(resources)] for i, name in enumerate(names) if resources}


def check_shards(number: Any) -> int:
    if type(number) is not int or not 1 <= number <= MOST_SHARDS:
        raise ValueError(f"shards must be an integer from 1 to {MOST_SHARDS}, not {number!r}")
    return number


def check_replicas(number: Any) -> int:
    if type(number) is not int or not 0 <= number <= MOST_REPLICAS:
        raise ValueError(f"replicas must be an integer from 0 to {MOST_REPLICAS}, not {number!r}")
    return number


def check_resources(names: Any) -> tuple[str, ...]:
    if isinstance(names, str) or not all(isinstance(n, str) and 0 < len(n) <= 100 for n in names):
        raise ValueError(f"resources must be a list of names of Ray's resources, not {names!r}")
    return tuple(names)
