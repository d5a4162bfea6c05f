"""Drawn landscapes, for pictures of the page: mountains, seas, forests, towns, dunes, balloons.

Each is drawn from its number alone, so the same number gives the same picture.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

Colour = tuple[int, int, int]
Rng = np.random.Generator

SKIES: list[list[Colour]] = [  # from the top to the horizon
    [(38, 84, 148), (116, 170, 214), (226, 236, 238)],
    [(44, 40, 92), (178, 92, 120), (252, 190, 128)],
    [(22, 30, 66), (52, 74, 130), (142, 140, 184)],
    [(76, 128, 170), (170, 204, 214), (250, 232, 200)],
    [(70, 52, 100), (224, 128, 104), (255, 224, 156)],
    [(10, 16, 40), (24, 40, 84), (62, 84, 132)],
]


def mixed(one: Colour, other: Colour, share: float) -> Colour:
    """A colour between two."""
    a, b = np.array(one), np.array(other)
    red, green, blue = (a + (b - a) * share).astype(int).tolist()
    return red, green, blue


def ridge(rng: Rng, width: int, rough: float, peaks: int) -> NDArray[np.float64]:
    """Heights from left to right, by halving the distance between known ones; about -1 to 1."""
    heights = rng.uniform(-1, 1, peaks)
    while len(heights) < width:
        middles = (heights[1:] + heights[:-1]) / 2
        step = len(heights)
        middles += rng.normal(0, rough / step**0.8, len(middles))
        heights = np.insert(heights, np.arange(1, len(heights)), middles)
    return np.asarray(heights[:width])


class Canvas:
    """A picture that is being drawn, in twice its size."""

    def __init__(self, rng: Rng, sky: list[Colour], width: int, height: int) -> None:
        self.rng, self.sky, self.width, self.height = rng, sky, 2 * width, 2 * height
        self.dark = sum(self.sky[1]) < 250
        stops = np.linspace(0, 1, len(self.sky))
        rows = np.linspace(0, 1.6, self.height).clip(0, 1)
        bands = np.stack(
            [np.interp(rows, stops, [colour[part] for colour in self.sky]) for part in range(3)], -1
        )
        pixels = np.repeat(bands[:, None], self.width, 1).astype(np.uint8)
        self.image = Image.fromarray(pixels)
        self.pen = ImageDraw.Draw(self.image)
        self.light()

    def light(self) -> None:
        """The sun, or the moon and stars."""
        rng, low = self.rng, self.height * 0.5
        if self.dark:
            for x, y in zip(rng.uniform(0, self.width, 60), rng.uniform(0, low, 60), strict=True):
                size = float(rng.uniform(0.5, 2.2))
                self.pen.ellipse((x - size, y - size, x + size, y + size), fill=(235, 238, 250))
        x, y = rng.uniform(0.15, 0.85) * self.width, rng.uniform(0.12, 0.42) * self.height
        size = rng.uniform(0.045, 0.085) * self.width
        colour = (240, 242, 250) if self.dark else mixed(self.sky[2], (255, 252, 236), 0.7)
        glow = Image.new("L", self.image.size)
        ImageDraw.Draw(glow).ellipse((x - 2 * size, y - 2 * size, x + 2 * size, y + 2 * size), 90)
        glow = glow.filter(ImageFilter.GaussianBlur(size))
        self.image.paste(Image.new("RGB", self.image.size, colour), (0, 0), glow)
        self.pen.ellipse((x - size, y - size, x + size, y + size), fill=colour)

    def land(
        self, base: float, tall: float, rough: float, colour: Colour, peaks: int = 3
    ) -> NDArray[np.float64]:
        """Fills what lies below a ridge; returns the ridge, in pixels from the top."""
        tops = (base - tall * ridge(self.rng, self.width, rough, peaks)) * self.height
        points = [*enumerate(tops.tolist()), (self.width, self.height), (0, self.height)]
        self.pen.polygon(points, fill=colour)
        return np.asarray(tops)

    def ridges(
        self, count: int, first: float, last: float, tall: float, near: Colour, peaks: int = 3
    ) -> None:
        """Ridges one before the other; those far away have the colour of the air."""
        for i, base in enumerate(np.linspace(first, last, count)):
            self.land(base, tall, 0.7, mixed(self.sky[2], near, (i + 1) / count), peaks)


def mountains(canvas: Canvas) -> None:
    near = [(30, 52, 74), (44, 62, 60), (52, 44, 82)][int(canvas.rng.integers(3))]
    canvas.ridges(5, 0.5, 0.95, 0.12, near, peaks=9)


def sea(canvas: Canvas) -> None:
    rng, width, height = canvas.rng, canvas.width, canvas.height
    level = rng.uniform(0.52, 0.62) * height
    canvas.land(level / height, 0.03, 0.4, mixed(canvas.sky[2], (40, 60, 80), 0.5))
    water = mixed(canvas.sky[0], (24, 92, 116), 0.55)
    canvas.pen.rectangle((0, level, width, height), fill=water)
    for _ in range(90):
        y = level + (height - level) * rng.uniform(0.01, 1) ** 1.4
        x, far = rng.uniform(0, width), (y - level) / (height - level)
        length = width * (0.02 + 0.1 * far)
        shine = mixed(water, canvas.sky[2], 0.35)
        canvas.pen.line((x, y, x + length, y), fill=shine, width=round(2 + 3 * far))
    for _ in range(int(rng.integers(1, 4))):
        boat(canvas, rng.uniform(0.12, 0.88) * width, level, rng.uniform(0.07, 0.17) * width)


def boat(canvas: Canvas, x: float, level: float, size: float) -> None:
    y = level + size * canvas.rng.uniform(0.3, 0.9)
    hull = [(150, 52, 44), (42, 54, 84), (238, 234, 224)][int(canvas.rng.integers(3))]
    canvas.pen.polygon(
        [(x - size / 2, y), (x + size / 2, y), (x + size / 3, y + size / 5),
         (x - size / 3, y + size / 5)], fill=hull,
    )  # fmt: skip
    sail = mixed((252, 248, 238), canvas.sky[1], 0.12)
    canvas.pen.polygon([(x, y - size / 20), (x, y - size), (x + size * 0.42, y - size / 20)], sail)
    jib = [(x - size / 14, y - size / 20), (x - size / 14, y - size * 0.8)]
    canvas.pen.polygon([*jib, (x - size * 0.36, y - size / 20)], mixed(sail, canvas.sky[1], 0.25))


def forest(canvas: Canvas) -> None:
    rng = canvas.rng
    canvas.ridges(2, 0.52, 0.58, 0.08, (70, 104, 112))
    near = [(20, 66, 54), (34, 58, 44), (28, 52, 66)][int(rng.integers(3))]
    for row, base in enumerate(np.linspace(0.64, 1.0, 4)):
        colour = mixed(canvas.sky[2], near, 0.45 + 0.18 * row)
        tops = canvas.land(base, 0.03, 0.3, colour)
        size = (0.09 + 0.045 * row) * canvas.height
        for x in np.arange(rng.uniform(0, size), canvas.width, size * 0.42):
            place = float(x + rng.normal(0, size / 10))
            pine(canvas, place, float(tops[int(x)]), float(size * rng.uniform(0.7, 1.2)), colour)


def pine(canvas: Canvas, x: float, y: float, size: float, colour: Colour) -> None:
    for layer in range(3):
        top, wide = y - size * (1 - 0.24 * layer), size * (0.14 + 0.07 * layer)
        foot = top + size * 0.5
        canvas.pen.polygon([(x, top), (x + wide, foot), (x - wide, foot)], colour)


def town(canvas: Canvas) -> None:
    rng = canvas.rng
    canvas.land(0.62, 0.05, 0.5, mixed(canvas.sky[2], (70, 80, 110), 0.4))
    near = [(34, 40, 62), (66, 46, 56), (38, 58, 72)][int(rng.integers(3))]
    for row in range(3):
        colour = mixed(canvas.sky[2], near, 0.4 + 0.3 * row)
        lit = mixed(colour, (255, 214, 130), 0.85 if canvas.dark else 0.4)
        x = -rng.uniform(0, 0.05) * canvas.width
        while x < canvas.width:
            wide = rng.uniform(0.06, 0.13) * canvas.width
            top = (rng.uniform(0.36, 0.66) + 0.1 * row) * canvas.height
            canvas.pen.rectangle((x, top, x + wide, canvas.height), fill=colour)
            side = wide / 9
            for left in np.arange(x + side, x + wide - 1.5 * side, 2 * side):
                for y in np.arange(top + side, canvas.height, 2.4 * side):
                    if rng.random() < 0.5:
                        canvas.pen.rectangle((left, y, left + side, y + 1.3 * side), fill=lit)
            x += wide * rng.uniform(1.0, 1.25)


def dunes(canvas: Canvas) -> None:
    sand = [(214, 150, 92), (224, 172, 118), (186, 116, 84)][int(canvas.rng.integers(3))]
    for i, base in enumerate(np.linspace(0.58, 0.95, 4)):
        canvas.land(base, 0.07, 0.16, mixed(canvas.sky[2], sand, 0.4 + 0.2 * i))
    for _ in range(int(canvas.rng.integers(1, 4))):
        x, y = canvas.rng.uniform(0.1, 0.9) * canvas.width, canvas.rng.uniform(0.8, 0.95)
        cactus(canvas, x, y * canvas.height, canvas.rng.uniform(0.2, 0.34) * canvas.height)


def cactus(canvas: Canvas, x: float, y: float, size: float) -> None:
    thick, colour = size / 7, mixed((44, 96, 66), canvas.sky[0], 0.2)

    def limb(left: float, top: float, right: float, foot: float) -> None:
        canvas.pen.rounded_rectangle((left, top, right, foot), thick / 2, colour)

    limb(x - thick / 2, y - size, x + thick / 2, y)
    for way, high in ((-1, 0.35), (1, 0.5)):
        end, arm = x + way * thick * 2, y - size * high
        limb(min(x, end), arm - thick * 0.8, max(x, end), arm)
        limb(end - thick * 0.4, arm - size * 0.3, end + thick * 0.4, arm)


def balloons(canvas: Canvas) -> None:
    rng = canvas.rng
    canvas.ridges(3, 0.74, 0.95, 0.06, (64, 104, 78))
    colours = [(206, 66, 60), (238, 176, 70), (54, 116, 150), (236, 228, 212), (110, 78, 140)]
    for _ in range(int(rng.integers(1, 5))):
        first, other = rng.permutation(len(colours))[:2]
        x, y = rng.uniform(0.12, 0.88) * canvas.width, rng.uniform(0.15, 0.55) * canvas.height
        size = rng.uniform(0.06, 0.15) * canvas.width
        balloon(canvas, x, y, size, colours[first], colours[other])


def balloon(canvas: Canvas, x: float, y: float, size: float, one: Colour, other: Colour) -> None:
    foot = y + size * 1.5
    canvas.pen.polygon([(x - size * 0.9, y + size * 0.4), (x + size * 0.9, y + size * 0.4),
                        (x + size * 0.2, foot), (x - size * 0.2, foot)], one)  # fmt: skip
    for stripe, share in enumerate((1.0, 0.72, 0.4, 0.12)):
        wide = size * share
        fill = other if stripe % 2 else one
        canvas.pen.ellipse((x - wide, y - size, x + wide, y + size), fill=fill)
    basket = (x - size * 0.16, foot + size * 0.15, x + size * 0.16, foot + size * 0.42)
    canvas.pen.rectangle(basket, fill=(92, 64, 46))


KINDS: list[Callable[[Canvas], None]] = [mountains, sea, forest, town, dunes, balloons]


def landscape(number: int, width: int, height: int) -> Image.Image:
    """The landscape of a number."""
    turn, kind = divmod(number, len(KINDS))
    sky = SKIES[(turn + kind) % len(SKIES)]
    canvas = Canvas(np.random.default_rng([7, number]), sky, width, height)
    KINDS[kind](canvas)
    return canvas.image.resize((width, height), Image.Resampling.LANCZOS)
