"""Data sets for training and evaluation: readers for common layouts, and synthetic pictures."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from mchindex.datasets.base import Dataset, FileSource, ImageSource
from mchindex.datasets.coco import read_coco
from mchindex.datasets.folder import TABLE, read_folder
from mchindex.datasets.lists import read_lists
from mchindex.datasets.mirflickr import read_mirflickr
from mchindex.datasets.nuswide import read_nuswide
from mchindex.datasets.photos import read_photos
from mchindex.datasets.scenes import SceneSource
from mchindex.datasets.scenes import scenes as make_scenes  # `scenes` remains the module
from mchindex.datasets.splits import load_split, save_split
from mchindex.errors import DatasetError
from mchindex.images import PathLike

__all__ = [
    "TABLE",
    "Dataset",
    "DatasetError",
    "FileSource",
    "ImageSource",
    "SceneSource",
    "load_split",
    "open_dataset",
    "read_coco",
    "read_folder",
    "read_lists",
    "read_mirflickr",
    "read_nuswide",
    "read_photos",
    "save_split",
]


def _names(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(",")))


class _Kind(NamedTuple):
    read: Callable[..., Dataset]
    about: str
    options: dict[str, Callable[[str], Any]]  # name -> parser of its text
    takes_seed: bool = True
    place: Callable[[str], Any] = str  # parser of the text after the colon


_SIZES: dict[str, Callable[[str], Any]] = {"queries": int, "train": int}
_KINDS = {
    "folder": _Kind(read_folder, f"DIR with images/ and {TABLE}; the prefix is optional", {}),
    "coco": _Kind(read_coco, "DIR with train2014/, val2014/, annotations/ (or 2017)", _SIZES),
    "nuswide": _Kind(
        read_nuswide,
        "DIR with ImageList/, Groundtruth/, ConceptsList/ and images",
        {**_SIZES, "concepts": int},
    ),
    "mirflickr": _Kind(
        read_mirflickr,
        "DIR with mirflickr/ and mirflickr25k_annotations_v080/",
        {**_SIZES, "classes": _names},
    ),
    "lists": _Kind(
        read_lists, "DIR with database.txt, test.txt, train.txt", {"strip": str}, takes_seed=False
    ),
    "photos": _Kind(read_photos, "DIR with pictures, without labels", {}, takes_seed=False),
    "scenes": _Kind(make_scenes, "N synthetic pictures", {**_SIZES, "size": int}, place=int),
}


def open_dataset(spec: PathLike, *, seed: int = 0, **options: Any) -> Dataset:
    """Opens the data set that a spec names: `DIR`, `coco:DIR`, `coco:DIR?queries=100&train=500`.

    A plain `DIR` must hold `images/` and `labels.csv`. Each kind takes the options of its reader
    (`read_coco` and so on), in the spec or as keywords; keywords take precedence. `seed` determines
    random splits and the pictures of `scenes:N`; data sets with fixed splits ignore it.

    Raises DatasetError if the spec, an option or the data cannot be used.
    """
    text = os.fspath(spec)
    kind_name, colon, rest = text.partition(":")
    if not colon or kind_name not in _KINDS:
        if not os.path.isfile(os.path.join(text, TABLE)):
            raise DatasetError(_unknown(text))
        kind_name, rest = "folder", text
    kind = _KINDS[kind_name]
    place, mark, query = rest.rpartition("?")
    if not mark or "=" not in query or not kind.options:
        place, query = rest, ""
    given = dict(parse_qsl(query, keep_blank_values=True))
    unknown = sorted((given.keys() | options.keys()) - kind.options.keys())
    if unknown:
        known = ", ".join(kind.options) or "none"
        raise DatasetError(f"{kind_name} has no option {', '.join(unknown)}; its options: {known}")
    try:
        parsed = {name: kind.options[name](value) for name, value in given.items()}
        where = kind.place(place)
    except ValueError as error:
        raise DatasetError(f"{text!r}: expected a whole number: {error}") from None
    if kind.place is str and not os.path.isdir(place):
        raise DatasetError(f"{text!r}: {place!r} is not a folder")
    seeded = {"seed": seed} if kind.takes_seed else {}
    return kind.read(where, **seeded, **{**parsed, **options})


def _unknown(spec: str) -> str:
    problem = f"is a folder without {TABLE}" if os.path.isdir(spec) else "is not a folder"
    kinds = "\n".join(
        f"  {name}:{kind.about}" + (f" (options {', '.join(kind.options)})" if kind.options else "")
        for name, kind in _KINDS.items()
    )
    return f"{spec!r} {problem}, and is none of these:\n{kinds}"
