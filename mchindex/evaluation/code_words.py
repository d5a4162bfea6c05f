"""Codes as 64-bit words, most significant first, so Algorithm 1's order becomes a comparison.

Among the buckets at the same distance, Algorithm 1 visits those with the larger XOR mask (read as a
big-endian number) first. A key is a mask with all bits inverted: smaller keys are visited first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]  # (words, m): word 0 of every code, then word 1, …
Distances = NDArray[np.unsignedinteger[Any]]  # (m,)


def to_words(codes: NDArray[np.uint8]) -> Words:
    """(m, bytes) packed codes as words; the last word is padded with zeros."""
    m, width = codes.shape
    padded = np.zeros((m, -(-width // 8) * 8), np.uint8)
    padded[:, :width] = codes
    return np.ascontiguousarray(padded.view(">u8").astype(np.uint64).T)


def to_codes(words: Words, bits: int) -> NDArray[np.uint8]:
    """The inverse of `to_words`."""
    return np.ascontiguousarray(words.T).astype(">u8").view(np.uint8)[:, : bits // 8]


def number_to_words(number: int, bits: int) -> Words:
    """One code, given as a big-endian number."""
    packed = np.frombuffer(number.to_bytes(bits // 8, "big"), np.uint8)
    return to_words(packed[None])


def popcount(masks: Words) -> Distances:
    """The number of ones in each column."""
    ones = np.bitwise_count(masks)
    # Four words may have 256 ones, which a uint8 cannot hold.
    total: Distances = ones.sum(0, dtype=np.uint8 if len(ones) < 4 else np.uint16)
    return total


def at_most(a: Words, b: Words) -> NDArray[np.bool_]:
    """a <= b, each column read as one long number."""
    out: NDArray[np.bool_] = a[-1] <= b[-1]
    for high, other in zip(a[-2::-1], b[-2::-1], strict=True):
        out = (high < other) | ((high == other) & out)
    return out
