"""Checks of the arguments of `evaluate` and `at_radius`; each raises ValueError."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mchindex.evaluation.curves import MOST_BUCKETS

MOST_BYTES = 32


def check_codes(codes: Any, name: str) -> NDArray[np.uint8]:
    if not isinstance(codes, np.ndarray) or codes.dtype != np.uint8:
        given = codes.dtype if isinstance(codes, np.ndarray) else type(codes).__name__
        raise ValueError(f"{name} must be a uint8 array, not {given}: pack bits with np.packbits")
    if codes.ndim != 2 or not 1 <= codes.shape[1] <= MOST_BYTES:
        raise ValueError(
            f"{name} must have the shape (rows, 1 to {MOST_BYTES} bytes), not {codes.shape}"
        )
    return codes


def check_labels(labels: Any, rows: int | None, name: str) -> NDArray[np.bool_]:
    if not isinstance(labels, np.ndarray) or labels.dtype != np.bool_:
        given = labels.dtype if isinstance(labels, np.ndarray) else type(labels).__name__
        raise ValueError(f"{name} must be a bool array, not {given}: give labels != 0")
    if labels.ndim != 2 or labels.shape[1] == 0:
        raise ValueError(f"{name} must have the shape (rows, classes), not {labels.shape}")
    if rows is not None and len(labels) != rows:
        raise ValueError(
            f"{name} must have a row for each of the {rows} queries, not {len(labels)}"
        )
    return labels


def check_images(images: Any, codes: int, n: int) -> NDArray[np.int64]:
    if not isinstance(images, np.ndarray) or images.dtype.kind not in "iu":
        given = images.dtype if isinstance(images, np.ndarray) else type(images).__name__
        raise ValueError(f"images must be an integer array, not {given}")
    if images.shape != (codes,):
        raise ValueError(
            f"images must have the shape ({codes},), one image number per code, not {images.shape}"
        )
    outside = (images < 0) | (images >= n)
    if outside.any():
        raise ValueError(
            f"image {images[outside][0]} is not one of the {n} images with labels: number the "
            f"images 0 to {n - 1}, in the order of the rows of labels"
        )
    numbers: NDArray[np.int64] = images.astype(np.int64)
    counts = np.bincount(numbers, minlength=n)
    if not counts.all():
        raise ValueError(
            f"{np.count_nonzero(counts == 0)} of {n} images have no code, the first is image "
            f"{np.argmin(counts)}: give each image at least one code, or remove its row from labels"
        )
    return numbers


def check_kept(kept: Any, n: int) -> None:
    if not isinstance(kept, np.ndarray) or kept.dtype.kind not in "iu" or kept.shape != (n,):
        given = f"{kept.dtype} {kept.shape}" if isinstance(kept, np.ndarray) else type(kept)
        raise ValueError(f"kept must hold an integer for each of the {n} images, not {given}")
    if n and kept.min() < 1:
        raise ValueError(
            f"kept is {kept.min()} for image {np.argmin(kept)}: it must be at least 1, because an "
            "image always keeps the code of the whole image"
        )


def whole(value: int, name: str, least: int, most: int = MOST_BUCKETS) -> int:
    """A whole number from `least` to `most`, both inclusive."""
    try:
        number = index(value)
    except TypeError:
        raise ValueError(f"{name}: expected a whole number, not {value!r}") from None
    if not least <= number <= most:
        raise ValueError(f"{name}: expected {least} to {most}, not {number}")
    return number


def wholes(values: Sequence[int], name: str, least: int) -> list[int]:
    """The distinct numbers in ascending order."""
    return sorted({whole(value, name, least) for value in values})


def class_names(classes: Sequence[str] | None, n: int) -> list[str]:
    """The names of n classes; by default their numbers."""
    names = [str(i) for i in range(n)] if classes is None else list(classes)
    if len(names) != n or len(set(names)) != n:
        raise ValueError(
            f"classes must be {n} different names, one per column of labels; got {len(names)}, of "
            f"which {len(set(names))} are different"
        )
    return names
