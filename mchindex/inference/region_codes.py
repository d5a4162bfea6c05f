"""The codes of an image's regions, and which of them are kept."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mchindex.regions import Layout

Packed = NDArray[np.uint8]  # (n, bits // 8), as np.packbits packs them

MOST_CODES = 6  # per image, including the whole image's, however many regions a layout has


@dataclass(frozen=True)
class Encoded:
    """The codes to store for n images. Equal codes of an image appear once, under the first."""

    codes: Packed  # (m, bits // 8)
    images: NDArray[np.int64]  # (m,) the image of each code, 0 … n - 1, ascending
    regions: NDArray[np.int16]  # (m,) the region of each code, as its number in the layout
    keep: NDArray[np.float32]  # (n, regions) probability of keeping; 1 for the whole image
    kept: NDArray[np.int64]  # (n,) regions kept, counting equal codes

    def __len__(self) -> int:
        return len(self.codes)


@dataclass(frozen=True)
class RegionCodes:
    """The code and the probability of keeping of every region of n images, before any is chosen."""

    codes: Packed  # (n, regions, bits // 8)
    keep: NDArray[np.float32]  # (n, regions)

    def kept(self, xi: float) -> NDArray[np.bool_]:
        """(n, regions): the regions with a probability of at least xi.

        If they are more than MOST_CODES, the most probable. A region of probability 0 is never
        kept; without a policy, all regions but the whole image have it.
        """
        kept: NDArray[np.bool_] = (self.keep >= xi) & (self.keep > 0)
        if kept.shape[1] > MOST_CODES:
            order = np.argsort(-self.keep, axis=1, kind="stable")
            np.put_along_axis(kept, order[:, MOST_CODES:], False, axis=1)
        return kept

    def distinct(self, kept: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """(n, regions): the kept regions, without those that repeat the code of an earlier one."""
        return kept & first_of_equals(self.codes, kept)

    def xi_for(self, codes: float) -> float:
        """The xi at which these images have about `codes` distinct codes each, on average.

        If all regions together have fewer distinct codes, the xi that keeps all of them.
        """
        wanted = codes * len(self.codes)
        steps = np.unique(self.keep[self.keep > 0])  # the only values at which the choice changes
        low, high = 0, len(steps) - 1

        def codes_at(step: int) -> int:
            return int(self.distinct(self.kept(float(steps[step]))).sum())

        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if codes_at(middle) > wanted else (low, middle)
        return float(steps[min((low, high), key=lambda step: abs(codes_at(step) - wanted))])

    def chosen(self, kept: NDArray[np.bool_]) -> Encoded:
        """The codes of these regions, without repeated codes of an image."""
        images, regions = np.nonzero(self.distinct(kept))
        return Encoded(
            self.codes[images, regions],
            images.astype(np.int64),
            regions.astype(np.int16),
            self.keep,
            kept.sum(1, dtype=np.int64),
        )


def first_of_equals(codes: Packed, kept: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """(n, regions): false where an earlier kept region of the image has the same code."""
    first = np.ones(codes.shape[:2], bool)
    for later in range(1, codes.shape[1]):
        same = (codes[:, :later] == codes[:, later : later + 1]).all(-1) & kept[:, :later]
        first[:, later] = ~same.any(1)
    return first


def check_budget(codes: float, layout: Layout) -> float:
    """Raises ValueError unless images can have this many codes on average."""
    most = min(len(layout), MOST_CODES)
    if not 1 <= codes <= most:
        raise ValueError(f"the codes per image must be between 1 and {most}, not {codes:g}")
    return codes


def check_xi(xi: float) -> float:
    if not 0 <= xi <= 1:
        raise ValueError(f"xi is a probability between 0 and 1, not {xi}")
    return xi


def check_bits(bits: int) -> int:
    if bits < 8 or bits > 256 or bits % 8:
        raise ValueError(f"bits is a multiple of 8 from 8 to 256, not {bits}")
    return bits
