"""The regions of an image that may get codes of their own: boxes as fractions of its sides.

A box is (x0, y0, x1, y1) in 0…1, measured from the top left corner, so one layout fits images of
any size. `in_pixels` converts a box to the pixels of a particular image.
"""

from __future__ import annotations

import functools
import itertools
import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Box = tuple[float, float, float, float]
PixelBox = tuple[int, int, int, int]
Boxes = NDArray[np.float64]  # (regions, 4)

WHOLE: Box = (0.0, 0.0, 1.0, 1.0)
MOST_REGIONS = 256  # of a layout: the table stores the number of a region in one byte
MOST_TEXT = 10_000  # characters of the text that names a layout

CORNERS = 5  # regions of the paper's layout, without the whole image
# Nine digits are more than enough for a number that is too large.
_PART = re.compile(r"(?:corners|grid:(\d{1,9})x(\d{1,9}))(?:@(\d{0,9}\.?\d{1,20}))?", re.ASCII)


def check_sigma(sigma: float) -> float:
    if not 0 < sigma <= 1:
        raise ValueError(
            "sigma is the side of a region as a share of the image's side: it must be above 0 and "
            f"at most 1, not {sigma}"
        )
    return float(sigma)


def check_count(regions: int) -> None:
    """Raises ValueError for more regions than a layout may have."""
    if regions > MOST_REGIONS:
        raise ValueError(
            f"a layout has at most {MOST_REGIONS} regions, counting the whole image, not "
            f"{regions:,}: use a smaller grid, or join fewer layouts"
        )


@dataclass(frozen=True)
class Layout:
    """Named regions of every image; the first is always the whole image."""

    names: tuple[str, ...]
    boxes: tuple[Box, ...]

    def __post_init__(self) -> None:
        check_count(len(self.boxes))
        if not self.boxes or self.boxes[0] != WHOLE:
            raise ValueError("the first region of a layout must be the whole image")
        if len(set(self.names)) != len(self.boxes):
            raise ValueError("a layout needs one distinct name per box")
        for name, (x0, y0, x1, y1) in zip(self.names, self.boxes, strict=True):
            if not (0 <= x0 < x1 <= 1 and 0 <= y0 < y1 <= 1):
                raise ValueError(
                    f"region {name!r} is not inside the image: its box must be in fractions 0…1"
                )

    def __len__(self) -> int:
        return len(self.boxes)

    def array(self) -> Boxes:
        return np.array(self.boxes)

    def __add__(self, other: Layout) -> Layout:
        """The regions of both layouts, the whole image once. A name in both gets a number."""
        check_count(len(self) + len(other) - 1)
        names = list(self.names)
        for name in other.names[1:]:
            again = (f"{name} {i}" for i in itertools.count(2))
            names.append(name if name not in names else next(n for n in again if n not in names))
        return Layout(tuple(names), self.boxes + other.boxes[1:])


def corners_and_centre(sigma: float = 0.5) -> Layout:
    """The layout of the paper: the whole image, its four corners and its centre, with sides of
    `sigma` times the image's."""
    s = check_sigma(sigma)
    far, mid = 1 - s, (1 - s) / 2
    return Layout(
        ("whole", "top-left", "top-right", "bottom-left", "bottom-right", "centre"),
        (
            WHOLE,
            (0.0, 0.0, s, s),
            (far, 0.0, 1.0, s),
            (0.0, far, s, 1.0),
            (far, far, 1.0, 1.0),
            (mid, mid, mid + s, mid + s),
        ),
    )


def grid(rows: int, columns: int, sigma: float) -> Layout:
    """The whole image and rows x columns evenly spread regions, which may overlap."""
    s = check_sigma(sigma)
    if rows < 1 or columns < 1:
        raise ValueError(f"a grid needs at least one row and one column, not {rows} x {columns}")
    check_count(rows * columns + 1)
    tops = np.linspace(0, 1 - s, rows) if rows > 1 else np.array([(1 - s) / 2])
    lefts = np.linspace(0, 1 - s, columns) if columns > 1 else np.array([(1 - s) / 2])
    cells = [(float(x), float(y), float(x + s), float(y + s)) for y in tops for x in lefts]
    names = [f"row {r + 1} column {c + 1} of {s:g}" for r in range(rows) for c in range(columns)]
    return Layout(("whole", *names), (WHOLE, *(_clipped(b) for b in cells)))


def read_layout(text: str, sigma: float = 0.5) -> Layout:
    """A layout by its name: "corners" is the paper's, "grid:3x3" has rows x columns regions.

    The side of a region is `sigma` times the image's, or the number after an @. A plus joins
    layouts: "corners", "grid:2x3", "corners@0.5+corners@0.7", "corners+grid:3x3@0.33". Raises
    ValueError for text that names no layout, or one of more than MOST_REGIONS regions, before any
    region is computed.
    """
    if len(text) > MOST_TEXT:
        raise ValueError(
            f"the name of a layout has at most {MOST_TEXT:,} characters, not {len(text):,}"
        )
    parts = [_Part.read(part.strip()) for part in text.split("+")]
    check_count(1 + sum(part.regions for part in parts))
    return functools.reduce(operator.add, (part.layout(sigma) for part in parts))


class _Part(NamedTuple):
    """One of the layouts that a name joins."""

    shape: tuple[int, int] | None  # rows and columns of a grid; None: corners
    sigma: float | None

    @classmethod
    def read(cls, text: str) -> _Part:
        match = _PART.fullmatch(text)
        if match is None:
            shown = text if len(text) <= 60 else text[:60] + "…"
            raise ValueError(
                f"there is no layout {shown!r}: use corners or grid:ROWSxCOLUMNS, optionally "
                "followed by @SIGMA, and join several with +"
            )
        rows, columns, sigma = match.groups()
        return cls(
            None if rows is None else (int(rows), int(columns)),
            None if sigma is None else float(sigma),
        )

    @property
    def regions(self) -> int:
        """How many there are, without the whole image."""
        return CORNERS if self.shape is None else self.shape[0] * self.shape[1]

    def layout(self, sigma: float) -> Layout:
        side = sigma if self.sigma is None else self.sigma
        return corners_and_centre(side) if self.shape is None else grid(*self.shape, side)


def _clipped(box: Box) -> Box:
    """The box, kept within 0…1 despite rounding errors."""
    return (max(box[0], 0.0), max(box[1], 0.0), min(box[2], 1.0), min(box[3], 1.0))


def random_boxes(count: int, sigma: float | tuple[float, float], seed: int, key: bytes) -> Boxes:
    """`count` random boxes whose side is `sigma`, or is drawn uniformly from a range.

    They depend only on the seed and the image's key: an image has the same crops in every data set.
    """
    low, high = sigma if isinstance(sigma, tuple) else (sigma, sigma)
    if check_sigma(low) > check_sigma(high):
        raise ValueError(f"a range of sigma must go from small to large, not {sigma}")
    rng = np.random.default_rng([seed, *key])
    side = low + (high - low) * rng.random(count)
    x0, y0 = rng.random((2, count)) * (1 - side)
    return np.stack([x0, y0, np.minimum(x0 + side, 1), np.minimum(y0 + side, 1)], axis=1)


def in_pixels(box: Sequence[float], width: int, height: int) -> PixelBox:
    """A box in whole pixels of an image of this size, at least one pixel wide and high."""
    x0, y0, x1, y1 = box
    left, top = min(round(x0 * width), width - 1), min(round(y0 * height), height - 1)
    return (left, top, max(round(x1 * width), left + 1), max(round(y1 * height), top + 1))


def in_fractions(box: PixelBox, size: tuple[int, int]) -> Box:
    """A box in pixels of an image of this size, as fractions of its sides, clipped to the image."""
    x0, y0, x1, y1 = (min(max(v / size[i % 2], 0.0), 1.0) for i, v in enumerate(box))
    return x0, y0, x1, y1


def overlaps(boxes: Boxes, rows: int, columns: int) -> NDArray[np.float32]:
    """The share of each box in each cell of a feature map: (…, rows * columns), summing to 1."""
    x0, y0, x1, y1 = np.moveaxis(np.asarray(boxes, np.float64), -1, 0)

    def along(start: NDArray[np.float64], stop: NDArray[np.float64], n: int) -> Boxes:
        edges = np.arange(n + 1) / n
        inside = np.minimum(edges[1:], stop[..., None]) - np.maximum(edges[:-1], start[..., None])
        length: Boxes = np.clip(inside, 0, None)
        return length

    area = along(y0, y1, rows)[..., :, None] * along(x0, x1, columns)[..., None, :]
    flat = area.reshape(*area.shape[:-2], rows * columns)
    share: NDArray[np.float32] = (flat / flat.sum(-1, keepdims=True)).astype(np.float32)
    return share
