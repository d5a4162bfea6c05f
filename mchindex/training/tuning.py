"""Tuning: the last blocks of a trained backbone learn to name what the images show.

The blocks before them stay as they are, so that their output, the feature maps, is computed once
for each image and kept with the cached features: one step of the tuning then costs a small part of
what a step of the whole network costs. Normalisation keeps the statistics of the pretraining.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from mchindex.datasets import ImageSource
from mchindex.models.backbones import Trunk, Tuned
from mchindex.models.deep import batches, check_loss, check_schedule, rise_and_fall
from mchindex.models.extract import Engine, Extractor
from mchindex.models.hashing import Checkpoint
from mchindex.models.seeds import seeded
from mchindex.models.settings import Settings
from mchindex.progress import Progress, Step, silent
from mchindex.regions import Boxes
from mchindex.training.features import FeatureCache, unreadable
from mchindex.training.live_views import mixed_precision


@dataclass(frozen=True)
class TuningSettings(Settings):
    epochs: int = 4
    batch: int = 64
    lr: float = 5e-4  # of the blocks
    classifier_lr: float = 3e-3
    warm_up: float = 0.15  # share of the steps in which the learning rates rise
    weight_decay: float = 1e-2
    dropout: float = 0.3
    validation: float = 0.1  # share of the images on which the best epoch is chosen

    def __post_init__(self) -> None:
        check_schedule(self.epochs, self.batch)
        for name in ("dropout", "validation"):
            if not 0 < getattr(self, name) < 1:
                raise ValueError(f"{name} is between 0 and 1, not {getattr(self, name)}")


@dataclass(frozen=True)
class Cells:
    """The cells of a feature map as regions: pooling over them gives the map itself."""

    rows: int
    columns: int

    @property
    def about(self) -> str:
        return f"cells {self.rows}x{self.columns}"

    def boxes(self, key: bytes) -> Boxes:
        y, x = np.divmod(np.arange(self.rows * self.columns), self.columns)
        places = np.stack([x, y, x + 1, y + 1], 1)
        cells: Boxes = places / np.array([self.columns, self.rows, self.columns, self.rows])
        return cells


class Mirrored:
    """The images of another source, with left and right exchanged."""

    def __init__(self, images: ImageSource) -> None:
        self._images = images

    def __len__(self) -> int:
        return len(self._images)

    def image(self, i: int) -> Image.Image:
        return ImageOps.mirror(self._images.image(i))

    def key(self, i: int) -> bytes:
        return hashlib.sha256(b"mirrored" + self._images.key(i)).digest()

    def name(self, i: int) -> str:
        return f"{self._images.name(i)}, mirrored"


@dataclass(frozen=True)
class Maps:
    """What goes into the blocks that are tuned, for each training image and its mirror image."""

    array: NDArray[np.float16]  # (2, n, cells, channels)
    shape: tuple[int, int]  # rows and columns
    labels: Tensor  # (n, classes) bool

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, rows: Tensor, mirrored: Tensor) -> Tensor:
        """(len(rows), channels, rows, columns)"""
        part = torch.from_numpy(self.array[mirrored.numpy(), rows.numpy()]).float()
        # Channels come last in memory, which is fastest.
        maps: Tensor = part.unflatten(1, self.shape)
        return maps.permute(0, 3, 1, 2)


def maps_of(
    tuned: Tuned,
    images: ImageSource,
    rows: Sequence[int] | NDArray[np.int64],
    labels: Tensor,
    cache: FeatureCache,
    engine: Engine = "auto",
    progress: Progress = silent,
) -> Maps:
    """Computes the maps of images, or reads them from the cache. Images that cannot be read are
    left out."""
    trunk = Trunk(tuned.base, tuned.blocks)
    extractor = Extractor(trunk, "pooled", next(tuned.parameters()).device, engine)
    cells = Cells(*trunk.cells)
    found = np.stack(
        [
            cache.features(extractor, source, rows, cells, progress)
            for source in (images, Mirrored(images))
        ]
    )
    good = ~unreadable(found[0])
    return Maps(found[:, good], trunk.cells, labels[torch.from_numpy(good)])


def tune(
    tuned: Tuned,
    maps: Maps,
    settings: TuningSettings,
    seed: int = 0,
    progress: Progress = silent,
    checkpoint: Checkpoint | None = None,
) -> list[float]:
    """Tunes the last blocks of a backbone, in place. The same seed gives the same weights.

    A part of the images is held back; the blocks end as they were after the epoch that named what
    is on these images best, by mean average precision over the classes. The loss would choose an
    earlier epoch: it rises as soon as the classifier is too sure of itself, when the features still
    get better. Returns the precisions, by epoch.
    """
    tail = tuned.tail
    device = next(tail.parameters()).device
    order = torch.randperm(len(maps), generator=torch.Generator().manual_seed(seed))
    held = max(1, round(settings.validation * len(maps)))
    unseen, known = order[:held], order[held:]
    size = min(settings.batch, len(known))
    steps = sum(1 for _ in batches(len(known), size, torch.Generator()))
    share = maps.labels[known].float().mean(0).clamp(1e-4, 1 - 1e-4)
    with seeded(seed, device):
        classifier = nn.Linear(tuned.base.dim, maps.labels.shape[1]).to(device)
        nn.init.zeros_(classifier.weight)
        # Starts from the classes' frequencies, which are far from one half.
        classifier.bias.data.copy_(torch.logit(share))
        modules = nn.ModuleList([tail, classifier])
        optimiser = torch.optim.AdamW(
            [
                {"params": list(tail.parameters()), "lr": settings.lr},
                {"params": list(classifier.parameters()), "lr": settings.classifier_lr},
            ],
            weight_decay=settings.weight_decay,
        )
        schedule = rise_and_fall(optimiser, settings.epochs * steps, settings.warm_up)
        precisions: list[float] = []
        best: dict[str, Tensor] = {}
        if checkpoint and (state := checkpoint.load()):
            modules.load_state_dict(state["modules"])
            optimiser.load_state_dict(state["optimiser"])
            schedule.load_state_dict(state["schedule"])
            precisions, best = state["precisions"], state["best"]

        def logits_of(rows: Tensor, mirrored: Tensor, dropout: float) -> Tensor:
            x = maps.batch(rows, mirrored).to(device)
            with mixed_precision(device):
                logits: Tensor = classifier(F.dropout(tail(x).mean((2, 3)), dropout))
            return logits.float()

        for epoch in range(len(precisions), settings.epochs):
            # Dropout uses the global generator, whose state must not depend on earlier epochs.
            torch.manual_seed(seed * 100_003 + epoch)
            generator = torch.Generator().manual_seed(seed * 100_003 + epoch)
            for rows in batches(len(known), size, generator):
                mirrored = torch.randint(2, rows.shape, generator=generator)
                logits = logits_of(known[rows], mirrored, settings.dropout)
                wanted = maps.labels[known[rows]].float().to(device)
                loss = F.binary_cross_entropy_with_logits(logits, wanted)
                check_loss(float(loss.detach()), "tuned blocks")
                optimiser.zero_grad(set_to_none=True)
                loss.backward()
                optimiser.step()
                schedule.step()
            with torch.inference_mode():
                parts = [
                    logits_of(rows, torch.zeros_like(rows), 0.0).cpu()
                    for rows in unseen.split(size)
                ]
            precisions.append(mean_precision(torch.cat(parts), maps.labels[unseen]))
            if precisions[-1] == max(precisions):
                best = {name: x.detach().cpu().clone() for name, x in tail.state_dict().items()}
            if checkpoint:
                checkpoint.save(
                    {
                        "modules": modules.state_dict(),
                        "optimiser": optimiser.state_dict(),
                        "schedule": schedule.state_dict(),
                        "precisions": precisions,
                        "best": best,
                    }
                )
            progress(Step("tuning", epoch + 1, settings.epochs, {"precision": precisions[-1]}))
    tail.load_state_dict(best)
    return precisions


def mean_precision(scores: Tensor, labels: Tensor) -> float:
    """The average precision with which scores (n, classes) order the images of a class, as a mean
    over the classes that some image has. 0 if there are none."""
    shown = labels.gather(0, scores.argsort(dim=0, descending=True, stable=True)).double()
    places = torch.arange(1, len(shown) + 1, dtype=torch.float64)[:, None]
    precision = (shown * shown.cumsum(0) / places).sum(0) / shown.sum(0)
    return float(precision[shown.any(0)].mean()) if shown.any() else 0.0
