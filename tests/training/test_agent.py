"""The agent: rewards by a slow loop, gradients by expectation, policies for toy problems."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor, nn

from helpers.toys import Memory, blobs, hamming, random_labels, random_signs, same, state_of
from mchindex.models import METHODS, HashMethod, Policy, create_method
from mchindex.models.deep import DeepHash
from mchindex.models.hashing import Checkpoint
from mchindex.models.policy import DISCARD, KEEP
from mchindex.models.views import Features, Views, pair_weights
from mchindex.progress import Progress, Step, silent
from mchindex.training.agent import (
    FEWEST,
    PAPER,
    AgentSettings,
    Estimator,
    agent_settings,
    base_of_others,
    folds_of,
    gather,
    keep_reward,
    policy_loss,
    scaled,
    train_agent,
)
from mchindex.training.checkpoints import Checkpoints
from mchindex.training.options import TrainingOptions
from mchindex.training.run import _train_agent

QUICK = AgentSettings(
    estimator="exact",
    reward="loss",
    folds=0,
    steps=120,
    batch=64,
    lr=1e-2,
    weight_decay=0.0,
    width=16,
    dropout=0.0,
    power=1.0,
    bonus=0.0,
    dissimilar=1.0,
    validation=0.25,
    every=30,
)


def some_method(name: str, bits: int = 16, dim: int = 12) -> HashMethod:
    """A method like a fitted one."""
    small: dict[str, Any] = {"anchors": 10} if name == "ksh" else {}
    if issubclass(METHODS[name], DeepHash):
        small = {"hidden": 20}
    torch.manual_seed(0)
    method = create_method(name, dim, bits, small)
    rng = np.random.default_rng(0)
    for key, value in method.state_dict().items():
        if key in ("map", "anchors"):
            value.copy_(torch.from_numpy(rng.standard_normal(value.shape)))
        elif key == "weights" and name in ("hashnet", "dch", "mmhh"):
            value.copy_(torch.tensor([2.5, 1.25]))
        elif key == "dissimilar":
            value.fill_(-0.3)
    return method.eval()


def slow_rewards(
    method: HashMethod, b: Tensor, b_region: Tensor, labels: Tensor, dissimilar: float = 1.0
) -> NDArray[np.float64]:
    """(n, crops), by the definition, in loops over images, crops and other images."""
    n, crops, bits = b_region.shape
    losses = {
        (d, s): float(method.pair_loss(torch.tensor(float(d)), torch.tensor(s)))
        for d in range(bits + 1)
        for s in (True, False)
    }
    weights = dict(zip((True, False), method.weights.tolist(), strict=True))
    whole, rows = hamming(b, b).tolist(), labels.tolist()
    reward = np.zeros((n, crops))
    for c in range(crops):
        region = hamming(b_region[:, c], b).tolist()
        for i in range(n):
            for j in range(n):
                if i == j:
                    continue
                s = any(x and y for x, y in zip(rows[i], rows[j], strict=True))
                nearest = min(whole[i][j], region[i][j])
                gain = losses[whole[i][j], s] - losses[nearest, s]
                reward[i, c] += weights[s] * gain * (1 if s else dissimilar)
    return reward


# Rewards.


@pytest.mark.parametrize("name", METHODS)
def test_rewards_by_a_triple_loop(name: str) -> None:
    method = some_method(name)
    data = Features(blobs(40, noise=2.0).array, random_labels(40, 4, 1))
    assert not data.labels.any(1).all()  # an image without a label among them
    got = gather(method, data)
    want = slow_rewards(method, got.b, got.b_region, data.labels)
    scale = np.abs(want).max()
    assert scale > 0
    assert (want < 0).any()
    np.testing.assert_allclose(got.reward, want, rtol=1e-4, atol=1e-5 * scale)

    for i in (0, 7):  # `keep_reward`, which takes the other images only
        rest = torch.arange(40) != i
        for c in range(2):
            one = keep_reward(
                method,
                got.b[[i]],
                got.b_region[[i], c],
                got.b[rest],
                data.labels[[i]],
                data.labels[rest],
            )
            np.testing.assert_allclose(one, want[i, c], rtol=1e-4, atol=1e-5 * scale)


@pytest.mark.parametrize("name", ["dch", "mmhh", "ksh"])
def test_dissimilar_pairs_can_be_made_to_cost_more(name: str) -> None:
    method = some_method(name)
    data = Features(blobs(40, noise=2.0).array, random_labels(40, 4, 1))
    plain, dearer = gather(method, data), gather(method, data, dissimilar=3.0)
    want = slow_rewards(method, plain.b, plain.b_region, data.labels, 3.0)
    np.testing.assert_allclose(dearer.reward, want, rtol=1e-4, atol=1e-5 * np.abs(want).max())
    assert (dearer.reward < plain.reward).any()


@pytest.mark.parametrize("name", ["dch", "itq", "ksh"])
def test_what_the_agent_meets_is_the_methods_own(name: str) -> None:
    method = some_method(name)
    data = blobs(30, views=4)
    got = gather(method.train(), data)
    assert not method.training
    assert (len(got), got.f_region.shape[1]) == (30, 3)
    torch.testing.assert_close(got.f, method.features(data.array[:, 0]))
    assert torch.equal(got.b, method.codes(data.array[:, 0]))
    for crop in range(3):
        f = method.features(data.array[:, crop + 1])
        torch.testing.assert_close(got.f_region[:, crop].float(), f, rtol=2e-3, atol=1e-3)
        assert torch.equal(got.b_region[:, crop], method.codes(data.array[:, crop + 1]))


def test_rewards_of_more_images_than_are_taken_at_a_time() -> None:
    method = some_method("dch", bits=8)
    data = Features(blobs(300, views=2, noise=2.0).array, random_labels(300, 4, 1))
    got = gather(method, data)
    want = slow_rewards(method, got.b, got.b_region, data.labels)
    np.testing.assert_allclose(got.reward, want, rtol=1e-4, atol=1e-3)


@given(st.sampled_from(sorted(METHODS)), st.integers(0, 2**31))
@settings(max_examples=40)
def test_a_region_with_the_images_own_code_is_worth_nothing(name: str, seed: int) -> None:
    method = some_method(name)
    b, codes = random_signs(3, 16, seed), random_signs(9, 16, seed + 1)
    labels, others = random_labels(3, 4, seed), random_labels(9, 4, seed + 1)
    assert keep_reward(method, b, b, codes, labels, others).eq(0).all()
    # and one that is farther from everything than the image's own
    near, far = codes[:1].expand(3, -1), -codes[:1].expand(3, -1)
    alone = codes[:1], labels, others[:1]
    assert keep_reward(method, near, far, *alone).eq(0).all()


def test_mmhhs_reward_is_nothing_within_its_ball() -> None:
    method = some_method("mmhh")
    codes = torch.ones(5, 16)
    b, b_region = torch.ones(2, 16), torch.ones(2, 16)
    b[:, :2] = -1  # at distance 2, the region at 0
    labels = torch.tensor([[True, False], [False, True]])
    others = torch.tensor([[True, False]] * 2 + [[False, True]] * 3)
    assert keep_reward(method, b, b_region, codes, labels, others).eq(0).all()
    b[:, 2] = -1  # at 3: now it gains on the similar and loses on the others
    reward = keep_reward(method, b, b_region, codes, labels, others)
    gain, loss = np.log(2), np.log(1.5) - np.log(4 / 3)
    want = [2.5 * 2 * gain - 1.25 * 3 * loss, 2.5 * 3 * gain - 1.25 * 2 * loss]
    np.testing.assert_allclose(reward, want, rtol=1e-5)


def test_the_agent_needs_crops_and_two_images() -> None:
    data = blobs(9, views=1)
    with pytest.raises(ValueError, match="the agent learns from crops"):
        gather(some_method("dch"), data)
    with pytest.raises(ValueError, match="at least two training images"):
        train_agent(some_method("dch"), blobs(1), QUICK)


def test_the_scale_of_rewards() -> None:
    reward = torch.tensor([[3.0, -1.0], [0.0, 8.0]])
    std = float(np.std([3, -1, 0, 8]))
    plain = replace(QUICK, scale="sum")
    assert torch.equal(scaled(reward, plain), reward)
    np.testing.assert_allclose(scaled(reward, replace(plain, scale="std")), reward / std, rtol=1e-6)
    bent = scaled(reward, replace(plain, power=0.5, bonus=0.25))
    np.testing.assert_allclose(bent, [[3**0.5 + 0.25, -0.75], [0.25, 8**0.5 + 0.25]], rtol=1e-6)
    assert scaled(torch.zeros(2, 2), replace(QUICK, scale="std")).eq(0).all()


# Gradients.


def logits_and_rewards(n: int = 6) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(n, 2, generator=generator, dtype=torch.float64)
    return logits, torch.randn(n, generator=generator, dtype=torch.float64) + 0.3


def gradient(logits: Tensor, reward: Tensor, estimator: Estimator) -> Tensor:
    x = logits.clone().requires_grad_()
    policy_loss(torch.softmax(x, 1), reward, estimator).backward()
    assert x.grad is not None
    return x.grad


def always(action: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "multinomial", lambda p, count: torch.full((len(p), count), action))


def test_the_exact_gradient_is_that_of_the_expected_reward() -> None:
    """A softmax of two has the slope p_keep p_discard in one logit, and minus that in the other."""
    logits, reward = logits_and_rewards()
    p = np.exp(logits.numpy()) / np.exp(logits.numpy()).sum(1, keepdims=True)
    slope = -reward.numpy() * p[:, 0] * p[:, 1] / len(p)
    want = np.zeros_like(p)
    want[:, KEEP], want[:, DISCARD] = slope, -slope
    np.testing.assert_allclose(gradient(logits, reward, "exact"), want)
    loss = policy_loss(torch.softmax(logits, 1), reward, "exact")
    assert float(loss) == pytest.approx(-np.mean(p[:, KEEP] * reward.numpy()))


def test_reinforce_is_the_exact_gradient_in_expectation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The expectation is over both actions of every image, by their probabilities."""
    logits, reward = logits_and_rewards()
    p = torch.softmax(logits, 1)
    expected = torch.zeros_like(logits)
    for action in (DISCARD, KEEP):
        always(action, monkeypatch)
        expected += p[:, [action]] * gradient(logits, reward, "reinforce")
    torch.testing.assert_close(expected, gradient(logits, reward, "exact"))


def test_discarding_brings_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, reward = logits_and_rewards()
    always(DISCARD, monkeypatch)
    assert gradient(logits, reward, "reinforce").eq(0).all()


def test_reinforce_of_many_draws_comes_to_the_exact_gradient() -> None:
    torch.manual_seed(0)
    logits, reward = logits_and_rewards()
    times = 20_000
    many = logits.repeat(times, 1), reward.repeat(times)
    draws = gradient(*many, "reinforce").view(times, *logits.shape) * times  # mean of the means
    error = draws.std(0) / times**0.5
    exact = gradient(logits, reward, "exact")
    assert ((draws.mean(0) - exact).abs() < 4.5 * error).all()
    assert (error < 0.1 * exact.abs().max()).all()


def test_reinforce_is_the_exact_gradient_through_a_policy_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    policy = Policy(5, 8, width=6, dropout=0.0).double()
    state, reward = torch.randn(9, 26, dtype=torch.float64), torch.randn(9, dtype=torch.float64)

    def gradients(loss: Tensor) -> list[Tensor]:
        return list(torch.autograd.grad(loss, list(policy.parameters())))

    p = policy(state)
    exact = gradients(policy_loss(p, reward, "exact"))
    always(KEEP, monkeypatch)
    p = policy(state)
    kept = gradients(policy_loss(p, reward * p[:, KEEP].detach(), "reinforce"))
    assert max(float(g.abs().max()) for g in exact) > 1e-3
    for a, b in zip(exact, kept, strict=True):
        torch.testing.assert_close(a, b)


# The policy.


def test_five_layers_with_batch_norm_and_relu_between() -> None:
    policy = Policy(features=5, bits=16, width=7)
    kinds = [type(layer) for layer in policy.layers if not isinstance(layer, nn.Dropout)]
    assert kinds == [nn.Linear, nn.BatchNorm1d, nn.ReLU] * 4 + [nn.Linear]
    linear = [layer for layer in policy.layers if isinstance(layer, nn.Linear)]
    assert [(a.in_features, a.out_features) for a in linear] == [(42, 7), *[(7, 7)] * 3, (7, 2)]


def test_the_policys_probabilities_by_hand() -> None:
    torch.manual_seed(0)
    policy = Policy(features=3, bits=8, width=4, dropout=0.5)
    for tensor in policy.state_dict().values():
        if tensor.dtype == torch.float32:
            tensor.copy_(torch.rand_like(tensor) + 0.1)
    policy.eval()
    f, f_region, b, b_region = torch.randn(6, 3), torch.randn(6, 3), *torch.randn(2, 6, 8).sign()
    mean, std = policy.mean.numpy(), policy.std.numpy()
    parts = [(f.numpy() - mean) / std, (f_region.numpy() - mean) / std, b.numpy(), b_region.numpy()]
    x = np.concatenate(parts, axis=1).astype(np.float64)
    np.testing.assert_allclose(policy.state(f, f_region, b, b_region), x, rtol=1e-5)
    for layer in policy.layers:
        values = {k: v.double().numpy() for k, v in layer.state_dict().items()}
        if isinstance(layer, nn.Linear):
            x = x @ values["weight"].T + values["bias"]
        elif isinstance(layer, nn.BatchNorm1d):
            spread = np.sqrt(values["running_var"] + layer.eps)
            x = (x - values["running_mean"]) / spread * values["weight"] + values["bias"]
        elif isinstance(layer, nn.ReLU):
            x = np.maximum(x, 0)
    both = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    got = policy(policy.state(f, f_region, b, b_region))
    np.testing.assert_allclose(got.detach(), both, rtol=1e-4)
    np.testing.assert_allclose(
        policy.keep(f, f_region, b, b_region).detach(), both[:, 1], rtol=1e-4
    )


def test_the_states_scale_is_that_of_whole_images() -> None:
    policy = Policy(4, 8)
    f = torch.randn(50, 4) * torch.tensor([1.0, 3.0, 0.0, 10.0]) + 5
    policy.fit_scale(f)
    torch.testing.assert_close(policy.mean, f.mean(0))
    np.testing.assert_allclose(policy.std[[1, 3]], f.numpy().std(0)[[1, 3]], rtol=1e-5)
    assert float(policy.std[2]) > 0.1  # a constant feature is not scaled up


# Training it.


class Signs(HashMethod):
    """Codes that can be read off: the signs of the first features."""

    name = "signs"

    def fit(
        self,
        data: Views,
        seed: int = 0,
        progress: Progress = silent,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        self.weights.copy_(torch.tensor(pair_weights(data.labels)))

    def last(self, f: Tensor) -> Tensor:
        return f[:, : self.bits]


def signs(data: Features) -> Signs:
    method = Signs(data.dim, 16)
    method.fit(data)
    return method


def two_things(n: int, seed: int = 0) -> tuple[Features, NDArray[np.bool_]]:
    """Images with one object or two, and which have two.

    An image's code is its first thing's; of the second, only its features know. The three crops
    show the first thing, the second (or one that is not there), and one that is never there.
    """
    rng = np.random.default_rng(seed)
    bits, things = 16, 4
    code = random_signs(things, bits, 99).numpy()
    first, second, third = rng.permuted(np.tile(np.arange(things), (n, 1)), axis=1).T[:3]
    two = rng.random(n) < 0.5
    array = np.zeros((n, 4, bits + things), np.float32)
    for view, thing in enumerate((first, first, second, third)):
        array[:, view, :bits] = code[thing] * rng.uniform(0.5, 1.5, (n, bits))
    array[:, 0, bits:] = np.eye(things)[second] * two[:, None]
    labels = np.eye(things)[first] + np.eye(things)[second] * two[:, None]
    return Features(torch.from_numpy(array), torch.from_numpy(labels > 0)), two


@pytest.mark.parametrize("estimator", ["exact", "reinforce"])
def test_the_agent_keeps_what_is_there_and_nothing_else(estimator: Estimator) -> None:
    data, _ = two_things(400)
    method = signs(data)
    plan = replace(QUICK, estimator=estimator, steps=400, batch=128, lr=3e-3, width=32)
    policy, curve = train_agent(method, data, plan)
    assert not policy.training
    assert curve[-1]["validation_reward"] > 0.9 * curve[-1]["best_possible"]

    new, two = two_things(200, seed=5)
    e = gather(method, new)
    keep = np.stack(
        [
            policy.keep(e.f, e.f_region[:, c].float(), e.b, e.b_region[:, c]).detach().numpy()
            >= 0.5
            for c in range(3)
        ],
        axis=1,
    )
    reward = e.reward.numpy()
    assert (reward[two, 1] > 0).all()
    assert keep[two, 1].mean() > 0.9
    for bad in (reward[~two, 1], reward[:, 2]):
        assert (bad < 0).mean() > 0.9
    assert keep[~two, 1].mean() < 0.1
    assert keep[:, 2].mean() < 0.1


def test_the_seed_decides_about_the_policy() -> None:
    data, _ = two_things(80)
    method = signs(data)
    for estimator in ("exact", "reinforce"):
        short = replace(QUICK, steps=20, every=10, estimator=estimator, dropout=0.3)
        torch.manual_seed(1)
        before = torch.get_rng_state()
        first, curve = train_agent(method, data, short, seed=3)
        assert torch.equal(before, torch.get_rng_state())
        torch.manual_seed(2)
        again, same_curve = train_agent(method, data, short, seed=3)
        assert same(state_of(first), state_of(again))
        assert curve == same_curve
        other, _ = train_agent(method, data, short, seed=4)
        assert not same(state_of(first), state_of(other))


@pytest.mark.parametrize("base", [QUICK, replace(PAPER, batch=64)])
def test_an_agent_cut_off_ends_with_the_same_policy(base: AgentSettings) -> None:
    data, _ = two_things(80)
    method = signs(data)
    plan = replace(base, steps=35, every=10, dropout=0.3)
    whole, curve = train_agent(method, data, plan, seed=2)
    assert [point["step"] for point in curve] == [10, 20, 30, 35]
    for cut in (1, 3, 4):
        memory = Memory(cut)
        with pytest.raises(InterruptedError):
            train_agent(method, data, plan, seed=2, checkpoint=memory)
        after, rest = train_agent(method, data, plan, seed=2, checkpoint=memory)
        assert memory.saves == 4  # what was done is not done again
        assert rest == curve
        assert same(state_of(whole), state_of(after))


def test_the_best_step_by_the_validation_reward_is_the_one_taken() -> None:
    data, _ = two_things(60)
    method = signs(data)
    restless = replace(QUICK, steps=60, every=5, batch=16, bonus=0.3)
    e = gather(method, data)
    rewards = (e.reward / e.reward.std(correction=0) + 0.3).numpy()
    last_is_best = []
    for seed in range(3):
        policy, curve = train_agent(method, data, restless, seed)
        obtained = [point["validation_reward"] for point in curve]
        last_is_best.append(obtained[-1] == max(obtained))
        held = torch.randperm(60, generator=torch.Generator().manual_seed(seed))[:15].tolist()
        total = 0.0
        for i in held:
            for c in range(3):
                state = e.f[[i]], e.f_region[[i], c].float(), e.b[[i]], e.b_region[[i], c]
                total += rewards[i, c] if float(policy.keep(*state).detach()) >= 0.5 else 0
        assert total / 45 == pytest.approx(max(obtained), abs=1e-5)
        ceiling = pytest.approx(np.clip(rewards[held], 0, None).mean(), rel=1e-4)
        assert [point["best_possible"] for point in curve] == [ceiling] * 12
        assert all(0 <= point["kept"] <= 1 for point in curve)
    assert not all(last_is_best)  # otherwise taking the last would pass, too


def test_validation_images_are_never_trained_on() -> None:
    """Validation images do not influence the weights: others in their place give the same."""
    data, _ = two_things(60)
    method = signs(data)
    plan = replace(QUICK, steps=10, every=10, scale="sum")
    held = torch.randperm(60, generator=torch.Generator().manual_seed(1))[:15]
    changed = data.array.clone()
    changed[held, 1:] = changed[held, 1:].flip(1)  # their crops in another order
    first, _ = train_agent(method, data, plan, seed=1)
    again, _ = train_agent(method, Features(changed, data.labels), plan, seed=1)
    assert same(state_of(first), state_of(again))


@pytest.mark.parametrize("name", METHODS)
def test_the_papers_settings_run_for_every_method(name: str) -> None:
    assert (PAPER.estimator, PAPER.steps, PAPER.batch) == ("reinforce", 100, 256)
    assert (PAPER.optimiser, PAPER.lr, PAPER.weight_decay) == ("sgd", 1e-4, 5e-4)
    assert (PAPER.scale, PAPER.power, PAPER.bonus, PAPER.dropout) == ("sum", 1, 0, 0)
    assert PAPER.dissimilar == 1
    policy, curve = train_agent(some_method(name), blobs(40), replace(PAPER, width=16))
    assert len(curve) == 10
    assert all(np.isfinite(list(point.values())).all() for point in curve)
    assert all(tensor.isfinite().all() for tensor in policy.state_dict().values())


def test_settings_of_an_agent_given_as_text() -> None:
    got = agent_settings("dch", {"estimator": "reinforce", "optimiser": "sgd", "steps": "7"})
    assert (got.estimator, got.optimiser, got.steps) == ("reinforce", "sgd", 7)
    with pytest.raises(ValueError, match="estimator=guess: expected one of exact, reinforce"):
        agent_settings("dch", {"estimator": "guess"})
    for name in METHODS:
        assert agent_settings(name).steps > 0
    for name, least in {"steps": 1, "batch": 2, "width": 1, "every": 1}.items():
        agent_settings("dch", {name: least})
        with pytest.raises(ValueError, match=f"the agent's {name} is at least {least}, not"):
            agent_settings("dch", {name: least - 1})


# Folds.


def test_each_fold_is_left_out_once() -> None:
    data = blobs(FEWEST * 3)
    folds = folds_of(data, 3, seed=1)
    assert torch.equal(torch.cat(folds).sort().values, torch.arange(len(data)))
    for rows in folds:
        base, others = base_of_others(some_method("ksh"), data, rows)
        assert len(others) + len(rows) == len(data)
        left = others.array.flatten(1)
        assert not (data.array[rows].flatten(1)[:, None] == left[None]).all(-1).any()
        assert base.settings == some_method("ksh").settings
    assert all(torch.equal(*pair) for pair in zip(folds, folds_of(data, 3, seed=1), strict=True))
    assert not torch.equal(folds[0], folds_of(data, 3, seed=2)[0])


def test_data_that_are_too_few_or_too_alike_are_not_divided() -> None:
    assert folds_of(blobs(FEWEST * 2 - 1), 2, seed=0) == []
    assert folds_of(blobs(FEWEST * 2), 0, seed=0) == []
    alike = Features(blobs(FEWEST * 2).array, torch.ones(FEWEST * 2, 1, dtype=torch.bool))
    assert folds_of(alike, 2, seed=0) == []
    base, _ = base_of_others(
        create_method("ksh", 12, 16, {"anchors": FEWEST * 2}), blobs(FEWEST * 2), torch.arange(9)
    )
    assert base.settings.anchors == FEWEST * 2 - 9  # as many as there are images


def test_an_agent_of_folds_keeps_what_raises_the_reward_on_validation_images() -> None:
    data, two = two_things(2 * FEWEST)
    method = signs(data)
    folds = [(method, rows) for rows in folds_of(data, 2, seed=3)]
    plan = replace(QUICK, reward="ranking", folds=2, steps=200, lr=3e-3, width=32)
    policy, _ = train_agent(method, data, plan, seed=3, folds=folds)
    assert policy.reads == "backbone"

    parts = [gather(m, data.take(rows), reward="ranking", reads="backbone") for m, rows in folds]
    rows, e = torch.cat([rows for _, rows in folds]), parts[0]
    f, f_region, b, b_region, reward = (
        torch.cat([getattr(part, name) for part in parts]) for name in vars(e)
    )
    held = torch.randperm(len(f), generator=torch.Generator().manual_seed(3))[: len(f) // 4]
    keep = torch.stack(
        [policy.keep(f, f_region[:, c].float(), b, b_region[:, c]).detach() for c in range(3)], 1
    )
    totals = [float(reward[held][keep[held] >= t].sum()) for t in keep[held].unique().tolist()]
    got = float(reward[held][keep[held] >= 0.5 - 1e-6].sum())
    assert got == pytest.approx(max(totals), rel=1e-4)
    there = torch.from_numpy(two)[rows]
    assert (keep[there, 1] >= 0.5).float().mean() > 0.9 > 0.1 > (keep[:, 2] >= 0.5).float().mean()


def test_base_methods_of_folds_that_are_trained_are_not_trained_again(tmp_path: Path) -> None:
    data, _ = two_things(2 * FEWEST)
    options = TrainingOptions(
        "hashnet",
        16,
        settings={"hidden": 0, "epochs": 2},
        agent_settings={"steps": 20, "every": 10, "width": 8},
    )
    method = create_method("hashnet", data.dim, 16, options.settings)
    method.fit(data)
    want, curve = _train_agent(method, data, options, silent, Checkpoints(None))
    assert want.reads == "backbone"
    for stop in ("fold 2", "agent"):
        seen: list[str] = []

        def watch(step: Step, seen: list[str] = seen, stop: str = "") -> None:
            seen.append(step.stage)
            if step.stage == stop:
                raise InterruptedError

        checkpoints = Checkpoints(tmp_path / stop)
        with pytest.raises(InterruptedError):
            _train_agent(method, data, options, partial(watch, stop=stop), checkpoints)
        got, again = _train_agent(method, data, options, watch, checkpoints)
        assert seen.count("fold 1") == 2  # epochs
        assert (seen.count("fold 2") == 2) == (stop == "agent")
        assert again == curve
        assert same(state_of(got), state_of(want))
