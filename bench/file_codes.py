"""Codes of real images in a file, as `codes.py` writes it and `search.py --data codes:FILE` reads.

The file is an .npz with `codes` (n, bytes) uint8, `images` (n,), the image of each code in
ascending order, `queries` (q, bytes) uint8 and, if known, `regions` (n,), the region of each code.
An image may have several codes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

PREFIX = "codes:"


@dataclass(frozen=True)
class ImageCodes:
    codes: NDArray[np.uint8]  # (n, bits // 8)
    images: NDArray[np.int64]  # (n,) ascending
    queries: NDArray[np.uint8]  # (q, bits // 8)
    regions: NDArray[np.int16] | None = None  # (n,)

    def __post_init__(self) -> None:
        """Raises ValueError for arrays that do not fit each other."""
        codes, queries = self.codes, self.queries
        for name, array in (("codes", codes), ("queries", queries)):
            if array.dtype != np.uint8 or array.ndim != 2 or not len(array):
                raise ValueError(f"{name} are uint8 of shape (n, bytes), not {_kind(array)}")
        if queries.shape[1] != codes.shape[1]:
            raise ValueError(
                f"queries have {queries.shape[1]} bytes, but codes have {codes.shape[1]}"
            )
        for name, one in (("images", self.images), ("regions", self.regions)):
            if one is not None and (one.shape != codes.shape[:1] or one.dtype.kind not in "iu"):
                raise ValueError(f"{name} are one integer per code, not {_kind(one)}")
        if (np.diff(self.images) < 0).any():
            raise ValueError("images are to be in ascending order")

    @property
    def bits(self) -> int:
        return int(self.codes.shape[1]) * 8

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """The number of codes of each image."""
        return np.unique(self.images, return_counts=True)[1]


def _kind(array: NDArray[np.generic]) -> str:
    return f"{array.dtype} of shape {array.shape}"


def read_codes(path: Path) -> ImageCodes:
    """ValueError if this is no file of codes. Images get the numbers 0, 1, 2 … in their order."""
    with np.load(path, allow_pickle=False) as arrays:
        if missing := {"codes", "images", "queries"} - set(arrays):
            raise ValueError(f"{path} has no {', '.join(sorted(missing))}: write it by codes.py")
        found = {name: arrays[name] for name in arrays.files}
    try:
        read = ImageCodes(found["codes"], found["images"], found["queries"], found.get("regions"))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    images = np.repeat(np.arange(len(read.sizes), dtype=np.int64), read.sizes)
    return ImageCodes(read.codes, images, read.queries, read.regions)


def write_codes(path: Path, content: ImageCodes) -> Path:
    """Writes a file as a whole, and its folder if needed."""
    from mchindex.files import replacing  # here: the peers' processes do without our package

    path.parent.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, NDArray[Any]] = {
        "codes": content.codes,
        "images": content.images,
        "queries": content.queries,
    }
    if content.regions is not None:
        arrays["regions"] = content.regions
    with replacing(path) as stream:
        np.savez(stream, allow_pickle=False, **arrays)
    return path
