"""Rounding to whole numbers: scales, and weights that make up for each other's errors."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quantise import Scale, fitted, rounded_weights, weight_scales


@given(st.floats(-100, 0), st.floats(0.01, 100), st.lists(st.floats(0, 1), min_size=1))
def test_rounding_errs_by_half_a_step(low: float, high: float, shares: list[float]) -> None:
    scale = Scale.of(low, high)
    assert 0 <= scale.zero <= 255
    values = torch.tensor([low + share * (high - low) for share in shares], dtype=torch.float64)
    error = (scale.rounded(values) - values).abs().max()
    assert error <= scale.size * 1.01  # the zero is rounded, too
    assert scale.rounded(torch.zeros(1)) == 0


@pytest.mark.parametrize("seed", range(5))
def test_columns_make_up_for_errors(seed: int) -> None:
    rng = np.random.default_rng(seed)
    mixed = rng.normal(size=(400, 3)) @ rng.normal(size=(3, 12))
    x = torch.from_numpy(mixed + 0.1 * rng.normal(size=mixed.shape))
    weight = torch.from_numpy(rng.normal(size=(4, 12)))
    same, square = fitted(weight, x, x)
    torch.testing.assert_close(same, weight)
    sizes = weight_scales(weight, 7)
    ours = rounded_weights(weight, square, sizes, 7)
    assert (ours == ours.round()).all()
    assert ours.abs().max() <= 7
    plain = (weight / sizes[:, None]).round().clamp(-7, 7)

    def error(whole: torch.Tensor) -> float:
        return float(((whole * sizes[:, None] - weight) @ x.T).square().mean())

    assert error(ours) < 0.7 * error(plain)


def test_weights_are_fitted_to_rounded_inputs() -> None:
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.normal(size=(500, 6)))
    weight = torch.from_numpy(rng.normal(size=(3, 6)))
    found, _ = fitted(weight, x, 2 * x)
    torch.testing.assert_close(found, weight / 2, rtol=0.05, atol=0.01)
