"""Steps beyond the paper: how regions are chosen, and when a step is kept."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from beyond import joint, likeliest, unsure, verdict
from mchindex.models import RegionCodes, create_method
from mchindex.models.deep import DeepHash


def regions(n: int, kinds: int, seed: int) -> RegionCodes:
    rng = np.random.default_rng(seed)
    keep = rng.random((n, 6)).astype(np.float32)
    keep[:, 0] = 1
    return RegionCodes(rng.integers(0, kinds, (n, 6, 2), np.uint8), keep)


@given(st.integers(1, 30), st.integers(1, 5), st.integers(0, 2**31), st.floats(1, 6))
def test_a_joint_choice_repeats_no_code(n: int, kinds: int, seed: int, codes: float) -> None:
    found = regions(n, kinds, seed)
    kept = joint(found, codes)
    assert kept[:, 0].all()
    np.testing.assert_array_equal(found.distinct(kept), kept)


def test_a_joint_choice_prefers_the_new() -> None:
    """Two regions say the same; of a third, less likely but new, more is gained than of both."""
    codes = np.array([[[0, 0], [255, 0], [255, 1], [0, 255], [0, 0], [0, 0]]], np.uint8)
    keep = np.array([[1, 0.9, 0.88, 0.7, 0.95, 0.1]], np.float32)
    kept = joint(RegionCodes(codes, keep), 3)
    np.testing.assert_array_equal(np.flatnonzero(kept[0]), [0, 1, 3])


@given(st.integers(1, 30), st.integers(0, 2**31), st.integers(1, 6))
def test_the_likeliest_regions_stay(n: int, seed: int, most: int) -> None:
    found = regions(n, 200, seed)
    left = likeliest(found, most).keep
    assert ((left > 0).sum(1) <= most).all()
    assert (left[:, 0] == 1).all()
    cut = np.sort(found.keep, axis=1)[:, -most]
    np.testing.assert_array_equal(left, np.where(found.keep >= cut[:, None], found.keep, 0))


def test_unsure_codes_differ_a_little_and_the_method_stays() -> None:
    method = create_method("hashnet", 12, 32, {"hidden": 64})
    assert isinstance(method, DeepHash)
    method.eval()
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((50, 12))).float()
    before = method.codes(x)
    noisy = unsure(method, 1).codes(x)
    differ = float((noisy != before).float().mean())
    assert 0.02 < differ < 0.45
    assert torch.equal(unsure(method, 1).codes(x), noisy)
    assert torch.equal(method.codes(x), before)


@pytest.mark.parametrize(
    ("f1", "mean_ap", "off", "kept"),
    [
        (1.1, 0.01, 0.02, True),
        (1.1, -0.01, 0.02, False),
        (0.9, 0.01, 0.02, False),
        (1.1, 0.01, 0.2, False),
    ],
)
def test_a_step_is_kept_that_gains_and_loses_nothing(
    f1: float, mean_ap: float, off: float, kept: bool
) -> None:
    def cell(base: float) -> dict[str, Any]:
        mch = {"f1_own": base, "map": 0.5, "anhc": 1.5}
        step = {"f1_own": base * f1, "map": 0.5 + mean_ap, "anhc": 1.5 + off}
        return {"mch": mch, "step": step, "anhc_off": off}

    got = verdict([cell(0.1), cell(0.3)])
    assert got["kept"] is kept
    assert got["f1_ratio"] == pytest.approx(f1)
    assert got["f1_mean_ratio"] == pytest.approx(f1)
    assert got["map_change"] == pytest.approx(mean_ap)
    assert got["anhc_off"] == pytest.approx(off)
