"""Training the agent, which decides which regions of an image are worth a code.

For image i with code b and one of its regions with code b*, the reward of keeping b* is the sum of
L(d_ij, s_ij) - L(d*_ij, s_ij) over the training images j != i, where d_ij = d(b, b_j) and
d*_ij = min(d(b, b_j), d(b*, b_j)). The reward of discarding it is 0. L is the base method's pair
loss between codes, with its pair weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from mchindex.models.deep import check_loss, rise_and_fall
from mchindex.models.hashing import Checkpoint, HashMethod, check_units, distances
from mchindex.models.policy import KEEP, Policy
from mchindex.models.seeds import seeded
from mchindex.models.settings import Settings
from mchindex.models.views import Views, similar
from mchindex.progress import Progress, Step, silent

Estimator = Literal["exact", "reinforce"]
Optimiser = Literal["adamw", "sgd"]


@dataclass(frozen=True)
class AgentSettings(Settings):
    """The agent's settings, with tuned defaults. `PAPER` has those of the paper."""

    estimator: Estimator = "exact"
    steps: int = 600
    batch: int = 256
    optimiser: Optimiser = "adamw"
    lr: float = 1e-3  # with adamw the highest learning rate; with sgd a constant one
    weight_decay: float = 1e-3
    width: int = 256
    dropout: float = 0.5
    # "std": rewards are divided by their standard deviation; "sum": they are not, as in the paper.
    scale: Literal["std", "sum"] = "std"
    # Power of the rewards' absolute values: below 1, a few large rewards count for less.
    power: float = 0.5
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
        if self.worth is not None and not 0 < self.worth < 1:
            raise ValueError(f"the agent's worth is a share between 0 and 1, not {self.worth}")


PAPER = AgentSettings(
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

# By method; chosen on validation parts of training sets.
TUNED: dict[str, dict[str, Any]] = {
    "ksh": {"bonus": 0.1},
    "hashnet": {"bonus": 0.3},
    "mmhh": {"bonus": 0.03},
}


# A backbone trained from scratch knows less: only its safer regions are worth keeping.
SCRATCH: dict[str, Any] = {"bonus": 0.0, "dissimilar": 3.0}
# Guessed labels find only some of the similar pairs. The rewards then rank regions well enough, but
# their sign does not say whether a region is worth its code.
GUESSED: dict[str, Any] = {"worth": 0.3}


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
    tuned = GUESSED if guessed else SCRATCH if scratch else TUNED.get(method, {})
    if "bonus" in changes and "worth" not in changes:
        tuned = {name: value for name, value in tuned.items() if name != "worth"}
    return AgentSettings().updated(tuned).updated(changes)


@dataclass(frozen=True)
class Experience:
    """Everything the agent learns from: the parts of all states, and the rewards of keeping."""

    f: Tensor  # (n, features) of whole images
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
    method: HashMethod, data: Views, progress: Progress = silent, dissimilar: float = 1.0
) -> Experience:
    """The states and rewards of all crops of all training images.

    `dissimilar` is a factor on the loss of dissimilar pairs; it is 1 in the paper.
    """
    if data.views < 2:
        raise ValueError("the agent learns from crops: compute features with at least one crop")
    method.eval()
    device = method.weights.device
    n, crops = len(data), data.views - 1
    labels = data.labels.to(device)
    # Distances are whole numbers, so the loss fits in a table: [dissimilar | similar].
    d = torch.arange(method.bits + 1, device=device, dtype=torch.float32)
    table = torch.cat(
        [
            factor * method.pair_loss(d, torch.full_like(d, s, dtype=torch.bool))
            for s, factor in ((0, dissimilar), (1, 1.0))
        ]
    )

    def view(which: int) -> tuple[Tensor, Tensor]:
        parts = [data.batch(rows, which).to(device) for rows in torch.arange(n).split(1024)]
        f, b = zip(*(method.states(x) for x in parts), strict=True)
        return torch.cat(f), torch.cat(b)

    f, b = view(0)
    f_region = torch.empty(n, crops, f.shape[1], device=device, dtype=torch.float16)
    b_region = torch.empty(n, crops, method.bits, device=device)
    for crop in range(crops):
        f_region[:, crop], b_region[:, crop] = view(crop + 1)
    reward = torch.empty(n, crops, device=device)
    for rows in torch.arange(n, device=device).split(256):
        start = similar(labels[rows], labels) * (method.bits + 1)
        weight = method.pair_weight(labels[rows], labels)
        weight[torch.arange(len(rows)), rows] = 0  # j = i
        near = distances(b[rows], b)
        before = table[(start + near).int()]
        for crop in range(crops):
            nearer = torch.minimum(near, distances(b_region[rows, crop], b))
            gain = before - table[(start + nearer).int()]
            reward[rows, crop] = (weight * gain).sum(1)
        progress(Step("rewards", int(rows[-1]) + 1, n))
    return Experience(f, f_region, b, b_region, reward)


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
    """The loss to minimise: the negative expected reward, or REINFORCE's estimate of it.

    An episode has one step and discarding has reward 0, so the expected reward is π(keep) R.
    """
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
) -> tuple[Policy, list[dict[str, float]]]:
    """Returns the policy at its best step, by the reward on validation images, and the curve.

    The curve has a point per validation. Raises ValueError if there are no crops, or fewer than two
    images.
    """
    experience = gather(method, data, progress, settings.dissimilar)
    device = experience.f.device
    reward = scaled(experience.reward, settings)
    order = torch.randperm(len(experience), generator=torch.Generator().manual_seed(seed))
    held = max(1, round(settings.validation * len(experience)))
    validation, training = order[:held].to(device), order[held:].to(device)
    if not len(training):
        raise ValueError("the agent needs at least two training images")
    with seeded(seed, device):
        policy = Policy(experience.f.shape[1], method.bits, settings.width, settings.dropout)
        policy.to(device).fit_scale(experience.f)
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
                rows = training[torch.randint(len(training), (settings.batch,))]
                crop = torch.randint(reward.shape[1], (settings.batch,), device=device)
                probabilities = policy(_state(policy, experience, rows, crop))
                loss = policy_loss(probabilities, reward[rows, crop], settings.estimator)
                check_loss(float(loss.detach()), "agent")
                optimiser.zero_grad(set_to_none=True)
                loss.backward()
                optimiser.step()
                schedule.step()
                got = (probabilities[:, KEEP].detach() * reward[rows, crop]).mean()
                gained += float(got) / size
            point = _validate(policy, experience, reward, validation)
            point = {"step": block + size, "train_reward": gained, **point}
            gained = 0.0
            curve.append(point)
            if point["validation_reward"] >= max(p["validation_reward"] for p in curve):
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
    return policy.eval(), curve


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
def _validate(policy: Policy, e: Experience, reward: Tensor, rows: Tensor) -> dict[str, float]:
    """The mean reward of keeping what has a probability of one half or more, and its bound."""
    policy.eval()
    kept = torch.stack(
        [
            policy(_state(policy, e, rows, torch.full_like(rows, crop)))[:, KEEP] >= 0.5
            for crop in range(reward.shape[1])
        ],
        dim=1,
    )
    return {
        "validation_reward": float((kept * reward[rows]).mean()),
        "kept": float(kept.float().mean()),
        "best_possible": float(F.relu(reward[rows]).mean()),
    }
