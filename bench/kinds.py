"""Kinds of random codes to search, each with queries that are not stored.

`clustered` and `uniform` are the two that speeds are reported for. The others are hard for one part
of a table or another: `search.py --gate` measures on all of them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Codes = NDArray[np.uint8]  # (n, bits // 8), as np.packbits makes them
Bits = NDArray[np.bool_]  # (n, bits)

FLIP = 0.03  # the probability that a bit of a clustered code differs from its centre
PER_CENTRE = 200  # mean codes per centre
CLASSES = 80  # of `hashnet`
LABELS = (0.5, 0.3, 0.2)  # of `hashnet`: the shares of images with one, two and three classes
FLIPS = 2.0  # of `hashnet`: the mean number of flipped bits, whatever the width
DIMENSIONS = 8  # of `gaussian`
HEAVY, IN_HEAVY = 10, 0.9  # of `ten`: buckets, and the share of the codes in them
PIECE = 100_000  # codes drawn at a time: one float per bit takes much memory


def zipf(count: int) -> NDArray[np.float64]:
    """Shares that fall with the rank, as 1 / rank."""
    weights = 1.0 / np.arange(1, count + 1)
    shares: NDArray[np.float64] = weights / weights.sum()
    return shares


def pieces(total: int, draw: Callable[[int], Bits]) -> Codes:
    """Packs what `draw` makes of each number of codes, at most PIECE."""
    sizes = [min(PIECE, total - start) for start in range(0, total, PIECE)]
    return np.concatenate([np.packbits(draw(size), axis=1) for size in sizes])


def flip(rng: Generator, codes: Codes) -> None:
    """Flips each bit with probability FLIP, in place."""
    for start in range(0, len(codes), PIECE):
        part = codes[start : start + PIECE]
        flips = rng.random((len(part), part.shape[1] * 8), dtype=np.float32) < FLIP
        part ^= np.packbits(flips, axis=1)


def random_codes(rng: Generator, n: int, bits: int) -> Codes:
    return rng.integers(0, 256, (n, bits // 8), dtype=np.uint8)


def uniform(rng: Generator, n: int, queries: int, bits: int) -> tuple[Codes, Codes]:
    """Every bit is random."""
    out = random_codes(rng, n + queries, bits)
    return out[:n], out[n:]


def clustered(rng: Generator, n: int, queries: int, bits: int) -> tuple[Codes, Codes]:
    """Centres with Zipf sizes, and a few flipped bits."""
    centres = random_codes(rng, max(1, n // PER_CENTRE), bits)
    out = centres[rng.choice(len(centres), n + queries, p=zipf(len(centres)))]
    flip(rng, out)
    return out[:n], out[n:]


def hashnet(rng: Generator, n: int, queries: int, bits: int) -> tuple[Codes, Codes]:
    """Mixtures of class codes with Zipf sizes; some bits flip much more often than others.

    An image with several classes has the bit that most of them have, and where they are undecided,
    that of the first. Few bits flip, so that many codes are equal.
    """
    classes = rng.random((CLASSES, bits)) < 0.5
    rates = rng.random(bits) ** 4
    rates = np.minimum(0.4, rates * FLIPS / rates.sum())

    def draw(size: int) -> Bits:
        labels = rng.choice(CLASSES, (size, len(LABELS)), p=zipf(CLASSES))
        count = rng.choice(len(LABELS), size, p=LABELS) + 1
        votes = np.zeros((size, bits), np.float32)
        for place in range(len(LABELS)):
            weight = np.where(place < count, 1.5 if place == 0 else 1.0, 0.0)[:, None]
            votes += np.where(classes[labels[:, place]], weight, -weight).astype(np.float32)
        flips = rng.random((size, bits), dtype=np.float32) < rates
        mixed: Bits = (votes > 0) ^ flips
        return mixed

    out = pieces(n + queries, draw)
    return out[:n], out[n:]


def gaussian(rng: Generator, n: int, queries: int, bits: int) -> tuple[Codes, Codes]:
    """Signs of projections of a Gaussian of few dimensions: wide codes whose bits depend."""
    axes = rng.standard_normal((DIMENSIONS, bits), dtype=np.float32)

    def draw(size: int) -> Bits:
        signs: Bits = rng.standard_normal((size, DIMENSIONS), dtype=np.float32) @ axes > 0
        return signs

    out = pieces(n + queries, draw)
    return out[:n], out[n:]


def far(rng: Generator, n: int, queries: int, bits: int) -> tuple[Codes, Codes]:
    """Clustered codes and uniform queries, so that no neighbour is near."""
    return clustered(rng, n, 0, bits)[0], random_codes(rng, queries, bits)


def equidistant(rng: Generator, n: int, queries: int, bits: int) -> tuple[Codes, Codes]:
    """Codes (x, not x) and queries (y, y): every distance is half the bits."""

    def halves(size: int, second: bool) -> Bits:
        first = rng.random((size, bits // 2), dtype=np.float32) < 0.5
        return np.concatenate([first, first ^ second], axis=1)

    return pieces(n, lambda size: halves(size, True)), pieces(
        queries, lambda size: halves(size, False)
    )


def equal(rng: Generator, n: int, queries: int, bits: int) -> tuple[Codes, Codes]:
    """One code for all images; in queries, a few bits are flipped."""
    out = np.repeat(random_codes(rng, 1, bits), n + queries, axis=0)
    flip(rng, out[n:])
    return out[:n], out[n:]


def ten(rng: Generator, n: int, queries: int, bits: int) -> tuple[Codes, Codes]:
    """Most codes are in ten buckets, and the others are uniform."""
    out = random_codes(rng, n + queries, bits)
    heavy = rng.random(len(out)) < IN_HEAVY
    out[heavy] = random_codes(rng, HEAVY, bits)[rng.integers(0, HEAVY, int(heavy.sum()))]
    return out[:n], out[n:]


KINDS = {
    draw.__name__: draw
    for draw in (clustered, uniform, hashnet, gaussian, far, equidistant, equal, ten)
}
