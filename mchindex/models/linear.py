"""Codes from a linear map: the signs of projected, centred features."""

from __future__ import annotations

import torch
from torch import Tensor

from mchindex.models.hashing import HashMethod
from mchindex.models.settings import Settings
from mchindex.models.views import Views


class LinearHash(HashMethod):
    """Codes sign((x - mean) W), where W is found without labels."""

    mean: Tensor  # (dim,)
    map: Tensor  # (dim, bits)

    def __init__(self, dim: int, bits: int, settings: Settings | None = None) -> None:
        super().__init__(dim, bits, settings)
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("map", torch.zeros(dim, bits))

    def last(self, f: Tensor) -> Tensor:
        return (f - self.mean) @ self.map


def whole_images(data: Views, batch: int = 1024) -> Tensor:
    """The features of the whole training images, (n, dim)."""
    rows = torch.arange(len(data))
    with torch.no_grad():
        return torch.cat([data.batch(part) for part in rows.split(batch)])


def principal_axes(x: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The mean of the rows and the `count` axes along which they vary most, (dim, count)."""
    if min(x.shape[1], len(x) - 1) < count:
        raise ValueError(
            f"{count} bits need {count} principal axes, which {len(x)} training images of "
            f"{x.shape[1]} features do not have: use fewer bits or more images"
        )
    mean = x.mean(0)
    centred = (x - mean).double()
    axes = torch.linalg.eigh(centred.T @ centred).eigenvectors.flip(1)[:, :count]
    return mean, axes.to(x.dtype)


def random_rotation(bits: int, seed: int) -> Tensor:
    """A uniformly distributed orthogonal matrix: Q of a Gaussian, signs from R's diagonal."""
    gauss = torch.randn(bits, bits, generator=torch.Generator().manual_seed(seed))
    q, r = torch.linalg.qr(gauss.double())
    rotation: Tensor = (q * torch.sign(torch.diagonal(r))).float()
    return rotation
