"""Pictures without labels: every image file in a folder and its subfolders."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from mchindex.datasets.base import Dataset, FileSource
from mchindex.errors import DatasetError
from mchindex.images import PathLike
from mchindex.index.inputs import given

UNLABELLED = "unlabelled"  # a data set needs a class; no picture belongs to this one


def read_photos(root: PathLike) -> Dataset:
    """Reads the folder; every picture is in the training and database splits, none is a query."""
    root = Path(root)
    items, _ = given(str(root))
    found = list(items)
    names = [os.path.relpath(item.path, root) for item in found if item.path and not item.error]
    if not names:
        raise DatasetError(f"{root} holds no image files")
    every = np.arange(len(names))
    unread = len(found) - len(names)
    return Dataset(
        name=root.resolve().name,
        classes=(UNLABELLED,),
        labels=np.zeros((len(names), 1), np.bool_),
        images=FileSource(root, names),
        splits={"query": np.empty(0, np.int64), "train": every, "database": every},
        skipped={"cannot be opened": unread} if unread else {},
    )
