"""Which parts of an image get a code of their own: boxes as fractions of the sides.

A box is (x0, y0, x1, y1) in 0…1, from the top left corner, so that one layout fits every image;
`in_pixels` says where it lies in a given one.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Box = tuple[float, float, float, float]
Boxes = NDArray[np.float64]  # (regions, 4)

WHOLE: Box = (0.0, 0.0, 1.0, 1.0)


def check_sigma(sigma: float) -> float:
    if not 0 < sigma <= 1:
        raise ValueError(f"sigma is a region's side over the image's, above 0 up to 1, not {sigma}")
    return float(sigma)


@dataclass(frozen=True)
class Layout:
    """Named regions of every image; the first is always the whole of it."""

    names: tuple[str, ...]
    boxes: tuple[Box, ...]

    def __post_init__(self) -> None:
        if not self.boxes or self.boxes[0] != WHOLE:
            raise ValueError("the first region of a layout is the whole image")
        if len(set(self.names)) != len(self.boxes):
            raise ValueError("a layout needs one name for each box, no two alike")
        for name, (x0, y0, x1, y1) in zip(self.names, self.boxes, strict=True):
            if not (0 <= x0 < x1 <= 1 and 0 <= y0 < y1 <= 1):
                raise ValueError(f"region {name!r} does not lie within the image: fractions 0…1")

    def __len__(self) -> int:
        return len(self.boxes)

    def array(self) -> Boxes:
        return np.array(self.boxes)

    def __add__(self, other: Layout) -> Layout:
        """Both layouts' regions, the whole image once; a name that both have gets a number."""
        names = list(self.names)
        for name in other.names[1:]:
            again = (f"{name} {i}" for i in itertools.count(2))
            names.append(name if name not in names else next(n for n in again if n not in names))
        return Layout(tuple(names), self.boxes + other.boxes[1:])


def corners_and_centre(sigma: float = 0.5) -> Layout:
    """The paper's: the whole image, its four corners and its centre at `sigma` of the sides."""
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
    """The whole image and rows x columns regions, evenly spread, overlapping where they must."""
    s = check_sigma(sigma)
    if rows < 1 or columns < 1:
        raise ValueError(f"a grid has at least one row and one column, not {rows} x {columns}")
    tops = np.linspace(0, 1 - s, rows) if rows > 1 else np.array([(1 - s) / 2])
    lefts = np.linspace(0, 1 - s, columns) if columns > 1 else np.array([(1 - s) / 2])
    cells = [(float(x), float(y), float(x + s), float(y + s)) for y in tops for x in lefts]
    names = [f"row {r + 1} column {c + 1} of {s:g}" for r in range(rows) for c in range(columns)]
    return Layout(("whole", *names), (WHOLE, *(_clipped(b) for b in cells)))


def read_layout(text: str, sigma: float = 0.5) -> Layout:
    """A layout by its name: "corners" is the paper's, "grid:3x3" has rows x columns regions.

    Regions have `sigma` of the sides, or what is said behind an @; layouts are joined by a plus:
    "corners", "grid:2x3", "corners@0.5+corners@0.7", "corners+grid:3x3@0.33".
    """
    whole: Layout | None = None
    for part in text.split("+"):
        found = re.fullmatch(r"(corners|grid:(\d+)x(\d+))(?:@(\d*\.?\d+))?", part.strip())
        if found is None:
            raise ValueError(
                f"no layout is called {part.strip()!r}: there are corners and grid:ROWSxCOLUMNS, "
                "with @SIGMA behind them where it differs, joined by +"
            )
        name, rows, columns, side = found.groups()
        s = sigma if side is None else float(side)
        one = corners_and_centre(s) if name == "corners" else grid(int(rows), int(columns), s)
        whole = one if whole is None else whole + one
    assert whole is not None
    return whole


def _clipped(box: Box) -> Box:
    """Within 0…1 in spite of rounding."""
    return (max(box[0], 0.0), max(box[1], 0.0), min(box[2], 1.0), min(box[3], 1.0))


def random_boxes(count: int, sigma: float | tuple[float, float], seed: int, key: bytes) -> Boxes:
    """`count` boxes anywhere in the image, their side `sigma` or drawn evenly between two.

    They depend on the seed and the image's key alone, so that an image has the same crops in
    whatever company it comes.
    """
    low, high = sigma if isinstance(sigma, tuple) else (sigma, sigma)
    if check_sigma(low) > check_sigma(high):
        raise ValueError(f"a range of sigma goes from the smaller to the larger, not {sigma}")
    rng = np.random.default_rng([seed, *key])
    side = low + (high - low) * rng.random(count)
    x0, y0 = rng.random((2, count)) * (1 - side)
    return np.stack([x0, y0, np.minimum(x0 + side, 1), np.minimum(y0 + side, 1)], axis=1)


def in_pixels(box: Sequence[float], width: int, height: int) -> tuple[int, int, int, int]:
    """The box in an image of this size: whole pixels, at least one of them."""
    x0, y0, x1, y1 = box
    left, top = min(round(x0 * width), width - 1), min(round(y0 * height), height - 1)
    return (left, top, max(round(x1 * width), left + 1), max(round(y1 * height), top + 1))


def overlaps(boxes: Boxes, rows: int, columns: int) -> NDArray[np.float32]:
    """How much of each box lies in each cell of a map: (…, rows * columns), summing to 1."""
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
