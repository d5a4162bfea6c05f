"""Searching an index: which images may be hits, what the table finds, the records of the hits."""

from __future__ import annotations

import contextlib
import math
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import numpy as np
from numpy.typing import NDArray

from mchindex._core import BucketTable, FineTable
from mchindex._core import Filter as ImageFilter
from mchindex.errors import NoFineCodesError, StoreDamagedError, StoreError
from mchindex.index.arguments import (
    Filter,
    Limits,
    Rank,
    check_options,
    mapping,
    rank_or_none,
    whole,
    whole_or_none,
)
from mchindex.index.identity import Identity
from mchindex.index.inputs import resolved_ids
from mchindex.index.ranking import Allowed, Budget, Query, ranked
from mchindex.index.results import Answers, Found, Hit, Hits, Limit
from mchindex.index.table import LiveTable, Tables
from mchindex.index.words import ranked_by_words
from mchindex.storage.records import Id, Row, row_metadata, unpack_codes, unpack_fine
from mchindex.storage.store import Store

if TYPE_CHECKING:
    from mchindex.inference.words import WordQuery

FILTERS = 8  # filters whose results are cached
MOST_HITS = 2**27  # per query, with those that are skipped: the arrays of more would not fit


class Searcher:
    """Searches of an index by codes."""

    def __init__(self, store: Store, table: LiveTable, identity: Identity) -> None:
        self._store, self._live, self._identity = store, table, identity
        self._lock = threading.RLock()  # a signal handler may close the index meanwhile
        self._filters: dict[str, _Matching] = {}
        self._unread: weakref.WeakSet[Answers] = weakref.WeakSet()

    def close(self) -> None:
        """Reads the records of answers that are still in use, before the store is closed."""
        with self._lock:
            waiting = list(self._unread)
        for answers in waiting:
            with contextlib.suppress(StoreError):  # looking at these answers will say why
                answers.load()

    def query_of(self, id: Id, region: Any) -> tuple[Query, Id]:
        """An image in the index as a query, and its stored id.

        Raises KeyError if it is not in the index, and ValueError if it has no such region.
        """
        (found,) = self.queries_of([(id, region)])
        if isinstance(found, KeyError):
            self._store.row(*resolved_ids(self._store, [id]))  # raises if its record is damaged
        if isinstance(found, Exception):
            raise found
        return found

    def queries_of(
        self, wanted: Sequence[tuple[Id, str | None]]
    ) -> list[tuple[Query, Id] | KeyError | ValueError]:
        """Like `query_of`, for several images at once: what it would return or raise for each."""
        table = self._live.fine  # before the store is held: others hold the tables first
        with self._store.one_state():
            names = resolved_ids(self._store, [id for id, _ in wanted])
            rows = self._store.rows_of(names)
            fine = {} if table is None else self._store.fine([row.key for row in rows.values()])
            return [
                self._query_of(id, region, rows.get(name), table, fine)
                for (id, region), name in zip(wanted, names, strict=True)
            ]

    def _query_of(
        self,
        id: Id,
        region: str | None,
        row: Row | None,
        table: FineTable | None,
        fine: Mapping[int, bytes],
    ) -> tuple[Query, Id] | KeyError | ValueError:
        if row is None:
            return KeyError(f"there is no image {id!r} in {self._store.name}")
        _, entries = unpack_codes([row.key], [row.codes], self._identity.bits)
        regions = entries["region"].tolist()
        if region is None:
            place = regions.index(min(regions))
        else:
            names = [self._identity.region_name(number) for number in regions]
            if region not in names:
                return ValueError(
                    f"image {id!r} has no code for {region!r}, only for {', '.join(names)}"
                )
            place = names.index(region)
        projections = None
        if table is not None and (blob := fine.get(row.key)) is not None:
            codes = unpack_fine([row.key], [blob], table.regions, table.fine_bits)[0]
            bits = np.unpackbits(codes[regions[place] if regions[place] < len(codes) else 0])
            projections = np.where(bits, 1, -1).astype(np.float32)[None]
        return Query(entries["code"][[place]], projections), row.id

    def search(
        self,
        query: Query,
        k: int,
        leave_out: Sequence[Sequence[Id]],
        /,
        **limits: Unpack[Limits],
    ) -> Answers:
        """The k images that match each query best. `leave_out` are, for each query, images that are
        not to be its hits; it is empty if there are none."""
        check_options(limits, "a search")
        k = whole("k", k, 1)
        offset = whole("offset", limits.get("offset", 0), 0)
        max_radius = whole_or_none("max_radius", limits.get("max_radius"), 0)
        max_buckets = whole_or_none("max_buckets", limits.get("max_buckets"), 0)
        threads = whole("threads", limits.get("threads", 0), 0)
        rank = self._rank(rank_or_none(limits.get("rank")), query)
        wanted = offset + k
        if wanted > MOST_HITS:
            raise ValueError(f"k and offset together must be at most {MOST_HITS}, not {wanted}")
        leave_out = self._left_out(limits.get("exclude"), leave_out, len(query.codes))
        select = self._selection(limits.get("filter"), limits.get("allowed"), leave_out)

        def find(tables: Tables, chosen: _Selected | None) -> Found:
            keys, excluded = (None, ()) if chosen is None else (chosen.keys, chosen.leave_out)
            budget = Budget(max_radius, max_buckets, keys, threads)
            count = wanted + max(map(len, excluded), default=0)
            if rank == "code":
                found = _by_code(tables.buckets, query.codes, count, budget)
            else:
                assert tables.fine is not None
                count = min(count, max(1, len(tables.fine)))
                found = ranked(tables.buckets, tables.fine, query, count, rank, budget)
            found = found.without(excluded, wanted) if excluded else found
            return found.columns(offset, wanted) if offset else found

        limit = _first_limit(self._identity.bits, max_radius, max_buckets)
        if limit is None and rank == "best":
            limit = "candidates"
        return self._answers(self._live.consistently(select, find), limit)

    def by_words(self, query: WordQuery, k: int, /, **limits: Unpack[Limits]) -> Answers:
        """The k images that most probably show what words name: one answer."""
        check_options(limits, "a search")
        k = whole("k", k, 1)
        offset = whole("offset", limits.get("offset", 0), 0)
        threads = whole("threads", limits.get("threads", 0), 0)
        rank = rank_or_none(limits.get("rank"))
        for name in ("max_radius", "max_buckets"):
            if limits.get(name) is not None:
                raise ValueError(f"{name} limits the distance between codes, and words have none")
        if rank not in (None, "fine"):
            raise ValueError(f"words are ranked by fine codes, not by {rank!r}")
        wanted = offset + k
        if wanted > MOST_HITS:
            raise ValueError(f"k and offset together must be at most {MOST_HITS}, not {wanted}")
        missing = self._live.without_fine
        if self._live.fine is None or missing:
            images = "its images" if self._live.fine is None else f"{missing:,} of its images"
            raise NoFineCodesError(
                f"{self._store.name} cannot be searched by words: {images} have no fine codes"
            )
        leave_out = self._left_out(limits.get("exclude"), (), 1)
        select = self._selection(limits.get("filter"), limits.get("allowed"), leave_out)

        def find(tables: Tables, chosen: _Selected | None) -> Found:
            assert tables.fine is not None
            keys, excluded = (None, ()) if chosen is None else (chosen.keys, chosen.leave_out)
            count = min(wanted + max(map(len, excluded), default=0), max(1, len(tables.fine)))
            found = ranked_by_words(tables.fine, query, count, keys, threads)
            found = found.without(excluded, wanted) if excluded else found
            return found.columns(offset, wanted) if offset else found

        return self._answers(self._live.consistently(select, find), None)

    def _rank(self, rank: Rank | None, query: Query) -> Rank:
        """How to order hits. Raises ValueError if the index or the query has no fine codes."""
        if rank == "code":
            return rank
        if query.fine is not None and self._live.fine is not None and not self._live.without_fine:
            return "best" if rank is None else rank
        if rank is None:
            return "code"
        what = f"{self._store.name} cannot rank by {rank!r}"
        if not self._identity.has_model:
            raise ValueError(f"{what}: it has no fine codes")
        if self._live.fine is None or (missing := self._live.without_fine):
            images = "its images" if self._live.fine is None else f"{missing:,} of its images"
            raise NoFineCodesError(f"{what}: {images} have no fine codes")
        raise ValueError(
            f"{what}: the query has no fine code: search by an image, with the model that filled it"
        )

    def within(
        self,
        codes: NDArray[np.uint8],
        radius: int,
        *,
        filter: Filter | None = None,
        allowed: Iterable[Id] | None = None,
        threads: int = 0,
        leave_out: Sequence[Sequence[Id]] = (),
    ) -> Hits:
        """All images within a Hamming radius of one code."""
        radius, threads = whole("radius", radius, 0), whole("threads", threads, 0)
        select = self._selection(filter, allowed, leave_out)

        def find(tables: Tables, chosen: _Selected | None) -> Found:
            keys = None if chosen is None else chosen.keys
            inside = tables.buckets.within(codes, radius, allowed=keys, threads=threads)
            # Asking for one image more than there are makes the search cover the whole radius.
            budget = Budget(radius, None, keys, threads)
            found = _by_code(tables.buckets, codes, len(inside.ids) + 1, budget)
            found.exact = np.ones(1, bool)
            if chosen is not None and chosen.leave_out:
                return found.without(chosen.leave_out, len(inside.ids))
            return found

        return self._answers(self._live.consistently(select, find), None)[0]

    def _left_out(
        self, exclude: Iterable[Id] | None, leave_out: Sequence[Sequence[Id]], queries: int
    ) -> Sequence[Sequence[Id]]:
        """What `leave_out` says, and the ids that no query is to find."""
        if exclude is None:
            return leave_out
        if not isinstance(exclude, Iterable):
            raise TypeError(f"exclude must be a list of ids, not {type(exclude).__name__}")
        names = resolved_ids(self._store, exclude)
        return [[*names, *own] for own in leave_out or [()] * queries] if names else leave_out

    def _selection(
        self, filter: Filter | None, allowed: Iterable[Id] | None, leave_out: Sequence[Sequence[Id]]
    ) -> Callable[[], _Selected] | None:
        """A function that selects, in one state of the store, the images that may be hits.

        None if all images may be.
        """
        if filter is None and allowed is None and not leave_out:
            return None
        if filter is not None:
            mapping(filter)
        if allowed is not None and not isinstance(allowed, Iterable):
            raise TypeError(f"allowed must be a list of ids, not {type(allowed).__name__}")
        names = None if allowed is None else resolved_ids(self._store, allowed)
        return partial(self._selected, filter, names, leave_out)

    def _selected(
        self, filter: Filter | None, names: list[Id] | None, leave_out: Sequence[Sequence[Id]]
    ) -> _Selected:
        known = self._store.known(list({id for own in leave_out for id in own}))
        excluded = [[known[id].key for id in own if id in known] for own in leave_out]
        if names is None:
            keys = None if filter is None else self._matching(filter).filter
            return _Selected(keys, excluded)
        named = np.array([k.key for k in self._store.known(names).values()], np.int64)
        if filter is not None:
            named = np.intersect1d(self.matching(filter), named)
        return _Selected(named, excluded)

    def matching(self, conditions: Filter) -> NDArray[np.int64]:
        """The keys of the images that match a filter, cached until the store changes."""
        return self._matching(conditions).keys

    def _matching(self, conditions: Filter) -> _Matching:
        mapping(conditions)
        version, text = self._store.version(), repr(sorted(conditions.items(), key=repr))
        cached = self._filters.get(text)
        if cached is None or cached.version != version:
            if len(self._filters) > FILTERS:
                self._filters.clear()
            keys = self._store.matching(conditions)
            # It serves any table, and remembers where the images are in the one it was used with.
            cached = _Matching(version, keys, BucketTable(self._identity.bits).filter(keys))
            self._filters[text] = cached
        return cached

    def _answers(self, found: Found, limit: Limit | None) -> Answers:
        answers = Answers(found, self._read, limit)
        with self._lock:
            self._unread.add(answers)
        return answers

    def _read(self, found: Found) -> list[list[Hit]]:
        """Reads the records of hits; returns one list per query."""
        rows = self._store.rows(np.unique(found.keys[found.keys >= 0]).tolist())
        similar = np.full_like(found.scores, np.nan)
        if found.similarities is not None:
            similar = found.similarities
        columns = (found.keys, found.regions, found.distances, found.scores, similar)
        return [
            [
                self._hit(rows[key], *columns)
                for key, *columns in zip(*line, strict=True)
                if key in rows
            ]
            for line in zip(*(column.tolist() for column in columns), strict=True)
        ]

    def _hit(self, row: Row, region: int, distance: int, score: float, similarity: float) -> Hit:
        identity = self._identity
        box = identity.region_box(region, row.width, row.height)
        name = identity.region_name(region)
        similar = None if math.isnan(similarity) else round(similarity, 4)
        size = (row.width, row.height) if row.width and row.height else None
        return Hit(
            row.id, distance, name, box, row.path, _metadata(row), round(score, 4), similar, size
        )


def _by_code(table: BucketTable, codes: NDArray[np.uint8], k: int, budget: Budget) -> Found:
    found = table.search(
        codes, k, max_radius=budget.max_radius, max_buckets=budget.max_buckets,
        allowed=budget.allowed, threads=budget.threads,
    )  # fmt: skip
    return Found.of(found, table.n_codes, table.bits)


def _metadata(row: Row) -> dict[str, Any]:
    """The metadata of an image; none if they cannot be read, which `verify` reports."""
    try:
        return row_metadata(row)
    except StoreDamagedError:
        return {}


class _Matching(NamedTuple):
    """The images that match a filter on metadata, in one version of the store."""

    version: tuple[int, int]
    keys: NDArray[np.int64]
    filter: ImageFilter  # of the same keys, for the tables


@dataclass(frozen=True)
class _Selected:
    """The images that may be hits."""

    keys: Allowed | None  # None: all
    leave_out: Sequence[Sequence[int]]  # for each query, keys of images that are no hits


def _first_limit(bits: int, max_radius: int | None, max_buckets: int | None) -> Limit | None:
    """The limit that a search reaches first."""
    if max_buckets is not None:
        radius = bits if max_radius is None else min(max_radius, bits)
        if max_buckets < sum(math.comb(bits, r) for r in range(radius + 1)):
            return "max_buckets"
    return None if max_radius is None else "max_radius"
