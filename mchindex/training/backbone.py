"""A backbone's training from scratch, on the labels themselves.

A small net that has seen nothing learns features fastest by naming what is in the pictures; any
hashing method can then be fitted to them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from mchindex.models.deep import batches, check_schedule, mixed_views, rise_and_fall
from mchindex.models.hashing import Checkpoint, Progress, Settings, silent
from mchindex.training.live import LiveViews


@dataclass(frozen=True)
class BackboneSettings(Settings):
    epochs: int = 20
    batch: int = 64
    lr: float = 3e-3
    weight_decay: float = 1e-3
    crop_share: float = 0.25  # crops show only part of what the labels name

    def __post_init__(self) -> None:
        check_schedule(self.epochs, self.batch)


def train_backbone(
    data: LiveViews,
    settings: BackboneSettings,
    seed: int = 0,
    progress: Progress = silent,
    checkpoint: Checkpoint | None = None,
) -> None:
    """Trains the views' backbone to name the classes; the same seed gives the same weights."""
    backbone = data.backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    device = next(backbone.parameters()).device
    labels = data.labels.float().to(device)
    size = min(settings.batch, len(data))
    steps = sum(1 for _ in batches(len(data), size, torch.Generator()))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        head = nn.Linear(backbone.dim, labels.shape[1]).to(device)
        modules = nn.ModuleList([backbone, head])
        optimiser = torch.optim.AdamW(
            modules.parameters(), settings.lr, weight_decay=settings.weight_decay
        )
        schedule = rise_and_fall(optimiser, settings.epochs * steps, warm_up=0.15)
        first = 0
        if checkpoint and (left := checkpoint.load()):
            modules.load_state_dict(left["modules"])
            optimiser.load_state_dict(left["optimiser"])
            schedule.load_state_dict(left["schedule"])
            first = left["epoch"]
        modules.train()
        for epoch in range(first, settings.epochs):
            # A backbone's dropout draws from the global generator, which must not remember epochs.
            torch.manual_seed(seed * 100_003 + epoch)
            generator = torch.Generator().manual_seed(seed * 100_003 + epoch)
            total = 0.0
            for rows in batches(len(data), size, generator):
                view = mixed_views(rows, data.views, settings.crop_share, generator)
                pixels = data.pixels(rows, view).to(device)
                if torch.rand((), generator=generator) < 0.5:
                    pixels = pixels.flip(-1)
                logits = head(backbone(pixels))
                loss = F.binary_cross_entropy_with_logits(logits, labels[rows.to(device)])
                optimiser.zero_grad(set_to_none=True)
                loss.backward()
                optimiser.step()
                schedule.step()
                total += float(loss.detach())
            if checkpoint:
                checkpoint.save(
                    {
                        "epoch": epoch + 1,
                        "modules": modules.state_dict(),
                        "optimiser": optimiser.state_dict(),
                        "schedule": schedule.state_dict(),
                    }
                )
            progress("backbone", epoch + 1, settings.epochs, {"loss": total / steps})
        modules.eval()
