"""Labels for crops: which of an image's labels each of its crops shows.

A picture of a person and a dog may have a crop that shows only the dog. If the hash layer is taught
that this crop is similar to every picture of a person, its codes become less distinct. If it is
taught what the crop shows, the crop's code goes to the bucket of dogs, where it is useful. The data
do not say where in the image things are, so a small classifier learns the images' labels from whole
images and crops. A crop gets those labels of its image that the classifier finds in it about as
clearly as anywhere in the image.
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
    crop_share: float = 0.3  # share of the classifier's training views that are crops
    # A crop gets a label if its probability is at least this share of the highest in the image.
    clarity: float = 0.5

    def __post_init__(self) -> None:
        check_schedule(self.epochs, self.batch)
        if self.hidden < 1:
            raise ValueError(f"hidden is at least 1, not {self.hidden}")
        for name in ("dropout", "crop_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is between 0 and 1, not {getattr(self, name)}")
        if not 0 < self.clarity <= 1:
            raise ValueError(f"clarity is above 0 and at most 1, not {self.clarity}")


def with_crop_labels(
    data: Features,
    settings: CropLabelSettings | None = None,
    seed: int = 0,
    progress: Progress = silent,
) -> Features:
    """The same views, with labels for each. A whole image has all of its labels."""
    settings = settings or CropLabelSettings()
    probability = _probabilities(data, settings, seed, progress)
    most = probability.amax(1, keepdim=True)
    by_view = (probability >= settings.clarity * most) & data.labels[:, None]
    by_view[:, 0] = data.labels
    return replace(data, by_view=by_view)


def _probabilities(
    data: Features, settings: CropLabelSettings, seed: int, progress: Progress
) -> Tensor:
    """(n, views, classes) from a classifier trained on the images' labels."""
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
        # Starts from the classes' frequencies, which are far from one half.
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
            for number in range(data.views):
                logits = net((data.batch(rows, number) - mean) / std)
                out[rows, number] = torch.sigmoid(logits).cpu()
    return out
