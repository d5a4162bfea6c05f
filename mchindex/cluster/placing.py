"""Which shard an image belongs to: a stable hash of its id."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import TypeVar

from mchindex.storage.records import Id

T = TypeVar("T")


def shard_of(id: Id, shards: int) -> int:
    """The shard of an image. The integer 1 and the text "1" are different ids."""
    text = f"{'i' if isinstance(id, int) else 's'}{id}"
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") % shards


def by_shard(things: Iterable[T], id_of: Callable[[T], Id], shards: int) -> dict[int, list[T]]:
    """Things, in their order, by the shard of their ids."""
    groups: dict[int, list[T]] = {}
    for thing in things:
        groups.setdefault(shard_of(id_of(thing), shards), []).append(thing)
    return groups
