"""Searching a cluster: every shard is asked, and what they find is merged."""

from __future__ import annotations

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
MOST = 0.99  # share of the queries that find enough images at once; the others take another call
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
            parts = self._cluster.run(partial(self._ask, search=search, plan=plan))
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
                found = self._joined(parts, plan)
                self._radii.learn(search, found)
                return search.cut(found, excluded)
            plan = right
        raise self._changing()

    def _ask(self, shards: Shards, search: Search, plan: _Plan) -> list[Part]:
        reach, nearby = None, None
        if plan.candidates:
            reach = Reach.of(list(self._answers_of(shards, "near", search).values()))
        else:
            nearby = self._radii.within(search, plan.hits)
        parts = self._answers_of(shards, "search", nearby or search, plan.hits, reach)
        if reach is None and nearby is None:
            return list(parts.values())
        assert plan.hits is not None
        keys = np.concatenate([part.found.keys for part in parts.values()], 1)
        few = np.flatnonzero((keys >= 0).sum(1) < plan.hits)  # as in `ranked`
        if not len(few):
            return list(parts.values())
        whole = self._answers_of(shards, "search", search.at(few), plan.hits, None)
        return [
            replace(part, found=part.found.with_rows(few, whole[i].found))
            for i, part in parts.items()
            if i in whole
        ]

    def _answers_of(self, shards: Shards, name: str, *arguments: Any) -> dict[int, Any]:
        """The answers of the shards; parts say so if not all shards answered."""
        answers = self._cluster.answering(shards, name, *arguments)
        for part in answers.values() if len(answers) < len(shards) else ():
            if isinstance(part, Part):
                part.found.partial = True
        return answers

    def _joined(self, parts: Sequence[Part], plan: _Plan) -> Found:
        count = plan.hits
        if count is None:  # all within a radius
            count = 1 + sum(int((part.found.keys >= 0).sum()) for part in parts)
        found = merged([part.found for part in parts], count)
        if found.partial:
            found.exact = np.zeros_like(found.exact)
        return found


class _Radii:
    """How far queries reach before they have found enough images, as earlier queries did.

    A shard has only a part of the images near a query, and would have to search much farther than
    one index of all of them for as many hits. So shards are first asked only for what is as near as
    most queries need.
    """

    def __init__(self, bits: int) -> None:
        self._bits = bits
        self._seen: dict[int, NDArray[np.float64]] = {}  # by number of hits: how often each radius

    def within(self, search: Search, hits: int | None) -> Search | None:
        """The same search within a radius where most queries find enough images."""
        if not self._fits(search) or hits is None or hits not in self._seen:
            return None
        shares = np.cumsum(self._seen[hits])
        radius = int(np.searchsorted(shares, MOST * shares[-1]))
        limit = search.budget.max_radius
        if radius >= (self._bits if limit is None else limit):
            return None
        return replace(search, budget=search.budget._replace(max_radius=radius))

    def learn(self, search: Search, found: Found) -> None:
        if not self._fits(search) or search.budget.limited or search.wanted is None:
            return
        hits = found.keys.shape[1]
        radii = np.where(found.keys[:, -1] >= 0, found.radius, self._bits)
        if len(self._seen) >= REMEMBERED and hits not in self._seen:
            self._seen.pop(next(iter(self._seen)), None)
        before = self._seen.get(hits, np.zeros(self._bits + 1))
        now = np.bincount(radii, minlength=self._bits + 1)
        self._seen[hits] = FADING ** len(radii) * before + now

    @staticmethod
    def _fits(search: Search) -> bool:
        """Whether the queries look for codes, near ones first."""
        return search.rank == "code" and search.budget.max_buckets is None


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
