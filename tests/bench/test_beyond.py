"""Steps beyond the paper: how regions are chosen, and when a step is kept."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from beyond import SHARED, joint, only_kept, overlap, strongest, unsure, verdict
from mchindex.models import RegionCodes, create_method
from mchindex.models.deep import DeepHash, mixed_views
from mchindex.models.views import Features
from mchindex.regions import corners_and_centre, overlaps


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


@given(
    st.integers(1, 8),
    st.integers(2, 7),
    st.floats(0.2, 1.0),
    st.integers(1, 6),
    st.integers(0, 2**31),
)
def test_peaks_are_where_a_map_is_strongest(
    n: int, side: int, sigma: float, count: int, seed: int
) -> None:
    maps = np.random.default_rng(seed).random((n, side, side)).astype(np.float32)
    boxes = strongest(maps, sigma, count)
    assert boxes.shape == (n, count, 4)
    assert (boxes >= 0).all()
    assert (boxes <= 1).all()
    np.testing.assert_allclose(boxes[..., 2:] - boxes[..., :2], sigma, atol=1e-9)
    for one, picked in zip(maps, boxes, strict=True):
        # By hand, at the paper's corners: none is stronger than the first pick.
        mean = [float(overlaps(np.array(box), side, side) @ one.ravel()) for box in picked]
        corners = corners_and_centre(sigma).array()[1:]
        assert mean[0] >= (overlaps(corners, side, side) @ one.ravel()).max() - 1e-5
        between = overlap(picked)
        if sigma <= 0.3:  # there is room for all
            assert (between - np.eye(count)).max() <= SHARED


def test_peaks_find_two_things() -> None:
    maps = np.zeros((1, 8, 8), np.float32)
    maps[0, 1, 6], maps[0, 6, 1] = 2, 1
    first, second = strongest(maps, 0.4, 2)[0]
    for (x0, y0, x1, y1), (row, column) in ((first, (1, 6)), (second, (6, 1))):
        assert x0 <= column / 8
        assert (column + 1) / 8 <= x1
        assert y0 <= row / 8
        assert (row + 1) / 8 <= y1


def test_what_two_boxes_share() -> None:
    boxes = np.array([[0, 0, 0.5, 0.5], [0.25, 0, 0.75, 0.5], [0.5, 0.5, 1, 1]])
    expected = np.array([[1, 1 / 3, 0], [1 / 3, 1, 0], [0, 0, 1]])
    np.testing.assert_allclose(overlap(boxes), expected)


def test_only_kept_crops_are_learnt_from() -> None:
    rng = np.random.default_rng(3)
    labels = torch.from_numpy(rng.random((40, 5)) < 0.5)
    labels[:, 0] = True
    views = Features(torch.zeros(40, 4, 2), labels)
    kept = torch.from_numpy(rng.random((40, 4)) < 0.4)
    kept[:, 0] = True
    narrow = only_kept(views, kept)
    rows = torch.arange(40).repeat(50)
    view = mixed_views(rows, narrow, 0.9, torch.Generator().manual_seed(0))
    assert kept[rows, view].all()
    seen = torch.zeros(40, 4, dtype=torch.bool)
    seen[rows, view] = True
    assert torch.equal(seen, kept)
    assert torch.equal(narrow.view_labels(rows, view), labels[rows])


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
