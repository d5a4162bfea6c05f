"""A shard: an ordinary index that holds the images whose ids lead to it, and answers for them.

A shard is asked by the name of a method, so that every way to reach it, an actor of Ray or an
object in this process, is the same. Methods that change something may be called again with the same
arguments: what has been done is not done twice.
"""

from __future__ import annotations

import importlib
import os
import shutil
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mchindex.cluster.lines import Door, Listener
from mchindex.errors import NotAnIndexError, StaleWriteError
from mchindex.index.backup import MODEL_FOLDER
from mchindex.index.facade import MCHIndex
from mchindex.index.ranking import Near, Query, Reach, compared, nearest
from mchindex.index.results import Found
from mchindex.index.searching import Search, Selected, by_code
from mchindex.index.table import Tables
from mchindex.storage.records import Id, Known, Row
from mchindex.storage.store import Facet, Store

PLACE = "shard"  # what a store records about its place in a cluster
WAIT = 60.0  # seconds for another process that writes to the shard, such as one that is ending


class Facts(NamedTuple):
    """How much a shard holds."""

    images: int
    codes: int
    fine: int  # images with fine codes
    without_fine: int  # images that a search can find, without fine codes

    @classmethod
    def of(cls, tables: Tables) -> Facts:
        fine = 0 if tables.fine is None else len(tables.fine)
        images = len(tables.buckets)
        return cls(images, tables.buckets.n_codes, fine, images - fine)

    @classmethod
    def total(cls, several: Sequence[Facts]) -> Facts:
        return cls(*(sum(column) for column in zip(*several, strict=True)))


@dataclass(frozen=True, eq=False)
class Part:
    """A shard's part of an answer, and what tells whether the right thing was asked for."""

    found: Found | bytes  # bytes: what a search by code found, as `SearchResult.pack` makes them
    facts: Facts
    allowed: int | None  # how many images may be hits; None: all
    excluded: Sequence[Sequence[int]]  # for each query, keys of images that are no hits


class Shard:
    """An index on disk, as a part of a cluster."""

    def __init__(self, folder: str, place: Sequence[Any]) -> None:
        """Opens the index in a folder. `place` is what `create` was given."""
        self._index = MCHIndex.open(folder, create=False, wait=WAIT)
        self._store, self._live = self._index._store, self._index._live
        self._searcher = self._index._searcher
        self._opened = int.from_bytes(os.urandom(6), "big")
        self._opening = threading.Lock()
        self._listener: Listener | None = None
        self._writer = ""  # the token of the writer whose images are taken
        if (found := self._store.get(PLACE)) != list(place):
            self._index.close()
            raise NotAnIndexError(f"{folder} belongs elsewhere: it is {found}, not {list(place)}")

    def call(self, name: str, *arguments: Any) -> Any:
        """Calls one of the methods below by its name."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self, name)(*arguments)

    def pid(self) -> int:
        return os.getpid()

    def door(self) -> Door:
        """Where this process listens for calls that need not go through Ray."""
        with self._opening:
            if self._listener is None:
                address = importlib.import_module("ray").util.get_node_ip_address()
                self._listener = Listener(self.call, address)
            return self._listener.door

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
        self._index.close()

    # Searching.

    def search(self, search: Search, count: int | None, reach: Reach | None) -> Part:
        """The first `count` hits of each query. `reach` is how far "best" looks for candidates;
        None compares all images."""

        def find(tables: Tables, chosen: Selected | None) -> Part:
            keys, excluded = (None, ()) if chosen is None else (chosen.keys, chosen.leave_out)
            budget = search.budget._replace(allowed=keys)
            found: Found | bytes
            if search.rank == "code":
                assert isinstance(search.query, Query)
                codes = search.query.codes
                found = by_code(tables.buckets, codes, count, budget, masks=True).pack()
            else:
                assert tables.fine is not None
                assert count is not None
                own = min(count, max(1, len(tables.fine)))
                if isinstance(search.query, Query):
                    found = compared(
                        tables.buckets, tables.fine, search.query, own, search.rank, budget, reach
                    )
                else:
                    found = search.run(tables, own, keys)
                # Columns without hits need not be sent.
                found = found.columns(0, max(1, int((found.keys >= 0).sum(1).max(initial=0))))
            allowed = None if keys is None else len(keys)
            return Part(found, Facts.of(tables), allowed, excluded)

        return self._live.consistently(self._searcher.select(search.selection), find)

    def near(self, search: Search) -> Near:
        """What is nearest to each query."""

        def find(tables: Tables, chosen: Selected | None) -> Near:
            assert tables.fine is not None
            assert isinstance(search.query, Query)
            keys = None if chosen is None else chosen.keys
            budget = search.budget._replace(allowed=keys)
            return nearest(tables.buckets, tables.fine, search.query, budget)

        return self._live.consistently(self._searcher.select(search.selection), find)

    def facts(self) -> Facts:
        return self._live.consistently(None, lambda tables, _: Facts.of(tables))

    def in_bucket(self, codes: NDArray[np.uint8]) -> list[int]:
        return self._live.in_bucket(codes)

    def content(self) -> tuple[NDArray[np.int64], dict[str, Any] | None]:
        """The keys of all images, and the content of the table of fine codes, if there is one."""
        keys = self._store.matching({})
        return keys, None if self._live.fine is None else self._live.fine.content()

    def fine_codes(self, keys: Sequence[int]) -> dict[int, NDArray[np.uint8]]:
        return self._live.fine_codes(keys)

    # Reading records.

    def known(self, ids: Sequence[Id]) -> dict[Id, Known]:
        return self._store.known(ids)

    def rows(self, keys: Sequence[int]) -> dict[int, Row]:
        """The records of those images that are here, or have been."""
        return self._store.rows(keys, missing_ok=True)

    def rows_of(self, ids: Sequence[Id]) -> dict[Id, Row]:
        return self._store.rows_of(ids)

    def row(self, id: Id) -> Row | None:
        return self._store.row(id)

    def fine(self, keys: Sequence[int]) -> dict[int, bytes]:
        return self._store.fine(keys)

    def page(self, after: int, limit: int, conditions: Mapping[str, Any] | None) -> list[Row]:
        return self._store.page(after, limit, conditions)

    def copies(self, after: int, limit: int) -> list[Row]:
        """Records whose keys are above `after`, in their order, as `insert` takes them."""
        with self._store.one_state():
            rows = self._store.page(after, limit, None)
            fine = self._store.fine([row.key for row in rows])
        return [
            row._replace(codes=row.codes[:-4], fine=fine[row.key][:-4] if row.key in fine else None)
            for row in rows
        ]

    def matching(self, conditions: Mapping[str, Any]) -> list[int]:
        keys: list[int] = self._searcher.matching(conditions).tolist()
        return keys

    def ids(self, keys: Sequence[int]) -> dict[int, Id]:
        return {row.key: row.id for row in self.rows(keys).values() if row.codes}

    def facets(self, most: int) -> list[Facet]:
        return self._store.facets(most, mixed=True)

    def decisions(self) -> dict[Id, str]:
        return self._store.decisions()

    def state(self) -> tuple[int, ...]:
        return tuple(self._store.state())

    def last_key(self) -> int:
        return self._store.state().key

    def version(self) -> tuple[int, ...]:
        """A value that changes with every commit, and when the shard is opened again."""
        return (self._opened, *self._store.version())

    def next_id(self) -> int:
        return self._store.next_id()

    def stats(self) -> dict[str, Any]:
        return self._index.stats()

    # Changing records. Every change has the token of its writer: what a writer that has died, or
    # has given up, sent off earlier may arrive late, when it would undo what came after it.

    def begin(self, token: str) -> int:
        """Takes changes only from a new writer, from now on; returns the last key."""
        with self._live.writing(WAIT):
            self._writer = token
            return self._store.state().key

    def insert(self, token: str, rows: Sequence[Row], keys: Sequence[int]) -> dict[Id, Known]:
        """Stores images under keys; returns those they replaced. Raises StaleWriteError."""
        with self._live.writing(WAIT):
            known = self._store.known([row.id for row in rows])
            if [known[row.id].key if row.id in known else 0 for row in rows] == list(keys):
                return {}  # an earlier call did it, and its answer was lost
            self._check_writer(token)
            return dict(self._live.insert(rows, keys))

    def remove(self, token: str, ids: Sequence[Id]) -> int:
        with self._live.writing(WAIT, removing=True):
            self._check_writer(token)
            return self._live.remove(ids)

    def touch(self, token: str, ids: dict[Id, dict[str, Any]]) -> None:
        with self._live.writing(WAIT):
            self._check_writer(token)
            self._store.touch(ids)

    def decide(self, token: str, decisions: Mapping[Id, str | None]) -> list[Id]:
        with self._live.writing(WAIT):
            self._check_writer(token)
            return self._store.decide(decisions)

    def set_facts(self, token: str, facts: Mapping[str, Any]) -> None:
        with self._store.writer(WAIT):
            self._check_writer(token)
            self._store.set(**facts)
        self._live.refresh()

    def _check_writer(self, token: str) -> None:
        if token != self._writer:
            raise StaleWriteError("the shard has been opened again, or has another writer")


def create(
    folder: Path, facts: Mapping[str, Any], place: Sequence[Any], model: Path | None
) -> None:
    """Creates the index of a shard, unless there is one: `facts` say what its codes are, `place`
    which shard it is, and `model` is the folder of a model that does not ship."""
    folder.mkdir(parents=True, exist_ok=True)
    store = Store(folder)
    try:
        with store.writer(WAIT):
            if store.get(PLACE) is None:
                if model is not None:
                    shutil.copytree(model, folder / MODEL_FOLDER, dirs_exist_ok=True)
                store.set(**facts, **{PLACE: list(place)})
    finally:
        store.close()
