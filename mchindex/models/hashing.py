"""What a base hashing method is: it is fitted to features, and gives any features a code.

A code has `bits` signs. `distance` is Hamming's between codes, or a relaxation of it between
real vectors; `pair_loss` says what a distance costs a similar and a dissimilar pair, and is what
the agent's reward is made of.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mchindex.models.settings import Settings
from mchindex.models.views import Views, similar
from mchindex.progress import Progress, silent

Packed = NDArray[np.uint8]  # (n, bits // 8), as np.packbits makes them


def sign(x: Tensor) -> Tensor:
    """+1 where x > 0, else -1: zero has a side too, or distances come in halves."""
    return torch.where(x > 0, 1.0, -1.0).to(x.dtype)


def pack(signs: Tensor) -> Packed:
    """(n, bits) signs -> (n, bits // 8) bytes; bit 0 is the most significant of the first byte."""
    return np.packbits((signs > 0).cpu().numpy(), axis=-1)


def unpack(codes: Packed) -> Tensor:
    """The signs of packed codes, (n, bits) of -1 and +1."""
    return torch.from_numpy(np.unpackbits(codes, axis=-1).astype(np.float32) * 2 - 1)


def distances(a: Tensor, b: Tensor) -> Tensor:
    """Hamming distances of signs, (n, bits) and (m, bits) -> (n, m); exact in float32."""
    return (a.shape[-1] - a @ b.mT) / 2


def check_bits(bits: int) -> int:
    if bits < 8 or bits > 256 or bits % 8:
        raise ValueError(f"bits is a multiple of 8 from 8 to 256, not {bits}")
    return bits


class HashMethod(nn.Module, ABC):
    """A hashing method over features of `dim` numbers."""

    name: ClassVar[str]
    supervised: ClassVar[bool] = True
    settings_type: ClassVar[type[Settings]] = Settings

    # Pair weights of the training set, set by `fit`: similar, dissimilar.
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
        """Learns from the training images; the same seed gives the same weights."""

    def features(self, x: Tensor) -> Tensor:
        """(n, dim) features -> what the last layer reads: the f(x) of the agent's state."""
        return x

    @abstractmethod
    def last(self, f: Tensor) -> Tensor:
        """(n, feature_dim) of `features` -> (n, bits) real numbers, whose signs are the code."""

    @property
    def feature_dim(self) -> int:
        """How many numbers `features` gives."""
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
        """What distance d costs a similar (s true) or dissimilar pair, unweighted.

        Unsupervised methods have no loss of their own: for them, the squared error of KSH.
        """
        return squared_pair_loss(d, s, self.bits)

    def pair_weight(self, a: Tensor, b: Tensor) -> Tensor:
        """The weights w_ij of pairs by their labels: (n, classes) and (m, classes) -> (n, m)."""
        similar_weight, dissimilar_weight = self.weights.unbind()
        return torch.where(similar(a, b), similar_weight, dissimilar_weight)


def squared_pair_loss(d: Tensor, s: Tensor, bits: int, dissimilar: float = -1.0) -> Tensor:
    """(ip / bits - target)², the target 1 for similar pairs: an inner product is bits - 2d."""
    target = torch.where(s, 1.0, dissimilar)
    return (1 - 2 * d / bits - target) ** 2


class Checkpoint(Protocol):
    """Where a long fit leaves its state, so that an interrupted one goes on."""

    def load(self) -> dict[str, Any] | None: ...

    def save(self, state: dict[str, Any]) -> None: ...
