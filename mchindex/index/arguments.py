"""Types of the arguments that MCHIndex takes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import IO, Any, TypedDict

import numpy as np
from PIL import Image

from mchindex.images import Tensor
from mchindex.index.inputs import Metadata
from mchindex.storage.records import Id

EachMetadata = Metadata | Iterable[Metadata | None] | Callable[[Any], Metadata | None]
Filter = Mapping[str, Any]
# For the type checker. Where the shape of an array is not known, an array of pixels counts as one
# image, and an array of codes as several codes.
OneImage = (
    str | os.PathLike[str] | bytes | bytearray | memoryview | IO[bytes] | Image.Image | Tensor
    | np.ndarray[tuple[int, int, int], np.dtype[Any]] | np.ndarray[tuple[int, int], np.dtype[Any]]
)  # fmt: skip
OneCode = np.ndarray[tuple[int], np.dtype[Any]]
ManyCodes = np.ndarray[tuple[int, int], np.dtype[Any]]


class Limits(TypedDict, total=False):
    """Options that every kind of search takes."""

    offset: int  # hits to skip: `offset=10` with `k=10` is the second page
    max_radius: int | None  # the largest Hamming distance
    max_buckets: int | None  # the largest number of buckets to visit
    filter: Filter | None  # conditions on the metadata
    allowed: Iterable[Id] | None  # only these ids
    threads: int  # 0: all cores
