"""Training the agent, which decides which regions of an image are worth a code.

For image i with code b and one of its regions with code b*, the reward of keeping b* is the sum of
L(d_ij, s_ij) - L(d*_ij, s_ij) over the training images j != i, where d_ij = d(b, b_j) and
d*_ij = min(d(b, b_j), d(b*, b_j)). The reward of discarding it is 0. L is the base method's pair
loss between codes, with its pair weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from mchindex.models.deep import check_loss, rise_and_fall
from mchindex.models.hashing import Checkpoint, HashMethod, check_units, distances
from mchindex.models.policy import DISCARD, KEEP, Policy, Reads
from mchindex.models.seeds import seeded
from mchindex.models.settings import Settings
from mchindex.models.views import Features, Views, pair_weights, similar
from mchindex.progress import Progress, Step, silent
from mchindex.training.ranking import counts, place_values

Estimator = Literal["exact", "reinforce", "value"]
Optimiser = Literal["adamw", "sgd"]
Reward = Literal["ranking", "loss"]

FEWEST = 200  # images per fold


@dataclass(frozen=True)
class AgentSettings(Settings):
    """The agent's settings, with tuned defaults. `LOSS` has those for rewards that are the loss's,
    and `PAPER` those of the paper."""

    # "ranking": by how much a code improves the results; "loss": by how much it lowers the base
    # method's loss, as in the paper.
    reward: Reward = "ranking"
    # Parts of the training images; the rewards of a part come from a base method that was trained
    # on the others. 0: the rewards come from the base method itself, as in the paper.
    folds: int = 2
    # "value": the logarithm of the odds of keeping is fitted to the reward, so that regions are
    # ordered by the reward to expect; "exact" and "reinforce": the expected reward is maximised.
    estimator: Estimator = "value"
    steps: int = 300
    batch: int = 256
    optimiser: Optimiser = "adamw"
    lr: float = 1e-3  # with adamw the highest learning rate; with sgd a constant one
    weight_decay: float = 1e-3
    width: int = 128
    dropout: float = 0.5
    # "std": rewards are divided by their standard deviation; "sum": they are not, as in the paper.
    scale: Literal["std", "sum"] = "std"
    # Power of the rewards' absolute values: below 1, a few large rewards count for less.
    power: float = 1.0
    # Added to each reward. The base method has learnt its training images by heart, so a region
    # helps less there than it will for new images.
    bonus: float = 0.0
    # If set, the bonus is such that this share of the crops has a positive reward.
    worth: float | None = None
    # Factor on the loss of dissimilar pairs. At 1, a region is kept if it finds a few more similar
    # images than chance would. Above 1, only regions with purer buckets are kept.
    dissimilar: float = 1.0
    validation: float = 0.15  # share of the training images on which the best step is chosen
    every: int = 50  # steps between two validations

    def __post_init__(self) -> None:
        for name, least in (("steps", 1), ("batch", 2), ("width", 1), ("every", 1)):
            if getattr(self, name) < least:
                given = getattr(self, name)
                raise ValueError(f"the agent's {name} is at least {least}, not {given}")
        check_units("the agent's width", self.width)
        if self.folds < 0 or self.folds == 1:
            raise ValueError(f"the agent's folds are 0, or at least 2, not {self.folds}")
        if self.worth is not None and not 0 < self.worth < 1:
            raise ValueError(f"the agent's worth is a share between 0 and 1, not {self.worth}")


PAPER = AgentSettings(
    reward="loss",
    folds=0,
    width=256,
    estimator="reinforce",
    steps=100,
    batch=256,
    optimiser="sgd",
    lr=1e-4,
    weight_decay=5e-4,
    dropout=0.0,
    scale="sum",
    power=1.0,
    every=10,
)

# If the rewards are the loss's. These and the following were chosen on validation parts of training
# sets.
LOSS: dict[str, Any] = {
    "reward": "loss",
    "folds": 0,
    "estimator": "exact",
    "steps": 600,
    "width": 256,
    "power": 0.5,
}
LOSS_BY_METHOD: dict[str, dict[str, Any]] = {
    "ksh": {"bonus": 0.1},
    "hashnet": {"bonus": 0.3},
    "mmhh": {"bonus": 0.03},
}
# A backbone trained from scratch knows less: only its safer regions are worth keeping.
SCRATCH: dict[str, Any] = LOSS | {"bonus": 0.0, "dissimilar": 3.0}
# Guessed labels find only some of the similar pairs. The rewards then rank regions well enough, but
# their sign does not say whether a region is worth its code.
GUESSED: dict[str, Any] = LOSS | {"worth": 0.3}


def agent_settings(
    method: str,
    changes: dict[str, Any] | None = None,
    scratch: bool = False,
    guessed: bool = False,
) -> AgentSettings:
    """The agent's settings for a base method, with `changes` applied.

    `scratch`: the backbone was trained from scratch; `guessed`: labels are guessed.
    """
    changes = changes or {}
    tuned: dict[str, Any] = GUESSED if guessed else SCRATCH if scratch else {}
    if not tuned and changes.get("reward") == "loss":
        tuned = LOSS | LOSS_BY_METHOD.get(method, {})
    if "bonus" in changes and "worth" not in changes:
        tuned = {name: value for name, value in tuned.items() if name != "worth"}
    return AgentSettings().updated(tuned).updated(changes)


@dataclass(frozen=True)
class Experience:
    """Everything the agent learns from: the parts of all states, and the rewards of keeping."""

    f: Tensor  # (n, features) of whole images: what the policy reads
    f_region: Tensor  # (n, crops, features)
    b: Tensor  # (n, bits) signs
    b_region: Tensor  # (n, crops, bits)
    reward: Tensor  # (n, crops) of keeping each crop

    def __len__(self) -> int:
        return len(self.f)


def keep_reward(
    method: HashMethod, b: Tensor, b_region: Tensor, codes: Tensor, labels: Tensor, others: Tensor
) -> Tensor:
    """(n,) the rewards of keeping one region of each of n images.

    `b` (n, bits) and `labels` (n, classes) are the images' codes and labels, `b_region` (n, bits)
    the regions' codes; `codes` (m, bits) and `others` (m, classes) are the codes and labels of the
    training images to sum over. They must not include the image itself; `gather` excludes it.
    """
    s = similar(labels, others)
    weight = method.pair_weight(labels, others)
    d = distances(b, codes)
    nearer = torch.minimum(d, distances(b_region, codes))
    return (weight * (method.pair_loss(d, s) - method.pair_loss(nearer, s))).sum(1)


@torch.inference_mode()
def gather(
    method: HashMethod,
    data: Views,
    progress: Progress = silent,
    dissimilar: float = 1.0,
    reward: Reward = "loss",
    reads: Reads = "method",
) -> Experience:
    """The states and rewards of all crops of all training images.

    `dissimilar` is a factor on what dissimilar pairs cost; it is 1 in the paper. `reads` says what
    the policy reads.
    """
    if data.views < 2:
        raise ValueError("the agent learns from crops: compute features with at least one crop")
    method.eval()
    device = method.weights.device
    n, crops = len(data), data.views - 1

    def view(which: int) -> tuple[Tensor, Tensor]:
        fs, bs = [], []
        for rows in torch.arange(n).split(1024):
            x = data.batch(rows, which).to(device)
            f, b = method.states(x)
            fs.append(f if reads == "method" else x)
            bs.append(b)
        return torch.cat(fs), torch.cat(bs)

    f, b = view(0)
    f_region = torch.empty(n, crops, f.shape[1], device=device, dtype=torch.float16)
    b_region = torch.empty(n, crops, method.bits, device=device)
    for crop in range(crops):
        f_region[:, crop], b_region[:, crop] = view(crop + 1)
    rewards = _rewards(method, b, b_region, data.labels.to(device), dissimilar, reward, progress)
    return Experience(f, f_region, b, b_region, rewards)


def _rewards(
    method: HashMethod,
    b: Tensor,
    b_region: Tensor,
    labels: Tensor,
    dissimilar: float,
    reward: Reward,
    progress: Progress,
) -> Tensor:
    """(n, crops): the reward of keeping each crop, summed over the other images."""
    n, crops, places = len(b), b_region.shape[1], method.bits + 1
    # Distances are whole numbers, so what a place is worth fits in a table, one for all images or
    # one for each: [dissimilar | similar].
    if reward == "loss":
        d = torch.arange(places, device=b.device, dtype=torch.float32)
        losses = [method.pair_loss(d, torch.full_like(d, s, dtype=torch.bool)) for s in (0, 1)]
        table = -torch.cat(losses)[:, None].expand(-1, n)
    else:
        table = place_values(counts(b, labels)).T.contiguous()
    table = torch.cat([dissimilar * table[:places], table[places:]])
    out = torch.empty(n, crops, device=b.device)
    for rows in torch.arange(n, device=b.device).split(256):
        start = similar(labels[rows], labels) * places
        near = distances(b[rows], b)
        weight = torch.ones_like(near)
        if reward == "loss":
            weight = method.pair_weight(labels[rows], labels)
        weight[torch.arange(len(rows)), rows] = 0  # j = i
        before = table.gather(0, (start + near).long())
        for crop in range(crops):
            nearer = torch.minimum(near, distances(b_region[rows, crop], b))
            gain = table.gather(0, (start + nearer).long()) - before
            out[rows, crop] = (weight * gain).sum(1)
        progress(Step("rewards", int(rows[-1]) + 1, n))
    return out


def folds_of(data: Views, folds: int, seed: int) -> list[Tensor]:
    """The rows of each fold. None at all if the data are too few to be divided."""
    n = len(data)
    parts = torch.randperm(n, generator=torch.Generator().manual_seed(seed)).chunk(max(folds, 1))
    if folds < 2 or n < FEWEST * folds:
        return []
    try:
        for part in parts:
            pair_weights(data.labels[_but(n, part)])
    except ValueError:  # no two images of a part are similar, or all of them are
        return []
    return [part.sort().values for part in parts]


def _but(n: int, rows: Tensor) -> Tensor:
    """All rows but these."""
    rest = torch.ones(n, dtype=torch.bool)
    rest[rows] = False
    return rest.nonzero().squeeze(1)


def base_of_others(method: HashMethod, data: Features, fold: Tensor) -> tuple[HashMethod, Features]:
    """An untrained base method with the settings of another, and what it is to be trained on."""
    others = data.take(_but(len(data), fold))
    settings = method.settings
    if "anchors" in settings.names():
        settings = settings.updated({"anchors": min(settings.anchors, len(others))})
    twin = type(method)(method.dim, method.bits, settings)
    return twin.to(method.weights.device), others


def scaled(reward: Tensor, settings: AgentSettings) -> Tensor:
    """The rewards that the policy is trained on."""
    if settings.scale == "std":
        reward = reward / reward.std(correction=0).clamp(min=1e-12)
    reward = reward.sign() * reward.abs() ** settings.power
    if settings.worth is None:
        return reward + settings.bonus
    # NumPy's, because torch.quantile takes at most 16 million numbers.
    return reward - float(np.quantile(reward.cpu().numpy(), 1 - settings.worth))


def policy_loss(probabilities: Tensor, reward: Tensor, estimator: Estimator) -> Tensor:
    """The loss to minimise: the negative expected reward, or REINFORCE's estimate of it, or the
    squared error of the reward that is read from the odds of keeping.

    An episode has one step and discarding has reward 0, so the expected reward is π(keep) R.
    """
    if estimator == "value":
        odds = probabilities.clamp(min=1e-12).log()
        return F.mse_loss(odds[:, KEEP] - odds[:, DISCARD], reward)
    if estimator == "exact":
        return -(probabilities[:, KEEP] * reward).mean()
    action = torch.multinomial(probabilities.detach(), 1)
    chosen = probabilities.gather(1, action).clamp(min=1e-12).log().squeeze(1)
    return -(chosen * torch.where(action.squeeze(1) == KEEP, reward, 0.0)).mean()


def train_agent(
    method: HashMethod,
    data: Views,
    settings: AgentSettings,
    seed: int = 0,
    progress: Progress = silent,
    checkpoint: Checkpoint | None = None,
    folds: Sequence[tuple[HashMethod, Tensor]] = (),
) -> tuple[Policy, list[dict[str, float]]]:
    """Returns the policy at its best step, by the reward on validation images, and the curve.

    `folds` are base methods trained on parts of the data, each with the rows that it has not seen,
    see `base_of_others`; without any, the rewards come from `method`. The curve has a point per
    validation. Raises ValueError if there are no crops, or fewer than two images.
    """
    experience = _experience(method, data, settings, progress, folds)
    device = experience.f.device
    reward = scaled(experience.reward, settings)
    order = torch.randperm(len(experience), generator=torch.Generator().manual_seed(seed))
    held = max(1, round(settings.validation * len(experience)))
    validation, training = order[:held].to(device), order[held:].to(device)
    if not len(training):
        raise ValueError("the agent needs at least two training images")
    # A region with its image's code has no reward: with folds, the agent learns from the others.
    pairs = (reward[training] != 0).nonzero() if folds else None
    validate, score = (_ranked, "order") if folds else (_validate, "validation_reward")
    with seeded(seed, device):
        reads: Reads = "backbone" if folds else "method"
        features = experience.f.shape[1]
        policy = Policy(features, method.bits, settings.width, settings.dropout, reads)
        policy.to(device).fit_scale(_scaling(experience) if folds else experience.f)
        optimiser, schedule = _optimiser(policy, settings)
        curve: list[dict[str, float]] = []
        best: dict[str, Tensor] = {}
        first = 0
        if checkpoint and (state := checkpoint.load()):
            policy.load_state_dict(state["policy"])
            optimiser.load_state_dict(state["optimiser"])
            schedule.load_state_dict(state["schedule"])
            curve, best, first = state["curve"], state["best"], state["step"]
        gained = 0.0
        for block in range(first, settings.steps, settings.every):
            # Each block has its own seed, so that a training can resume here.
            torch.manual_seed(seed * 100_003 + block)
            policy.train()
            size = min(settings.every, settings.steps - block)
            for _ in range(size):
                rows, crop = _drawn(pairs, training, reward.shape[1], settings.batch)
                probabilities = policy(_state(policy, experience, rows, crop))
                loss = policy_loss(probabilities, reward[rows, crop], settings.estimator)
                check_loss(float(loss.detach()), "agent")
                optimiser.zero_grad(set_to_none=True)
                loss.backward()
                optimiser.step()
                schedule.step()
                got = (probabilities[:, KEEP].detach() * reward[rows, crop]).mean()
                gained += float(got) / size
            point = validate(policy, experience, reward, validation)
            point = {"step": block + size, "train_reward": gained, **point}
            gained = 0.0
            curve.append(point)
            if point[score] >= max(p[score] for p in curve):
                best = {k: v.detach().clone() for k, v in policy.state_dict().items()}
            if checkpoint:
                checkpoint.save(
                    {
                        "step": block + size,
                        "policy": policy.state_dict(),
                        "optimiser": optimiser.state_dict(),
                        "schedule": schedule.state_dict(),
                        "curve": curve,
                        "best": best,
                    }
                )
            progress(Step("agent", block + size, settings.steps, point))
    policy.load_state_dict(best)
    if folds:
        policy.move_threshold(_threshold(policy, experience, experience.reward, validation))
    return policy.eval(), curve


def _drawn(pairs: Tensor | None, training: Tensor, crops: int, count: int) -> tuple[Tensor, Tensor]:
    """Rows and crops drawn at random, from pairs of places in `training` and crops if given."""
    if pairs is not None and len(pairs):
        place, crop = pairs[torch.randint(len(pairs), (count,))].unbind(1)
        return training[place], crop
    rows = training[torch.randint(len(training), (count,))]
    return rows, torch.randint(crops, (count,), device=training.device)


def _scaling(e: Experience) -> Tensor:
    """Features of as many regions as whole images."""
    return torch.cat([e.f, e.f_region[:, 0].float()])


def _experience(
    method: HashMethod,
    data: Views,
    settings: AgentSettings,
    progress: Progress,
    folds: Sequence[tuple[HashMethod, Tensor]],
) -> Experience:
    """What the agent learns from; that of the folds one after the other."""
    how = settings.dissimilar, settings.reward
    if not folds:
        return gather(method, data, progress, *how)
    if not isinstance(data, Features):
        raise TypeError("folds need features that are known")
    parts = [
        gather(base, data.take(rows), progress, *how, reads="backbone") for base, rows in folds
    ]
    names = [field.name for field in fields(Experience)]
    return Experience(*(torch.cat([getattr(part, name) for part in parts]) for name in names))


def _state(policy: Policy, e: Experience, rows: Tensor, crop: Tensor) -> Tensor:
    return policy.state(
        e.f[rows], e.f_region[rows, crop].float(), e.b[rows], e.b_region[rows, crop]
    )


def _optimiser(policy: Policy, settings: AgentSettings) -> tuple[Any, Any]:
    if settings.optimiser == "sgd":
        sgd = torch.optim.SGD(
            policy.parameters(), settings.lr, momentum=0.9, weight_decay=settings.weight_decay
        )
        return sgd, torch.optim.lr_scheduler.ConstantLR(sgd, 1.0)
    adamw = torch.optim.AdamW(policy.parameters(), settings.lr, weight_decay=settings.weight_decay)
    return adamw, rise_and_fall(adamw, settings.steps, warm_up=0.1)


@torch.inference_mode()
def _keep(policy: Policy, e: Experience, rows: Tensor) -> Tensor:
    """(len(rows), crops): the probabilities of keeping the crops of some images."""
    policy.eval()
    crops = [torch.full_like(rows, crop) for crop in range(e.reward.shape[1])]
    return torch.stack([policy(_state(policy, e, rows, crop))[:, KEEP] for crop in crops], dim=1)


def _validate(policy: Policy, e: Experience, reward: Tensor, rows: Tensor) -> dict[str, float]:
    """The mean reward of keeping what has a probability of one half or more, and its bound."""
    kept = _keep(policy, e, rows) >= 0.5
    return {
        "validation_reward": float((kept * reward[rows]).mean()),
        "kept": float(kept.float().mean()),
        "best_possible": float(F.relu(reward[rows]).mean()),
    }


def _ranked(policy: Policy, e: Experience, reward: Tensor, rows: Tensor) -> dict[str, float]:
    """The mean reward with the best threshold, and `order`: that of the most probable regions, as a
    mean over all numbers of them up to one half. It says how well regions are ordered."""
    keep, gained = _keep(policy, e, rows).flatten(), reward[rows].flatten()
    some = gained != 0
    order = keep[some].argsort(descending=True)
    total = gained[some][order].double().cumsum(0) / max(1, len(gained))
    best = max(0.0, float(total.max())) if len(total) else 0.0
    return {
        "validation_reward": best,
        "kept": float(total.argmax() + 1) / len(gained) if best else 0.0,
        "best_possible": float(F.relu(gained).mean()),
        "order": float(total[: max(1, len(total) // 2)].mean()) if len(total) else 0.0,
    }


def _threshold(policy: Policy, e: Experience, reward: Tensor, rows: Tensor) -> float:
    """The probability from which on keeping has the highest total reward on these images."""
    keep, gained = _keep(policy, e, rows).flatten(), reward[rows].flatten()
    order = keep.argsort(descending=True)
    total = gained[order].double().cumsum(0)
    place = int(total.argmax())
    return float(keep[order[place]]) if total[place] > 0 else 1.0
