"""within() refuses an answer that would not fit into memory, before the memory is taken."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from helpers.memory import peak
from helpers.samples import STRATEGIES, uniform
from mchindex import BucketTable


def filled(images: int, seed: int = 0) -> BucketTable:
    table = BucketTable(64)
    table.add(np.arange(images), uniform(64, images, seed))
    return table


@contextmanager
def at_most(megabytes: int) -> Iterator[None]:
    """The block may not take more memory than this, at its peak."""
    before = peak()
    yield
    grown = (peak() - before) / 2**20
    assert grown <= megabytes


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("radius", [20, 40, 64, 10**30])
def test_as_many_hits_as_allowed_and_one_more(strategy: Any, threads: int, radius: int) -> None:
    table, queries = filled(300), uniform(64, 50, 1)
    every = table.within(queries, radius, strategy=strategy)
    hits = len(every.ids)
    same = table.within(queries, radius, strategy=strategy, threads=threads, max_hits=hits)
    np.testing.assert_array_equal(same.ids, every.ids)
    np.testing.assert_array_equal(same.lims, every.lims)
    if hits:
        with pytest.raises(
            ValueError, match=f"for 50 queries makes more than {hits - 1} hits; pass"
        ):
            table.within(queries, radius, strategy=strategy, threads=threads, max_hits=hits - 1)
    again = table.within(queries, radius, strategy=strategy, threads=threads)
    np.testing.assert_array_equal(again.ids, every.ids)


def test_only_allowed_images_count_as_hits() -> None:
    table, queries = filled(300), uniform(64, 50, 1)
    assert len(table.within(queries, 64, allowed=range(2), max_hits=100).ids) == 100
    with pytest.raises(ValueError, match="makes more than 99 hits"):
        table.within(queries, 64, allowed=range(2), max_hits=99)


def test_without_hits_any_limit_is_enough() -> None:
    table, queries = filled(300), uniform(64, 50, 1)
    assert len(table.within(queries, 0, max_hits=0).ids) == 0
    assert len(BucketTable(64).within(queries, 64, max_hits=0).ids) == 0
    assert len(table.within(queries[:0], 64, max_hits=0).ids) == 0


@pytest.mark.parametrize("radius", [64, 60])
def test_a_million_queries_with_too_many_hits_take_little_memory(radius: int) -> None:
    table = filled(20_000)
    queries = np.tile(uniform(64, 1000, 1), (1000, 1))
    began = time.monotonic()
    with at_most(300), pytest.raises(ValueError, match=r"1000000 queries makes more than 1000000"):
        table.within(queries, radius, max_hits=10**6)
    if radius == 64:  # 20 thousand million hits, refused from their number alone
        with at_most(100), pytest.raises(ValueError, match="makes more than 67108864 hits"):
            table.within(queries, radius)
    assert time.monotonic() - began < 60  # all of them would take much longer


@pytest.mark.parametrize("limit", [-1, 1.5, "7", None])
def test_a_limit_that_is_none(limit: Any) -> None:
    table = filled(3)
    with pytest.raises((TypeError, ValueError), match="max_hits must be"):
        table.within(uniform(64, 1, 0), 3, max_hits=limit)
