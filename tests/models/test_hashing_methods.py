"""Codes, distances and pair losses by hand; methods that are fitted without gradients."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from torch import Tensor

from helpers.toys import blobs, gap, hamming, random_labels, random_signs, same, state_of
from mchindex.models import METHODS, HashMethod, create_method
from mchindex.models.adsh import ADSH
from mchindex.models.dch import DCH
from mchindex.models.deep import cosine_distances
from mchindex.models.hashing import distances, pack, sign, unpack
from mchindex.models.hashnet import HashNet
from mchindex.models.itq import ITQ
from mchindex.models.ksh import KSH, GreedyFit
from mchindex.models.linear import principal_axes, random_rotation
from mchindex.models.mmhh import MMHH
from mchindex.models.settings import Settings
from mchindex.models.views import Features, pair_weights, similar

WIDTHS = (8, 16, 48, 64, 256)
SMALL: dict[str, dict[str, Any]] = {"ksh": {"anchors": 20, "labelled": 60, "steps": 50}}


def fitted(name: str, data: Features, bits: int = 8, seed: int = 0, **settings: Any) -> HashMethod:
    method = create_method(name, data.dim, bits, SMALL.get(name, {}) | settings)
    method.fit(data, seed)
    return method.eval()


# Codes and distances.


def test_zero_has_the_minus_side() -> None:
    x = torch.tensor([[0.0, -0.0, 1e-30, -1e-30, 3.0, -2.0, 0.0, 1.0]])
    want = [[-1, -1, 1, -1, 1, -1, -1, 1]]
    assert sign(x).tolist() == want
    assert sign(x.double()).dtype == torch.float64
    assert unpack(pack(x)).tolist() == want


@pytest.mark.parametrize("name", METHODS)
def test_a_code_where_the_projection_is_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method = create_method(name, 4, 8)
    monkeypatch.setattr(method, "project", lambda x: torch.zeros(len(x), 8))
    assert (method.codes(torch.zeros(3, 4)) == -1).all()


@given(
    hnp.arrays(
        np.int8,
        st.tuples(st.integers(0, 5), st.sampled_from([8, 16, 72])),
        elements=st.sampled_from([-1, 1]),
    )
)
def test_signs_and_bytes_are_the_same_code(signs: NDArray[np.int8]) -> None:
    packed = pack(torch.from_numpy(signs))
    np.testing.assert_array_equal(packed, np.packbits(signs > 0, axis=1))
    np.testing.assert_array_equal(unpack(packed).numpy(), signs)


def test_bit_0_is_the_most_significant_of_the_first_byte() -> None:
    first, last = -torch.ones(2, 16)
    first[0] = last[15] = 1
    assert pack(torch.stack([first, last])).tolist() == [[128, 0], [0, 1]]


@pytest.mark.parametrize("bits", WIDTHS)
def test_distances_count_the_bits_that_differ(bits: int) -> None:
    a, b = random_signs(7, bits, 1), random_signs(9, bits, 2)
    b[0], b[1] = a[0], -a[0]
    want = hamming(a, b)
    assert (want[0, 0], want[0, 1]) == (0, bits)
    np.testing.assert_array_equal(distances(a, b).numpy(), want)  # exactly: tables are indexed
    np.testing.assert_allclose(cosine_distances(a, b).numpy(), want, atol=1e-4)


def test_the_relaxed_distance_is_that_of_the_angle() -> None:
    rng = np.random.default_rng(0)
    u, v = rng.standard_normal((4, 16)), rng.standard_normal((5, 16))
    got = cosine_distances(torch.from_numpy(u), torch.from_numpy(v)).numpy()
    for i in range(4):
        for j in range(5):
            angle = math.acos(u[i] @ v[j] / math.sqrt((u[i] @ u[i]) * (v[j] @ v[j])))
            assert got[i, j] == pytest.approx(16 * math.sin(angle / 2) ** 2)


# Which pairs are similar, and what they weigh.


@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 5), st.integers(0, 2**31))
def test_similar_images_share_a_label(n: int, m: int, classes: int, seed: int) -> None:
    a, b = random_labels(n, classes, seed), random_labels(m, classes, seed + 1)
    want = [
        [any(x and y for x, y in zip(p, q, strict=True)) for q in b.tolist()] for p in a.tolist()
    ]
    assert similar(a, b).tolist() == want


def slow_weights(labels: Tensor) -> tuple[float, float] | None:
    counts = [0, 0]
    for i, a in enumerate(labels.tolist()):
        for j, b in enumerate(labels.tolist()):
            if i != j:
                counts[any(x and y for x, y in zip(a, b, strict=True))] += 1
    dissimilar, alike = counts
    if not dissimilar or not alike:
        return None
    return (alike + dissimilar) / alike, (alike + dissimilar) / dissimilar


@given(st.integers(2, 14), st.integers(1, 4), st.integers(0, 2**31), st.floats(0.05, 0.95))
def test_pair_weights_by_a_double_loop(n: int, classes: int, seed: int, share: float) -> None:
    labels = random_labels(n, classes, seed, share)
    want = slow_weights(labels)
    if want is None:
        with pytest.raises(ValueError, match="share a label: there is nothing to learn from"):
            pair_weights(labels)
        return
    assert pair_weights(labels) == pytest.approx(want)
    method = create_method("dch", 4, 8)
    method.weights.copy_(torch.tensor(want))
    weight = method.pair_weight(labels, labels).numpy()
    alike = (labels.numpy()[:, None] & labels.numpy()[None]).any(-1)
    np.testing.assert_allclose(weight, np.where(alike, *want), rtol=1e-6)


def test_pair_weights_of_more_images_than_are_taken_at_a_time() -> None:
    labels = random_labels(1100, 6, 0, 0.2).numpy()
    alike = (labels.astype(int) @ labels.T) > 0
    np.fill_diagonal(alike, False)
    pairs = 1100 * 1099
    want = pairs / alike.sum(), pairs / (pairs - alike.sum())
    assert pair_weights(torch.from_numpy(labels)) == pytest.approx(want)


def test_nothing_to_tell_apart() -> None:
    with pytest.raises(ValueError, match="no two training images share a label"):
        pair_weights(torch.eye(3) > 0)
    with pytest.raises(ValueError, match="no two training images share a label"):
        pair_weights(torch.ones(1, 3) > 0)
    with pytest.raises(ValueError, match="all training images share a label"):
        pair_weights(torch.ones(3, 2) > 0)


# Pair losses, from the papers' likelihoods and inner products.

Loss = Callable[[float, bool, int], float]  # distance, similar, bits


def cauchy(gamma: float, least: float = 0.005) -> Loss:
    def loss(d: float, s: bool, bits: int) -> float:
        d = max(d, least * bits)
        p = gamma / (gamma + d)
        return -math.log(p if s else 1 - p)

    return loss


def logistic(alpha: float) -> Loss:
    def loss(d: float, s: bool, bits: int) -> float:
        inner = (bits - d) - d  # agreeing bits minus differing ones
        p = 1 / (1 + math.exp(-alpha / bits * inner))
        return -math.log(p if s else 1 - p)

    return loss


def margin(radius: float) -> Loss:
    def loss(d: float, s: bool, bits: int) -> float:
        if s:
            return 0.0 if d <= radius else math.log(1 + d - radius)
        return math.log((1 + d) / d) if d > radius else math.log((1 + radius) / radius)

    return loss


def squared(dissimilar: float) -> Loss:
    def loss(d: float, s: bool, bits: int) -> float:
        inner = (bits - d) - d
        return (inner - bits * (1 if s else dissimilar)) ** 2 / bits**2

    return loss


LOSSES: list[tuple[str, dict[str, float], Loss]] = [
    ("dch", {"gamma": 20.0}, cauchy(20)),
    ("dch", {"gamma": 0.5, "min_distance": 0.1}, cauchy(0.5, 0.1)),
    ("hashnet", {"alpha": 10.0}, logistic(10)),
    ("hashnet", {"alpha": 3.0}, logistic(3)),
    ("mmhh", {}, margin(2)),
    ("mmhh", {"radius": 3.5}, margin(3.5)),
    ("ksh", {}, squared(-1)),
    ("adsh", {}, squared(-1)),
    ("lsh", {}, squared(-1)),
]


@pytest.mark.parametrize("bits", [8, 16, 64])
@pytest.mark.parametrize(("name", "settings", "loss"), LOSSES)
def test_pair_losses_at_every_distance(
    name: str, settings: dict[str, float], loss: Loss, bits: int
) -> None:
    method = create_method(name, 4, bits, settings)
    d = torch.arange(bits + 1, dtype=torch.float64)
    for s in (True, False):
        got = method.pair_loss(d, torch.full((bits + 1,), s))
        want = [loss(float(x), s, bits) for x in d]
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-9, atol=1e-12)


def test_adsh_pulls_dissimilar_pairs_to_its_soft_target() -> None:
    method = ADSH(4, 16)
    method.dissimilar.fill_(-0.25)
    d = torch.arange(17, dtype=torch.float64)
    got = method.pair_loss(d, torch.zeros(17, dtype=torch.bool))
    np.testing.assert_allclose(got.numpy(), [squared(-0.25)(x, False, 16) for x in range(17)])
    assert int(got.argmin()) == 10  # an inner product of -4
    labels = torch.tensor([[True, False], [False, True]])
    assert method.targets(labels, labels).tolist() == [[16, -4], [-4, 16]]


def test_figures_worked_out_by_hand() -> None:
    yes, no = torch.tensor([True]), torch.tensor([False])

    def at(method: HashMethod, d: float, s: Tensor) -> float:
        return float(method.pair_loss(torch.tensor([d], dtype=torch.float64), s))

    dch = create_method("dch", 4, 16, {"gamma": 4})
    assert at(dch, 12, yes) == pytest.approx(math.log(4))
    assert at(dch, 12, no) == pytest.approx(math.log(4 / 3))
    hashnet = create_method("hashnet", 4, 16, {"alpha": 16 * math.log(3) / 8})
    assert at(hashnet, 4, yes) == pytest.approx(math.log(4 / 3))  # inner product 8, odds 3
    assert at(hashnet, 4, no) == pytest.approx(math.log(4))
    mmhh = create_method("mmhh", 4, 16)
    assert at(mmhh, 5, yes) == pytest.approx(math.log(4))
    assert at(mmhh, 5, no) == pytest.approx(math.log(1.2))
    ksh = create_method("ksh", 4, 16)
    assert at(ksh, 4, yes) == pytest.approx(0.25)
    assert at(ksh, 4, no) == pytest.approx(2.25)


@pytest.mark.parametrize("bits", [8, 64])
def test_dch_is_finite_and_flat_below_its_least_distance(bits: int) -> None:
    method = DCH(4, bits)
    least = 0.005 * bits
    d = torch.tensor([-1e-7, 0, least / 2, least, 2 * least], dtype=torch.float64)
    for s in (True, False):
        loss = method.pair_loss(d, torch.full((5,), s))
        assert loss.isfinite().all()
        assert loss[:4].unique().numel() == 1
        assert loss[4] != loss[3]


def test_mmhh_is_flat_within_its_ball() -> None:
    method = MMHH(4, 16)
    d = torch.arange(17.0)
    near, far = method.pair_loss(d, torch.ones(17) > 0), method.pair_loss(d, torch.zeros(17) > 0)
    assert near[:3].tolist() == [0, 0, 0]
    assert far[:3].unique().numel() == 1
    assert (near[2:].diff() > 0).all()
    assert (far[2:].diff() < 0).all()


# The losses of batches of relaxed codes, and their gradients.


def cosine(u: NDArray[np.float64], v: NDArray[np.float64]) -> float:
    return float(u @ v / math.sqrt((u @ u) * (v @ v)))


def slow_dch(
    u: NDArray[np.float64], s: NDArray[np.bool_], w: NDArray[np.float64], method: Any
) -> float:
    n, bits = u.shape
    gamma, loss = method.settings.gamma, cauchy(method.settings.gamma)
    total = 0.0
    for i in range(n):
        for j in range(n):
            if w[i, j]:
                total += w[i, j] * loss(bits / 2 * (1 - cosine(u[i], u[j])), s[i, j], bits)
        corner = bits / 2 * (1 - cosine(np.abs(u[i]), np.ones(bits)))
        total -= method.settings.quantisation * math.log(gamma / (gamma + corner)) / n
    return total


def slow_mmhh(
    u: NDArray[np.float64], s: NDArray[np.bool_], w: NDArray[np.float64], method: Any
) -> float:
    n, bits = u.shape
    loss = margin(method.settings.radius)
    total = 0.0
    for i in range(n):
        for j in range(n):
            if w[i, j]:
                total += w[i, j] * loss(bits / 2 * (1 - cosine(u[i], u[j])), s[i, j], bits)
        off = sum((1 - abs(x)) ** 2 for x in u[i].tolist())  # b has the sign of u
        total += method.settings.quantisation * off / n
    return total


def slow_hashnet(
    u: NDArray[np.float64], s: NDArray[np.bool_], w: NDArray[np.float64], method: Any
) -> float:
    n, bits = u.shape
    total = 0.0
    for i in range(n):
        for j in range(n):
            p = 1 / (1 + math.exp(-method.settings.alpha / bits * float(u[i] @ u[j])))
            total -= w[i, j] * math.log(p if s[i, j] else 1 - p)
    return total


SLOW = {"dch": (DCH, slow_dch), "mmhh": (MMHH, slow_mmhh), "hashnet": (HashNet, slow_hashnet)}


def relaxed_batch(
    bits: int = 8, n: int = 7
) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.float64]]:
    """Relaxed codes, some of them near each other; weights that sum to 1, without the diagonal."""
    rng = np.random.default_rng(bits)
    u = rng.uniform(0.1, 0.95, (n, bits)) * rng.choice([-1, 1], (n, bits))
    u[1] = 0.9 * u[0] + 0.01  # inside MMHH's ball
    u[2] = 0.9 * u[3] - 0.02
    s = rng.random((n, n)) < 0.5
    s = s | s.T
    s[0, 1] = s[1, 0] = True
    s[2, 3] = s[3, 2] = False
    weight = np.where(s, 3.0, 1.5)
    np.fill_diagonal(weight, 0)
    return u, s, weight / weight.sum()


@pytest.mark.parametrize("name", SLOW)
def test_a_batchs_loss_pair_by_pair(name: str) -> None:
    kind, slow = SLOW[name]
    method = kind(
        4, 8, kind.settings_type().updated({"quantisation": 0.3} if name != "hashnet" else {})
    )
    u, s, weight = relaxed_batch()
    got = method.batch_loss(torch.from_numpy(u), torch.from_numpy(s), torch.from_numpy(weight))
    assert float(got) == pytest.approx(slow(u, s, weight, method), rel=1e-9)


@pytest.mark.parametrize("name", SLOW)
def test_a_batchs_gradient_by_finite_differences(name: str) -> None:
    """The gradient of the slow loss, by differences instead of autograd."""
    kind, slow = SLOW[name]
    method = kind(4, 8)
    u, s, weight = relaxed_batch()
    x = torch.from_numpy(u).requires_grad_()
    method.batch_loss(x, torch.from_numpy(s), torch.from_numpy(weight)).backward()
    assert x.grad is not None
    step = 1e-6
    want = np.zeros_like(u)
    for place in np.ndindex(*u.shape):
        up, down = u.copy(), u.copy()
        up[place] += step
        down[place] -= step
        want[place] = (slow(up, s, weight, method) - slow(down, s, weight, method)) / (2 * step)
    assert np.abs(want).max() > 1e-3
    np.testing.assert_allclose(x.grad.numpy(), want, atol=1e-7)


def test_hashnets_continuation_sharpens_with_the_steps() -> None:
    method = HashNet(4, 8, HashNet.settings_type().updated({"growth": 0.02}))
    z = torch.linspace(-1, 1, 8, dtype=torch.float64)
    for step in (0, 1, 450, 100_000):
        want = [math.tanh(math.sqrt(1 + 0.02 * step) * x) for x in z.tolist()]
        np.testing.assert_allclose(method.relax(z, step).numpy(), want)


# Random hyperplanes, principal axes, rotations.


def test_lsh_cuts_by_random_planes_through_the_mean_or_the_origin() -> None:
    data = blobs(300, dim=40)
    x = data.array[:, 0]
    for centre in (True, False):
        method: Any = fitted("lsh", data, bits=64, centre=centre)
        mean = x.mean(0) if centre else torch.zeros(40)
        want = np.where((x - mean).double() @ method.map.double() > 0, 1, -1)
        np.testing.assert_array_equal(method.codes(x).numpy(), want)
    assert abs(float(method.map.mean())) < 0.1
    assert float(method.map.std()) == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("name", ["lsh", "pca", "itq", "ksh"])
def test_the_seed_decides_about_the_codes(name: str) -> None:
    data = blobs(90, dim=16, classes=4, noise=1.0)
    before = torch.get_rng_state()
    codes = [fitted(name, data, seed=seed).codes(data.array[:, 0]) for seed in (3, 3, 4)]
    assert torch.equal(codes[0], codes[1])
    assert not torch.equal(codes[0], codes[2])
    assert torch.equal(before, torch.get_rng_state())


def test_principal_axes_are_those_of_a_singular_value_decomposition() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((50, 12)) * np.linspace(3, 0.2, 12) + 5
    mean, axes = principal_axes(torch.from_numpy(x), 8)
    np.testing.assert_allclose(mean, x.mean(0))
    right = np.linalg.svd(x - x.mean(0), full_matrices=False)[2][:8]
    np.testing.assert_allclose(np.abs(right @ axes.numpy()), np.eye(8), atol=1e-9)


@pytest.mark.parametrize("name", ["pca", "itq"])
def test_pca_and_itq_turn_the_principal_axes(name: str) -> None:
    data = blobs(80, dim=20, noise=1.0)
    method: Any = fitted(name, data, bits=16)
    x = data.array[:, 0].numpy().astype(np.float64)
    right = np.linalg.svd(x - x.mean(0), full_matrices=False)[2][:16]
    turn = right @ method.map.double().numpy()
    np.testing.assert_allclose(turn.T @ turn, np.eye(16), atol=1e-5)  # a rotation, nothing lost
    assert np.abs(np.abs(turn) - np.eye(16)).max() > 0.1  # and not the axes themselves


@given(st.sampled_from([8, 16, 64]), st.integers(0, 2**31))
def test_random_rotations_are_orthogonal_and_differ(bits: int, seed: int) -> None:
    rotation = random_rotation(bits, seed)
    np.testing.assert_allclose(rotation.T @ rotation, np.eye(bits), atol=1e-5)
    assert not torch.equal(rotation, random_rotation(bits, seed + 1))


def test_random_rotations_favour_no_direction() -> None:
    first = torch.stack([random_rotation(8, seed)[:, 0] for seed in range(400)])
    assert first.mean(0).abs().max() < 0.08  # 1 / sqrt(8 * 400) is 0.018
    np.testing.assert_allclose((first**2).mean(0), 1 / 8, atol=0.03)


def quantisation_error(data: Features, method: Any) -> float:
    x = data.array[:, 0].double().numpy()
    v = (x - x.mean(0)) @ method.map.double().numpy()
    return float(np.mean((np.where(v > 0, 1, -1) - v) ** 2))


@pytest.mark.parametrize("seed", range(3))
def test_itqs_error_never_rises_and_its_rotation_is_orthogonal(seed: int) -> None:
    data = blobs(120, dim=24, classes=5, noise=1.0, seed=seed)
    errors = []
    for iterations in (0, 1, 2, 3, 5, 10, 30):
        method: Any = fitted("itq", data, bits=16, seed=seed, iterations=iterations)
        r = method.rotation.double().numpy()
        np.testing.assert_allclose(r.T @ r, np.eye(16), atol=1e-5)
        errors.append(quantisation_error(data, method))
    assert all(after <= before + 1e-6 for before, after in pairwise(errors))
    assert errors[-1] < 0.95 * errors[0]


def test_itq_reports_its_error_round_by_round() -> None:
    data = blobs(60, dim=16, noise=1.0)
    seen: list[float] = []
    method = ITQ(16, 8, ITQ.settings_type().updated({"iterations": "4"}))
    method.fit(data, 0, lambda step: seen.append(*step.figures.values()))
    assert seen[0] == pytest.approx(quantisation_error(data, fitted("pca", data)), rel=1e-4)
    assert all(after <= before + 1e-6 for before, after in pairwise(seen))
    assert len(seen) == 4


@pytest.mark.parametrize("name", ["pca", "itq"])
def test_more_bits_than_axes(name: str) -> None:
    with pytest.raises(ValueError, match="16 bits need 16 principal axes"):
        fitted(name, blobs(16, dim=30), bits=16)
    with pytest.raises(ValueError, match="of 12 features"):
        fitted(name, blobs(60, dim=12), bits=16)


# Kernels.


def greedy(seed: int, n: int = 24, m: int = 6, bits: int = 8) -> GreedyFit:
    rng = np.random.default_rng(seed)
    kernel = rng.standard_normal((n, m))
    labels = random_labels(n, 3, seed, 0.4)
    return GreedyFit(torch.from_numpy(kernel), similar(labels, labels), bits, ridge=1e-4)


def soft_cost(fit: GreedyFit, a: Tensor) -> float:
    """-yᵀRy in another form, as 2 sigmoid(t) - 1 = tanh(t / 2)."""
    y = np.tanh(fit.kernel.numpy() @ a.numpy() / 2)
    return -float(y @ fit.residue.numpy() @ y)


def test_the_kernel_compares_with_the_anchors() -> None:
    data = blobs(60, noise=1.0)
    method = KSH(
        12, 8, KSH.settings_type().updated({"anchors": 10, "labelled": 60, "crop_share": 0})
    )
    method.fit(data)
    x, anchors = data.array[:, 0].double().numpy(), method.anchors.double().numpy()
    assert all((x == a).all(1).any() for a in anchors)  # they are training images
    squares = ((x[:, None] - anchors[None]) ** 2).sum(-1)
    assert float(method.width) == pytest.approx(squares.mean(), rel=1e-4)
    kernel = np.exp(-squares / (2 * squares.mean()))
    found = method.features(data.array[:, 0])
    np.testing.assert_allclose(found, kernel - kernel.mean(0), atol=1e-4)


@given(st.integers(0, 2**31))
def test_the_relaxed_column_solves_the_generalised_eigenproblem(seed: int) -> None:
    fit = greedy(seed)
    a = fit._relaxed().numpy()
    k, r = fit.kernel.numpy(), fit.residue.numpy()
    gram = k.T @ k
    gram += np.eye(len(gram)) * (1e-4 * np.diag(gram).mean() + 1e-12)
    product = k.T @ r @ k
    top = np.linalg.eigvals(np.linalg.solve(gram, product)).real.max()
    np.testing.assert_allclose(product @ a, top * (gram @ a), atol=1e-6 * np.abs(product).max())
    assert ((k @ a) ** 2).mean() == pytest.approx(1)


@given(st.integers(0, 2**31))
def test_refining_never_costs_more_than_the_start(seed: int) -> None:
    fit = greedy(seed)
    start = fit._relaxed()
    assert soft_cost(fit, fit._refined(start, 30, 1e-4)) <= soft_cost(fit, start) + 1e-9


def test_refining_goes_downhill_to_where_the_slope_is_nothing() -> None:
    fit = greedy(0, n=40)
    start = fit._relaxed()
    end = fit._refined(start, 400, 0.0)
    assert soft_cost(fit, end) < soft_cost(fit, start)

    def slope(a: Tensor) -> float:
        steps = 1e-5 * torch.eye(len(a), dtype=torch.float64)
        both = [soft_cost(fit, a + e) - soft_cost(fit, a - e) for e in steps]
        return float(np.linalg.norm(both)) / 2e-5

    assert slope(end) < 0.05 * slope(start)


@given(st.integers(0, 2**31), st.sampled_from([8, 16]))
def test_kshs_objective_never_rises_over_its_bits(seed: int, bits: int) -> None:
    fit = greedy(seed, n=16, m=5, bits=bits)
    kernel = fit.kernel.numpy()
    for _ in range(bits):
        before = fit.residue.numpy().copy()
        relaxed = fit._relaxed()
        refined = fit._refined(relaxed, 10, 1e-2)
        column = fit.next_column(10, 1e-2)
        b, *others = (
            np.where(kernel @ a.numpy() > 0, 1.0, -1.0) for a in (column, relaxed, refined)
        )
        assert b @ before @ b >= max(y @ before @ y for y in others)  # the better of the two
        after = before - np.outer(b, b)
        if np.sum(after**2) <= np.sum(before**2):
            np.testing.assert_array_equal(fit.residue.numpy(), after)
        else:
            np.testing.assert_array_equal(fit.residue.numpy(), before)
        assert fit.objective == pytest.approx(min(np.mean(before**2), np.mean(after**2)))


def test_ksh_splits_two_clusters_and_new_points_of_them() -> None:
    train, test = blobs(60, classes=2), blobs(30, classes=2, seed=9)
    method = fitted("ksh", train)
    for data in (train, test):
        for view in (0, 1):
            codes = method.codes(data.array[:, view])
            first, second = codes[0], codes[1]
            assert hamming(first[None], second[None])[0, 0] == 8
            want = torch.where(data.labels[:, :1], first, second)
            assert torch.equal(codes, want)


def test_ksh_on_more_classes_than_one_plane_can_part() -> None:
    train, test = blobs(90, classes=5), blobs(50, classes=5, seed=9)
    method = fitted("ksh", train, bits=16)
    assert gap(method.codes(test.array[:, 0]), test.labels) > 0.4


def test_ksh_needs_as_many_images_as_anchors() -> None:
    with pytest.raises(ValueError, match="set anchors=15 or fewer"):
        fitted("ksh", blobs(15))


# What all methods share.


@pytest.mark.parametrize("name", METHODS)
def test_methods_share_one_interface(name: str) -> None:
    method = create_method(name, 12, 16, SMALL.get(name)).eval()
    assert (method.name, method.dim, method.bits) == (name, 12, 16)
    x = blobs(5).array[:, 0]
    assert method.project(x).shape == (5, 16)
    assert method.features(x).shape == (5, method.feature_dim)
    assert torch.equal(method.codes(x), sign(method.project(x)))
    f, b = method.states(x)
    assert torch.equal(f, method.features(x))
    assert torch.equal(b, method.codes(x))
    other = create_method(name, 12, 16, method.settings.to_json())
    assert other.settings == method.settings
    other.load_state_dict(method.state_dict())
    assert same(state_of(method), state_of(other))


@pytest.mark.parametrize("bits", [0, 7, 12, 264, -8])
def test_widths_that_no_code_has(bits: int) -> None:
    with pytest.raises(ValueError, match=f"bits is a multiple of 8 from 8 to 256, not {bits}"):
        create_method("lsh", 4, bits)


def test_a_method_that_is_none() -> None:
    with pytest.raises(ValueError, match="no method is called 'sha': there are lsh, itq, pca, ksh"):
        create_method("sha", 4, 8)


@dataclass(frozen=True)
class Sample(Settings):
    count: int = 1
    rate: float = 0.5
    flag: bool = False
    limit: float | None = None
    word: str = "a"
    choice: Literal["one", "two"] = "one"


def test_settings_are_read_from_text_as_their_types() -> None:
    text = {"count": "3", "rate": "1e-3", "flag": "Yes", "limit": "2", "word": "7", "choice": "two"}
    got = Sample().updated(text)
    assert got == Sample(3, 1e-3, True, 2.0, "7", "two")
    assert [type(v) for v in got.to_json().values()] == [int, float, bool, float, str, str]
    assert got.updated({"limit": "none", "flag": "0"}) == Sample(3, 1e-3, False, None, "7", "two")
    assert got.updated({"limit": None, "choice": "one"}).limit is None
    assert Sample.names() == list(text)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sped": "1"}, "no setting is called 'sped': there are count, rate, flag"),
        ({"count": "1.5"}, "count=1.5: expected a value of type int"),
        ({"rate": "fast"}, "rate=fast: expected a value of type float"),
        ({"rate": "none"}, "rate=none: expected"),
        ({"flag": "perhaps"}, "flag=perhaps: expected a value of type bool"),
        ({"choice": "three"}, "choice=three: expected one of one, two"),
        ({"choice": 3}, "choice=3: expected one of one, two"),
    ],
)
def test_settings_that_cannot_be(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sample().updated(changes)
