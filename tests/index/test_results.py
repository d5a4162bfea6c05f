"""Hits and Answers as values: compared, copied, sent to another process."""

import copy
import pickle
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from helpers.indexes import BITS, codes_for
from mchindex import MCHIndex

QUERIES = np.concatenate([codes_for(i)[:1] for i in range(4)])


@pytest.fixture
def index() -> Iterator[MCHIndex]:
    with MCHIndex(bits=BITS) as index:
        index.add_codes(range(4), QUERIES, metadata=[{"n": i} for i in range(4)])
        yield index


def test_hits_are_equal_if_their_content_is(index: MCHIndex) -> None:
    answers = index.search_codes(QUERIES, 2)
    assert answers[0] == answers[0]
    assert answers[0] == index.search_codes(QUERIES[0], 2)
    assert answers[0] != answers[1]
    index.set_metadata(0, {"n": "new"})
    assert answers[0] != index.search_codes(QUERIES[0], 2)


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda a: pickle.loads(pickle.dumps(a))]
)
def test_a_copy_of_answers_needs_no_index(index: MCHIndex, copied: Callable[[Any], Any]) -> None:
    same = copied(index.search_codes(QUERIES, 2))  # nobody has looked at them yet
    index.close()
    assert [hits.ids[0] for hits in same] == [0, 1, 2, 3]
    assert copied(same[2]) == same[2]


@pytest.mark.parametrize("name", ["leave_out", "max_distance"])
def test_an_unknown_option(index: MCHIndex, name: str) -> None:
    message = f"a search has no option '{name}': there are offset, max_radius, .*threads"
    asked: list[Callable[..., Any]] = [
        partial(index.search_codes, QUERIES),
        partial(index.search, id=0),
    ]
    for ask in asked:
        with pytest.raises(TypeError, match=message):
            ask(**{name: 1})


HUGE = 10**30


@pytest.mark.parametrize("name", ["k", "offset", "max_radius", "max_buckets", "threads"])
@pytest.mark.parametrize("wrong", ["3", 2.5, True, [1], np.float32(2), b"1", 1 + 0j, np.array([1])])
def test_a_number_of_another_type(index: MCHIndex, name: str, wrong: Any) -> None:
    for ask in (partial(index.search_codes, QUERIES), partial(index.search, id=0)):
        with pytest.raises(TypeError, match=f"{name} must be an integer, not"):
            ask(**{name: wrong})


@pytest.mark.parametrize("name", ["k", "offset", "max_radius", "max_buckets", "threads"])
@pytest.mark.parametrize("wrong", [-1, -HUGE, HUGE])
def test_a_number_out_of_range(index: MCHIndex, name: str, wrong: int) -> None:
    with pytest.raises(ValueError, match=rf"{name}.* must be at (least|most) \d+, not {wrong}"):
        index.search_codes(QUERIES, **{name: wrong})  # type: ignore[call-overload]


@pytest.mark.parametrize("most", [2**32 + 1, 2**62, 2**63 - 1])
def test_large_numbers(index: MCHIndex, most: int) -> None:
    want = index.search_codes(QUERIES, 4).ids
    limits: list[dict[str, Any]] = [
        {"max_radius": most}, {"max_buckets": most}, {"threads": most},
        {"max_radius": np.uint64(most)},
    ]  # fmt: skip
    for limit in limits:
        assert index.search_codes(QUERIES, 4, **limit).ids == want
    assert len(index.within(id=0, radius=most)) == 3
    for page in ({"k": most}, {"offset": most}):
        with pytest.raises(ValueError, match="k and offset together must be at most"):
            index.search_codes(QUERIES, **page)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("limits", "error", "message"),
    [
        ({"radius": "1"}, TypeError, "radius must be an integer, not str"),
        ({"radius": 1.0}, TypeError, "radius must be an integer, not float"),
        ({"radius": None}, TypeError, "radius must be an integer, not NoneType"),
        ({"radius": -1}, ValueError, "radius must be at least 0, not -1"),
        ({"radius": HUGE}, ValueError, "radius must be at most"),
        ({"threads": "x"}, TypeError, "threads must be an integer, not str"),
        ({"filter": 5}, TypeError, "a filter must be a mapping"),
        ({"allowed": 5}, TypeError, "allowed must be a list of ids, not int"),
        ({"allowed": "x"}, TypeError, "ids must be a list"),
        ({"allowed": [1.5]}, TypeError, "an id must be text or an integer, not float"),
    ],
)
def test_wrong_arguments_of_within(
    index: MCHIndex, limits: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        index.within(id=0, **limits)


def test_numpy_integers_are_integers(index: MCHIndex) -> None:
    one: Any = np.int8(1)
    two: Any = np.uint64(2)
    assert index.search_codes(QUERIES, two, offset=one, threads=one).counts.tolist() == [
        2, 2, 2, 2,
    ]  # fmt: skip
    assert index.within(id=0, radius=one) == index.within(id=0, radius=1)


@pytest.mark.parametrize("wrong", ["album", [("album", "2024")], 5])
def test_a_filter_that_is_no_mapping(index: MCHIndex, wrong: Any) -> None:
    for ask in (index.count, index.ids, lambda f: index.search_codes(QUERIES, filter=f)):
        with pytest.raises(TypeError, match="a filter must be a mapping"):
            ask(wrong)


def test_a_walk_too_long_to_count() -> None:
    with MCHIndex(bits=64) as index:
        index.add_codes([0], np.zeros((1, 8), np.uint8))
        hits = index.search_codes(np.zeros(8, np.uint8), 2)  # all 2^64 buckets
        assert "visited more than 9.2e18" in hits.effort()
