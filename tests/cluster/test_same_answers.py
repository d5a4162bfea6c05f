"""The answers of a cluster are those of one index of the same images.

Shards are opened in this process here, which is the same code but for the way to reach them;
`test_actors.py` asks real ones.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.clusters import (
    KIND,
    cluster,
    one_index,
    query_of,
    row,
    told,
    words_of,
)
from mchindex.index import MCHIndex, ranking

FEW = settings(max_examples=8, deadline=None)  # each opens several indexes
MANY = settings(max_examples=100, deadline=None)
IDS = st.one_of(st.integers(0, 30), st.integers(0, 30).map(str))
Step = tuple[str, Any]


@st.composite
def programs(draw: st.DrawFn) -> list[Step]:
    """Adds, replacements and removals."""
    steps: list[Step] = []
    for _ in range(draw(st.integers(1, 5))):
        ids = draw(st.lists(IDS, min_size=1, max_size=14))
        if draw(st.integers(0, 3)) and ids:
            steps.append(("add", [(id, draw(st.integers(0, 40))) for id in ids]))
        else:
            steps.append(("remove", ids))
    return steps


def perform(index: MCHIndex, steps: list[Step], spread: int, fine: bool = True) -> list[Any]:
    results: list[Any] = []
    for name, what in steps:
        if name == "add":
            rows = [row(id, seed, spread, fine) for id, seed in what]
            results.append(index.add_records(rows, KIND))
        else:
            results.append(index.remove(what))
    return results


@contextmanager
def both(shards: int, steps: list[Step], spread: int) -> Iterator[tuple[MCHIndex, MCHIndex]]:
    with (
        tempfile.TemporaryDirectory() as folder,
        one_index(Path(folder, "one.mch")) as one,
        cluster(Path(folder, "many"), shards) as many,
    ):
        assert perform(one, steps, spread) == perform(many, steps, spread)
        yield one, many


LIMITS = st.fixed_dictionaries(
    {},
    optional={
        "filter": st.sampled_from([{"kind": 1}, {"kind": [0, 2]}, {"seed": {">=": 9}}]),
        "exclude": st.lists(IDS, max_size=3),
        "allowed": st.lists(IDS, max_size=20),
        "offset": st.integers(0, 3),
    },
)
RADII = st.fixed_dictionaries(
    {}, optional={"max_radius": st.integers(0, 6), "max_buckets": st.integers(0, 300)}
)


SEARCHES = given(
    steps=programs(),
    spread=st.integers(1, 4),
    seed=st.integers(0, 50),
    k=st.integers(1, 12),
    rank=st.sampled_from(["code", "best", "fine"]),
    limits=LIMITS,
    radii=RADII,
)


@pytest.mark.parametrize("shards", [1, 2, 3, 5])
@FEW
@SEARCHES
def test_a_cluster_answers_like_one_index(shards: int, **drawn: Any) -> None:
    answers_like_one_index(shards, **drawn)


@pytest.mark.slow
@pytest.mark.parametrize("shards", [1, 2, 3, 5])
@MANY
@SEARCHES
def test_a_cluster_answers_many_searches_like_one_index(shards: int, **drawn: Any) -> None:
    answers_like_one_index(shards, **drawn)


def answers_like_one_index(
    shards: int,
    steps: list[Step],
    spread: int,
    seed: int,
    k: int,
    rank: Any,
    limits: dict[str, Any],
    radii: dict[str, Any],
) -> None:
    query = query_of(seed, 3, spread)
    with both(shards, steps, spread) as (one, many):
        assert list(one) == list(many)
        for own in ({}, limits, radii, {**limits, **radii}):
            first, second = (
                index.queries.search(query, k, (), rank=rank, **own) for index in (one, many)
            )
            assert told(first) == told(second)
        if ids := list(one):
            given_id = ids[seed % len(ids)]
            assert told(one.search(id=given_id, k=k)) == told(many.search(id=given_id, k=k))
            near: Any = {"id": given_id, "radius": seed % 7, "filter": limits.get("filter")}
            assert told(one.within(**near)) == told(many.within(**near))
        for wanted in ([True], [True, True, False]):
            words = words_of(seed, wanted)
            first, second = (index._searcher.by_words(words, k, **limits) for index in (one, many))
            assert told(first) == told(second)


CANDIDATES = given(
    steps=programs(),
    spread=st.integers(1, 8),
    seed=st.integers(0, 50),
    k=st.integers(1, 4),
    limits=LIMITS,
    sizes=st.tuples(st.integers(1, 8), st.integers(8, 40), st.integers(1, 4)),
)


@pytest.mark.parametrize("shards", [2, 3])
@FEW
@CANDIDATES
def test_a_cluster_takes_the_same_candidates(shards: int, **drawn: Any) -> None:
    takes_the_same_candidates(shards, **drawn)


@pytest.mark.slow
@pytest.mark.parametrize("shards", [2, 3])
@MANY
@CANDIDATES
def test_a_cluster_often_takes_the_same_candidates(shards: int, **drawn: Any) -> None:
    takes_the_same_candidates(shards, **drawn)


def takes_the_same_candidates(
    shards: int,
    steps: list[Step],
    spread: int,
    seed: int,
    k: int,
    limits: dict[str, Any],
    sizes: tuple[int, int, int],
) -> None:
    """An index with many images compares only candidates, which depend on all of them."""
    candidates, near, probes = sizes
    small: Any = {"ALL": 3, "CANDIDATES": candidates, "NEAR": near, "PROBES": probes}
    query = query_of(seed, 4, spread)
    with mock.patch.multiple(ranking, **small), both(shards, steps, spread) as (one, many):
        for own in ({}, limits):
            first, second = (
                index.queries.search(query, k, (), rank="best", **own) for index in (one, many)
            )
            assert told(first) == told(second)
            np.testing.assert_array_equal(first.candidates, second.candidates)


def test_the_contents_are_those_of_one_index() -> None:
    steps: list[Step] = [("add", [(i, i) for i in range(40)] + [("x", 50)]), ("remove", [3, 5])]
    with both(3, steps, 3) as (one, many):
        for index in (one, many):
            index.set_metadata(7, {"kind": "new"})
            index.decide({8: "keep", 2: "discard"})
        assert len(one) == len(many) == 39
        assert one.ids({"kind": 1}) == many.ids({"kind": 1})
        assert one.count({"kind": 1}) == many.count({"kind": 1})
        assert 7 in many
        assert 3 not in many
        assert many[7].metadata == {"kind": "new"}
        assert [s.id for s in one.images()] == [s.id for s in many.images()]
        assert one.decisions() == many.decisions() == {2: "discard", 8: "keep"}
        assert one.queries.facets(20) == many.queries.facets(20)
        assert one.queries.page(4, 5, None) == many.queries.page(4, 5, None)
        codes = one["x"].codes
        assert one.queries.in_bucket(codes) == many.queries.in_bucket(codes)
        assert one.duplicates("similar") == many.duplicates("similar")
        for name in ("images", "codes", "anhc", "fine_images", "bits", "fine_bits"):
            assert one.stats()[name] == many.stats()[name]
        assert one.remove(filter={"kind": 2}) == many.remove(filter={"kind": 2})
        assert list(one) == list(many)


@FEW
@given(
    steps=programs(),
    spread=st.integers(1, 4),
    k=st.integers(1, 6),
    limits=LIMITS,
    max_radius=st.none() | st.integers(0, 6),
)
def test_shards_are_asked_only_as_far_as_queries_usually_reach(
    steps: list[Step], spread: int, k: int, limits: dict[str, Any], max_radius: int | None
) -> None:
    """A guess that is too small costs another call, and changes no answer."""
    with both(2, steps, spread) as (one, many):
        for seed in range(6):
            query = query_of(seed, 1 + seed % 3, spread)
            options: Any = {**limits, "max_radius": max_radius} if seed % 2 else {}
            first, second = (
                index._searcher.search(query, k, (), rank="code", **options)
                for index in (one, many)
            )
            assert told(first) == told(second)


def test_a_search_of_many_queries_asks_each_shard_once_when_it_knows_how_far() -> None:
    steps = [("add", [(id, id) for id in range(200)])]
    with both(2, steps, 3) as (_, many):
        searcher: Any = many._searcher
        store: Any = many._store
        query = query_of(1, 40, 3)
        radii = []
        ask = store.answering

        def asked(shards: Any, name: str, *given: Any) -> Any:
            if name == "search":
                radii.append((len(given[0].query.codes), given[0].budget.max_radius))
            return ask(shards, name, *given)

        with mock.patch.object(store, "answering", asked):
            for _ in range(3):
                searcher.search(query, 5, (), rank="code")
        assert radii[0] == (40, None)
        assert radii[1][0] == 40
        assert 0 < radii[1][1] < 16
        assert sum(n for n, _ in radii) < 40 + 2 * 50
