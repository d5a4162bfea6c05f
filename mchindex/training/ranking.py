"""What a place in a ranking is worth: rewards that say how much a code improves the results.

Each training image asks once. The value of an image's distance to the query is how much mean
average precision (mAP) and mean F1 within the query's bucket (H=0) change if one more image is at
that distance, similar or dissimilar. F1 counts a third: it rises with nearly every code that is
kept, and mAP falls if too many are. Average precision is taken as if images at equal distances
were in random order: the precision at a distance is that in the middle of its images.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mchindex.models.hashing import distances
from mchindex.models.views import similar

BUCKET = 1 / 3  # weight of F1 within the query's bucket, where that of average precision is 1


@dataclass(frozen=True)
class Counts:
    """How many images are at each distance from each query, the query's own image left out."""

    similar: Tensor  # (queries, bits + 1)
    all: Tensor  # (queries, bits + 1)


def counts(b: Tensor, labels: Tensor) -> Counts:
    """The counts if each of n images, with codes `b` (n, bits), asks for the others."""
    n, places = len(b), b.shape[1] + 1
    found = torch.zeros(2, n, places, device=b.device, dtype=torch.float64)
    for rows in torch.arange(n, device=b.device).split(256):
        place = torch.arange(len(rows), device=b.device)
        at = distances(b[rows], b).long() + place[:, None] * places
        s = similar(labels[rows], labels)
        others = torch.ones_like(s)
        s[place, rows] = others[place, rows] = False
        for out, which in zip(found, (s, others), strict=True):
            weights = which.flatten().double()
            out[rows] = torch.bincount(at.flatten(), weights, len(rows) * places).view(-1, places)
    return Counts(*found)


def place_values(found: Counts) -> Tensor:
    """(queries, 2 * (bits + 1)): the value of a dissimilar image at each distance, then of a
    similar one.

    If images move, average precision and F1 change by about the sum of the values of the places
    that they move to, less those of the places that they leave.
    """
    near, middle = found.similar.cumsum(1), found.similar / 2
    relevant = near[:, -1:].clamp(min=1)
    shown = found.all.cumsum(1) - found.all / 2 + 0.5
    precision = (near - middle + 0.5) / shown

    def behind(change: Tensor) -> Tensor:
        """The sum over the similar images that an image at each distance moves down or up."""
        return change.flip(1).cumsum(1).flip(1) - change / 2

    good = (precision + behind(found.similar * (1 - precision) / shown)) / relevant
    bad = -behind(found.similar * precision / shown) / relevant
    hits, size = found.similar[:, :1], found.all[:, :1] + relevant
    f1 = 2 * hits / size
    good[:, :1] += BUCKET * (2 * (hits + 1) / (size + 1) - f1)
    bad[:, :1] += BUCKET * (2 * hits / (size + 1) - f1)
    return torch.cat([bad, good], 1).float()
