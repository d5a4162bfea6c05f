"""bench/recall.py against a plain count of how many returned images are near enough."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common import Codes, Ids
from recall import Judge


def image_distances(codes: Codes, images: Ids, query: Codes) -> dict[int, int]:
    """Every image's distance at its nearest code."""
    out: dict[int, int] = {}
    for code, image in zip(codes, images.tolist(), strict=True):
        distance = sum(int(a ^ b).bit_count() for a, b in zip(code, query, strict=True))
        out[image] = min(distance, out.get(image, 999))
    return out


def exact_ids(codes: Codes, images: Ids, queries: Codes, k: int) -> Ids:
    rows = []
    for query in queries:
        apart = image_distances(codes, images, query)
        rows.append(sorted(apart, key=lambda i: (apart[i], i))[:k])
    return np.array(rows, dtype=np.int64)


def plain_recall(codes: Codes, images: Ids, queries: Codes, ids: Ids, k: int) -> float:
    hits = 0
    for query, row in zip(queries, ids.tolist(), strict=False):
        apart = image_distances(codes, images, query)
        kth = sorted(apart.values())[k - 1]
        hits += sum(apart[i] <= kth for i in set(row) if i >= 0)
    return hits / (k * len(ids))


@st.composite
def problems(draw: st.DrawFn) -> tuple[Codes, Ids, Codes, Ids, int, int]:
    """Codes of 8 or 16 bits, few of them distinct, so that ties are common; any answer at all."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=12))
    images = np.repeat(np.arange(len(sizes)), sizes)
    width = draw(st.sampled_from([1, 2]))
    values = draw(st.sampled_from([2, 4, 256]))
    codes = rng.integers(0, values, (len(images), width)).astype(np.uint8)
    queries = rng.integers(0, values, (draw(st.integers(1, 4)), width)).astype(np.uint8)
    largest = draw(st.integers(1, len(sizes)))
    k = draw(st.integers(1, largest))
    judged = draw(st.integers(1, len(queries)))
    ids = rng.integers(-1, len(sizes), (judged, k))  # with repeats and gaps
    return codes, images, queries, ids, k, largest


@given(problems())
def test_recall_counts_distinct_images_as_near_as_the_kth(
    problem: tuple[Codes, Ids, Codes, Ids, int, int],
) -> None:
    codes, images, queries, ids, k, largest = problem
    judge = Judge(codes, images, queries, exact_ids(codes, images, queries, largest))
    assert judge.recall(ids, k) == pytest.approx(plain_recall(codes, images, queries, ids, k))


@given(problems(), st.integers(0, 2**32))
def test_exact_answers_have_recall_one_however_ties_are_broken(
    problem: tuple[Codes, Ids, Codes, Ids, int, int], seed: int
) -> None:
    codes, images, queries, _, k, largest = problem
    rng = np.random.default_rng(seed)
    rows = []
    for query in queries:
        apart = image_distances(codes, images, query)
        rows.append(sorted(apart, key=lambda i: (apart[i], rng.random()))[:k])
    judge = Judge(codes, images, queries, exact_ids(codes, images, queries, largest))
    assert judge.recall(np.array(rows), k) == 1


def test_ties_count_repeats_do_not_and_misses_cost_their_share() -> None:
    codes = np.array([[0b0], [0b1], [0b10], [0b111], [0b1111_1111]], dtype=np.uint8)
    images = np.array([0, 1, 2, 3, 3])
    query = np.zeros((1, 1), dtype=np.uint8)
    judge = Judge(codes, images, query, np.array([[0, 1]]))
    assert judge.recall(np.array([[0, 1]]), 2) == 1
    assert judge.recall(np.array([[2, 0]]), 2) == 1  # image 2 is as near as image 1
    assert judge.recall(np.array([[0, 0]]), 2) == 0.5
    assert judge.recall(np.array([[0, -1]]), 2) == 0.5
    assert judge.recall(np.array([[3, 0]]), 2) == 0.5
    assert judge.recall(np.array([[3]]), 1) == 0
    np.testing.assert_array_equal(judge.distances(np.array([[3, 3, -1, 2]])), [[3, 9, 9, 1]])
