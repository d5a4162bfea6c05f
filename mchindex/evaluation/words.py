"""Codes as 64-bit words, the most significant first, so that Algorithm 1's order is a comparison.

Of the buckets at one distance, Algorithm 1 visits the larger XOR mask (as a big-endian number)
first. A key is a mask with every bit turned: the smaller key is visited first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]  # (words, m): word 0 of every code, then word 1, …
Distances = NDArray[np.unsignedinteger[Any]]  # (m,)


def to_words(codes: NDArray[np.uint8]) -> Words:
    """(m, bytes) packed codes as words; a code that does not fill its last word ends in zeros."""
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
    ones = np.bitwise_count(masks)
    # Four words of ones are 256, one more than a uint8 holds.
    total: Distances = ones.sum(0, dtype=np.uint8 if len(ones) < 4 else np.uint16)
    return total


def at_most(a: Words, b: Words) -> NDArray[np.bool_]:
    """a <= b, each column read as one long number."""
    out: NDArray[np.bool_] = a[-1] <= b[-1]
    for high, other in zip(a[-2::-1], b[-2::-1], strict=True):
        out = (high < other) | ((high == other) & out)
    return out
