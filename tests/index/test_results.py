"""Hits and Answers as values: compared, copied, sent to another process."""

import copy
import pickle
from collections.abc import Callable, Iterator
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


def test_an_option_that_is_not_public(index: MCHIndex) -> None:
    with pytest.raises(TypeError, match="leave_out"):
        index.search_codes(QUERIES, leave_out=1)  # type: ignore[call-overload]


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
