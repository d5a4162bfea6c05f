"""Training images as a hashing method sees them: features of several views, and their labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


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
