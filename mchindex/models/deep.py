"""Hash layers trained by gradient: a small perceptron, and the loop that methods on pairs share.

The layer that the code is read from stands on a hidden layer, and training mixes whole images with
random crops of them: a crop's code must mean something, because MCH stores crops' codes.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from mchindex.models.hashing import Checkpoint, HashMethod
from mchindex.models.seeds import seeded
from mchindex.models.settings import Settings
from mchindex.models.views import Views, pair_weights, similar
from mchindex.progress import Progress, Step, silent


@dataclass(frozen=True)
class DeepSettings(Settings):
    epochs: int = 20
    batch: int = 256
    lr: float = 1e-3  # the highest; it then falls to nothing
    warm_up: float = 0.15  # share of the steps over which it rises
    weight_decay: float = 1e-4
    hidden: int = 1024  # units of the hidden layer; 0: the hash layer reads the features themselves
    dropout: float = 0.5
    power: float = 1.0  # features are raised to it, signs kept: below 1, peaks count for less
    crop_share: float = 0.5  # how many of the training views are crops rather than whole images

    def __post_init__(self) -> None:
        check_schedule(self.epochs, self.batch)
        if not 0 <= self.crop_share <= 1:
            raise ValueError(f"crop_share is a share, 0 to 1, not {self.crop_share}")
        if not 0 < self.power <= 1:
            raise ValueError(f"power is above 0, up to 1, not {self.power}")


def check_schedule(epochs: int, batch: int) -> None:
    if epochs < 1 or batch < 2:
        raise ValueError(
            "training takes at least 1 epoch and batches of at least 2 images, not "
            f"epochs={epochs}, batch={batch}"
        )


class DeepHash(HashMethod):
    """A method whose hash layer is trained by gradient."""

    settings_type = DeepSettings
    mean: Tensor
    std: Tensor

    def __init__(self, dim: int, bits: int, settings: Settings | None = None) -> None:
        super().__init__(dim, bits, settings)
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("std", torch.ones(dim))
        hidden = self.settings.hidden
        self.hidden = nn.Linear(dim, hidden) if hidden else nn.Identity()
        self.dropout = nn.Dropout(self.settings.dropout)
        self.hash = nn.Linear(hidden or dim, bits)

    @property
    def feature_dim(self) -> int:
        return self.hash.in_features

    def features(self, x: Tensor) -> Tensor:
        x = (self._flatter(x) - self.mean) / self.std
        return F.relu(self.hidden(x)) if self.settings.hidden else x

    def _flatter(self, x: Tensor) -> Tensor:
        power = self.settings.power
        # Clamped: the slope of a root at 0 is infinite.
        return x if power == 1 else x.sign() * x.abs().clamp(min=1e-6) ** power

    def last(self, f: Tensor) -> Tensor:
        z: Tensor = self.hash(self.dropout(f))
        return z

    def start(self, data: Views, seed: int) -> None:
        """Fresh weights from the seed, the features' scale, the pairs' weights."""
        if (backbone := getattr(data, "backbone", None)) is not None:
            backbone.eval()  # the scale is of features as they are used, without dropout
        rows = torch.arange(len(data))[:: max(1, len(data) // 4096)]
        with torch.no_grad():
            x = torch.cat([self._flatter(data.batch(part)) for part in rows.split(256)])
        self.mean.copy_(x.mean(0))
        # A feature that hardly varies must not be blown up.
        self.std.copy_(x.std(0, correction=0).clamp(min=1e-3 + 0.1 * float(x.std())))
        self.weights.copy_(torch.tensor(pair_weights(data.labels)))
        with seeded(seed, self.mean.device):
            for layer in (self.hidden, self.hash):
                if isinstance(layer, nn.Linear):
                    fresh = nn.Linear(layer.in_features, layer.out_features)
                    layer.load_state_dict(fresh.state_dict())

    def trained_parameters(self, data: Views) -> list[nn.Parameter]:
        """The hash layers' weights, and the backbone's where the data comes through it."""
        return [*self.parameters(), *getattr(data, "parameters", list)()]


def mixed_views(rows: Tensor, data: Views, share: float, generator: torch.Generator) -> Tensor:
    """For each row the whole image (0) or, with probability `share`, one of its crops.

    A crop that shows nothing known teaches nothing: the whole image stands in for it.
    """
    crops = data.views - 1
    if not crops or not share:
        return torch.zeros_like(rows)
    which = torch.randint(1, crops + 1, rows.shape, generator=generator)
    view = torch.where(torch.rand(rows.shape, generator=generator) < share, which, 0)
    return torch.where(data.shown(rows, view).any(1), view, 0)


def batches(n: int, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """All rows in a random order, in batches; a last batch too small for pairs is dropped."""
    for rows in torch.randperm(n, generator=generator).split(size):
        if len(rows) >= max(2, min(size, n) // 2):
            yield rows


def rise_and_fall(
    optimiser: torch.optim.Optimizer, steps: int, warm_up: float
) -> torch.optim.lr_scheduler.LambdaLR:
    """The learning rate: up in a line over a share of the steps, then down along a cosine."""
    rise = round(warm_up * steps)

    def factor(step: int) -> float:
        if step < rise:
            return (step + 1) / (rise + 1)
        return (1 + math.cos(math.pi * min(1.0, (step - rise) / max(1, steps - rise)))) / 2

    return torch.optim.lr_scheduler.LambdaLR(optimiser, factor)


class Loop:
    """Epochs with a state that can be left and taken up again.

    Each epoch draws from a generator of its own, so that a training that was interrupted ends with
    the same weights as one that was not.
    """

    def __init__(
        self,
        method: DeepHash,
        data: Views,
        epochs: int,
        steps: int,
        seed: int,
        checkpoint: Checkpoint | None,
    ) -> None:
        settings = method.settings
        self.method, self.epochs, self.seed, self.checkpoint = method, epochs, seed, checkpoint
        self.backbone: nn.Module | None = getattr(data, "backbone", None)
        self.optimiser = torch.optim.AdamW(
            method.trained_parameters(data), lr=settings.lr, weight_decay=settings.weight_decay
        )
        self.schedule = rise_and_fall(self.optimiser, epochs * steps, settings.warm_up)
        self.step = 0
        self.extra: dict[str, Any] = {}

    def __iter__(self) -> Iterator[tuple[int, torch.Generator]]:
        """Epochs still to do, each with its generator; the method is in training mode."""
        for epoch in range(self._resume(), self.epochs):
            self.train(True)
            seed = self.seed * 100_003 + epoch
            with seeded(seed, self.method.mean.device):  # dropout draws from the global generator
                yield epoch, torch.Generator().manual_seed(seed)
            if self.checkpoint:
                self.checkpoint.save(self._state(epoch + 1))
        self.train(False)

    def train(self, mode: bool) -> None:
        """Sets the method, and the backbone that learns with it, to training or to use."""
        self.method.train(mode)
        if self.backbone:
            self.backbone.train(mode)

    def update(self, loss: Tensor) -> None:
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        self.optimiser.step()
        self.schedule.step()
        self.step += 1

    def _state(self, epoch: int) -> dict[str, Any]:
        return {
            "epoch": epoch,
            "step": self.step,
            "method": self.method.state_dict(),
            "backbone": self.backbone.state_dict() if self.backbone else {},
            "optimiser": self.optimiser.state_dict(),
            "schedule": self.schedule.state_dict(),
            "extra": self.extra,
        }

    def _resume(self) -> int:
        state = self.checkpoint.load() if self.checkpoint else None
        if not state:
            return 0
        self.method.load_state_dict(state["method"])
        if self.backbone:
            self.backbone.load_state_dict(state["backbone"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.schedule.load_state_dict(state["schedule"])
        self.step, self.extra = state["step"], state["extra"]
        return int(state["epoch"])


class PairwiseHash(DeepHash):
    """A method whose loss is a sum over the pairs of a batch."""

    def fit(
        self,
        data: Views,
        seed: int = 0,
        progress: Progress = silent,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        settings: Any = self.settings
        self.start(data, seed)
        device = self.mean.device
        size = min(settings.batch, len(data))
        steps = sum(1 for _ in batches(len(data), size, torch.Generator()))
        loop = Loop(self, data, settings.epochs, steps, seed, checkpoint)
        for epoch, generator in loop:
            total = 0.0
            for rows in batches(len(data), size, generator):
                view = mixed_views(rows, data, settings.crop_share, generator)
                labels = data.shown(rows, view).to(device)
                u = self.relax(self.project(data.batch(rows, view).to(device)), loop.step)
                weight = self.pair_weight(labels, labels).fill_diagonal_(0)
                loss = self.batch_loss(u, similar(labels, labels), weight / weight.sum())
                loop.update(loss)
                total += float(loss.detach())
            progress(Step(self.name, epoch + 1, settings.epochs, {"loss": total / steps}))

    @abstractmethod
    def relax(self, z: Tensor, step: int) -> Tensor:
        """What stands for the codes while training: (n, bits) real numbers."""

    @abstractmethod
    def batch_loss(self, u: Tensor, s: Tensor, weight: Tensor) -> Tensor:
        """The loss of a batch: relaxed codes (n, bits), which pairs are similar, their weights."""


def cosine_distances(u: Tensor, v: Tensor) -> Tensor:
    """Hamming distance relaxed by the angle: bits / 2 * (1 - cos), exact between signs."""
    return u.shape[1] / 2 * (1 - F.normalize(u, dim=1) @ F.normalize(v, dim=1).mT)
