"""How many buckets one code per image needs for the F1 that several codes reach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

PER_DECADE = 24  # bucket counts at which F1 is measured, between 1 and 10, 10 and 100, …

Curve = Sequence[Sequence[float]]  # points [buckets visited, F1]


@dataclass(frozen=True)
class BucketsNeeded:
    """The F1 of MCH after some buckets, and the buckets that the base method needs for it."""

    buckets: int  # visited with MCH
    f1: float  # of MCH after these
    base: int | None  # buckets after which the base method has the same F1; None: never
    base_best: float  # the highest F1 of the base method

    def words(self) -> str:
        """What the base method needs: "1,600 (16 times as many)"."""
        if self.base is None:
            return f"never: its highest F1 is {self.base_best:.4f}"
        if self.base == self.buckets:
            return f"{self.base:,}, the same number"
        factor = self.base / self.buckets
        times = f"{factor:,.0f}" if factor >= 10 else f"{factor:.2g}"
        return f"{self.base:,} ({times} times as many)"


def bucket_counts(bits: int) -> list[int]:
    """Numbers of buckets up to 2^bits, evenly spaced on a log axis and rounded to two digits.

    The powers of ten are among them.
    """
    decades = bits * np.log10(2)
    powers = np.arange(int(PER_DECADE * decades) + 1) / PER_DECADE
    return sorted({int(float(f"{10**power:.1e}")) for power in powers.tolist()})


def buckets_needed(base: Curve, mch: Curve, buckets: int) -> BucketsNeeded:
    """Compares two F1 curves, of which `mch` has a point at this number of buckets."""
    f1 = next(y for x, y in mch if x == buckets)
    first = next((int(x) for x, y in base if y >= f1), None)
    return BucketsNeeded(buckets, f1, first, max(y for _, y in base))


def without_flat_end(curve: Curve) -> list[list[float]]:
    """The curve up to the first point after which F1 no longer changes."""
    last = curve[-1][1]
    end = next(i for i, (_, y) in reversed(list(enumerate(curve))) if y != last or i == 0)
    return [list(point) for point in curve[: end + 2]]
