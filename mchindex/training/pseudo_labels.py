"""Labels out of nothing but pictures: which images lie near one another in the features.

Whole images and crops are gathered around centres (k-means on the sphere, in the features' leading
directions). A whole picture shows the centres that are nearest to it, and those that several of its
crops agree upon; a crop shows its own nearest. An image's labels are all that any of its views
shows, and everything that learns from labels can learn from these.
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
    centres: int = 300  # fewer where there are not five images for each
    whole: int = 3  # the nearest centres, which a whole picture shows; in proportion, where
    crop: int = 2  # there are fewer centres, at least one; and those that a crop shows
    votes: int = 2  # crops that must agree before the whole picture shows a centre of theirs
    directions: int = 128  # the features' leading ones, in which nearness is measured
    power: float = 0.5  # features are raised to it first: peaks count for less
    rounds: int = 25  # of k-means

    def __post_init__(self) -> None:
        for name in ("whole", "crop", "votes", "directions", "rounds"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is at least 1, not {getattr(self, name)}")
        if self.centres < 2:
            raise ValueError(f"there are at least 2 centres, not {self.centres}")
        if not 0 < self.power <= 1:
            raise ValueError(f"power is above 0, up to 1, not {self.power}")


def with_pseudo_labels(
    array: Tensor,
    settings: PseudoLabelSettings | None = None,
    seed: int = 0,
    progress: Progress = silent,
) -> Features:
    """Views (n, views, dim), labelled by the centres that they lie near."""
    settings = settings or PseudoLabelSettings()
    place = _placed(array, settings)  # (n, views, directions)
    centres = max(2, min(settings.centres, len(array) // 5))
    share = centres / settings.centres
    # All whole images, and as many crops as there are of three each: enough to place centres.
    seen = place[:, : min(4, array.shape[1])].flatten(0, 1)
    middle = spherical_k_means(seen, centres, settings.rounds, seed, progress)
    by_view = torch.zeros(*place.shape[:2], centres, dtype=torch.bool, device=place.device)
    for view in range(place.shape[1]):
        near = max(1, round(share * (settings.crop if view else settings.whole)))
        nearest = (place[:, view] @ middle.T).topk(min(near, centres - 1), dim=1).indices
        by_view[:, view].scatter_(1, nearest, True)
    by_view[:, 0] |= by_view[:, 1:].sum(1) >= settings.votes
    return Features(array, by_view.any(1), by_view)


def _placed(array: Tensor, settings: PseudoLabelSettings) -> Tensor:
    """On the unit sphere, in the leading directions of the whole images' features."""

    def flat(x: Tensor) -> Tensor:
        x = x.float()
        return x.sign() * x.abs() ** settings.power

    whole = flat(array[:, 0])
    mean = whole.mean(0)
    covariance = (whole - mean).T @ (whole - mean)
    # In directions beyond the images' number they do not differ, and their crops only would.
    used = max(1, min(settings.directions, len(array) - 1))
    directions = torch.linalg.eigh(covariance).eigenvectors[:, -used:]
    parts = [F.normalize((flat(part) - mean) @ directions, dim=-1) for part in array.split(1024)]
    return torch.cat(parts)


def spherical_k_means(
    x: Tensor, centres: int, rounds: int, seed: int = 0, progress: Progress = silent
) -> Tensor:
    """(centres, dim) unit vectors, each the direction of the mean of those nearest to it.

    A centre that nothing is nearest to starts anew at what is worst served.
    """
    generator = torch.Generator().manual_seed(seed)
    middle = x[torch.randperm(len(x), generator=generator)[:centres]]
    for done in range(rounds):
        close, nearest = (x @ middle.T).max(1)
        total = torch.zeros_like(middle).index_add_(0, nearest, x)
        empty = torch.bincount(nearest, minlength=centres) == 0
        total[empty] = x[close.argsort()[: int(empty.sum())]]
        middle = F.normalize(total, dim=1)
        progress(Step("neighbours", done + 1, rounds, {"closeness": float(close.mean())}))
    return middle
