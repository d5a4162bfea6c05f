"""Types of the arguments that MCHIndex takes, and their checks."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterable, Mapping
from typing import IO, Any, Literal, TypedDict

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
    exclude: Iterable[Id] | None  # not these ids
    threads: int  # 0: all cores
    rank: Rank | None  # how hits are ordered; None: "best" if the index has fine codes


Rank = Literal["best", "code", "fine"]
RANKS: tuple[Rank, ...] = ("best", "code", "fine")
MOST = 2**63 - 1  # the largest number that the engine takes


def check_options(given: Iterable[str], method: str) -> None:
    """Raises TypeError for an option that no search has."""
    known = Limits.__annotations__
    for name in given:
        if name not in known:
            raise TypeError(f"{method} has no option {name!r}: there are {', '.join(known)}")


def whole(name: str, value: Any, least: int) -> int:
    """An argument that must be an integer of at least `least`."""
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, not {type(value).__name__}") from None
    if number < least:
        raise ValueError(f"{name} must be at least {least}, not {number}")
    if number > MOST:
        raise ValueError(f"{name} must be at most {MOST}, not {number}")
    return number


def whole_or_none(name: str, value: Any, least: int) -> int | None:
    return None if value is None else whole(name, value, least)


def rank_or_none(value: Any) -> Rank | None:
    """An argument that must be one of RANKS, or None."""
    if value is not None and value not in RANKS:
        raise ValueError(f"rank must be one of {', '.join(RANKS)}, not {value!r}")
    rank: Rank | None = value
    return rank


def mapping(filter: Any) -> Filter:
    """A filter that must be a mapping."""
    if not isinstance(filter, Mapping):
        raise TypeError(
            "a filter must be a mapping of keys to values, such as {'album': '2024'}, not "
            f"{type(filter).__name__}"
        )
    return filter
