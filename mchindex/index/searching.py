"""Searching an index: which images may be hits, what the table finds, the records of the hits."""

from __future__ import annotations

import contextlib
import math
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import numpy as np
from numpy.typing import NDArray

from mchindex._core import BucketTable, FineTable, SearchResult
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


class Selection(NamedTuple):
    """Which images may be hits, as the caller said it."""

    filter: Filter | None
    names: list[Id] | None  # only these; None: all
    leave_out: Sequence[Sequence[Id]]  # for each query, images that are no hits


@dataclass(frozen=True)
class Selected:
    """The images that may be hits, in one state of the store."""

    keys: Allowed | None  # None: all
    leave_out: Sequence[Sequence[int]]  # for each query, keys of images that are no hits


@dataclass(frozen=True, eq=False)
class Search:
    """A search whose arguments have been checked. It can be sent to another process."""

    query: Query | WordQuery
    wanted: int | None  # hits of each query, with those to skip; None: all within the radius
    offset: int
    rank: Rank
    budget: Budget  # without `allowed`, which follows from the selection
    selection: Selection | None

    def count(self, excluded: int, fine: int) -> int | None:
        """How many hits to look for, so that enough are left if some are excluded. `fine` is the
        number of images with fine codes."""
        if self.wanted is None:
            return None
        count = self.wanted + excluded
        return count if self.rank == "code" else min(count, max(1, fine))

    def at(self, rows: NDArray[np.int64]) -> Search:
        """The same search for some of the queries."""
        assert isinstance(self.query, Query)
        selection = self.selection
        if selection is not None and selection.leave_out:
            left = [selection.leave_out[row] for row in rows.tolist()]
            selection = selection._replace(leave_out=left)
        return replace(self, query=self.query.at(rows), selection=selection)

    def run(self, tables: Tables, count: int | None, keys: Allowed | None) -> Found:
        """What is found in the tables of a whole index."""
        budget = self.budget._replace(allowed=keys)
        if not isinstance(self.query, Query):
            assert tables.fine is not None
            assert count is not None
            return ranked_by_words(tables.fine, self.query, count, keys, budget.threads)
        if self.rank == "code":
            table = tables.buckets
            return Found.of(
                by_code(table, self.query.codes, count, budget), table.n_codes, table.bits
            )
        assert tables.fine is not None
        assert count is not None
        return ranked(tables.buckets, tables.fine, self.query, count, self.rank, budget)

    def cut(self, found: Found, excluded: Sequence[Sequence[int]]) -> Found:
        """The hits that were asked for."""
        if self.wanted is None:
            found.exact = np.ones(1, bool)
        if excluded:
            columns = found.keys.shape[1]
            found = found.without(excluded, columns if self.wanted is None else self.wanted)
        if self.wanted is None or not self.offset:
            return found
        return found.columns(self.offset, self.wanted)


def by_code(
    table: BucketTable,
    codes: NDArray[np.uint8],
    k: int | None,
    budget: Budget,
    *,
    masks: bool = False,
) -> SearchResult:
    """The k nearest images; all within the radius if k is None. `masks` is passed to the table."""
    if k is None:
        inside = table.within(codes, budget.max_radius or 0, budget.allowed, threads=budget.threads)
        # Asking for one image more than there are makes the search cover the whole radius.
        k = len(inside.ids) + 1
    return table.search(
        codes, k, max_radius=budget.max_radius, max_buckets=budget.max_buckets,
        allowed=budget.allowed, threads=budget.threads, masks=masks,
    )  # fmt: skip


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
        wanted, offset, threads = _amount(k, limits)
        max_radius = whole_or_none("max_radius", limits.get("max_radius"), 0)
        max_buckets = whole_or_none("max_buckets", limits.get("max_buckets"), 0)
        rank = self._rank(rank_or_none(limits.get("rank")), query)
        leave_out = self._left_out(limits.get("exclude"), leave_out, len(query.codes))
        selection = self._selection(limits.get("filter"), limits.get("allowed"), leave_out)
        budget = Budget(max_radius, max_buckets, None, threads)
        limit = _first_limit(self._identity.bits, max_radius, max_buckets)
        if limit is None and rank == "best":
            limit = "candidates"
        return self._answers(
            self._found(Search(query, wanted, offset, rank, budget, selection)), limit
        )

    def by_words(self, query: WordQuery, k: int, /, **limits: Unpack[Limits]) -> Answers:
        """The k images that most probably show what words name: one answer."""
        check_options(limits, "a search")
        wanted, offset, threads = _amount(k, limits)
        rank = rank_or_none(limits.get("rank"))
        for name in ("max_radius", "max_buckets"):
            if limits.get(name) is not None:
                raise ValueError(f"{name} limits the distance between codes, and words have none")
        if rank not in (None, "fine"):
            raise ValueError(f"words are ranked by fine codes, not by {rank!r}")
        missing = self._live.without_fine
        if self._live.fine is None or missing:
            images = "its images" if self._live.fine is None else f"{missing:,} of its images"
            raise NoFineCodesError(
                f"{self._store.name} cannot be searched by words: {images} have no fine codes"
            )
        leave_out = self._left_out(limits.get("exclude"), (), 1)
        selection = self._selection(limits.get("filter"), limits.get("allowed"), leave_out)
        budget = Budget(None, None, None, threads)
        return self._answers(
            self._found(Search(query, wanted, offset, "fine", budget, selection)), None
        )

    def _found(self, search: Search) -> Found:
        """What a search finds in one state of the index."""

        def find(tables: Tables, chosen: Selected | None) -> Found:
            keys, excluded = (None, ()) if chosen is None else (chosen.keys, chosen.leave_out)
            fine = 0 if tables.fine is None else len(tables.fine)
            count = search.count(max(map(len, excluded), default=0), fine)
            return search.cut(search.run(tables, count, keys), excluded)

        return self._live.consistently(self.select(search.selection), find)

    def select(self, selection: Selection | None) -> Callable[[], Selected] | None:
        """A function that selects, in one state of the store, the images that may be hits.

        None if all images may be.
        """
        return None if selection is None else partial(self._selected, selection)

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
        budget = Budget(whole("radius", radius, 0), None, None, whole("threads", threads, 0))
        selection = self._selection(filter, allowed, leave_out)
        found = self._found(Search(Query(codes), None, 0, "code", budget, selection))
        return self._answers(found, None)[0]

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
    ) -> Selection | None:
        """Which images may be hits; None if all may be."""
        if filter is None and allowed is None and not leave_out:
            return None
        if filter is not None:
            mapping(filter)
        if allowed is not None and not isinstance(allowed, Iterable):
            raise TypeError(f"allowed must be a list of ids, not {type(allowed).__name__}")
        names = None if allowed is None else resolved_ids(self._store, allowed)
        return Selection(filter, names, leave_out)

    def _selected(self, selection: Selection) -> Selected:
        filter, names, leave_out = selection
        known = self._store.known(list({id for own in leave_out for id in own}))
        excluded = [[known[id].key for id in own if id in known] for own in leave_out]
        if names is None:
            keys = None if filter is None else self._matching(filter).filter
            return Selected(keys, excluded)
        named = np.array([k.key for k in self._store.known(names).values()], np.int64)
        if filter is not None:
            named = np.intersect1d(self.matching(filter), named)
        return Selected(named, excluded)

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


def _amount(k: Any, limits: Limits) -> tuple[int, int, int]:
    """How many hits to look for, how many of them to skip, and with how many threads."""
    k, offset = whole("k", k, 1), whole("offset", limits.get("offset", 0), 0)
    if k + offset > MOST_HITS:
        raise ValueError(f"k and offset together must be at most {MOST_HITS}, not {k + offset}")
    return k + offset, offset, whole("threads", limits.get("threads", 0), 0)


def _first_limit(bits: int, max_radius: int | None, max_buckets: int | None) -> Limit | None:
    """The limit that a search reaches first."""
    if max_buckets is not None:
        radius = bits if max_radius is None else min(max_radius, bits)
        if max_buckets < sum(math.comb(bits, r) for r in range(radius + 1)):
            return "max_buckets"
    return None if max_radius is None else "max_radius"
