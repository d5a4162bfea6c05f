"""How sure the agent must be, from how many codes an image may have."""

from __future__ import annotations

import numpy as np

from mchindex.models.mch import RegionCodes
from mchindex.training.measure import distinct_codes


def xi_for(found: RegionCodes, codes: float) -> float:
    """The xi at which these images come nearest to so many distinct codes each, on average.

    The whole image's code always stands; where all regions together give fewer codes than asked
    for, all are kept.
    """
    wanted = codes * len(found.codes)
    steps = np.unique(found.keep[found.keep > 0])  # codes only change at these
    low, high = 0, len(steps) - 1  # steps[low] keeps most, steps[high] fewest

    def count(step: int) -> int:
        return distinct_codes(found, found.kept(float(steps[step])))

    while high - low > 1:
        middle = (low + high) // 2
        if count(middle) > wanted:
            low = middle
        else:
            high = middle
    return float(
        min((steps[low], low), (steps[high], high), key=lambda s: abs(count(s[1]) - wanted))[0]
    )
