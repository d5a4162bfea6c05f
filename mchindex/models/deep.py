"""Hash layers trained by gradient descent: a small perceptron, and the training loop.

A hidden layer comes before the layer whose signs are the code. Training mixes whole images with
random crops, because MCH stores codes of crops, too.
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

from mchindex.errors import TrainingError
from mchindex.models.hashing import Checkpoint, HashMethod, check_units
from mchindex.models.seeds import seeded
from mchindex.models.settings import Settings
from mchindex.models.views import Views, pair_weights, similar
from mchindex.progress import Progress, Step, silent


@dataclass(frozen=True)
class DeepSettings(Settings):
    epochs: int = 20
    batch: int = 256
    lr: float = 1e-3  # the highest learning rate; it rises to it, then falls to 0
    warm_up: float = 0.15  # share of the steps in which it rises
    weight_decay: float = 1e-4
    hidden: int = 1024  # units of the hidden layer; 0: no hidden layer
    dropout: float = 0.5
    power: float = 1.0  # of the features' absolute values: below 1, large ones count for less
    crop_share: float = 0.5  # share of the training views that are crops

    def __post_init__(self) -> None:
        check_schedule(self.epochs, self.batch)
        if not 0 <= self.crop_share <= 1:
            raise ValueError(f"crop_share is between 0 and 1, not {self.crop_share}")
        check_units("hidden", self.hidden, least=0)
        if not 0 < self.power <= 1:
            raise ValueError(f"power is above 0 and at most 1, not {self.power}")


def check_schedule(epochs: int, batch: int) -> None:
    """Raises ValueError unless there is an epoch, and a pair in a batch."""
    if epochs < 1 or batch < 2:
        raise ValueError(
            "training needs at least 1 epoch and batches of at least 2 images, not "
            f"epochs={epochs}, batch={batch}"
        )


def check_loss(loss: float, stage: str) -> float:
    """The loss. Raises TrainingError if it is not finite: nothing more can be learnt then."""
    if not math.isfinite(loss):
        raise diverged(stage)
    return loss


def diverged(stage: str) -> TrainingError:
    """The error of a stage whose weights are no longer finite numbers."""
    return TrainingError(
        f"the training of the {stage} diverged: its weights are no longer finite numbers. Start "
        "over with a lower learning rate (lr), or check that the images' features are finite"
    )


class DeepHash(HashMethod):
    """A method whose hash layer is trained by gradient descent."""

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
        x = (self._flattened(x) - self.mean) / self.std
        return F.relu(self.hidden(x)) if self.settings.hidden else x

    def _flattened(self, x: Tensor) -> Tensor:
        power = self.settings.power
        # Clamped, because the slope of a root is infinite at 0.
        return x if power == 1 else x.sign() * x.abs().clamp(min=1e-6) ** power

    def last(self, f: Tensor) -> Tensor:
        z: Tensor = self.hash(self.dropout(f))
        return z

    def start(self, data: Views, seed: int) -> None:
        """Sets weights from the seed, the scale of the features, and the weights of pairs."""
        if (backbone := getattr(data, "backbone", None)) is not None:
            backbone.eval()  # features are used without dropout, so their scale is, too
        rows = torch.arange(len(data))[:: max(1, len(data) // 4096)]
        with torch.no_grad():
            x = torch.cat([self._flattened(data.batch(part)) for part in rows.split(256)])
        self.mean.copy_(x.mean(0))
        # A feature that hardly varies must not be scaled up to noise.
        self.std.copy_(x.std(0, correction=0).clamp(min=1e-3 + 0.1 * float(x.std())))
        self.weights.copy_(torch.tensor(pair_weights(data.labels)))
        with seeded(seed, self.mean.device):
            for layer in (self.hidden, self.hash):
                if isinstance(layer, nn.Linear):
                    fresh = nn.Linear(layer.in_features, layer.out_features)
                    layer.load_state_dict(fresh.state_dict())

    def trained_parameters(self, data: Views) -> list[nn.Parameter]:
        """The weights to train: the hash layers', and the backbone's if the data are live views."""
        return [*self.parameters(), *getattr(data, "parameters", list)()]


def mixed_views(rows: Tensor, data: Views, share: float, generator: torch.Generator) -> Tensor:
    """Draws a view per row: with probability `share` one of the crops, else the whole image (0).

    A crop without labels teaches nothing and is replaced by the whole image.
    """
    crops = data.views - 1
    if not crops or not share:
        return torch.zeros_like(rows)
    which = torch.randint(1, crops + 1, rows.shape, generator=generator)
    view = torch.where(torch.rand(rows.shape, generator=generator) < share, which, 0)
    return torch.where(data.view_labels(rows, view).any(1), view, 0)


def batches(n: int, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """All rows in random order, in batches. A last batch of less than half the size is dropped."""
    for rows in torch.randperm(n, generator=generator).split(size):
        if len(rows) >= max(2, min(size, n) // 2):
            yield rows


def rise_and_fall(
    optimiser: torch.optim.Optimizer, steps: int, warm_up: float
) -> torch.optim.lr_scheduler.LambdaLR:
    """A schedule that rises linearly during a share of the steps, then falls along a cosine."""
    rise = round(warm_up * steps)

    def factor(step: int) -> float:
        if step < rise:
            return (step + 1) / (rise + 1)
        return (1 + math.cos(math.pi * min(1.0, (step - rise) / max(1, steps - rise)))) / 2

    return torch.optim.lr_scheduler.LambdaLR(optimiser, factor)


class Loop:
    """The epochs of a training, whose state is saved to a checkpoint and resumed from it.

    Each epoch has its own random generator, so that an interrupted training ends with the same
    weights as an uninterrupted one.
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
        self.extra: dict[str, Any] = {}  # what else a method keeps in its checkpoint

    def __iter__(self) -> Iterator[tuple[int, torch.Generator]]:
        """Yields the remaining epochs, each with its generator; the method is in training mode."""
        for epoch in range(self._resume(), self.epochs):
            self.train(True)
            seed = self.seed * 100_003 + epoch
            with seeded(seed, self.method.mean.device):  # dropout uses the global generator
                yield epoch, torch.Generator().manual_seed(seed)
            if self.checkpoint:
                self.checkpoint.save(self._state(epoch + 1))
        self.train(False)

    def train(self, mode: bool) -> None:
        """Sets training or evaluation mode, also of a backbone that is trained with the method."""
        self.method.train(mode)
        if self.backbone:
            self.backbone.train(mode)

    def update(self, loss: Tensor) -> float:
        """One step of gradient descent. Returns the loss; raises TrainingError if it diverged."""
        value = check_loss(float(loss.detach()), self.method.name)
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        self.optimiser.step()
        self.schedule.step()
        self.step += 1
        return value

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
                labels = data.view_labels(rows, view).to(device)
                u = self.relax(self.project(data.batch(rows, view).to(device)), loop.step)
                weight = self.pair_weight(labels, labels).fill_diagonal_(0)
                loss = self.batch_loss(u, similar(labels, labels), weight / weight.sum())
                total += loop.update(loss)
            progress(Step(self.name, epoch + 1, settings.epochs, {"loss": total / steps}))

    @abstractmethod
    def relax(self, z: Tensor, step: int) -> Tensor:
        """The output of the last layer as relaxed codes, (n, bits) real numbers near ±1."""

    @abstractmethod
    def batch_loss(self, u: Tensor, s: Tensor, weight: Tensor) -> Tensor:
        """The loss of a batch of relaxed codes u (n, bits).

        `s` (n, n) says which pairs are similar; `weight` (n, n) sums to 1.
        """


def cosine_distances(u: Tensor, v: Tensor) -> Tensor:
    """bits / 2 * (1 - cos): between signs, exactly their Hamming distance."""
    return u.shape[1] / 2 * (1 - F.normalize(u, dim=1) @ F.normalize(v, dim=1).mT)
