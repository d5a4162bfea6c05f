"""Searching an index: which images may be hits, what the table finds, the records of the hits."""

from __future__ import annotations

import contextlib
import math
import threading
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from mchindex._core import BucketTable
from mchindex.errors import StoreDamagedError, StoreError
from mchindex.index.arguments import (
    Filter,
    Limits,
    check_options,
    mapping,
    whole,
    whole_or_none,
)
from mchindex.index.identity import Identity
from mchindex.index.inputs import resolved_ids
from mchindex.index.results import Answers, Found, Hit, Hits, Limit
from mchindex.index.table import LiveTable
from mchindex.storage.records import Id, Row, row_metadata, unpack_codes
from mchindex.storage.store import Store

FILTERS = 8  # filters whose results are cached
MOST_HITS = 2**27  # per query, with those that are skipped: the arrays of more would not fit


class Searcher:
    """Searches of an index by codes."""

    def __init__(self, store: Store, table: LiveTable, identity: Identity) -> None:
        self._store, self._live, self._identity = store, table, identity
        self._lock = threading.RLock()  # a signal handler may close the index meanwhile
        self._filters: dict[str, tuple[tuple[int, int], NDArray[np.int64]]] = {}
        self._unread: weakref.WeakSet[Answers] = weakref.WeakSet()

    def close(self) -> None:
        """Reads the records of answers that are still in use, before the store is closed."""
        with self._lock:
            waiting = list(self._unread)
        for answers in waiting:
            with contextlib.suppress(StoreError):  # looking at these answers will say why
                answers.load()

    def code_of(self, id: Id, region: Any) -> tuple[NDArray[np.uint8], Id]:
        """The code of an image in the index, as an array of one row, and the image's stored id."""
        row = self._store.row(*resolved_ids(self._store, [id]))
        if row is None:
            raise KeyError(f"there is no image {id!r} in {self._store.name}")
        _, entries = unpack_codes([row.key], [row.codes], self._identity.bits)
        names = [self._identity.region_name(int(r)) for r in entries["region"]]
        name = names[int(entries["region"].argmin())] if region is None else region
        if name not in names:
            raise ValueError(f"image {id!r} has no code for {name!r}, only for {', '.join(names)}")
        return entries["code"][[names.index(name)]], row.id

    def search(
        self,
        codes: Any,
        k: int,
        leave_out: Id | None,
        /,
        **limits: Unpack[Limits],
    ) -> Answers:
        """The k images nearest to each code. `leave_out` is an image that is not to be a hit; with
        it, there is only one code."""
        check_options(limits, "a search")
        k = whole("k", k, 1)
        offset = whole("offset", limits.get("offset", 0), 0)
        max_radius = whole_or_none("max_radius", limits.get("max_radius"), 0)
        max_buckets = whole_or_none("max_buckets", limits.get("max_buckets"), 0)
        threads = whole("threads", limits.get("threads", 0), 0)
        wanted = offset + k
        if wanted > MOST_HITS:
            raise ValueError(f"k and offset together must be at most {MOST_HITS}, not {wanted}")
        select = self._selection(limits.get("filter"), limits.get("allowed"), leave_out)

        def find(table: BucketTable, chosen: _Selected | None) -> Found:
            keys, excluded = (None, None) if chosen is None else (chosen.keys, chosen.leave_out)
            found = Found.of(
                table.search(
                    codes, wanted + (excluded is not None), max_radius=max_radius,
                    max_buckets=max_buckets, allowed=keys, threads=threads,
                ),
                table.n_codes,
            )  # fmt: skip
            found = found if excluded is None else found.without(excluded, wanted)
            return found.columns(offset, wanted) if offset else found

        limit = _first_limit(self._identity.bits, max_radius, max_buckets)
        return self._answers(self._live.consistently(select, find), limit)

    def within(
        self,
        codes: NDArray[np.uint8],
        radius: int,
        *,
        filter: Filter | None = None,
        allowed: Iterable[Id] | None = None,
        threads: int = 0,
        leave_out: Id | None = None,
    ) -> Hits:
        """All images within a Hamming radius of one code."""
        radius, threads = whole("radius", radius, 0), whole("threads", threads, 0)
        select = self._selection(filter, allowed, leave_out)

        def find(table: BucketTable, chosen: _Selected | None) -> Found:
            keys = None if chosen is None else chosen.keys
            inside = table.within(codes, radius, allowed=keys, threads=threads)
            # Asking for one image more than there are makes the search cover the whole radius.
            found = Found.of(
                table.search(
                    codes, len(inside.ids) + 1, max_radius=radius, allowed=keys, threads=threads
                ),
                table.n_codes,
            )
            found.exact = np.ones(1, bool)
            if chosen is not None and chosen.leave_out is not None:
                return found.without(chosen.leave_out, len(inside.ids))
            return found

        return self._answers(self._live.consistently(select, find), None)[0]

    def _selection(
        self, filter: Filter | None, allowed: Iterable[Id] | None, leave_out: Id | None
    ) -> Callable[[], _Selected] | None:
        """A function that selects, in one state of the store, the images that may be hits.

        None if all images may be.
        """
        if filter is None and allowed is None and leave_out is None:
            return None
        if filter is not None:
            mapping(filter)
        if allowed is not None and not isinstance(allowed, Iterable):
            raise TypeError(f"allowed must be a list of ids, not {type(allowed).__name__}")
        names = None if allowed is None else resolved_ids(self._store, allowed)
        return partial(self._selected, filter, names, leave_out)

    def _selected(
        self, filter: Filter | None, names: list[Id] | None, leave_out: Id | None
    ) -> _Selected:
        keys: NDArray[np.int64] | None = None
        if filter is not None:
            keys = self.matching(filter)
        if names is not None:
            named = np.array([k.key for k in self._store.known(names).values()], np.int64)
            keys = named if keys is None else np.intersect1d(keys, named)
        excluded = None if leave_out is None else self._store.known([leave_out]).get(leave_out)
        if excluded is None:
            return _Selected(keys, None)
        return (
            _Selected(None, excluded.key)
            if keys is None
            else _Selected(keys[keys != excluded.key], None)
        )

    def matching(self, conditions: Filter) -> NDArray[np.int64]:
        """The keys of the images that match a filter, cached until the store changes."""
        mapping(conditions)
        version, text = self._store.version(), repr(sorted(conditions.items(), key=repr))
        cached = self._filters.get(text)
        if cached is None or cached[0] != version:
            if len(self._filters) > FILTERS:
                self._filters.clear()
            cached = (version, self._store.matching(conditions))
            self._filters[text] = cached
        return cached[1]

    def _answers(self, found: Found, limit: Limit | None) -> Answers:
        answers = Answers(found, self._read, limit)
        with self._lock:
            self._unread.add(answers)
        return answers

    def _read(
        self,
        keys: NDArray[np.int64],
        regions: NDArray[np.int16],
        distances: NDArray[np.int32],
    ) -> list[list[Hit]]:
        """Reads the records of hits; returns one list per query."""
        rows = self._store.rows(np.unique(keys[keys >= 0]).tolist())
        return [
            [
                self._hit(rows[key], region, distance)
                for key, region, distance in zip(*line, strict=True)
                if key in rows
            ]
            for line in zip(keys.tolist(), regions.tolist(), distances.tolist(), strict=True)
        ]

    def _hit(self, row: Row, region: int, distance: int) -> Hit:
        identity = self._identity
        box = identity.region_box(region, row.width, row.height)
        name = identity.region_name(region)
        return Hit(row.id, distance, name, box, row.path, _metadata(row))


def _metadata(row: Row) -> dict[str, Any]:
    """The metadata of an image; none if they cannot be read, which `verify` reports."""
    try:
        return row_metadata(row)
    except StoreDamagedError:
        return {}


@dataclass(frozen=True)
class _Selected:
    """The images that may be hits."""

    keys: NDArray[np.int64] | None  # None: all
    leave_out: int | None  # the key of an image that is not a hit although it may be found


def _first_limit(bits: int, max_radius: int | None, max_buckets: int | None) -> Limit | None:
    """The limit that a search reaches first."""
    if max_buckets is not None:
        radius = bits if max_radius is None else min(max_radius, bits)
        if max_buckets < sum(math.comb(bits, r) for r in range(radius + 1)):
            return "max_buckets"
    return None if max_radius is None else "max_radius"
