"""Training a backbone from scratch, as a classifier of the images' labels.

An untrained network learns useful features fastest by classifying. Any hashing method can then be
fitted to these features.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from mchindex.models.deep import batches, check_loss, check_schedule, rise_and_fall
from mchindex.models.hashing import Checkpoint
from mchindex.models.seeds import seeded
from mchindex.models.settings import Settings
from mchindex.progress import Progress, Step, silent
from mchindex.training.live_views import LiveViews, mixed_precision


@dataclass(frozen=True)
class BackboneSettings(Settings):
    epochs: int = 20
    batch: int = 64
    lr: float = 3e-3
    weight_decay: float = 1e-3
    zoom: float = 0.25  # pictures are scaled by up to this share,
    shift: float = 0.15  # moved by up to this share of their side,
    turn: float = 20.0  # and rotated by up to this many degrees

    def __post_init__(self) -> None:
        check_schedule(self.epochs, self.batch)


def train_backbone(
    data: LiveViews,
    settings: BackboneSettings,
    seed: int = 0,
    progress: Progress = silent,
    checkpoint: Checkpoint | None = None,
) -> None:
    """Trains the backbone of the views, in place. The same seed gives the same weights."""
    backbone = data.backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    device = next(backbone.parameters()).device
    labels = data.labels.float().to(device)
    size = min(settings.batch, len(data))
    steps = sum(1 for _ in batches(len(data), size, torch.Generator()))
    with seeded(seed, device):
        head = nn.Linear(backbone.dim, labels.shape[1]).to(device)
        modules = nn.ModuleList([backbone, head])
        optimiser = torch.optim.AdamW(
            modules.parameters(), settings.lr, weight_decay=settings.weight_decay
        )
        schedule = rise_and_fall(optimiser, settings.epochs * steps, warm_up=0.15)
        first = 0
        if checkpoint and (state := checkpoint.load()):
            modules.load_state_dict(state["modules"])
            optimiser.load_state_dict(state["optimiser"])
            schedule.load_state_dict(state["schedule"])
            first = state["epoch"]
        modules.train()
        for epoch in range(first, settings.epochs):
            # Dropout uses the global generator, whose state must not depend on earlier epochs.
            torch.manual_seed(seed * 100_003 + epoch)
            generator = torch.Generator().manual_seed(seed * 100_003 + epoch)
            total = 0.0
            for rows in batches(len(data), size, generator):
                pixels = varied(data.pixels(rows), settings, generator)
                with mixed_precision(device):
                    logits = head(backbone(pixels.to(device))).float()
                loss = F.binary_cross_entropy_with_logits(logits, labels[rows.to(device)])
                total += check_loss(float(loss.detach()), "backbone")
                optimiser.zero_grad(set_to_none=True)
                loss.backward()
                optimiser.step()
                schedule.step()
            if checkpoint:
                checkpoint.save(
                    {
                        "epoch": epoch + 1,
                        "modules": modules.state_dict(),
                        "optimiser": optimiser.state_dict(),
                        "schedule": schedule.state_dict(),
                    }
                )
            progress(Step("backbone", epoch + 1, settings.epochs, {"loss": total / steps}))
        modules.eval()


def varied(pixels: Tensor, settings: BackboneSettings, generator: torch.Generator) -> Tensor:
    """Each picture mirrored or not, and rotated, scaled and moved a little.

    Most of the picture stays visible, because a crop may lack what the labels name. Pixels beyond
    the edges are mirrored.
    """
    n = len(pixels)

    def draw(most: float) -> Tensor:
        return (2 * torch.rand(n, generator=generator) - 1) * most

    angle = draw(math.radians(settings.turn))
    scale = 1 + draw(settings.zoom)
    mirror = torch.where(torch.rand(n, generator=generator) < 0.5, -1.0, 1.0)
    along, across = scale * angle.cos(), scale * angle.sin()
    rows = [
        torch.stack([mirror * along, -across, draw(2 * settings.shift)], 1),
        torch.stack([mirror * across, along, draw(2 * settings.shift)], 1),
    ]
    grid = F.affine_grid(torch.stack(rows, 1), [n, *pixels.shape[1:]], align_corners=False)
    return F.grid_sample(pixels.float(), grid, padding_mode="reflection", align_corners=False)
