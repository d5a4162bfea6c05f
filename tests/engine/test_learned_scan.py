"""A scan learns on its way how far the nearest images are, and still ranks as a full sort would."""

import numpy as np
import pytest

from helpers.oracle import assert_ranked
from helpers.samples import Rows, queries_near, table_of, uniform

CODES = 40_000  # enough for a scan to learn something


def correlated(bits: int, per_image: int, seed: int, spread: float) -> Rows:
    """Signs of sums of a few numbers; the codes of an image are alike where `spread` is small."""
    rng = np.random.default_rng(seed)
    images = np.arange(CODES) // per_image
    inner = rng.standard_normal((CODES, 12))
    own = rng.standard_normal((images[-1] + 1, 12))[images] + spread * inner
    signs = own @ rng.standard_normal((12, bits)) + rng.standard_normal((CODES, bits)) > 0
    return Rows(images, np.packbits(signs, axis=1), np.arange(CODES) % per_image)


@pytest.mark.parametrize("bits", [64, 128, 256])
@pytest.mark.parametrize(("per_image", "spread"), [(1, 1.0), (6, 0.1), (6, 2.0)])
def test_learned_distances_change_no_answer(bits: int, per_image: int, spread: float) -> None:
    rows = correlated(bits, per_image, bits, spread)
    table = table_of(bits, rows)
    table.optimize()
    gone = np.arange(0, rows.ids.max(), 17)
    table.remove(gone)
    left = rows.take(~np.isin(rows.ids, gone))
    queries = queries_near(left.codes, 6, seed=3)
    for k in (1, 30, 3_000):  # later searches know what earlier ones needed
        for some in (queries, ~queries[:3]):
            assert_ranked(table.search(some, k, strategy="scan"), left, some)


@pytest.mark.parametrize("bits", [32, 64, 256])
def test_a_search_that_needs_more_than_those_before_it_finds_all(bits: int) -> None:
    # Six codes per image: unrelated in one half of the space, equal but for a bit in the other.
    n = 4_000
    apart = uniform(bits, 6 * n, seed=1)
    alike = np.repeat(uniform(bits, n, seed=2), 6, axis=0)
    alike[:, -1] ^= np.tile(np.array([1, 2, 4, 8, 16, 32], np.uint8), n)
    codes = np.concatenate([apart, alike])
    codes[:, 0] = np.repeat([0, 255], 6 * n)
    rows = Rows(np.arange(12 * n) // 6, codes, np.arange(12 * n) % 6)
    table = table_of(bits, rows)
    table.optimize()
    queries = uniform(bits, 24, seed=3)
    for k in (10, 100, 500):
        for half in (0, 255):
            queries[:, 0] = half
            assert_ranked(table.search(queries, k, strategy="scan"), rows, queries)


def test_scans_of_all_codes_find_what_scans_of_groups_do() -> None:
    # All distances are 16, but codes lie in small groups: it is faster to disregard these.
    halves = np.arange(1 << 16, dtype=">u2").view(np.uint8).reshape(-1, 2)
    codes = np.concatenate([halves, ~halves], axis=1)
    asked = uniform(16, 64, seed=4)
    rows = Rows(np.arange(len(codes)), codes, np.zeros(len(codes), int))
    table = table_of(32, rows)
    queries = np.concatenate([asked, asked], axis=1)
    for _ in range(20):
        found = table.search(queries, 30)
    assert_ranked(found, rows, queries)
    near = queries_near(codes, 64, seed=5)
    assert_ranked(table.search(near, 30), rows, near)
