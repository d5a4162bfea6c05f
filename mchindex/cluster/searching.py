"""Searching a cluster: every shard is asked, and what they find is merged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from numpy.typing import NDArray

from mchindex.cluster.merging import merged
from mchindex.cluster.shard import Facts, Part
from mchindex.cluster.shards import Shards
from mchindex.cluster.store import ClusterStore
from mchindex.cluster.table import ClusterTable
from mchindex.errors import ShardUnavailableError, StoreError
from mchindex.index.arguments import Filter, Limits
from mchindex.index.identity import Identity
from mchindex.index.ranking import Query, Reach, takes_candidates
from mchindex.index.results import Answers, Found
from mchindex.index.searching import Search, Searcher
from mchindex.storage.records import Id

if TYPE_CHECKING:
    from mchindex.inference.words import WordQuery

TRIES = 20  # for an index that changes while it is searched


class _OutdatedError(Exception):
    """The images have got, or lost, fine codes since the rank was chosen."""


class ClusterSearcher(Searcher):
    """Searches of all shards. A query is encoded once and sent to each shard."""

    def __init__(
        self, store: ClusterStore, table: ClusterTable, identity: Identity, partial: bool
    ) -> None:
        super().__init__(store, table, identity)
        self._cluster, self._tables, self._partial = store, table, partial

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
        plan = _Plan.of(search, self._tables.seen or self._tables.facts(), None, leave_out)
        for _ in range(TRIES):
            parts = self._cluster.run(lambda shards: self._ask(shards, search, plan))
            facts = Facts.total([part.facts for part in parts])
            self._tables.seen = facts
            if search.rank != "code" and facts.without_fine:
                raise _OutdatedError
            allowed = [part.allowed for part in parts if part.allowed is not None]
            excluded = [
                [key for part in parts for key in part.excluded[i]] for i in range(len(leave_out))
            ]
            right = _Plan.of(search, facts, sum(allowed) if allowed else None, excluded)
            if plan == right:
                return search.cut(self._joined(parts, plan), excluded)
            plan = right
        raise self._changing()

    def _ask(self, shards: Shards, search: Search, plan: _Plan) -> list[Part]:
        if not plan.candidates:
            return self._whole(shards, "search", search, plan.count, None)
        reach = Reach.of(self._whole(shards, "near", search))
        parts: list[Part] = self._whole(shards, "search", search, plan.count, reach)
        assert plan.count is not None
        keys = np.concatenate([part.found.keys for part in parts], 1)
        few = np.flatnonzero((keys >= 0).sum(1) < plan.count)
        if len(few):
            again = search.at(few)
            for part, more in zip(parts, self._whole(shards, "search", again, plan.count, None), strict=True):
                part.found.put(few, more.found)
        return parts

    def _whole(self, shards: Shards, name: str, *arguments: Any) -> list[Any]:
        """The answers of all shards, or of those that answer, if that is allowed."""
        try:
            return shards.all(name, *arguments)
        except ShardUnavailableError as error:
            if not self._partial or not error.answers:
                raise
            answers = [error.answers[i] for i in sorted(error.answers)]
            for part in answers:
                if isinstance(part, Part):
                    part.found.partial = True
            return answers

    def _joined(self, parts: Sequence[Part], plan: _Plan) -> Found:
        count = plan.count
        if count is None:  # all within a radius
            count = 1 + sum(int((part.found.keys >= 0).sum()) for part in parts)
        found = merged([part.found for part in parts], count)
        if found.partial:
            found.exact = np.zeros_like(found.exact)
        return found


class _Plan(tuple[Any, ...]):
    """How to search: how many hits to ask for, and whether "best" takes candidates."""

    count: int | None
    candidates: bool

    @classmethod
    def of(
        cls,
        search: Search,
        facts: Facts,
        allowed: int | None,
        excluded: Sequence[Sequence[Any]],
    ) -> _Plan:
        count = search.count(max(map(len, excluded), default=0), facts.fine)
        images = facts.fine if allowed is None else min(facts.fine, allowed)
        candidates = (
            count is not None
            and isinstance(search.query, Query)
            and takes_candidates(search.rank, count, search.budget, images, search.regions)
        )
        return cls(count, candidates)
