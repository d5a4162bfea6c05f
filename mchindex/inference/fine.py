"""Fine codes: long codes of features that order images of one class, see `FineHash`."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mchindex.inference.region_codes import Packed

FINE_BITS = 256
MOST_FINE_BITS = 1024
MOST_CELLS = 1 << 16  # that a table takes


def check_fine_bits(bits: int) -> int:
    if bits % 8 or not 8 <= bits <= MOST_FINE_BITS:
        raise ValueError(
            f"fine codes have a multiple of 8 bits, from 8 to {MOST_FINE_BITS}, not {bits}"
        )
    return bits


def check_cells(cells: int) -> int:
    if not 0 <= cells <= MOST_CELLS:
        raise ValueError(f"there may be {MOST_CELLS} cells at most, not {cells}")
    return cells


class FineCodes(ABC):
    """Turns features into fine codes, with NumPy or torch."""

    bits: int
    fingerprint: str  # a hash of all that fine codes depend on, besides the features

    @property
    @abstractmethod
    def packed_cells(self) -> Packed:
        """(cells, bits // 8): the centres of groups of similar codes."""

    @abstractmethod
    def projections(self, features: NDArray[np.float16]) -> NDArray[np.float32]:
        """(…, dim) -> (…, bits): one real number per bit. Its sign is the bit of the code, and its
        magnitude says how certain the bit is. Of more features, the last ones are used."""

    def codes(self, features: NDArray[np.float16]) -> Packed:
        """(…, dim) -> (…, bits // 8): packed codes."""
        return np.packbits(self.projections(features) > 0, axis=-1)


@dataclass(frozen=True, eq=False)
class FineArrays(FineCodes):
    """Fine codes by NumPy."""

    mean: NDArray[np.float32]  # (dim,), or (branches, dim // branches) for several
    rotation: NDArray[np.float32]  # (dim, bits)
    cells: Packed
    fingerprint: str

    @property
    def bits(self) -> int:  # type: ignore[override]
        return int(self.rotation.shape[1])

    @property
    def packed_cells(self) -> Packed:
        return self.cells

    def projections(self, features: NDArray[np.float16]) -> NDArray[np.float32]:
        own = features[..., -self.mean.size :]
        means = np.atleast_2d(self.mean)
        x = own.reshape(-1, *means.shape).astype(np.float32)
        x /= np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), np.float32(1e-12))
        x -= means
        # One branch after the other: NumPy would divide a larger product among the cores, which
        # would wait for each other in a busy loop.
        turns = self.rotation.reshape(*means.shape, -1)
        found: NDArray[np.float32] = x[:, 0] @ turns[0]
        for branch in range(1, len(means)):
            found += x[:, branch] @ turns[branch]
        return found.reshape(*features.shape[:-1], self.bits)


def fine_fingerprint(*parts: tuple[str, NDArray[Any]]) -> str:
    """A hash of arrays, each with the name of its type."""
    total = hashlib.sha256()
    for kind, array in parts:
        total.update(f"{kind} {tuple(array.shape)}".encode())
        total.update(np.ascontiguousarray(array).tobytes())
    return total.hexdigest()[:32]
