"""Labels guessed from the images alone: images that are near each other in feature space share one.

Whole images and crops are clustered around centres, by k-means on the unit sphere in the leading
directions of the features. The labels of a view are centres: a crop has the ones nearest to it, a
whole image those nearest to it and those that several of its crops share. An image's labels are
those of all its views. Training then proceeds as with real labels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from mchindex.models.settings import Settings
from mchindex.models.views import Features
from mchindex.progress import Progress, Step, silent


@dataclass(frozen=True)
class PseudoLabelSettings(Settings):
    centres: int = 300  # fewer if there are not five images for each
    # Labels of a whole image and of a crop: the nearest centres. If there are fewer centres than
    # asked for, proportionally fewer labels, but at least one.
    whole: int = 3
    crop: int = 2
    votes: int = 2  # crops that must share a centre for the whole image to get it
    directions: int = 128  # leading directions of the features, in which distance is measured
    power: float = 0.5  # of the features' absolute values: below 1, large ones count for less
    rounds: int = 25  # of k-means

    def __post_init__(self) -> None:
        for name in ("whole", "crop", "votes", "directions", "rounds"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is at least 1, not {getattr(self, name)}")
        if self.centres < 2:
            raise ValueError(f"centres is at least 2, not {self.centres}")
        if not 0 < self.power <= 1:
            raise ValueError(f"power is above 0 and at most 1, not {self.power}")


def with_pseudo_labels(
    array: Tensor,
    settings: PseudoLabelSettings | None = None,
    seed: int = 0,
    progress: Progress = silent,
) -> Features:
    """Features (n, views, dim) with guessed labels, one class per centre."""
    settings = settings or PseudoLabelSettings()
    place = _placed(array, settings)  # (n, views, directions)
    centres = max(2, min(settings.centres, len(array) // 5))
    share = centres / settings.centres
    # Whole images and up to three crops of each: enough to place the centres.
    seen = place[:, : min(4, array.shape[1])].flatten(0, 1)
    middles = spherical_k_means(seen, centres, settings.rounds, seed, progress)
    by_view = torch.zeros(*place.shape[:2], centres, dtype=torch.bool, device=place.device)
    for view in range(place.shape[1]):
        near = max(1, round(share * (settings.crop if view else settings.whole)))
        nearest = (place[:, view] @ middles.T).topk(min(near, centres - 1), dim=1).indices
        by_view[:, view].scatter_(1, nearest, True)
    by_view[:, 0] |= by_view[:, 1:].sum(1) >= settings.votes
    return Features(array, by_view.any(1), by_view)


def _placed(array: Tensor, settings: PseudoLabelSettings) -> Tensor:
    """The features in the leading directions of the whole images', scaled to unit length."""

    def flat(x: Tensor) -> Tensor:
        x = x.float()
        return x.sign() * x.abs() ** settings.power

    whole = flat(array[:, 0])
    mean = whole.mean(0)
    covariance = (whole - mean).T @ (whole - mean)
    # n images differ in at most n - 1 directions; in others only their crops would differ.
    used = max(1, min(settings.directions, len(array) - 1))
    directions = torch.linalg.eigh(covariance).eigenvectors[:, -used:]
    parts = [F.normalize((flat(part) - mean) @ directions, dim=-1) for part in array.split(1024)]
    return torch.cat(parts)


def spherical_k_means(
    x: Tensor, centres: int, rounds: int, seed: int = 0, progress: Progress = silent
) -> Tensor:
    """(centres, dim) unit vectors, each the mean direction of the vectors nearest to it.

    A centre to which no vector is nearest is moved to the vector farthest from all centres.
    """
    generator = torch.Generator().manual_seed(seed)
    middles = x[torch.randperm(len(x), generator=generator)[:centres]]
    for done in range(rounds):
        close, nearest = (x @ middles.T).max(1)
        total = torch.zeros_like(middles).index_add_(0, nearest, x)
        empty = torch.bincount(nearest, minlength=centres) == 0
        total[empty] = x[close.argsort()[: int(empty.sum())]]
        middles = F.normalize(total, dim=1)
        progress(Step("neighbours", done + 1, rounds, {"closeness": float(close.mean())}))
    return middles
