"""The base class of hashing methods: fitted to features, a method turns features into codes.

A code is a vector of `bits` signs. Distances are Hamming distances between codes, or a relaxation
of them between real vectors. `pair_loss` says what a distance costs a similar and a dissimilar
pair; the agent's reward is computed from it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from mchindex.inference.region_codes import Packed, check_bits
from mchindex.models.settings import Settings
from mchindex.models.views import Views, similar
from mchindex.progress import Progress, silent


def sign(x: Tensor) -> Tensor:
    """+1 where x > 0, else -1. Zero becomes -1: a sign of 0 would make distances of one half."""
    return torch.where(x > 0, 1.0, -1.0).to(x.dtype)


def pack(signs: Tensor) -> Packed:
    """(n, bits) signs -> (n, bits // 8) bytes; bit 0 is the most significant of the first byte."""
    return np.packbits((signs > 0).cpu().numpy(), axis=-1)


def unpack(codes: Packed) -> Tensor:
    """The signs of packed codes, (n, bits) of -1 and +1."""
    return torch.from_numpy(np.unpackbits(codes, axis=-1).astype(np.float32) * 2 - 1)


def distances(a: Tensor, b: Tensor) -> Tensor:
    """Hamming distances between signs, (n, bits) and (m, bits) -> (n, m); exact in float32."""
    return (a.shape[-1] - a @ b.mT) / 2


MOST_UNITS = 65_536  # of a layer: no model here needs a tenth of it


def check_units(name: str, units: int, least: int = 1) -> int:
    """Raises ValueError unless a layer may have this many units."""
    if not least <= units <= MOST_UNITS:
        raise ValueError(f"{name} is from {least} to {MOST_UNITS:,}, not {units}")
    return units


class HashMethod(nn.Module, ABC):
    """A hashing method for features of `dim` numbers.

    A subclass sets `name` and defines `fit` and `last`. Its learnt values are parameters or
    buffers, so that they are saved with the model.
    """

    name: ClassVar[str]
    settings_type: ClassVar[type[Settings]] = Settings

    # The weights of similar and dissimilar pairs in the loss; `fit` sets them.
    weights: Tensor

    def __init__(self, dim: int, bits: int, settings: Settings | None = None) -> None:
        super().__init__()
        self.dim, self.bits = dim, check_bits(bits)
        self.settings: Any = self.settings_type() if settings is None else settings
        self.register_buffer("weights", torch.ones(2))

    @abstractmethod
    def fit(
        self,
        data: Views,
        seed: int = 0,
        progress: Progress = silent,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        """Learns from the training images. The same seed gives the same weights.

        A method that takes long saves its state to the checkpoint now and then, and resumes from
        the state found there.
        """

    def features(self, x: Tensor) -> Tensor:
        """(n, dim) features -> (n, feature_dim), the input of the last layer.

        It is the f(x) of the agent's state.
        """
        return x

    @abstractmethod
    def last(self, f: Tensor) -> Tensor:
        """(n, feature_dim) from `features` -> (n, bits) real numbers, whose signs are the code."""

    @property
    def feature_dim(self) -> int:
        """How many numbers per image `features` returns."""
        return self.dim

    def project(self, x: Tensor) -> Tensor:
        """(n, dim) features -> (n, bits) real numbers."""
        return self.last(self.features(x))

    def codes(self, x: Tensor) -> Tensor:
        """(n, dim) features -> (n, bits) signs."""
        return sign(self.project(x))

    def states(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """`features` and `codes` in one pass."""
        f = self.features(x)
        return f, sign(self.last(f))

    def pair_loss(self, d: Tensor, s: Tensor) -> Tensor:
        """The loss, without weights, of pairs at distance d that are similar (s true) or not.

        A method that has no loss of its own uses the squared error of KSH.
        """
        return squared_pair_loss(d, s, self.bits)

    def pair_weight(self, a: Tensor, b: Tensor) -> Tensor:
        """The weights of pairs in the loss: labels (n, classes) and (m, classes) -> (n, m)."""
        similar_weight, dissimilar_weight = self.weights.unbind()
        return torch.where(similar(a, b), similar_weight, dissimilar_weight)


def squared_pair_loss(d: Tensor, s: Tensor, bits: int, dissimilar: float = -1.0) -> Tensor:
    """(inner product / bits - target)², where the inner product of codes is bits - 2d.

    The target is 1 for similar pairs and `dissimilar` for the others.
    """
    target = torch.where(s, 1.0, dissimilar)
    return (1 - 2 * d / bits - target) ** 2


class Checkpoint(Protocol):
    """Where a long fit saves its state, so that an interrupted one can resume."""

    def load(self) -> dict[str, Any] | None:
        """The last state saved, or None."""
        ...

    def save(self, state: dict[str, Any]) -> None:
        """Saves a state; it may skip one that follows the last too closely."""
        ...
