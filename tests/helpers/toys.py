"""Small problems to learn from, a checkpoint that interrupts, and a harmful pickle."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mchindex.models.hashing import pack
from mchindex.models.views import Features

State = Mapping[str, Tensor]


def blobs(
    n: int,
    dim: int = 12,
    classes: int = 3,
    views: int = 3,
    noise: float = 0.3,
    seed: int = 0,
    world: int = 0,
) -> Features:
    """Images of one class each, with all views near the centre of their class.

    Sets with the same `world` have the same centres, so what is learnt from one holds for another.
    """
    centres = 2 * np.random.default_rng(world).standard_normal((classes, dim))
    rng = np.random.default_rng([world, seed])
    which = np.arange(n) % classes
    array = centres[which][:, None] + noise * rng.standard_normal((n, views, dim))
    return Features(
        torch.from_numpy(array.astype(np.float32)),
        torch.from_numpy(which[:, None] == np.arange(classes)),
    )


def random_labels(n: int, classes: int, seed: int, share: float = 0.3) -> Tensor:
    """Several labels per image, or none."""
    return torch.from_numpy(np.random.default_rng(seed).random((n, classes)) < share)


def random_signs(n: int, bits: int, seed: int) -> Tensor:
    signs = np.random.default_rng(seed).integers(0, 2, (n, bits)) * 2 - 1
    return torch.from_numpy(signs.astype(np.float32))


def hamming(a: Tensor, b: Tensor) -> NDArray[np.int64]:
    """Hamming distances, counted in packed codes: (n, bits) and (m, bits) -> (n, m)."""
    differing = pack(a)[:, None] ^ pack(b)[None]
    distances: NDArray[np.int64] = np.bitwise_count(differing).sum(-1, dtype=np.int64)
    return distances


def gap(codes: Tensor, labels: Tensor) -> float:
    """How much nearer similar images are than dissimilar ones, as a share of the bits."""
    d = hamming(codes, codes) / codes.shape[1]
    alike = (labels.float() @ labels.float().T).numpy() > 0
    others = ~np.eye(len(d), dtype=bool)
    return float(d[~alike].mean() - d[alike & others].mean())


def state_of(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


def same(a: State, b: State) -> bool:
    """Whether two states are equal, bit for bit."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


class Memory:
    """A checkpoint in memory, as the bytes of a file. Save number `cut` raises after saving."""

    def __init__(self, cut: int | None = None) -> None:
        self.cut, self.saves, self.kept = cut, 0, b""

    def load(self) -> dict[str, Any] | None:
        if not self.kept:
            return None
        state: dict[str, Any] = torch.load(io.BytesIO(self.kept), weights_only=True)
        return state

    def save(self, state: dict[str, Any]) -> None:
        stream = io.BytesIO()
        torch.save(state, stream)
        self.kept = stream.getvalue()
        self.saves += 1
        if self.saves == self.cut:
            raise InterruptedError("interrupted")


class Harm:
    """An object that creates a file when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.trace,))
