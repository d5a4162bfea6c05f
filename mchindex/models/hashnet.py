"""HashNet (Cao, Long, Wang, Yu, ICCV 2017): a weighted logistic loss, and signs by continuation.

u = tanh(βz), where β grows during training, so that u ends near ±1 without a regulariser.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from mchindex.models.deep import DeepSettings, PairwiseHash


@dataclass(frozen=True)
class HashNetSettings(DeepSettings):
    alpha: float = 10.0  # slope of the logistic function in (inner product / bits)
    growth: float = 0.005  # β = sqrt(1 + growth * step)


class HashNet(PairwiseHash):
    name = "hashnet"
    settings_type = HashNetSettings

    def _loss(self, inner: Tensor, s: Tensor) -> Tensor:
        x = self.settings.alpha / self.bits * inner
        return F.softplus(x) - torch.where(s, x, 0.0)

    def pair_loss(self, d: Tensor, s: Tensor) -> Tensor:
        return self._loss(self.bits - 2 * d, s)

    def relax(self, z: Tensor, step: int) -> Tensor:
        return torch.tanh((1 + self.settings.growth * step) ** 0.5 * z)

    def batch_loss(self, u: Tensor, s: Tensor, weight: Tensor) -> Tensor:
        return (weight * self._loss(u @ u.mT, s)).sum()
