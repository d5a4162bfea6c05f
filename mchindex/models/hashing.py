"""What a base hashing method is: it is fitted to features, and gives any features a code.

A code has `bits` signs. `distance` is Hamming's between codes, or a relaxation of it between
real vectors; `pair_loss` says what a distance costs a similar and a dissimilar pair, and is what
the agent's reward is made of.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, ClassVar, Literal, Protocol, Self, get_args, get_origin, get_type_hints

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

Packed = NDArray[np.uint8]  # (n, bits // 8), as np.packbits makes them

# Stage, steps done, steps in all, figures worth showing.
Progress = Callable[[str, int, int, Mapping[str, float]], None]


def silent(stage: str, done: int, total: int, figures: Mapping[str, float]) -> None:
    """Progress that nobody asked for."""


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Within it, random numbers come from the seed; outside, as if nothing had been drawn."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


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


class Views(Protocol):
    """Training images as a method sees them: several views of each, the whole image first."""

    @property
    def labels(self) -> Tensor:
        """(n, classes) bool."""
        ...

    @property
    def dim(self) -> int: ...

    @property
    def views(self) -> int: ...

    def __len__(self) -> int: ...

    def batch(self, rows: Tensor, view: Tensor | int = 0) -> Tensor:
        """(len(rows), dim) float features: of one view, or of one for each row."""
        ...

    def shown(self, rows: Tensor, view: Tensor | int = 0) -> Tensor:
        """(len(rows), classes) bool: what these views show, as far as that is known."""
        ...


@dataclass(frozen=True)
class Features:
    """Views computed beforehand: (n, views, dim), of any float type."""

    array: Tensor
    labels: Tensor
    by_view: Tensor | None = None  # (n, views, classes) bool; None: a crop shows all its image does

    @property
    def dim(self) -> int:
        return self.array.shape[2]

    @property
    def views(self) -> int:
        return self.array.shape[1]

    def __len__(self) -> int:
        return len(self.array)

    def batch(self, rows: Tensor, view: Tensor | int = 0) -> Tensor:
        return self.array[rows.to(self.array.device), view].float()

    def shown(self, rows: Tensor, view: Tensor | int = 0) -> Tensor:
        return self.labels[rows] if self.by_view is None else self.by_view[rows, view]

    def take(self, rows: Tensor) -> Features:
        by_view = None if self.by_view is None else self.by_view[rows]
        return Features(self.array[rows], self.labels[rows], by_view)


def similar(a: Tensor, b: Tensor) -> Tensor:
    """Which pairs share a label: (n, classes) and (m, classes) bool -> (n, m) bool."""
    return (a.float() @ b.float().mT) > 0.5


def pair_weights(labels: Tensor) -> tuple[float, float]:
    """S / S1 for similar pairs and S / S0 for dissimilar ones, an image with itself left out."""
    n, ones = len(labels), 0
    for start in range(0, n, 1024):
        ones += int(similar(labels[start : start + 1024], labels).sum())
    ones -= int(labels.any(1).sum())
    pairs = n * (n - 1)
    if ones == 0 or ones == pairs:
        what = "no two training images share" if ones == 0 else "all training images share"
        raise ValueError(f"{what} a label: there is nothing to tell apart")
    return pairs / ones, pairs / (pairs - ones)


@dataclass(frozen=True)
class Settings:
    """What can be set of a method. Subclasses add fields; `--set name=value` reaches them."""

    def updated(self, changes: Mapping[str, Any]) -> Self:
        """With some fields changed; text is read as the field's type."""
        known = get_type_hints(type(self))
        values: dict[str, Any] = {}
        for name, value in changes.items():
            if name not in known:
                raise ValueError(f"no setting is called {name!r}: there are {', '.join(known)}")
            values[name] = read_setting(name, value, known[name])
        return replace(self, **values)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def names(cls) -> list[str]:
        return [field.name for field in fields(cls)]


def read_setting(name: str, value: Any, kind: Any) -> Any:
    """A value given as text, read as its field's type; of a choice it must be one."""
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise ValueError(f"{name}={value}: expected one of {', '.join(get_args(kind))}")
        return value
    if not isinstance(value, str) or kind is str:
        return value
    try:
        if kind is bool:
            return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[
                value.lower()
            ]
        if value.lower() == "none" and type(None) in getattr(kind, "__args__", ()):
            return None
        plain = next((t for t in getattr(kind, "__args__", (kind,)) if t is not type(None)), kind)
        return plain(value)
    except (KeyError, ValueError, TypeError):
        expected = getattr(kind, "__name__", str(kind))
        raise ValueError(f"{name}={value}: expected a value of type {expected}") from None


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
