"""Supervised hashing with kernels (Liu, Wang, Ji, Jiang, Chang, CVPR 2012).

Codes are sign(k(x) A), where k(x) compares x with m anchors. A is fitted so that the inner products
of codes approximate bits * S, where S = ±1 for pairs of labelled samples: greedily, one column at a
time, each fitted to the residue that the previous columns leave. A column starts as the top
eigenvector of the problem without the sign, and is refined by gradient descent with a sigmoid in
place of the sign.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mchindex.models.deep import mixed_views
from mchindex.models.hashing import (
    Checkpoint,
    HashMethod,
    check_units,
    sign,
    squared_pair_loss,
)
from mchindex.models.settings import Settings
from mchindex.models.views import Views, similar
from mchindex.progress import Progress, Step, silent


@dataclass(frozen=True)
class KSHSettings(Settings):
    anchors: int = 300
    labelled: int = 2000  # training samples whose pairs are fitted
    steps: int = 500  # of gradient descent per bit, at most
    tolerance: float = 1e-2  # the descent stops at a smaller relative change
    ridge: float = 1e-4  # added to the diagonal of KᵀK, relative to its mean
    crop_share: float = 0.0  # share of the labelled samples that are crops

    def __post_init__(self) -> None:
        check_units("anchors", self.anchors)


class KSH(HashMethod):
    name = "ksh"
    settings_type = KSHSettings
    anchors: Tensor  # (m, dim)
    width: Tensor  # mean squared distance to the anchors
    centre: Tensor  # (m,) means of the kernel over the training samples
    map: Tensor  # (m, bits)

    def __init__(self, dim: int, bits: int, settings: Settings | None = None) -> None:
        super().__init__(dim, bits, settings)
        m = self.settings.anchors
        self.register_buffer("anchors", torch.zeros(m, dim))
        self.register_buffer("width", torch.ones(()))
        self.register_buffer("centre", torch.zeros(m))
        self.register_buffer("map", torch.zeros(m, bits))

    def features(self, x: Tensor) -> Tensor:
        """(n, dim) -> (n, m): the kernel, less its mean over the training samples."""
        squares = torch.cdist(x, self.anchors) ** 2
        return torch.exp(-squares / (2 * self.width)) - self.centre

    @property
    def feature_dim(self) -> int:
        return len(self.anchors)

    def last(self, f: Tensor) -> Tensor:
        return f @ self.map

    def pair_loss(self, d: Tensor, s: Tensor) -> Tensor:
        return squared_pair_loss(d, s, self.bits)

    def fit(
        self,
        data: Views,
        seed: int = 0,
        progress: Progress = silent,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        settings = self.settings
        generator = torch.Generator().manual_seed(seed)
        device = self.anchors.device
        if len(data) < settings.anchors:
            raise ValueError(
                f"{settings.anchors} anchors are drawn from the training images, but there are "
                f"{len(data)}: set anchors={len(data)} or fewer"
            )
        rows = torch.randperm(len(data), generator=generator)[: settings.labelled]
        view = mixed_views(rows, data, settings.crop_share, generator)
        chosen = torch.randperm(len(data), generator=generator)[: settings.anchors]
        x = data.batch(rows, view).to(device)
        self.anchors.copy_(
            data.batch(chosen, mixed_views(chosen, data, settings.crop_share, generator))
        )
        self.width.copy_((torch.cdist(x, self.anchors) ** 2).mean())
        self.centre.zero_()
        self.centre.copy_(self.features(x).mean(0))
        labels = data.view_labels(rows, view).to(device)
        fit = GreedyFit(
            self.features(x).double(), similar(labels, labels), self.bits, settings.ridge
        )
        for bit in range(self.bits):
            column = fit.next_column(settings.steps, settings.tolerance)
            self.map[:, bit] = column.to(self.map.dtype)
            progress(Step(self.name, bit + 1, self.bits, {"residue": fit.objective}))


class GreedyFit:
    """Fits columns one after the other. `objective`, the mean squared residue, never rises."""

    def __init__(self, kernel: Tensor, s: Tensor, bits: int, ridge: float) -> None:
        self.kernel = kernel  # (n, m)
        self.residue = bits * torch.where(s, 1.0, -1.0).to(kernel)
        gram = kernel.T @ kernel
        gram.diagonal().add_(ridge * float(gram.diagonal().mean()) + 1e-12)
        # With KᵀK = LLᵀ, the generalised problem KᵀRK a = λ KᵀK a is an ordinary one in Lᵀa.
        self.factor = torch.linalg.cholesky(gram)

    @property
    def objective(self) -> float:
        return float((self.residue**2).mean())

    def next_column(self, steps: int, tolerance: float) -> Tensor:
        """The column (m,) that fits the residue best; its contribution is then subtracted."""
        start = self._relaxed()
        refined = self._refined(start, steps, tolerance)
        column = max((start, refined), key=lambda a: self._agreement(sign(self.kernel @ a)))
        b = sign(self.kernel @ column)
        if self._agreement(b) * 2 < len(b) ** 2:
            # |R - bbᵀ|² = |R|² - 2 bᵀRb + n²: subtracting this column would raise the objective.
            # A code has all its bits, so the column is used, but the residue stays as it is.
            return column
        self.residue -= torch.outer(b, b)
        return column

    def _agreement(self, y: Tensor) -> float:
        return float(y @ self.residue @ y)

    def _relaxed(self) -> Tensor:
        product = self.kernel.T @ self.residue @ self.kernel
        half = torch.linalg.solve_triangular(self.factor, product, upper=False)
        whole = torch.linalg.solve_triangular(self.factor, half.T, upper=False)
        top = torch.linalg.eigh((whole + whole.T) / 2).eigenvectors[:, -1:]
        a: Tensor = torch.linalg.solve_triangular(self.factor.T, top, upper=True).squeeze(1)
        scale = (len(self.kernel) / float(((self.kernel @ a) ** 2).sum())) ** 0.5
        scaled: Tensor = a * scale
        return scaled

    def _refined(self, start: Tensor, steps: int, tolerance: float) -> Tensor:
        """Nesterov's descent on -yᵀRy, where y = 2 sigmoid(Ka) - 1, with backtracking steps."""

        def cost(a: Tensor) -> tuple[float, Tensor]:
            y = 2 * torch.sigmoid(self.kernel @ a) - 1
            ry = self.residue @ y
            # dy/dt = (1 - y²) / 2, and -yᵀRy has the gradient -2Ry.
            return -float(y @ ry), self.kernel.T @ (-ry * (1 - y * y))

        best, (value, slope) = start, cost(start)
        previous, ahead = start, start
        step, momentum = 1.0 / max(float(slope.norm()), 1e-12), 1.0
        for _ in range(steps):
            here, slope = cost(ahead)
            moved, new = ahead, here
            for _ in range(40):
                moved = ahead - step * slope
                new, _ = cost(moved)
                if new <= here - step / 2 * float(slope @ slope):
                    break
                step /= 2
            change = abs(value - new) / max(abs(value), 1e-12)
            if new < value:
                best, value = moved, new
            following = (1 + (1 + 4 * momentum**2) ** 0.5) / 2
            ahead = moved + (momentum - 1) / following * (moved - previous)
            previous, momentum, step = moved, following, step * 1.5
            if change < tolerance:
                break
        return best
