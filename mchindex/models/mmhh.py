"""Maximum-margin Hamming hashing (Kang, Cao, Long, Wang, Yu, ICCV 2019).

Within the Hamming ball of radius H, the loss of a similar pair is 0 and that of a dissimilar pair
is constant. Noise inside the ball is tolerated, so the agent's reward is 0 there.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mchindex.models.deep import DeepSettings, PairwiseHash, cosine_distances
from mchindex.models.hashing import sign
from mchindex.models.views import Views


@dataclass(frozen=True)
class MMHHSettings(DeepSettings):
    radius: float = 2.0  # H
    quantisation: float = 1e-3  # λ of ‖b - u‖²
    # Factor on the weight of dissimilar pairs. Their loss is flat: at 1, all codes become equal.
    dissimilar: float = 6.0


class MMHH(PairwiseHash):
    name = "mmhh"
    settings_type = MMHHSettings

    def start(self, data: Views, seed: int) -> None:
        super().start(data, seed)
        self.weights[1] *= self.settings.dissimilar

    def pair_loss(self, d: Tensor, s: Tensor) -> Tensor:
        radius = self.settings.radius
        near = torch.log1p((d - radius).clamp(min=0))
        return torch.where(s, near, torch.log1p(1 / d.clamp(min=radius)))

    def relax(self, z: Tensor, step: int) -> Tensor:
        return torch.tanh(z)

    def batch_loss(self, u: Tensor, s: Tensor, weight: Tensor) -> Tensor:
        pairs = (weight * self.pair_loss(cosine_distances(u, u), s)).sum()
        off: Tensor = ((sign(u.detach()) - u) ** 2).sum(1).mean()
        return pairs + off * float(self.settings.quantisation)
