"""The codes of an image's regions, and which of them are kept."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mchindex.models.hashing import Packed
from mchindex.regions import Layout

MOST_CODES = 6  # of an image, the whole image's among them, however many regions a layout has


@dataclass(frozen=True)
class Encoded:
    """The codes of n images. An image's equal codes stand once, under their first region."""

    codes: Packed  # (m, bits // 8)
    images: NDArray[np.int64]  # (m,) which image each is of, 0 … n - 1, ascending
    regions: NDArray[np.int16]  # (m,) number of the region in the model's layout
    keep: NDArray[np.float32]  # (n, regions) probability of keeping each; the whole image's is 1
    kept: NDArray[np.int64]  # (n,) regions kept, before equal codes were counted once

    def __len__(self) -> int:
        return len(self.codes)


@dataclass(frozen=True)
class RegionCodes:
    """What a model says of every region of n images, before any is chosen."""

    codes: Packed  # (n, regions, bits // 8)
    keep: NDArray[np.float32]  # (n, regions)

    def kept(self, xi: float) -> NDArray[np.bool_]:
        """(n, regions): those with a probability of at least xi, the likeliest where they are more
        than MOST_CODES; never those of probability 0, which is what all regions have without a
        policy."""
        kept: NDArray[np.bool_] = (self.keep >= xi) & (self.keep > 0)
        if kept.shape[1] > MOST_CODES:
            order = np.argsort(-self.keep, axis=1, kind="stable")
            np.put_along_axis(kept, order[:, MOST_CODES:], False, axis=1)
        return kept

    def distinct(self, kept: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """(n, regions): of the kept, those whose code no earlier kept one of the image has."""
        return kept & first_of_equals(self.codes, kept)

    def xi_for(self, codes: float) -> float:
        """The xi at which these images come nearest to so many distinct codes each, on average.

        The whole image's code always stands; where all regions together give fewer codes than
        asked for, all of them are kept.
        """
        wanted = codes * len(self.codes)
        steps = np.unique(self.keep[self.keep > 0])  # what is kept changes at these alone
        low, high = 0, len(steps) - 1

        def codes_at(step: int) -> int:
            return int(self.distinct(self.kept(float(steps[step]))).sum())

        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if codes_at(middle) > wanted else (low, middle)
        return float(steps[min((low, high), key=lambda step: abs(codes_at(step) - wanted))])

    def chosen(self, kept: NDArray[np.bool_]) -> Encoded:
        """Those regions' codes, each image's equal ones once."""
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
    """Codes an image on average, as many as its regions can give."""
    most = min(len(layout), MOST_CODES)
    if not 1 <= codes <= most:
        raise ValueError(f"codes an image are 1 to {most}, not {codes:g}")
    return codes


def check_xi(xi: float) -> float:
    if not 0 <= xi <= 1:
        raise ValueError(f"xi is a probability, 0 to 1, not {xi}")
    return xi
