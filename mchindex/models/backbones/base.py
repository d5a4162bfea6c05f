"""The base class of backbones: pixels in, features out."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

MIN_SIZE, MAX_SIZE = 8, 1024  # pixels per side of the smallest and largest input


class Backbone(nn.Module):
    """A network that turns pixels into features.

    Pixels are RGB in 0…255, (n, 3, size, size), of any number type. The backbone normalises them
    itself, so that no caller can do it twice or with another network's constants.

    A subclass sets `name`, `dim` and `default_size`, and defines `feature_map`, or `forward` if it
    has no feature map.
    """

    name: ClassVar[str]
    dim: int  # features per image
    default_size: ClassVar[int]
    mean: float | tuple[float, ...] = 127.5  # for all channels or one per channel, in 0…255
    std: float | tuple[float, ...] = 127.5

    def __init__(self, size: int | None = None) -> None:
        super().__init__()
        self.size = self.default_size if size is None else size  # side of the input in pixels
        if self.size < MIN_SIZE:
            raise ValueError(
                f"a backbone needs an input of at least {MIN_SIZE} pixels, not {self.size}"
            )
        if self.size > MAX_SIZE:
            raise ValueError(
                f"a backbone takes an input of at most {MAX_SIZE} pixels per side, not {self.size}"
            )

    @property
    def branches(self) -> tuple[float, ...]:
        """By how much fine codes weigh the features of each of the networks that gave them, which
        stand one after the other, equally many of each."""
        return (1.0,)

    @property
    def identity(self) -> dict[str, Any]:
        """Everything that features depend on besides the weights."""
        return {"name": self.name, "size": self.size}

    def normalise(self, pixels: Tensor) -> Tensor:
        """(pixels - mean) / std, in the number type of the weights."""
        dtype = next(self.parameters()).dtype
        mean, std = (
            torch.as_tensor(v, dtype=dtype, device=pixels.device).view(-1, 1, 1)
            for v in (self.mean, self.std)
        )
        return (pixels.to(dtype) - mean) / std

    def feature_map(self, pixels: Tensor) -> Tensor:
        """(n, 3, size, size) -> (n, dim, rows, columns): the features at each place of the image.

        Raises NotImplementedError for a backbone without a feature map.
        """
        raise NotImplementedError(f"{self.name} has no feature map: use regions='crops'")

    def parts(self) -> list[nn.Module]:
        """The blocks that turn normalised pixels into the feature map, one after the other.

        The last ones can be tuned, see `Tuned`. Empty for a backbone whose blocks are not known.
        """
        return []

    def forward(self, pixels: Tensor) -> Tensor:
        """(n, 3, size, size) -> (n, dim): the features of whole images."""
        return self.feature_map(pixels).mean((-2, -1))

    def load_pretrained(self) -> None:
        """Loads the pretrained weights. Raises ValueError for a backbone that has none."""
        raise ValueError(f"{self.name} has no pretrained weights")
