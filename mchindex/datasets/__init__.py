"""Labelled pictures for training and measuring, from disk or drawn."""

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
from mchindex.datasets.scenes import scenes as draw_scenes  # `scenes` stays the module
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
    options: dict[str, Callable[[str], Any]]  # by name, with how it is read from a spec
    draws: bool = True  # takes a seed
    place: Callable[[str], Any] = str  # what stands behind the colon


_DRAWN: dict[str, Callable[[str], Any]] = {"queries": int, "train": int}
_KINDS = {
    "folder": _Kind(read_folder, f"DIR with images/ and {TABLE}; DIR alone is the same", {}),
    "coco": _Kind(read_coco, "DIR with train2014/, val2014/, annotations/ (or 2017)", _DRAWN),
    "nuswide": _Kind(
        read_nuswide,
        "DIR with ImageList/, Groundtruth/, ConceptsList/ and images",
        {**_DRAWN, "concepts": int},
    ),
    "mirflickr": _Kind(
        read_mirflickr,
        "DIR with mirflickr/ and mirflickr25k_annotations_v080/",
        {**_DRAWN, "classes": _names},
    ),
    "lists": _Kind(
        read_lists, "DIR with database.txt, test.txt, train.txt", {"strip": str}, draws=False
    ),
    "photos": _Kind(
        read_photos,
        "DIR with pictures that have no labels (mch train --unsupervised)",
        {},
        draws=False,
    ),
    "scenes": _Kind(
        draw_scenes, "N, for so many drawn pictures", {**_DRAWN, "size": int}, place=int
    ),
}


def open_dataset(spec: PathLike, *, seed: int = 0, **options: Any) -> Dataset:
    """Opens a data set by a text such as `DIR`, `coco:DIR` or `coco:DIR?queries=100&train=500`.

    A DIR alone is a folder with `images/` and `labels.csv`. What a kind takes as options stands in
    its reader's signature; they can be given in the text or as keywords, which win. `seed` is for
    splits that are drawn (and for the pictures of `scenes:N`); given splits do not need it.
    """
    text = os.fspath(spec)
    kind_name, colon, rest = text.partition(":")
    if not colon or kind_name not in _KINDS:
        if not os.path.isfile(os.path.join(text, TABLE)):
            raise DatasetError(_no_such(text))
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
        raise DatasetError(f"{text!r}: a whole number is needed: {error}") from None
    if kind.place is str and not os.path.isdir(place):
        raise DatasetError(f"{text!r}: there is no folder {place!r}")
    drawn = {"seed": seed} if kind.draws else {}
    return kind.read(where, **drawn, **{**parsed, **options})


def _no_such(spec: str) -> str:
    lacks = f"is a folder without {TABLE}" if os.path.isdir(spec) else "is not a folder that exists"
    kinds = "\n".join(
        f"  {name}:{kind.about}" + (f" (options {', '.join(kind.options)})" if kind.options else "")
        for name, kind in _KINDS.items()
    )
    return f"{spec!r} {lacks}, and begins with none of these:\n{kinds}"
