"""Searching a cluster: every shard is asked, and what they find is merged."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import numpy as np
from numpy.typing import NDArray

from mchindex.cluster.merging import merged
from mchindex.cluster.shard import Facts, Part
from mchindex.cluster.shards import Shards
from mchindex.cluster.store import ClusterStore
from mchindex.cluster.table import ClusterTable
from mchindex.errors import MCHError, StoreError
from mchindex.index.arguments import Filter, Limits
from mchindex.index.identity import Identity
from mchindex.index.ranking import Query, Reach, takes_candidates
from mchindex.index.results import Answers, Found
from mchindex.index.searching import Search, Searcher
from mchindex.storage.records import Id

if TYPE_CHECKING:
    from mchindex.inference.words import WordQuery

TRIES = 20  # for an index that changes while it is searched
REMEMBERED = 64  # numbers of hits for which it is known how far queries reach
# Shares of the queries that find enough images at once; the others take another call. Which share
# is the fastest depends on how much longer a search of a larger radius takes.
SHARES = np.array([0.98, 0.99, 0.999, 0.9999])
SOON, RETRY = 8, 64  # searches after which another share is tried: at first, and later
SLOWER = 1.02  # how much longer a call may have become since the last one
FADING = 0.999  # what is known counts less with each further query


class _OutdatedError(MCHError):
    """The images have got, or lost, fine codes since the rank was chosen."""


class ClusterSearcher(Searcher):
    """Searches of all shards. A query is encoded once and sent to each shard."""

    def __init__(self, store: ClusterStore, table: ClusterTable, identity: Identity) -> None:
        super().__init__(store, table, identity)
        self._cluster, self._tables = store, table
        self._radii = _Radii(identity.bits)

    def search(
        self,
        query: Query,
        k: int,
        leave_out: Sequence[Sequence[Id]],
        /,
        **limits: Unpack[Limits],
    ) -> Answers:
        for _ in range(TRIES):
            try:
                return super().search(query, k, leave_out, **limits)
            except _OutdatedError:
                continue
        raise self._changing()

    def by_words(self, query: WordQuery, k: int, /, **limits: Unpack[Limits]) -> Answers:
        for _ in range(TRIES):
            try:
                return super().by_words(query, k, **limits)
            except _OutdatedError:
                continue
        raise self._changing()

    def matching(self, conditions: Filter) -> NDArray[np.int64]:
        return self._store.matching(conditions)

    def _changing(self) -> StoreError:
        return StoreError(f"{self._store.name} changes too fast to be searched: try again")

    def _found(self, search: Search) -> Found:
        """What one index of all images would find.

        How to search depends on all images: how many there are, and how many of those that are
        left out. It is guessed from what was last seen. Every shard tells what is true of it, and
        if that leads to something else, the search is done again.
        """
        leave_out = () if search.selection is None else search.selection.leave_out
        regions = max(1, len(self._identity.regions))
        seen = self._tables.seen or self._tables.facts()
        plan = _Plan.of(search, seen, None, leave_out, regions)
        for _ in range(TRIES):
            parts, found = self._cluster.run(partial(self._ask, search=search, plan=plan))
            facts = Facts.total([part.facts for part in parts])
            self._tables.seen = facts
            if search.rank != "code" and facts.without_fine:
                raise _OutdatedError
            allowed = [part.allowed for part in parts if part.allowed is not None]
            excluded = [
                [key for part in parts for key in part.excluded[i]] for i in range(len(leave_out))
            ]
            right = _Plan.of(search, facts, sum(allowed) if allowed else None, excluded, regions)
            if plan == right:
                return search.cut(found, excluded)
            plan = right
        raise self._changing()

    def _ask(self, shards: Shards, search: Search, plan: _Plan) -> tuple[list[Part], Found]:
        """The parts of the answer, and what they are together."""
        answers = partial(self._cluster.answering, shards)
        reach, nearby, complete = None, None, True
        if plan.candidates:
            near = answers("near", search)
            reach, complete = Reach.of(near), len(near) == len(shards)
        else:
            nearby = self._radii.within(search, plan.hits)
        began = time.perf_counter()
        parts = answers("search", nearby or search, plan.hits, reach)
        first, second = time.perf_counter() - began, 0.0
        found = merged(parts, plan.hits, self._identity.bits)
        if reach is not None or nearby is not None:
            few = np.flatnonzero(found.keys[:, -1] < 0)  # as in `ranked`
            if len(few):
                began = time.perf_counter()
                more = answers("search", search.at(few), plan.hits, None)
                second = time.perf_counter() - began
                found = found.with_rows(few, merged(more, plan.hits, self._identity.bits))
                complete = complete and len(more) == len(shards)
        if not complete or len(parts) < len(shards):
            found.partial, found.exact = True, np.zeros_like(found.exact)
        else:
            self._radii.learn(search, nearby, found, first, second)
        return parts, found


class _Radii:
    """How far queries reach before they have found enough images, as earlier queries did.

    A shard has only a part of the images near a query, and would have to search much farther than
    one index of all of them for as many hits. So shards are first asked only for what is near.
    """

    def __init__(self, bits: int) -> None:
        self._bits = bits
        self._known: dict[tuple[int, int], _Known] = {}  # by number of hits, and of queries

    def within(self, search: Search, hits: int | None) -> Search | None:
        """The same search within a radius where most queries find enough images."""
        kind = self._kind(search, hits)
        if kind is None or (known := self._known.get(kind)) is None:
            return None
        assert isinstance(search.query, Query)
        radius, limit = known.choose(len(search.query.codes)), search.budget.max_radius
        if radius >= (self._bits if limit is None else limit):
            return None
        return replace(search, budget=search.budget._replace(max_radius=radius))

    def learn(
        self, search: Search, nearby: Search | None, found: Found, first: float, second: float
    ) -> None:
        """How far a search reached, and how long both calls took with what `within` made of it; 0
        for a second one that was not needed."""
        kind = self._kind(search, found.keys.shape[1])
        queries = len(found.keys)
        if not queries or kind is None or search.budget.limited or search.wanted is None:
            return
        if kind not in self._known and len(self._known) >= REMEMBERED:
            self._known.pop(next(iter(self._known)), None)
        known = self._known.setdefault(kind, _Known(self._bits))
        known.reach(np.where(found.keys[:, -1] >= 0, found.radius, self._bits))
        radius = None if nearby is None else nearby.budget.max_radius
        known.took(self._bits if radius is None else radius, first / queries, second)

    @staticmethod
    def _kind(search: Search, hits: int | None) -> tuple[int, int] | None:
        """Which searches are alike; None for one that does not look for codes, near ones first."""
        if search.rank != "code" or search.budget.max_buckets is not None or hits is None:
            return None
        assert isinstance(search.query, Query)
        return hits, len(search.query.codes).bit_length()


class _Known:
    """What is known of searches that are alike."""

    def __init__(self, bits: int) -> None:
        self._reached = np.zeros(bits + 1)  # how many queries reached each radius
        self._first: dict[int, float] = {}  # seconds per query of a first call, by its radius
        self._second = 0.0  # seconds of a second call
        self._turns = 0

    def choose(self, queries: int) -> int:
        """The radius that is expected to be the fastest; now and then another one."""
        shares = np.cumsum(self._reached) / self._reached.sum()
        radii: set[int] = set(np.searchsorted(shares, SHARES).tolist())
        if new := radii - self._first.keys():
            return min(new)

        def expected(radius: int) -> float:
            again = 1 - min(float(shares[radius]), 1.0) ** queries
            return queries * self._first[radius] + again * self._second

        best = min(radii, key=expected)
        self._turns += 1
        others = sorted(radii - {best})
        # The first measurements are of cold caches, so they are soon repeated.
        interval = SOON if self._turns <= RETRY else RETRY
        if not others or self._turns % interval:
            return best
        return others[self._turns // interval % len(others)]

    def reach(self, radii: NDArray[np.int32]) -> None:
        now = np.bincount(radii, minlength=len(self._reached))
        self._reached = FADING ** len(radii) * self._reached + now

    def took(self, radius: int, first: float, second: float) -> None:
        self._first[radius] = _least(self._first.get(radius, 0.0), first)
        if second:
            self._second = _least(self._second, second)


def _least(before: float, now: float) -> float:
    """The least of measurements, of which those of long ago count less: what else a machine does
    only makes calls longer."""
    return min(now, SLOWER * before) if before else now


class _Plan(NamedTuple):
    """How to search."""

    hits: int | None  # to ask for; None: all within the radius
    candidates: bool  # whether "best" takes candidates

    @classmethod
    def of(
        cls,
        search: Search,
        facts: Facts,
        allowed: int | None,
        excluded: Sequence[Sequence[Any]],
        regions: int,
    ) -> _Plan:
        count = search.count(max(map(len, excluded), default=0), facts.fine)
        images = facts.fine if allowed is None else min(facts.fine, allowed)
        candidates = (
            count is not None
            and isinstance(search.query, Query)
            and takes_candidates(search.rank, count, search.budget, images, regions)
        )
        return cls(count, candidates)
