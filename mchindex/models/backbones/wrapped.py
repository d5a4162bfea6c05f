"""Any torch module as a backbone: from torchvision, from timm, or your own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from mchindex.models.backbones.base import Backbone


class Wrapped(Backbone):
    """A module that returns features, (n, dim), or a feature map, (n, dim, rows, columns).

    `mean` and `std` are those that the module was trained with, in units of 0…255. A model with
    this backbone can be saved, but `MCHModel.load` needs the backbone: `load(path, backbone=…)`.
    Where that is impractical, write a `Backbone` subclass and register it.
    """

    name = "wrapped"
    default_size = 224

    def __init__(
        self,
        module: nn.Module,
        size: int = 224,
        mean: float | tuple[float, ...] = (123.675, 116.28, 103.53),
        std: float | tuple[float, ...] = (58.395, 57.12, 57.375),
    ) -> None:
        super().__init__(size)
        self.module, self.mean, self.std = module, mean, std
        mode, device = module.training, next(module.parameters()).device
        module.eval()
        with torch.no_grad():
            out = module(torch.zeros(1, 3, size, size, device=device))
        module.train(mode)
        if not isinstance(out, Tensor) or out.ndim not in (2, 4):
            raise ValueError(
                "a backbone's module must return a tensor (n, dim) or (n, dim, rows, columns)"
            )
        self.maps, self.dim = out.ndim == 4, out.shape[1]

    @property
    def identity(self) -> dict[str, Any]:
        return super().identity | {"mean": self.mean, "std": self.std}

    def feature_map(self, pixels: Tensor) -> Tensor:
        if not self.maps:
            return super().feature_map(pixels)
        maps: Tensor = self.module(self.normalise(pixels))
        return maps

    def forward(self, pixels: Tensor) -> Tensor:
        if self.maps:
            return super().forward(pixels)
        features: Tensor = self.module(self.normalise(pixels))
        return features
