"""Who is query, training and database: drawn from a seed, saved as a manifest, read back exactly.

The manifest is what to keep: NumPy does not promise the same draw from the same seed for ever.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np

from mchindex.datasets.base import SPLITS, Dataset, Labels, Rows
from mchindex.errors import DatasetError
from mchindex.images import PathLike

_FORMAT = "mchindex split"
_VERSION = 1


def draw(n: int, queries: int, train: int, seed: int) -> dict[str, Rows]:
    """Splits n images: so many queries, the rest database, so many of the database training."""
    if queries < 1 or train < 0 or queries + max(train, 1) > n:
        raise DatasetError(
            f"cannot draw {queries} queries and {train} training images from {n} usable images: "
            f"queries (at least 1) and train must be at most {n} together, "
            "and leave one for the database"
        )
    order = np.random.default_rng(seed).permutation(n)
    return {
        "query": np.sort(order[:queries]),
        "train": np.sort(order[queries : queries + train]),
        "database": np.sort(order[queries:]),
    }


def draw_per_class(
    labels: Labels, classes: Sequence[str], queries: int, train: int, seed: int
) -> dict[str, Rows]:
    """Splits images with so many queries and training images a class, the rest database.

    An image of several classes counts for the one that it is drawn for: all queries are drawn
    before the training images, and the rarest class first, as it has the least to choose from. A
    class without images is passed over.
    """
    if queries < 1 or train < 0:
        raise DatasetError(f"queries={queries}, train={train}: at least 1 and 0 a class are needed")
    rng = np.random.default_rng(seed)
    sizes = labels.sum(0)
    free = np.ones(len(labels), np.bool_)
    drawn: dict[str, Rows] = {}
    for split, count in (("query", queries), ("train", train)):
        before = free.copy()
        for c in np.argsort(sizes, kind="stable").tolist():
            left = np.flatnonzero(labels[:, c] & free)
            if sizes[c] and len(left) < count:
                raise DatasetError(
                    f"class {classes[c]!r} has {sizes[c]} usable images, of which {len(left)} are "
                    f"not drawn yet, too few for {count} in the {split} split: "
                    f"set {'queries' if split == 'query' else 'train'}= lower"
                )
            free[rng.permutation(left)[:count]] = False
        drawn[split] = np.flatnonzero(before & ~free)
    in_database = np.ones(len(labels), np.bool_)
    in_database[drawn["query"]] = False
    return {**drawn, "database": np.flatnonzero(in_database)}


def save_split(dataset: Dataset, path: PathLike) -> None:
    """Writes a JSON manifest of the splits by image name; a file of that name is replaced at once.

    A reader never sees half a manifest, and a failed write leaves the old one.
    """
    _rows_by_name(dataset)
    manifest = {
        "format": _FORMAT,
        "version": _VERSION,
        "name": dataset.name,
        "seed": dataset.seed,
        "classes": list(dataset.classes),
        "splits": {
            split: [dataset.images.name(i) for i in dataset.splits[split].tolist()]
            for split in SPLITS
        },
    }
    path = Path(path)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with part.open("w", encoding="utf-8") as file:
            json.dump(manifest, file, indent=0)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def load_split(dataset: Dataset, path: PathLike) -> Dataset:
    """The data set with the splits of a manifest.

    Every image that the manifest names must be there; images that it does not name are in no split.
    """
    try:
        manifest = json.loads(Path(path).read_text("utf-8"))
        if manifest["format"] != _FORMAT:
            raise KeyError("format")
        version, seed = manifest["version"], manifest["seed"]
        classes = tuple(map(str, manifest["classes"]))
        names = {split: list(map(str, manifest["splits"][split])) for split in SPLITS}
    except FileNotFoundError:
        raise DatasetError(f"{path} is missing") from None
    except (ValueError, KeyError, TypeError) as error:
        raise DatasetError(f"{path} is not a manifest of splits: {error!r}") from error
    if version != _VERSION:
        raise DatasetError(f"{path} is of version {version}; this program reads {_VERSION}")
    if classes != dataset.classes:
        raise DatasetError(
            f"{path} was saved for other classes: {', '.join(classes)}; "
            f"{dataset.name} has {', '.join(dataset.classes)}"
        )
    rows = _rows_by_name(dataset)
    unknown = [name for name in dict.fromkeys(chain(*names.values())) if name not in rows]
    if unknown:
        raise DatasetError(
            f"{path}: {len(unknown)} of its names are not in {dataset.name}, such as {unknown[0]!r}"
        )
    splits = {
        split: np.array(sorted(rows[name] for name in names[split]), np.int64) for split in SPLITS
    }
    return replace(dataset, splits=splits, seed=seed)


def _rows_by_name(dataset: Dataset) -> dict[str, int]:
    names = [dataset.images.name(i) for i in range(len(dataset))]
    rows = {name: i for i, name in enumerate(names)}
    if len(rows) != len(names):
        twice = next(name for i, name in enumerate(names) if rows[name] != i)
        raise DatasetError(f"{dataset.name}: two images have the name {twice!r}")
    return rows
