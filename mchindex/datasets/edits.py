"""Edits of pictures: what people do to a picture before they look for the original."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from functools import partial

from PIL import Image, ImageEnhance, ImageOps

from mchindex.datasets.base import ImageSource


def jpeg(image: Image.Image, quality: int) -> bytes:
    """The bytes of an image as a JPEG file."""
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality)
    return file.getvalue()


def _saved_again(image: Image.Image) -> Image.Image:
    return Image.open(io.BytesIO(jpeg(image, 30))).convert("RGB")


def _half(image: Image.Image) -> Image.Image:
    width, height = (max(1, side // 2) for side in image.size)
    return image.resize((width, height), Image.Resampling.LANCZOS)


def _crop(image: Image.Image, area: float) -> Image.Image:
    """The middle of an image: this share of its area."""
    width, height = image.size
    x, y = (int(side * (1 - area**0.5) / 2) for side in image.size)
    return image.crop((x, y, width - x, height - y))


def _quadrant(image: Image.Image) -> Image.Image:
    return image.crop((0, 0, max(1, image.width // 2), max(1, image.height // 2)))


EDITS: dict[str, Callable[[Image.Image], Image.Image]] = {
    "JPEG q30": _saved_again,
    "half size": _half,
    "crop 90 %": partial(_crop, area=0.9),
    "crop 70 %": partial(_crop, area=0.7),
    "brighter": lambda image: ImageEnhance.Brightness(image).enhance(1.3),
    "flipped": ImageOps.mirror,
    "grey": lambda image: ImageOps.grayscale(image).convert("RGB"),
    "top-left quadrant": _quadrant,
}


class Edited:
    """The images of another source, edited."""

    def __init__(self, images: ImageSource, edit: str) -> None:
        self._images, self._edit = images, edit

    def __len__(self) -> int:
        return len(self._images)

    def image(self, i: int) -> Image.Image:
        return EDITS[self._edit](self._images.image(i))

    def key(self, i: int) -> bytes:
        return hashlib.sha256(self._edit.encode() + self._images.key(i)).digest()

    def name(self, i: int) -> str:
        return f"{self._images.name(i)}, {self._edit}"
