"""Query, training and database splits: chosen at random from a seed, saved to a file, read back.

Keep the file if you need the same split later: NumPy does not guarantee that future versions choose
the same images for a seed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np

from mchindex import json_text
from mchindex.datasets.base import SPLITS, Dataset, FileSource, Labels, Rows, usable
from mchindex.errors import DatasetError
from mchindex.files import read_file, write_file
from mchindex.images import PathLike

_FORMAT = "mchindex split"
_VERSION = 1


def random_split(n: int, queries: int, train: int, seed: int) -> dict[str, Rows]:
    """Splits n images into `queries` queries and a database, `train` of which are for training."""
    if queries < 1 or train < 0 or queries + max(train, 1) > n:
        raise DatasetError(
            f"cannot choose {queries} queries and {train} training images from {n} usable images: "
            f"together they may be at most {n}, with at least 1 query and 1 database image"
        )
    order = np.random.default_rng(seed).permutation(n)
    return {
        "query": np.sort(order[:queries]),
        "train": np.sort(order[queries : queries + train]),
        "database": np.sort(order[queries:]),
    }


def random_split_per_class(
    labels: Labels, classes: Sequence[str], queries: int, train: int, seed: int
) -> dict[str, Rows]:
    """Splits images with `queries` queries and `train` training images per class.

    Everything but the queries is the database. Queries are chosen before training images, and the
    rarest class chooses first because it has the fewest candidates. An image with several classes
    counts only for the class that chose it. Classes without images are skipped.
    """
    if queries < 1 or train < 0:
        raise DatasetError(
            f"queries={queries}, train={train}: expected at least 1 query and 0 training images "
            "per class"
        )
    rng = np.random.default_rng(seed)
    sizes = labels.sum(0)
    free = np.ones(len(labels), np.bool_)
    chosen: dict[str, Rows] = {}
    for split, count in (("query", queries), ("train", train)):
        before = free.copy()
        for c in np.argsort(sizes, kind="stable").tolist():
            left = np.flatnonzero(labels[:, c] & free)
            if sizes[c] and len(left) < count:
                raise DatasetError(
                    f"class {classes[c]!r} has {sizes[c]} usable images, of which {len(left)} are "
                    f"still free, too few for {count} in the {split} split: "
                    f"lower {'queries' if split == 'query' else 'train'}="
                )
            free[rng.permutation(left)[:count]] = False
        chosen[split] = np.flatnonzero(before & ~free)
    in_database = np.ones(len(labels), np.bool_)
    in_database[chosen["query"]] = False
    return {**chosen, "database": np.flatnonzero(in_database)}


def randomly_split_files(
    name: str,
    classes: tuple[str, ...],
    root: Path,
    files: Sequence[str],
    labels: Labels,
    *,
    queries: int,
    train: int,
    seed: int,
) -> Dataset:
    """A data set of the files that exist under the root and have a label, split at random."""
    keep, skipped = usable(root, files, labels)
    return Dataset(
        name=name,
        classes=classes,
        labels=labels[keep],
        images=FileSource(root, (files[i] for i in keep.tolist())),
        splits=random_split(len(keep), queries, train, seed),
        skipped=skipped,
        seed=seed,
    )


def save_split(dataset: Dataset, path: PathLike) -> None:
    """Writes a JSON manifest that lists the splits by image name.

    An existing file is replaced atomically. Raises DatasetError if two images have the same name.
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
    write_file(path, json.dumps(manifest, indent=0))


def load_split(dataset: Dataset, path: PathLike) -> Dataset:
    """The data set with the splits of a manifest that `save_split` wrote.

    Images that the manifest does not list are in no split. Raises DatasetError if the manifest
    cannot be read, has other classes, or lists an image that the data set does not have.
    """
    try:
        manifest = json_text.loads(read_file(path))
        if manifest["format"] != _FORMAT:
            raise KeyError("format")
        version, seed = manifest["version"], manifest["seed"]
        classes = tuple(map(str, manifest["classes"]))
        names = {split: list(map(str, manifest["splits"][split])) for split in SPLITS}
    except FileNotFoundError:
        raise DatasetError(f"{path} is missing") from None
    except OSError as error:
        raise DatasetError(f"{path}: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise DatasetError(f"{path} is not a split manifest: {error!r}") from error
    if version != _VERSION:
        raise DatasetError(f"{path} has version {version}; mchindex reads version {_VERSION}")
    if classes != dataset.classes:
        raise DatasetError(
            f"{path} was saved for other classes: {', '.join(classes)}; "
            f"{dataset.name} has {', '.join(dataset.classes)}"
        )
    rows = _rows_by_name(dataset)
    unknown = [name for name in dict.fromkeys(chain(*names.values())) if name not in rows]
    if unknown:
        raise DatasetError(
            f"{path} lists {len(unknown)} images that {dataset.name} does not have, for example "
            f"{unknown[0]!r}"
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
        raise DatasetError(f"{dataset.name}: two images are named {twice!r}")
    return rows
