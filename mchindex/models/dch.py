"""Deep Cauchy hashing (Cao, Long, Liu, Wang, CVPR 2018).

A Cauchy distribution replaces the sigmoid: the loss is steep within a small Hamming ball, so that
similar images gather in one bucket. The distance is d = bits / 2 * (1 - cos(u_i, u_j)).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mchindex.models.deep import DeepSettings, PairwiseHash, cosine_distances


@dataclass(frozen=True)
class DCHSettings(DeepSettings):
    epochs: int = 25
    gamma: float = 0.5  # scale of the Cauchy distribution: a smaller one gathers more
    quantisation: float = 0.1  # weight of the regulariser that pulls the relaxed codes to ±1
    # The smallest distance in the loss, as a share of the bits: at 0 it would be infinite.
    min_distance: float = 0.005

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("gamma", "min_distance"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is above 0, not {getattr(self, name)}")


class DCH(PairwiseHash):
    name = "dch"
    settings_type = DCHSettings

    def pair_loss(self, d: Tensor, s: Tensor) -> Tensor:
        d = d.clamp(min=self.settings.min_distance * self.bits)
        gamma = self.settings.gamma
        return torch.where(s, torch.log1p(d / gamma), torch.log1p(gamma / d))

    def relax(self, z: Tensor, step: int) -> Tensor:
        return torch.tanh(z)

    def batch_loss(self, u: Tensor, s: Tensor, weight: Tensor) -> Tensor:
        pairs = (weight * self.pair_loss(cosine_distances(u, u), s)).sum()
        corner = cosine_distances(u.abs(), torch.ones_like(u[:1])).squeeze(1)
        off: Tensor = torch.log1p(corner / self.settings.gamma).mean()
        return pairs + off * float(self.settings.quantisation)
