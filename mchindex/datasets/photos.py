"""Pictures without labels: every image file in a folder and its subfolders."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from mchindex.datasets.base import Dataset, FileSource
from mchindex.errors import DatasetError
from mchindex.folders import is_image_name, walk
from mchindex.images import PathLike

UNLABELLED = "unlabelled"  # a data set needs a class; no picture belongs to this one


def read_photos(root: PathLike) -> Dataset:
    """Reads the folder; every picture is in the training and database splits, none is a query."""
    root = Path(root)
    unreadable: list[OSError] = []
    files = [path for path in walk(str(root), unreadable) if is_image_name(path)]
    names = [os.path.relpath(path, root) for path in files]
    if not names:
        raise DatasetError(f"{root} holds no image files")
    every = np.arange(len(names))
    unread = len(unreadable)
    return Dataset(
        name=root.resolve().name,
        classes=(UNLABELLED,),
        labels=np.zeros((len(names), 1), np.bool_),
        images=FileSource(root, names),
        splits={"query": np.empty(0, np.int64), "train": every, "database": every},
        skipped={"cannot be opened": unread} if unread else {},
    )
