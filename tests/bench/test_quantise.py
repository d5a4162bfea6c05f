"""Rounding to whole numbers: scales, and weights that make up for each other's errors."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quantise import (
    SHARES,
    Layer,
    Scale,
    best_weights,
    fitted,
    ranges,
    rounded_weights,
    spread,
    use_spare_channels,
    weight_scales,
)


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


def test_no_other_size_of_weights_errs_less() -> None:
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.normal(size=(400, 8)))
    weight = torch.from_numpy(rng.normal(size=(5, 8)))
    _, square = fitted(weight, x, x)
    smallest = torch.tensor([0, 0, 0, 0, 9.0], dtype=torch.float64)
    whole, sizes = best_weights(weight, square, smallest, 7)
    assert (whole == whole.round()).all()
    assert whole.abs().max() <= 7
    assert (sizes >= smallest).all()

    def errors(whole: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
        wrong = whole * sizes[:, None] - weight
        return ((wrong @ square) * wrong).sum(1)

    for share in SHARES:
        size = (weight.abs().amax(1) * share / 7).maximum(smallest)
        other = errors(rounded_weights(weight, square, size, 7), size)
        assert (errors(whole, sizes) <= other + 1e-9).all()


def _network(seed: int) -> list[Layer]:
    """Two blocks as in EfficientNet-Lite, the second with a sum; two channels have no use."""
    rng = np.random.default_rng(seed)

    def weights(*shape: int) -> torch.Tensor:
        return torch.tensor(rng.normal(0, 0.4, shape), dtype=torch.float32)

    none, around = [0] * 4, [1] * 4
    project = weights(6, 8, 1, 1)
    project[:, [2, 5]] = 0
    return [
        Layer("a", ["x"], "a", weights(8, 3, 3, 3), weights(8), 2, around, 1, clips=True),
        Layer("b", ["a"], "b", weights(8, 1, 3, 3), weights(8), 1, around, 8, clips=True),
        Layer("c", ["b"], "c", project, weights(6), 1, none),
        Layer("d", ["c"], "d", weights(8, 6, 1, 1), weights(8), 1, none, 1, clips=True),
        Layer("e", ["d"], "e", weights(8, 1, 3, 3), weights(8), 1, around, 8, clips=True),
        Layer("f", ["e"], "f", weights(6, 8, 1, 1), weights(6), 1, none),
        Layer("g", ["f", "c"], "g"),
        Layer("h", ["g"], "h", weights(9, 6, 1, 1), weights(9), 1, none, 1, clips=True),
    ]


def _maps(layers: list[Layer], pixels: np.ndarray, rounds: str = "") -> dict[str, torch.Tensor]:
    """The maps of all layers; that of the layer `rounds` is rounded."""
    maps = {"x": (torch.from_numpy(pixels).float() - 127) / 128}
    for layer in layers:
        y = layer.clipped(layer([maps[name] for name in layer.inputs], layer.weight, layer.bias))
        maps[layer.output] = Scale.of(0, 6).rounded(y) if layer.name == rounds else y
    return maps


@pytest.mark.parametrize("seed", range(5))
def test_spreading_channels_changes_no_feature(seed: int) -> None:
    pixels = np.random.default_rng(seed).integers(0, 256, (4, 3, 16, 16), np.uint8)
    layers = _network(seed)
    before = _maps(layers, pixels)
    spread(layers, ranges(layers, pixels))
    after = _maps(layers, pixels)
    torch.testing.assert_close(after["h"], before["h"], rtol=1e-4, atol=1e-4)
    found = ranges(layers, pixels)
    for name in "cf":
        low, high = found[name]
        torch.testing.assert_close(low, -high, rtol=0.01, atol=0.01)  # around 0
    largest = torch.stack([found[name][1] - found[name][0] for name in "cfg"]).amax(0)
    assert largest.max() < 1.02 * largest.min()


@pytest.mark.parametrize("seed", range(5))
def test_copies_in_spare_channels_round_in_smaller_steps(seed: int) -> None:
    pixels = np.random.default_rng(seed).integers(0, 256, (4, 3, 32, 32), np.uint8)
    layers = _network(seed)
    before, rounded = _maps(layers, pixels), _maps(layers, pixels, "a")
    use_spare_channels(layers)
    after, less = _maps(layers, pixels), _maps(layers, pixels, "a")
    weight = layers[0].weight
    assert weight is not None
    assert sum(bool((weight[c] == weight[2]).all()) for c in range(8)) > 1
    torch.testing.assert_close(after["c"], before["c"], rtol=0, atol=0.05)  # less than two steps

    def error(found: torch.Tensor) -> float:
        return float((found - before["c"])[..., 1:-1, 1:-1].square().mean())

    assert error(less["c"]) < 0.8 * error(rounded["c"])
