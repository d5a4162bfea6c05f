"""What each crop of a labelled image shows, of all that the image is labelled with.

A picture of a person and a dog may have a crop with the dog alone. Taught that this crop is like
every picture of a person, the hash layer learns to blur; taught what the crop shows, it puts the
crop's code into the dogs' bucket, where it is of use. No box says where things are: a small
classifier learns the images' labels from whole images and crops, and a crop shows those of its
image's labels that it finds there about as clearly as anywhere in the image.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from mchindex.models.deep import batches, check_schedule, mixed_views, rise_and_fall
from mchindex.models.seeds import seeded
from mchindex.models.settings import Settings
from mchindex.models.views import Features
from mchindex.progress import Progress, Step, silent


@dataclass(frozen=True)
class CropLabelSettings(Settings):
    epochs: int = 30
    batch: int = 256
    lr: float = 1e-3
    weight_decay: float = 1e-2
    hidden: int = 1024
    dropout: float = 0.5
    crop_share: float = 0.3  # how many of the views that the classifier learns from are crops
    # A crop shows a label if it is at least so probable there as where it is most probable.
    clarity: float = 0.5

    def __post_init__(self) -> None:
        check_schedule(self.epochs, self.batch)
        if self.hidden < 1:
            raise ValueError(f"hidden is at least 1, not {self.hidden}")
        for name in ("dropout", "crop_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is a share, 0 to 1, not {getattr(self, name)}")
        if not 0 < self.clarity <= 1:
            raise ValueError(f"clarity is above 0, up to 1, not {self.clarity}")


def with_crop_labels(
    data: Features,
    settings: CropLabelSettings | None = None,
    seed: int = 0,
    progress: Progress = silent,
) -> Features:
    """The same views, with what each shows. A whole image shows all of its labels."""
    settings = settings or CropLabelSettings()
    probability = _probabilities(data, settings, seed, progress)
    most = probability.amax(1, keepdim=True)
    by_view = (probability >= settings.clarity * most) & data.labels[:, None]
    by_view[:, 0] = data.labels
    return replace(data, by_view=by_view)


def _probabilities(
    data: Features, settings: CropLabelSettings, seed: int, progress: Progress
) -> Tensor:
    """(n, views, classes) of a classifier that learnt the images' labels."""
    labels = data.labels.float()
    size = min(settings.batch, len(data))
    steps = sum(1 for _ in batches(len(data), size, torch.Generator()))
    x = torch.cat([data.batch(rows) for rows in torch.arange(len(data)).split(1024)])
    mean, std = x.mean(0), x.std(0, correction=0)
    std = std.clamp(min=1e-3 + 0.1 * float(std.mean()))
    device = x.device
    with seeded(seed, device):
        net = nn.Sequential(
            nn.Dropout(settings.dropout),
            nn.Linear(data.dim, settings.hidden),
            nn.ReLU(),
            nn.Dropout(settings.dropout),
            last := nn.Linear(settings.hidden, labels.shape[1]),
        ).to(device)
        # The classes' frequencies to start with, which are far from one half.
        last.bias.data.copy_(torch.logit(labels.mean(0).clamp(1e-4, 1 - 1e-4)))
        optimiser = torch.optim.AdamW(
            net.parameters(), settings.lr, weight_decay=settings.weight_decay
        )
        schedule = rise_and_fall(optimiser, settings.epochs * steps, warm_up=0.15)
        generator = torch.Generator().manual_seed(seed)
        for epoch in range(settings.epochs):
            total = 0.0
            for rows in batches(len(data), size, generator):
                view = mixed_views(rows, data, settings.crop_share, generator)
                logits = net((data.batch(rows, view) - mean) / std)
                loss = F.binary_cross_entropy_with_logits(logits, labels[rows].to(device))
                optimiser.zero_grad(set_to_none=True)
                loss.backward()
                optimiser.step()
                schedule.step()
                total += float(loss.detach())
            progress(Step("crops' labels", epoch + 1, settings.epochs, {"loss": total / steps}))
    net.eval()
    out = torch.empty(len(data), data.views, labels.shape[1])
    with torch.inference_mode():
        for rows in torch.arange(len(data)).split(1024):
            for one in range(data.views):
                found = net((data.batch(rows, one) - mean) / std)
                out[rows, one] = torch.sigmoid(found).cpu()
    return out
