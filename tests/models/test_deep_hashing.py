"""Hash layers trained by gradient descent: what they learn, seeds, and interruptions."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor, nn

from helpers.toys import Memory, blobs, gap, random_labels, random_signs, same, state_of
from mchindex.models import HashMethod, create_method
from mchindex.models.adsh import ADSH, improve_codes, objective
from mchindex.models.deep import DeepHash, batches, mixed_views, rise_and_fall
from mchindex.models.views import Features, similar

DEEP = ("hashnet", "dch", "mmhh", "adsh")
QUICK: dict[str, Any] = {"epochs": 12, "batch": 32, "lr": 1e-2, "hidden": 24, "dropout": 0.2}
OWN: dict[str, dict[str, Any]] = {
    "adsh": {"epochs": 6, "inner": 2, "sample": 60, "gamma": 200},
    "dch": {"gamma": 4},
    "mmhh": {"dissimilar": 2},
}
TRAIN = blobs(90, classes=4, noise=0.8)


def create(name: str, data: Features = TRAIN, **changes: Any) -> HashMethod:
    return create_method(name, data.dim, 16, QUICK | OWN.get(name, {}) | changes)


def fitted(name: str, data: Features = TRAIN, seed: int = 0, **changes: Any) -> HashMethod:
    method = create(name, data, **changes)
    method.fit(data, seed)
    return method


@pytest.mark.parametrize("name", DEEP)
def test_similar_images_come_near_and_others_go_far(name: str) -> None:
    """Images and crops that training has not seen."""
    test = blobs(60, classes=4, noise=0.8, seed=7)
    untrained = create(name).eval()
    method = fitted(name)
    assert not method.training
    for view in range(test.views):
        x = test.array[:, view]
        assert gap(method.codes(x), test.labels) > 0.3
        assert gap(method.codes(x), test.labels) > gap(untrained.codes(x), test.labels) + 0.1


@pytest.mark.parametrize("name", DEEP)
def test_the_seed_decides_about_the_weights_and_nothing_else_does(name: str) -> None:
    torch.manual_seed(1)
    first = state_of(fitted(name, seed=3, epochs=2))
    torch.manual_seed(2)
    again = create(name, epochs=2)
    before = torch.get_rng_state()
    again.fit(TRAIN, 3)
    assert torch.equal(before, torch.get_rng_state())  # the global generator is unchanged
    assert same(first, state_of(again))
    again.fit(TRAIN, 3)  # a second fit starts over
    assert same(first, state_of(again))
    assert not same(first, state_of(fitted(name, seed=4, epochs=2)))


@pytest.mark.parametrize("cut", [1, 3])
@pytest.mark.parametrize("name", DEEP)
def test_a_training_cut_off_ends_with_the_same_weights(name: str, cut: int) -> None:
    whole = fitted(name, seed=5, epochs=4)
    memory = Memory(cut)
    with pytest.raises(InterruptedError):
        create(name, epochs=4).fit(TRAIN, 5, checkpoint=memory)
    after = create(name, epochs=4)
    epochs: list[int] = []
    after.fit(TRAIN, 5, lambda step: epochs.append(step.done), memory)
    assert epochs == list(range(cut + 1, 5))  # what was done is not done again
    assert same(state_of(whole), state_of(after))
    assert not after.training
    left = memory.load()
    assert left is not None
    assert ("v" in left["extra"]) == (name == "adsh")


@pytest.mark.parametrize("name", DEEP)
def test_without_a_hidden_layer_and_without_crops(name: str) -> None:
    data = Features(TRAIN.array[:, :1], TRAIN.labels)
    method = fitted(name, data, hidden=0, dropout=0)
    x = data.array[:, 0]
    assert method.feature_dim == data.dim
    scaled: Any = method
    torch.testing.assert_close(method.features(x), (x - scaled.mean) / scaled.std)
    assert gap(method.codes(x), data.labels) > 0.3


@pytest.mark.parametrize("name", DEEP)
def test_dropout_is_off_where_codes_are_made(name: str) -> None:
    method = fitted(name, epochs=1, dropout=0.5)
    x = TRAIN.array[:, 0]
    assert torch.equal(method.project(x), method.project(x))
    method.train()
    assert not torch.equal(method.project(x), method.project(x))


def test_the_features_of_the_agents_state_are_what_the_hash_layer_reads() -> None:
    method = fitted("dch", epochs=1)
    assert isinstance(method, DeepHash)
    assert isinstance(method.hidden, nn.Linear)
    x = TRAIN.array[:, 0].double()
    scaled = (x - method.mean) / method.std
    hidden = (scaled @ method.hidden.weight.double().T + method.hidden.bias).clamp(min=0)
    torch.testing.assert_close(method.features(TRAIN.array[:, 0]), hidden.float())
    want = hidden @ method.hash.weight.double().T + method.hash.bias
    torch.testing.assert_close(method.project(TRAIN.array[:, 0]), want.float())


def test_the_scale_is_that_of_whole_images_and_not_blown_up() -> None:
    array = TRAIN.array.clone()
    array[:, :, 0] = 7  # a constant feature
    array[:, 1:] += 100  # crops
    method = fitted("dch", Features(array, TRAIN.labels), epochs=1)
    assert isinstance(method, DeepHash)
    torch.testing.assert_close(method.mean, array[:, 0].mean(0))
    torch.testing.assert_close(method.std[1:], array[:, 0].std(0, correction=0)[1:])
    assert float(method.std[0]) > 0.1


@pytest.mark.parametrize("name", DEEP)
def test_pair_weights_are_those_of_the_training_set(name: str) -> None:
    labels = random_labels(90, 5, 0)
    method = fitted(name, Features(TRAIN.array, labels), epochs=1)
    alike = similar(labels, labels).numpy()
    np.fill_diagonal(alike, False)
    s1, s = alike.sum(), 90 * 89
    want = {"adsh": [1.0, 1.0], "mmhh": [s / s1, 2 * s / (s - s1)]}
    np.testing.assert_allclose(method.weights, want.get(name, [s / s1, s / (s - s1)]), rtol=1e-6)
    if isinstance(method, ADSH):
        assert float(method.dissimilar) == pytest.approx(-s1 / (s - s1), rel=1e-6)


@pytest.mark.parametrize("name", ["hashnet", "dch", "mmhh"])
def test_a_batchs_pairs_weigh_one_together_and_images_with_themselves_nothing(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = random_labels(90, 5, 0)
    method: Any = create(name, epochs=1)
    plain, seen = method.batch_loss, []

    def watched(u: Tensor, s: Tensor, weight: Tensor) -> Tensor:
        seen.append((s, weight))
        loss: Tensor = plain(u, s, weight)
        return loss

    monkeypatch.setattr(method, "batch_loss", watched)
    method.fit(Features(TRAIN.array, labels))
    assert len(seen) > 1
    for s, weight in seen:
        alike, unlike = method.weights.tolist()
        want = np.where(s, alike, unlike)
        np.fill_diagonal(want, 0)
        np.testing.assert_allclose(weight, want / want.sum(), rtol=1e-5)


@pytest.mark.parametrize("name", DEEP)
def test_labels_that_tell_nothing_apart(name: str) -> None:
    for labels in (torch.ones(90, 2) > 0, torch.eye(90) > 0):
        with pytest.raises(ValueError, match="there is nothing to learn from"):
            fitted(name, Features(TRAIN.array, labels))


@pytest.mark.parametrize("changes", [{"epochs": 0}, {"batch": 1}, {"batch": 0}])
def test_too_few_epochs_or_images_at_a_time(changes: dict[str, Any]) -> None:
    for name in DEEP:
        with pytest.raises(ValueError, match="at least 1 epoch and batches of at least 2 images"):
            create(name, **changes)


@pytest.mark.parametrize("share", [-0.1, 1.5])
def test_a_share_of_crops_that_is_none(share: float) -> None:
    with pytest.raises(ValueError, match="crop_share is between 0 and 1"):
        fitted("dch", crop_share=share)


@pytest.mark.parametrize("changes", [{"power": 0.0}, {"power": 1.5}])
def test_a_power_that_is_none(changes: dict[str, Any]) -> None:
    for name in DEEP:
        with pytest.raises(ValueError, match="power is above 0 and at most 1"):
            create(name, **changes)


@pytest.mark.parametrize("setting", ["gamma", "min_distance"])
def test_dchs_scale_and_least_distance_are_above_0(setting: str) -> None:
    for value in (0.0, -1.0, math.nan):
        changes: dict[str, Any] = {setting: value}
        with pytest.raises(ValueError, match=f"{setting} is above 0|expected a finite number"):
            create("dch", **changes)


def test_features_may_be_flattened_by_a_power() -> None:
    method: Any = fitted("dch", power=0.5, hidden=0)
    plain: Any = fitted("dch", hidden=0)
    x = TRAIN.array[:, 0].float()
    rooted = np.sign(x.numpy()) * np.sqrt(np.abs(x.numpy()))
    want = (rooted - rooted.mean(0)) / method.std.numpy()
    np.testing.assert_allclose(method.features(x).detach().numpy(), want, atol=1e-3)
    assert not torch.allclose(plain.features(x), method.features(x), atol=0.1)
    flat = torch.zeros(2, x.shape[1], requires_grad=True)
    method.features(flat).sum().backward()
    assert flat.grad is not None
    assert flat.grad.isfinite().all()


class Seen:
    """Views that record which of them were requested."""

    def __init__(self, data: Features) -> None:
        self.data, self.asked = data, []  # type: tuple[Features, list[Tensor]]

    labels = property(lambda self: self.data.labels)
    dim = property(lambda self: self.data.dim)
    views = property(lambda self: self.data.views)

    def __len__(self) -> int:
        return len(self.data)

    def batch(self, rows: Tensor, view: Tensor | int = 0) -> Tensor:
        if isinstance(view, Tensor):
            self.asked.append(view)
        return self.data.batch(rows, view)

    def view_labels(self, rows: Tensor, view: Tensor | int = 0) -> Tensor:
        return self.data.view_labels(rows, view)


@pytest.mark.parametrize("name", DEEP)
def test_crops_have_their_share_in_training(name: str) -> None:
    shares = {}
    for share in (0.0, 0.5, 1.0):
        data = Seen(TRAIN)
        create(name, crop_share=share, epochs=6).fit(data)
        views = torch.cat(data.asked)
        shares[share] = float((views > 0).float().mean())
        assert set(views.tolist()) <= {0, 1, 2}
    assert shares == {0.0: 0, 0.5: pytest.approx(0.5, abs=0.1), 1.0: 1}


def test_mixed_views_take_all_crops_alike() -> None:
    rows = torch.arange(6000)
    labels = torch.ones(6000, 2, dtype=torch.bool)
    data = Features(torch.zeros(6000, 4, 1), labels)
    view = mixed_views(rows, data, 0.6, torch.Generator().manual_seed(0))
    share = np.bincount(view, minlength=4) / 6000
    np.testing.assert_allclose(share, [0.4, 0.2, 0.2, 0.2], atol=0.03)
    alone = Features(torch.zeros(6000, 1, 1), labels)
    assert mixed_views(rows, alone, 0.6, torch.Generator()).eq(0).all()


def test_a_crop_that_shows_nothing_is_not_learnt_from() -> None:
    rows = torch.arange(4000)
    labels = torch.ones(4000, 2, dtype=torch.bool)
    by_view = labels[:, None].repeat(1, 3, 1)
    by_view[:, 2] = False
    data = Features(torch.zeros(4000, 3, 1), labels, by_view)
    view = mixed_views(rows, data, 1.0, torch.Generator().manual_seed(0))
    share = np.bincount(view, minlength=3) / 4000
    np.testing.assert_allclose(share, [0.5, 0.5, 0], atol=0.03)


@given(st.integers(2, 60), st.integers(2, 70), st.integers(0, 2**31))
def test_batches_are_all_images_but_a_small_rest(n: int, size: int, seed: int) -> None:
    parts = list(batches(n, size, torch.Generator().manual_seed(seed)))
    rows = torch.cat(parts).tolist()
    assert len(set(rows)) == len(rows)
    assert set(rows) <= set(range(n))
    assert all(len(part) == min(size, n) for part in parts[:-1])
    assert len(parts[-1]) >= 2
    rest = n - len(rows)
    assert rest == 0 or rest < max(2, min(size, n) // 2)


def test_the_learning_rate_rises_in_a_line_and_falls_to_nothing() -> None:
    parameter = nn.Parameter(torch.zeros(1))
    optimiser = torch.optim.SGD([parameter], lr=2.0)
    schedule = rise_and_fall(optimiser, 100, 0.2)
    rates = []
    for _ in range(100):
        rates.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        schedule.step()
    np.testing.assert_allclose(rates[:20], [2 * (i + 1) / 21 for i in range(20)])
    np.testing.assert_allclose(
        rates[20:], [2 * math.cos(math.pi / 2 * i / 80) ** 2 for i in range(80)], atol=1e-9
    )
    assert optimiser.param_groups[0]["lr"] == pytest.approx(0)


# ADSH's discrete step.


class Problem:
    """A random problem for the discrete step."""

    def __init__(self, seed: int, n: int, m: int, bits: int, gamma: float) -> None:
        rng = np.random.default_rng(seed)
        self.v = random_signs(n, bits, seed).double()
        self.u = torch.from_numpy(np.tanh(rng.standard_normal((m, bits))))
        self.chosen = torch.from_numpy(rng.permutation(n)[:m])
        self.target = torch.from_numpy(bits * rng.choice([1.0, -0.4], (m, n)))
        self.gamma = gamma

    def cost(self, v: Tensor) -> float:
        return objective(v, self.u, self.target, self.chosen, self.gamma)

    def improved(self) -> Tensor:
        return improve_codes(self.v, self.u, self.target, self.chosen, self.gamma)


@st.composite
def steps(draw: st.DrawFn) -> Problem:
    n = draw(st.integers(1, 9))
    return Problem(
        seed=draw(st.integers(0, 2**31)),
        n=n,
        m=draw(st.integers(1, n)),
        bits=draw(st.sampled_from([2, 5, 8])),
        gamma=draw(st.sampled_from([0.0, 1.0, 200.0])),
    )


def slow_objective(step: Problem, v: NDArray[np.float64]) -> float:
    u, target = step.u.numpy(), step.target.numpy()
    total = 0.0
    for i, own in enumerate(step.chosen.tolist()):
        for j in range(len(v)):
            total += (sum(u[i, k] * v[j, k] for k in range(v.shape[1])) - target[i, j]) ** 2
        for k in range(v.shape[1]):
            total += step.gamma * (u[i, k] - v[own, k]) ** 2
    return total


@given(steps())
@settings(max_examples=50)
def test_adshs_objective_and_that_its_step_never_raises_it(step: Problem) -> None:
    before = step.v.clone()
    after = step.improved()
    assert torch.equal(step.v, before)
    assert step.cost(step.v) == pytest.approx(slow_objective(step, step.v.numpy()))
    assert step.cost(after) <= step.cost(step.v) + 1e-9
    assert after.abs().eq(1).all()


@given(steps())
@settings(max_examples=50)
def test_adshs_step_takes_each_bit_to_its_best(step: Problem) -> None:
    """The best value of each bit is found by trying both, with the others fixed."""
    v = step.v.clone()
    n, bits = v.shape
    for k in range(bits):
        for j in range(n):
            flipped = v.clone()
            flipped[j, k] *= -1
            if step.cost(flipped) < step.cost(v) - 1e-9:
                v = flipped
    assert torch.equal(step.improved(), v)


@given(steps())
@settings(max_examples=30)
def test_adshs_steps_end_where_no_bit_is_better_flipped(step: Problem) -> None:
    for _ in range(50):
        before, step.v = step.v, step.improved()
        if torch.equal(before, step.v):
            break
    best = step.cost(step.v)
    for place in np.ndindex(*step.v.shape):
        flipped = step.v.clone()
        flipped[place] *= -1
        assert step.cost(flipped) >= best - 1e-9
    assert torch.equal(before, step.v)


def test_where_both_signs_are_as_good_the_old_one_stays() -> None:
    v = random_signs(4, 8, 0)
    u, target = torch.zeros(2, 8), torch.ones(2, 4)
    assert torch.equal(improve_codes(v, u, target, torch.tensor([0, 2]), 200.0), v)


def test_adshs_codes_come_to_fit_the_labels() -> None:
    memory = Memory()
    method = create("adsh")
    method.fit(TRAIN, checkpoint=memory)
    left = memory.load()
    assert left is not None
    v = left["extra"]["v"]
    assert v.abs().eq(1).all()
    assert gap(v, TRAIN.labels) > 0.3
    # and the network's codes are like them
    assert float((method.codes(TRAIN.array[:, 0]) == v).float().mean()) > 0.9
