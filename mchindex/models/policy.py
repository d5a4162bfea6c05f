"""The agent's policy, which decides which regions' codes an image keeps.

The state of a region is [f(x); f(x*); b; b*]: the inputs of the hash layer and the codes, of the
whole image and of the region. Five fully connected layers turn it into the probabilities of two
actions, 0 = discard and 1 = keep.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from mchindex.models.hashing import check_units

DISCARD, KEEP = 0, 1
LAYERS = 5


class Policy(nn.Module):
    """A network from states to the probabilities of discarding and keeping a region."""

    mean: Tensor
    std: Tensor

    def __init__(self, features: int, bits: int, width: int = 256, dropout: float = 0.5) -> None:
        super().__init__()
        self.width = check_units("width", width)
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("std", torch.ones(features))
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise([2 * (features + bits)] + [width] * (LAYERS - 1)):
            layers += [nn.Linear(inputs, outputs), nn.BatchNorm1d(outputs), nn.ReLU()]
            layers += [nn.Dropout(dropout)]
        self.layers = nn.Sequential(*layers, nn.Linear(width, 2))

    def fit_scale(self, features: Tensor) -> None:
        """Sets the scale by which features are normalised, from those of whole images."""
        self.mean.copy_(features.mean(0))
        self.std.copy_(features.std(0, correction=0).clamp(min=1e-3 + 0.1 * float(features.std())))

    def state(self, f: Tensor, f_region: Tensor, b: Tensor, b_region: Tensor) -> Tensor:
        """(n, features) twice and (n, bits) twice -> (n, 2 * (features + bits))."""
        scaled = [(x - self.mean) / self.std for x in (f, f_region)]
        return torch.cat([*scaled, b, b_region], dim=1)

    def forward(self, state: Tensor) -> Tensor:
        """The probabilities of the two actions, (n, 2)."""
        return torch.softmax(self.layers(state), dim=1)

    def keep(self, f: Tensor, f_region: Tensor, b: Tensor, b_region: Tensor) -> Tensor:
        """The probability of keeping each region's code, (n,)."""
        probability: Tensor = self(self.state(f, f_region, b, b_region))[:, KEEP]
        return probability
