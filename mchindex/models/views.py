"""Training images as a hashing method sees them: the features and labels of several views.

A view is the whole image (view 0) or a crop of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


class Views(Protocol):
    """n training images, each with the same number of views."""

    @property
    def labels(self) -> Tensor:
        """(n, classes) bool: what each image is labelled with."""
        ...

    @property
    def dim(self) -> int:
        """Features per view."""
        ...

    @property
    def views(self) -> int:
        """Views per image."""
        ...

    def __len__(self) -> int: ...

    def batch(self, rows: Tensor, view: Tensor | int = 0) -> Tensor:
        """(len(rows), dim) float features; `view` is the same for all rows, or one per row."""
        ...

    def view_labels(self, rows: Tensor, view: Tensor | int = 0) -> Tensor:
        """(len(rows), classes) bool: the labels of these views."""
        ...


@dataclass(frozen=True)
class Features:
    """Views whose features are known."""

    array: Tensor  # (n, views, dim), of any float type
    labels: Tensor  # (n, classes) bool
    by_view: Tensor | None = None  # (n, views, classes) bool; None: a view has its image's labels

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

    def view_labels(self, rows: Tensor, view: Tensor | int = 0) -> Tensor:
        return self.labels[rows] if self.by_view is None else self.by_view[rows, view]

    def take(self, rows: Tensor) -> Features:
        """The same views of some of the images."""
        by_view = None if self.by_view is None else self.by_view[rows]
        return Features(self.array[rows], self.labels[rows], by_view)


def similar(a: Tensor, b: Tensor) -> Tensor:
    """Which pairs share a label: (n, classes) and (m, classes) bool -> (n, m) bool."""
    return (a.float() @ b.float().mT) > 0.5


def pair_weights(labels: Tensor) -> tuple[float, float]:
    """The weights S / S1 of similar pairs and S / S0 of dissimilar ones.

    S counts all pairs of different images, S1 the similar and S0 the dissimilar ones. Raises
    ValueError if there are no similar or no dissimilar pairs.
    """
    n, ones = len(labels), 0
    for start in range(0, n, 1024):
        ones += int(similar(labels[start : start + 1024], labels).sum())
    ones -= int(labels.any(1).sum())
    pairs = n * (n - 1)
    if ones == 0 or ones == pairs:
        what = "no two training images share" if ones == 0 else "all training images share"
        raise ValueError(f"{what} a label: there is nothing to learn from")
    return pairs / ones, pairs / (pairs - ones)
