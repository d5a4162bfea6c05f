"""The agent's policy, which decides which regions' codes an image keeps.

The state of a region is [f(x); f(x*); b; b*], for the whole image and the region. Five fully
connected layers turn it into the probabilities of two actions, 0 = discard and 1 = keep. f and b
are the inputs of the hash layer and the codes, as in the paper. A policy that reads the backbone
takes the principal components of its features for f, and in place of the codes the share of the
bits in which they differ: such states mean the same for every base method, so a policy can learn
from one and choose for another.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn

from mchindex.models.hashing import check_units

DISCARD, KEEP = 0, 1
LAYERS = 5
Reads = Literal["method", "backbone"]
READS: tuple[Reads, ...] = ("method", "backbone")
COMPONENTS = 64  # principal components of the backbone's features: with all, a policy learns noise


class Policy(nn.Module):
    """A network from states to the probabilities of discarding and keeping a region."""

    mean: Tensor  # of the features
    std: Tensor  # of the features, if the policy reads the method
    basis: Tensor  # (features, components), if it reads the backbone

    def __init__(
        self,
        features: int,
        bits: int,
        width: int = 256,
        dropout: float = 0.5,
        reads: Reads = "method",
    ) -> None:
        super().__init__()
        if reads not in READS:
            raise ValueError(f"a policy reads the {' or the '.join(READS)}, not {reads!r}")
        self.width, self.reads = check_units("width", width), reads
        self.register_buffer("mean", torch.zeros(features))
        if reads == "method":
            inputs = 2 * (features + bits)
            self.register_buffer("std", torch.ones(features))
        else:
            components = min(COMPONENTS, features)
            inputs = 2 * components + 1
            self.register_buffer("basis", torch.eye(features, components))
        layers: list[nn.Module] = []
        for before, after in pairwise([inputs] + [width] * (LAYERS - 1)):
            layers += [nn.Linear(before, after), nn.BatchNorm1d(after), nn.ReLU()]
            layers += [nn.Dropout(dropout)]
        self.layers = nn.Sequential(*layers, nn.Linear(width, 2))

    def to_json(self) -> dict[str, Any]:
        """Its settings in config.json. Models of earlier versions, which read the method, have no
        `reads` there, and their fingerprints depend on it."""
        reads = {} if self.reads == "method" else {"reads": self.reads}
        return {"width": self.width, **reads}

    def fit_scale(self, features: Tensor) -> None:
        """Sets the scale by which features are normalised, or their components, from whole images
        and, for components, regions."""
        self.mean.copy_(features.mean(0))
        if self.reads == "backbone":
            centred = features - self.mean
            values, vectors = torch.linalg.eigh(centred.mT @ centred / len(features))
            count = self.basis.shape[1]
            scale = values[-count:].clamp(min=0).sqrt().mean().clamp(min=1e-6)
            self.basis.copy_(vectors[:, -count:].flip(1) / scale)
            return
        self.std.copy_(features.std(0, correction=0).clamp(min=1e-3 + 0.1 * float(features.std())))

    @torch.no_grad()
    def move_threshold(self, probability: float) -> None:
        """Changes the last layer such that this probability of keeping becomes one half."""
        last = self.layers[-1]
        assert isinstance(last, nn.Linear)
        p = torch.tensor(probability, dtype=torch.float64).clamp(1e-6, 1 - 1e-6)
        last.bias[KEEP] -= torch.logit(p).to(last.bias)

    def state(self, f: Tensor, f_region: Tensor, b: Tensor, b_region: Tensor) -> Tensor:
        """(n, features) twice and (n, bits) twice -> the input of the first layer."""
        if self.reads == "backbone":
            components = [(x - self.mean) @ self.basis for x in (f, f_region)]
            return torch.cat([*components, _difference(b, b_region)], dim=1)
        scaled = [(x - self.mean) / self.std for x in (f, f_region)]
        return torch.cat([*scaled, b, b_region], dim=1)

    def forward(self, state: Tensor) -> Tensor:
        """The probabilities of the two actions, (n, 2)."""
        return torch.softmax(self.layers(state), dim=1)

    def keep(self, f: Tensor, f_region: Tensor, b: Tensor, b_region: Tensor) -> Tensor:
        """The probability of keeping each region's code, (n,)."""
        probability: Tensor = self(self.state(f, f_region, b, b_region))[:, KEEP]
        return probability


def _difference(b: Tensor, b_region: Tensor) -> Tensor:
    """(n, 1): in which share of the bits two codes differ, times 8 to weigh as much as the rest."""
    return 4 - 4 * (b * b_region).mean(1, keepdim=True)
