"""Finds one picture in another by their pixels: a copy, a mirrored copy, or a part.

Codes say that two pictures are alike; only their pixels can say that they are the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from mchindex.regions import Box

SIDE = 72  # pixels of the longer side at which pictures are compared
REDUCED = 4 * SIDE  # pixels of a side, at most, from which pictures are resized
SCALES = 0.97 ** np.arange(31)  # of the part, as a share of the largest size that fits: 1 to 0.4
LEAST = 12  # pixels of the part's shorter side
SAME = 0.8  # the least correlation of pixels in one picture; see tests/index/test_same_picture.py
FLAT = 2.0  # the standard deviation of brightness, of 255, below which there is nothing to compare

Grey = NDArray[np.float64]


class Match(NamedTuple):
    """Where a picture lies in another one."""

    box: Box  # as fractions of the other picture's sides
    mirrored: bool
    correlation: float  # of the pixels, at most 1


def find_in(part: Image.Image, whole: Image.Image) -> Match | None:
    """Where `part` lies in `whole`: all of it or a part, perhaps mirrored; None if it does not."""
    part, whole = (reduced_for_comparison(image).convert("L") for image in (part, whole))
    best: Match | None = None
    for match in _matches(part, whole):
        if best is None or match.correlation > best.correlation:
            best = match
    return best if best is not None and best.correlation >= SAME else None


def reduced_for_comparison(image: Image.Image) -> Image.Image:
    """A picture that is compared several times, small enough for this to be fast."""
    if max(image.size) <= REDUCED:
        return image
    return image.resize(_fitting(image.size, REDUCED), Image.Resampling.BOX, reducing_gap=2)


def _matches(part: Image.Image, whole: Image.Image) -> Iterator[Match]:
    """The best place at every scale."""
    ground = _edges(whole, _fitting(whole.size, SIDE))
    height, width = ground.shape
    largest = min(width / part.width, height / part.height)
    spectrum = np.fft.rfft2(ground)
    sums, squares = _integral(ground), _integral(ground**2)
    for scale in SCALES:
        size = (round(part.width * largest * scale), round(part.height * largest * scale))
        if min(size) < LEAST:
            return
        template = _edges(part, size)
        h, w = template.shape
        template = template - template.mean()
        norm = np.sqrt((template**2).sum())
        if norm < FLAT * np.sqrt(h * w):
            return
        total, square = _windows(sums, h, w), _windows(squares, h, w)
        spread = np.sqrt(np.maximum(square - total**2 / (h * w), (FLAT**2) * h * w))
        for mirrored in (False, True):
            turned = template[:, ::-1] if mirrored else template
            other = np.fft.rfft2(turned, ground.shape).conj()
            product = np.fft.irfft2(spectrum * other, ground.shape)
            correlation = product[: height - h + 1, : width - w + 1] / (norm * spread)
            y, x = np.unravel_index(correlation.argmax(), correlation.shape)
            box = (x / width, y / height, (x + w) / width, (y + h) / height)
            yield Match(box, mirrored, float(correlation[y, x]))


def _fitting(size: tuple[int, int], side: int) -> tuple[int, int]:
    scale = side / max(size)
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def _edges(image: Image.Image, size: tuple[int, int]) -> Grey:
    """Brightness less that of the surroundings: slow gradients look alike in any two pictures."""
    small = image.resize(size, Image.Resampling.BOX)
    around = small.filter(ImageFilter.GaussianBlur(4))
    return np.asarray(small, np.float64) - np.asarray(around, np.float64)


def _integral(values: Grey) -> Grey:
    return np.pad(values.cumsum(0).cumsum(1), ((1, 0), (1, 0)))


def _windows(integral: Grey, h: int, w: int) -> Grey:
    """The sum over every window of h x w pixels."""
    return integral[h:, w:] - integral[:-h, w:] - integral[h:, :-w] + integral[:-h, :-w]
