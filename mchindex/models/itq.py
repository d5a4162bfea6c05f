"""Iterative quantisation (Gong, Lazebnik, Gordo, Perronnin, TPAMI 2013).

The features are projected to their principal axes, V (n, bits), and rotated by the R that brings
them nearest to the corners of the cube. Two steps alternate: B = sign(VR), and R becomes the
orthogonal matrix that maximises trace(BᵀVR).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mchindex.models.hashing import Checkpoint, sign
from mchindex.models.linear import LinearHash, principal_axes, random_rotation, whole_images
from mchindex.models.settings import Settings
from mchindex.models.views import Views
from mchindex.progress import Progress, Step, silent


@dataclass(frozen=True)
class ITQSettings(Settings):
    iterations: int = 50


class ITQ(LinearHash):
    name = "itq"
    settings_type = ITQSettings
    rotation: Tensor  # (bits, bits)

    def __init__(self, dim: int, bits: int, settings: Settings | None = None) -> None:
        super().__init__(dim, bits, settings)
        self.register_buffer("rotation", torch.zeros(bits, bits))

    def fit(
        self,
        data: Views,
        seed: int = 0,
        progress: Progress = silent,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        x = whole_images(data)
        mean, axes = principal_axes(x, self.bits)
        v = (x - mean) @ axes
        rotation = random_rotation(self.bits, seed).to(v.device)
        total = self.settings.iterations
        for step in range(total):
            rotation, error = improve_rotation(v, rotation)
            progress(Step(self.name, step + 1, total, {"quantisation error": error}))
        self.rotation.copy_(rotation)
        self.mean.copy_(mean)
        self.map.copy_(axes @ rotation)


def improve_rotation(v: Tensor, rotation: Tensor) -> tuple[Tensor, float]:
    """The next rotation, and the mean squared quantisation error of the given one."""
    turned = v @ rotation
    b = sign(turned)
    error = float(((b - turned) ** 2).mean())
    left, _, right = torch.linalg.svd((b.T @ v).double())
    # With the SVD BᵀV = L D R', the orthogonal matrix that maximises trace(BᵀVR) is R'ᵀLᵀ.
    return (right.T @ left.T).to(v.dtype), error
