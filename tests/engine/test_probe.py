"""The visiting order: masks are complete, distinct and in order, and their ranks are right."""

from itertools import combinations, islice
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from helpers.oracle import INT64_MAX
from mchindex._core import bucket_ranks, probe_masks


def masks_by_combinations(bits: int, radius: int, limit: int | None = None) -> NDArray[np.uint8]:
    """The visiting order by definition: combinations() of the positions is lexicographic."""
    chosen = list(islice(combinations(range(bits), radius), limit))
    flips = np.zeros((len(chosen), bits), np.uint8)
    for row, positions in enumerate(chosen):
        flips[row, list(positions)] = 1
    return np.packbits(flips, axis=1)


def rank_by_formula(positions: list[int], bits: int) -> int:
    """The rank of a bucket, as a Python integer, from the flipped positions p_0 < p_1 < …"""
    radius = len(positions)
    before = sum(comb(bits, r) for r in range(radius))
    previous = -1
    for i, position in enumerate(positions):
        before += sum(comb(bits - 1 - q, radius - 1 - i) for q in range(previous + 1, position))
        previous = position
    return before + 1


def mask_of(positions: list[int], bits: int) -> NDArray[np.uint8]:
    flips = np.zeros(bits, np.uint8)
    flips[positions] = 1
    return np.packbits(flips)


@pytest.mark.parametrize(
    ("bits", "radius"),
    [(8, r) for r in range(9)] + [(16, r) for r in range(17)] + [(24, 3), (64, 2), (256, 2)],
)
def test_masks_are_complete_and_in_order(bits: int, radius: int) -> None:
    masks = probe_masks(bits, radius)
    assert masks.dtype == np.uint8
    assert len(np.unique(masks, axis=0)) == comb(bits, radius)
    np.testing.assert_array_equal(masks, masks_by_combinations(bits, radius))


@pytest.mark.parametrize("bits", range(8, 257, 8))
def test_large_radii_start_in_order(bits: int) -> None:
    for radius in {0, 1, 3, bits // 2, bits - 1, bits}:
        for limit in (0, 1, 300):
            want = masks_by_combinations(bits, radius, limit)
            np.testing.assert_array_equal(probe_masks(bits, radius, limit), want)


@pytest.mark.parametrize("bits", [8, 16])
def test_a_rank_is_the_number_of_buckets_up_to_it(bits: int) -> None:
    seen = 0
    for radius in range(bits + 1):
        masks = probe_masks(bits, radius)
        ranks = bucket_ranks(masks)
        assert ranks.dtype == np.int64
        np.testing.assert_array_equal(ranks, seen + 1 + np.arange(len(masks)))
        seen += len(masks)
    assert seen == 2**bits


@settings(max_examples=300)
@given(st.data())
def test_ranks_follow_the_formula(data: st.DataObject) -> None:
    bits = 8 * data.draw(st.integers(1, 32), label="bytes")
    # Often few flips: with many flips in wide codes the rank saturates and tests nothing.
    most = data.draw(st.sampled_from([4, 9, bits]), label="most")
    flipped = data.draw(st.sets(st.integers(0, bits - 1), max_size=most), label="flipped")
    if data.draw(st.booleans(), label="complement"):
        flipped = set(range(bits)) - flipped
    positions = sorted(flipped)
    rank = min(rank_by_formula(positions, bits), INT64_MAX)
    assert bucket_ranks(mask_of(positions, bits)).tolist() == [rank]


@pytest.mark.parametrize("bits", range(8, 257, 8))
def test_first_and_last_rank(bits: int) -> None:
    masks = np.stack([mask_of(p, bits) for p in ([], [0], [bits - 1], list(range(bits)))])
    last = min(2**bits, INT64_MAX)
    assert bucket_ranks(masks).tolist() == [1, 2, bits + 1, last]


@pytest.mark.parametrize(("bits", "radius"), [(0, 0), (12, 1), (264, 1), (64, -1)])
def test_bad_input(bits: int, radius: int) -> None:
    with pytest.raises(ValueError, match=r"bits|radius"):
        probe_masks(bits, radius, 1)
