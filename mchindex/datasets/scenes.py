"""Synthetic pictures: one to four objects of twelve classes on a textured background.

They need no download, and they suit several codes per image: an object is about half as wide as the
picture and tends to be in a quadrant or in the centre, so the code of the whole image mixes several
objects while the code of a crop represents one. Classes differ in shape only; colour, position,
size and rotation are random.

A picture depends only on the seed, its number and its size, so it can be drawn again at any time.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from mchindex.datasets.base import Dataset
from mchindex.datasets.splits import random_split
from mchindex.errors import DatasetError

VERSION = 1  # raise it whenever the pictures change: keys and caches depend on it

Points = NDArray[np.float64]  # (n, 2), x and y
Box = tuple[int, int, int, int]  # x0, y0, x1, y1 in pixels, the last two exclusive


def _arc(radius: float, start: float, end: float, x: float = 0.0, n: int = 28) -> Points:
    """Points on a circle around (x, 0); angles are in turns."""
    angle = 2 * np.pi * np.linspace(start, end, n)
    return np.stack([x + radius * np.cos(angle), radius * np.sin(angle)], 1)


def _rectangle(x0: float, y0: float, x1: float, y1: float) -> Points:
    return np.array([(x0, y0), (x1, y0), (x1, y1), (x0, y1)])


def _star() -> Points:
    return _arc(1, 0, 1, n=11)[:10] * np.where(np.arange(10) % 2, 0.42, 1.0)[:, None]


def _cross() -> Points:
    a = 0.3
    quarter = np.array([(a, a), (a, 1), (-a, 1)])
    turn = np.array([(0, 1), (-1, 0)])  # a quarter turn
    return np.concatenate([quarter @ np.linalg.matrix_power(turn, k) for k in range(4)])


def _crescent() -> Points:
    # A unit disc minus a disc of radius 0.8 at x = 0.5; the circles meet at x = 0.61.
    outer, inner = np.arccos(0.61) / (2 * np.pi), np.arccos(0.11 / 0.8) / (2 * np.pi)
    return np.concatenate([_arc(1, outer, 1 - outer), _arc(0.8, 1 - inner, inner, x=0.5)])


def _spiral() -> Points:
    t = np.linspace(0, 1, 48)[:, None]
    middle = _arc(1, 0, 2.1, n=48)
    return np.concatenate([middle * (0.9 * t + 0.1), (middle * (0.9 * t - 0.13).clip(0))[::-1]])


def _heart() -> Points:
    t = np.linspace(0, 2 * np.pi, 40)
    y = 13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t)
    return np.stack([16 * np.sin(t) ** 3, -y - 2.5], 1) / 16


def _patch(columns: int, rows: int) -> list[Points]:
    """Every second field of a square divided into columns and rows."""
    x, y = (np.linspace(-0.85, 0.85, n + 1) for n in (columns, rows))
    fields = [(i, j) for j in range(rows) for i in range(columns) if (i + j) % 2 == 0]
    return [_rectangle(x[i], y[j], x[i + 1], y[j + 1]) for i, j in fields]


_INK, _HOLE = 255, 0
# Polygons roughly inside the unit circle, drawn one on top of the other.
_SHAPES: dict[str, list[tuple[Points, int]]] = {
    "disc": [(_arc(0.9, 0, 1), _INK)],
    "ring": [(_arc(1, 0, 1), _INK), (_arc(0.6, 0, 1), _HOLE)],
    "frame": [
        (_rectangle(-0.85, -0.85, 0.85, 0.85), _INK),
        (_rectangle(-0.5, -0.5, 0.5, 0.5), _HOLE),
    ],
    "triangle": [(_arc(1.1, 0, 1, n=4), _INK)],
    "star": [(_star(), _INK)],
    "cross": [(_cross(), _INK)],
    "crescent": [(_crescent(), _INK)],
    "stripes": [(bar, _INK) for bar in _patch(7, 1)],
    "checker": [(cell, _INK) for cell in _patch(4, 4)],
    "spiral": [(_spiral(), _INK)],
    "heart": [(_heart(), _INK)],
    "arrow": [
        (_rectangle(-1, -0.25, 0.2, 0.25), _INK),
        (np.array([(0.0, -0.8), (1.0, 0.0), (0.0, 0.8)]), _INK),
    ],
}
CLASSES = tuple(_SHAPES)

# Shares of pictures with one, two and three objects; the others have four.
_HOW_MANY = np.cumsum([0.12, 0.40, 0.33])
_PLACES = np.array([(0.27, 0.27), (0.73, 0.27), (0.27, 0.73), (0.73, 0.73), (0.5, 0.5)])


class _Thing(NamedTuple):
    kind: int  # class
    outlines: list[Points]  # the polygons of its shape, in 0…1


class SceneSource:
    """The pictures of `scenes`: an ImageSource that also knows where the objects are."""

    def __init__(self, n: int, seed: int = 0, size: int = 64) -> None:
        if n < 1 or seed < 0 or size < 16:
            raise DatasetError(
                f"scenes need n ≥ 1, seed ≥ 0 and size ≥ 16 pixels, not n={n}, seed={seed}, "
                f"size={size}"
            )
        self._n = n
        self._seed = seed
        self._size = size
        self._y, self._x = np.mgrid[0:size, 0:size].astype(np.float32) / size

    def __len__(self) -> int:
        return self._n

    def name(self, i: int) -> str:
        return f"scene-{self._seed}-{self._number(i):06d}"

    def key(self, i: int) -> bytes:
        what = f"mchindex scene {VERSION} {self._seed} {self._number(i)} {self._size}"
        return hashlib.sha256(what.encode()).digest()

    def classes(self, i: int) -> list[int]:
        """The classes of the objects, which are all different."""
        kinds: list[int] = _kinds(self._rng(i)).tolist()
        return kinds

    def boxes(self, i: int) -> list[tuple[int, Box]]:
        """(class, box) of each object in drawing order, clipped to the picture.

        Boxes include parts that later objects cover.
        """
        boxes = []
        for thing in _things(self._rng(i)):
            points = np.concatenate(thing.outlines) * self._size
            x0, y0 = np.floor(points.min(0)).clip(0, self._size).astype(int).tolist()
            x1, y1 = np.ceil(points.max(0)).clip(0, self._size).astype(int).tolist()
            boxes.append((thing.kind, (x0, y0, x1, y1)))
        return boxes

    def image(self, i: int) -> Image.Image:
        rng = self._rng(i)
        things = _things(rng)
        pixels = self._ground(rng)
        ground = pixels.mean((0, 1))
        for thing in things:
            # Draw at twice the size and reduce, for smooth edges.
            mask = Image.new("L", (2 * self._size, 2 * self._size))
            pen = ImageDraw.Draw(mask)
            shape = _SHAPES[CLASSES[thing.kind]]
            for outline, (_, ink) in zip(thing.outlines, shape, strict=True):
                pen.polygon((outline * (2 * self._size)).ravel().tolist(), fill=ink)
            alpha = np.asarray(mask.reduce(2), np.float32)[..., None] / 255
            pixels += alpha * (_colour_unlike(ground, rng) - pixels)
        pixels += rng.random(pixels.shape, np.float32) * 16 - 8
        return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))

    def _number(self, i: int) -> int:
        if not 0 <= i < self._n:
            raise IndexError(f"scene {i} does not exist: there are scenes 0 to {self._n - 1}")
        return int(i)

    def _rng(self, i: int) -> np.random.Generator:
        return np.random.default_rng((VERSION, self._seed, self._number(i)))

    def _ground(self, rng: np.random.Generator) -> NDArray[np.float32]:
        """A background of two colours, mixed by a gradient, waves and clouds in random shares."""
        share = rng.random(3) + 0.1
        share /= share.sum()
        angle, wave_angle, frequency, phase = rng.random(4) * (2 * np.pi, 2 * np.pi, 25, 2 * np.pi)
        along = np.cos(angle) * (self._x - 0.5) + np.sin(angle) * (self._y - 0.5) + 0.5
        across = np.cos(wave_angle) * self._x + np.sin(wave_angle) * self._y
        waves = 0.5 + 0.5 * np.sin((10 + frequency) * across + phase)
        grid = Image.fromarray(rng.random((7, 7), np.float32))
        clouds = np.asarray(grid.resize((self._size, self._size), Image.Resampling.BICUBIC))
        mix = (share[0] * along + share[1] * waves + share[2] * clouds).astype(np.float32)
        low = (40 + 130 * rng.random(3)).astype(np.float32)
        high = low + (90 * rng.random(3) - 20).astype(np.float32)
        ground: NDArray[np.float32] = low + mix[..., None] * (high - low)
        return ground


def scenes(
    n: int,
    seed: int = 0,
    size: int = 64,
    *,
    queries: int | None = None,
    train: int | None = None,
) -> Dataset:
    """n synthetic pictures of size x size pixels, split at random.

    By default a tenth are queries, and 45 % of the others are training images.
    """
    images = SceneSource(n, seed, size)
    labels = np.zeros((n, len(CLASSES)), np.bool_)
    for i in range(n):
        labels[i, images.classes(i)] = True
    if queries is None:
        queries = max(1, n // 10)
    if train is None:
        train = int(0.45 * max(0, n - queries))
    return Dataset(
        name="scenes",
        classes=CLASSES,
        labels=labels,
        images=images,
        splits=random_split(n, queries, train, seed),
        skipped={},
        seed=seed,
    )


def _kinds(rng: np.random.Generator) -> NDArray[np.int64]:
    count = 1 + int(np.searchsorted(_HOW_MANY, rng.random(), side="right"))
    return rng.permutation(len(CLASSES))[:count]


def _things(rng: np.random.Generator) -> list[_Thing]:
    """The objects. Calls `_kinds` first, so a fresh generator gives the same classes to both."""
    kinds = _kinds(rng)
    places = _PLACES[rng.permutation(len(_PLACES))[: len(kinds)]]
    chance = rng.random((len(kinds), 4))
    centres = places + 0.1 * (chance[:, :2] - 0.5)
    radii = 0.15 + 0.1 * chance[:, 2]
    angles = 2 * np.pi * chance[:, 3]
    things = []
    for kind, centre, radius, angle in zip(kinds.tolist(), centres, radii, angles, strict=True):
        cos, sin = radius * np.cos(angle), radius * np.sin(angle)
        turn = np.array([(cos, sin), (-sin, cos)])
        things.append(_Thing(kind, [p @ turn + centre for p, _ in _SHAPES[CLASSES[kind]]]))
    return things


def _colour_unlike(ground: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.float32]:
    """A random colour that contrasts with the background."""
    colours = 255 * rng.random((16, 3), np.float32)
    distance = np.linalg.norm(colours - ground, axis=1)
    far: NDArray[np.float32] = colours[np.argmax(distance > min(120, distance.max() - 1))]
    return far
