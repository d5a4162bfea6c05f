"""PCA and a random rotation, a simple baseline on pretrained features (arXiv 2509.14427)."""

from __future__ import annotations

from mchindex.models.hashing import Checkpoint
from mchindex.models.linear import LinearHash, principal_axes, random_rotation, whole_images
from mchindex.models.views import Views
from mchindex.progress import Progress, silent


class PCARotation(LinearHash):
    name = "pca"

    def fit(
        self,
        data: Views,
        seed: int = 0,
        progress: Progress = silent,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        mean, axes = principal_axes(whole_images(data), self.bits)
        self.mean.copy_(mean)
        self.map.copy_(axes @ random_rotation(self.bits, seed).to(axes.device))
