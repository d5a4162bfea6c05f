"""Locality-sensitive hashing: random hyperplanes (Gionis, Indyk, Motwani, VLDB 1999)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mchindex.models.hashing import Checkpoint
from mchindex.models.linear import LinearHash, whole_images
from mchindex.models.settings import Settings
from mchindex.models.views import Views
from mchindex.progress import Progress, silent


@dataclass(frozen=True)
class LSHSettings(Settings):
    centre: bool = True  # False: hyperplanes through the origin, poor for features >= 0


class LSH(LinearHash):
    name = "lsh"
    settings_type = LSHSettings

    def fit(
        self,
        data: Views,
        seed: int = 0,
        progress: Progress = silent,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        if self.settings.centre:
            self.mean.copy_(whole_images(data).mean(0))
        generator = torch.Generator().manual_seed(seed)
        self.map.copy_(torch.randn(self.dim, self.bits, generator=generator))
