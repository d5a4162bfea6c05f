"""The merged answers of tables that hold a part of the images each are those of one table."""

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from helpers.samples import WIDTHS, Rows, clustered, queries_near, table_of
from mchindex import BucketTable
from mchindex._core import SearchResult

COLUMNS = ("ids", "distances", "regions", "counts", "buckets", "radius", "exact")


def parts_of(bits: int, rows: Rows, parts: int) -> list[BucketTable]:
    """Tables of which each has some of the images, some of them perhaps none."""
    return [table_of(bits, rows.take(rows.ids * 7 % parts == part)) for part in range(parts)]


@given(
    bits=st.sampled_from(WIDTHS),
    parts=st.sampled_from([1, 2, 3, 5]),
    seed=st.integers(0, 1000),
    k=st.sampled_from([1, 3, 10, 500]),
    limits=st.sampled_from([{}, {"max_radius": 2}, {"max_buckets": 40}]),
)
def test_merged_answers_are_those_of_one_table(
    bits: int, parts: int, seed: int, k: int, limits: dict[str, Any]
) -> None:
    rows = clustered(bits, 200, seed)
    queries = queries_near(rows.codes, 6, seed)
    several = parts_of(bits, rows, parts)
    expected = table_of(bits, rows).search(queries, k, **limits)
    packed = [table.search(queries, k, **limits, masks=True).pack() for table in several]
    found = SearchResult.merge(packed, k)
    for column in COLUMNS:
        np.testing.assert_array_equal(getattr(found, column), getattr(expected, column), column)
    assert (found.candidates >= expected.candidates).all()
    every = SearchResult.merge(packed)
    assert (
        every.ids.shape[1]
        == 1 + sum(np.array([table.search(queries, k, **limits).counts for table in several])).max()
    )
    for query, ids in enumerate(found.ids):
        count = found.counts[query]
        np.testing.assert_array_equal(every.ids[query, :count], ids[:count])


def packed_answers() -> bytes:
    rows = clustered(64, 40, 0)
    return table_of(64, rows).search(rows.codes[:3], 4, masks=True).pack()


@given(st.binary())
@example(struct.pack("QQQ", 0, 0, 8))  # no queries: an answer
@example(struct.pack("QQQ", 1, 0, 0))
@example(struct.pack("QQQ", 2**63, 2**63, 2**63))
@example(struct.pack("QQQqqiIQ", 1, 0, 8, 0, 0, 0, 2**32 - 1, 0))
def test_noise_is_refused(noise: bytes) -> None:
    try:
        SearchResult.merge([noise], 10)
    except ValueError as error:
        assert str(error) == "these are no packed answers"  # noqa: PT017


@given(place=st.integers(0, 10_000), value=st.integers(0, 255), cut=st.integers(0, 10_000))
def test_damaged_answers_are_refused_or_answers(place: int, value: int, cut: int) -> None:
    good = packed_answers()
    bad = bytearray(good)
    bad[place % len(bad)] = value
    try:
        found = SearchResult.merge([bytes(bad), good], 4)
    except ValueError:
        found = None
    assert found is None or found.ids.shape == (3, 4)
    if short := cut % len(good):
        with pytest.raises(ValueError, match="no packed answers"):
            SearchResult.merge([good[:short]], 4)


def test_what_cannot_be_packed_or_merged_is_refused() -> None:
    rows = clustered(64, 40, 0)
    table = table_of(64, rows)
    with pytest.raises(ValueError, match="only a result with masks"):
        table.search(rows.codes[:1]).pack()
    with pytest.raises(ValueError, match="at least one part"):
        SearchResult.merge([])
    with pytest.raises(ValueError, match="the same queries"):
        SearchResult.merge([packed_answers(), table.search(rows.codes[:1], masks=True).pack()])
    with pytest.raises(ValueError, match="k must be from 1"):
        SearchResult.merge([packed_answers()], 0)
    with pytest.raises(ValueError, match="more than 2"):
        SearchResult.merge([packed_answers()], 2**26)
    with pytest.raises(TypeError):
        SearchResult.merge(["text"])  # type: ignore[list-item]
