"""What every backbone offers: pixels in, a map of features out."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn


class Backbone(nn.Module):
    """A network that turns pixels into features.

    Pixels are RGB, 0…255, (n, 3, size, size), of any number type; normalising is the backbone's own
    affair, so that nobody can do it twice or with another network's constants.
    """

    name: ClassVar[str]
    dim: int  # features an image
    default_size: ClassVar[int]
    mean: float | tuple[float, ...] = 127.5  # per channel or for all, in 0…255
    std: float | tuple[float, ...] = 127.5

    def __init__(self, size: int | None = None) -> None:
        super().__init__()
        self.size = self.default_size if size is None else size  # side of the input in pixels
        if self.size < 8:
            raise ValueError(f"a backbone needs an input of at least 8 pixels, not {self.size}")

    @property
    def identity(self) -> dict[str, Any]:
        """All that features depend on besides the weights."""
        return {"name": self.name, "size": self.size}

    def normalise(self, pixels: Tensor) -> Tensor:
        dtype = next(self.parameters()).dtype
        mean, std = (
            torch.as_tensor(v, dtype=dtype, device=pixels.device).view(-1, 1, 1)
            for v in (self.mean, self.std)
        )
        return (pixels.to(dtype) - mean) / std

    def feature_map(self, pixels: Tensor) -> Tensor:
        """(n, 3, size, size) -> (n, dim, rows, columns): what is where, if it can tell."""
        raise NotImplementedError(f"{self.name} has no feature map: use regions='crops'")

    def forward(self, pixels: Tensor) -> Tensor:
        """(n, 3, size, size) -> (n, dim): the features of whole images."""
        return self.feature_map(pixels).mean((-2, -1))

    def load_pretrained(self) -> None:
        """Loads the weights that ship with or beside the backbone, where there are any."""
        raise ValueError(f"{self.name} has no pretrained weights in the box")
