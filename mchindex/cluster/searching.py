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


class _OutdatedError(MCHError):
    """The images have got, or lost, fine codes since the rank was chosen."""


class ClusterSearcher(Searcher):
    """Searches of all shards. A query is encoded once and sent to each shard."""

    def __init__(self, store: ClusterStore, table: ClusterTable, identity: Identity) -> None:
        super().__init__(store, table, identity)
        self._cluster, self._tables = store, table

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
                return search.cut(self._joined(parts, plan), excluded)
            plan = right
        raise self._changing()

    def _ask(self, shards: Shards, search: Search, plan: _Plan) -> list[Part]:
        if not plan.candidates:
            return list(self._answers_of(shards, "search", search, plan.hits, None).values())
        reach = Reach.of(list(self._answers_of(shards, "near", search).values()))
        parts = self._answers_of(shards, "search", search, plan.hits, reach)
        assert plan.hits is not None
        keys = np.concatenate([part.found.keys for part in parts.values()], 1)
        few = np.flatnonzero((keys >= 0).sum(1) < plan.hits)  # as in `ranked`
        if not len(few):
            return list(parts.values())
        whole = self._answers_of(shards, "search", search.at(few), plan.hits, None)
        return [_completed(part, few, whole[i]) for i, part in parts.items() if i in whole]

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


def _completed(part: Part, rows: NDArray[np.int64], more: Part) -> Part:
    """A part with the answers of another to some of the queries."""
    width = max(part.found.keys.shape[1], more.found.keys.shape[1])
    found = part.found.wider(width)
    found.put(rows, more.found.wider(width))
    found.partial |= more.found.partial
    return replace(part, found=found)


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
