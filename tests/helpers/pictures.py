"""Small pictures and text files for tests."""

import io
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from PIL import Image


def picture(seed: int, width: int = 8, height: int = 6) -> Image.Image:
    """Random noise."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(pixels)


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    """The bytes of a file in the given format, such as "JPEG"."""
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def write_pictures(root: Path, names: Iterable[str]) -> None:
    """Writes a different JPEG under each name, creating folders as needed."""
    for seed, name in enumerate(names):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(picture(seed), "JPEG"))


def write(path: Path, text: str, encoding: str = "utf-8") -> Path:
    """Writes a text file, creating folders as needed; line ends stay as given."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode(encoding))
    return path
