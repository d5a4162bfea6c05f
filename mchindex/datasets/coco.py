"""MS-COCO as published: `train2014/`, `val2014/` and `annotations/`, or the same for 2017.

A part is read if both its folder and its `annotations/instances_<part>.json` exist. An image has
the classes of all its objects, crowds included; images without objects are left out.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from mchindex.datasets.base import Dataset
from mchindex.datasets.splits import randomly_split_files
from mchindex.errors import DatasetError
from mchindex.files import read_file
from mchindex.images import PathLike

# Both years contain the same images: reading both would give every image twice.
_YEARS = ("2014", "2017")


def read_coco(
    root: PathLike, *, seed: int = 0, queries: int = 5_000, train: int = 10_000
) -> Dataset:
    """Reads 2014 if present, else 2017; `queries` and `train` are numbers of images."""
    root = Path(root)
    parts = next(filter(None, (_parts(root, year) for year in _YEARS)), None)
    if not parts:
        raise DatasetError(
            f"{root} is not a COCO folder: expected train2014/ or val2014/ (or 2017) with "
            "annotations/instances_train2014.json or instances_val2014.json (or 2017)"
        )
    names: list[str] = []
    classes: tuple[str, ...] = ()
    blocks = []
    for part in parts:
        path = root / "annotations" / f"instances_{part}.json"
        files, found, block = _read(path)
        if classes and found != classes:
            raise DatasetError(f"{path} has different categories from instances_{parts[0]}.json")
        classes = found
        names += [f"{part}/{file}" for file in files]
        blocks.append(block)
    labels = np.concatenate(blocks)
    return randomly_split_files(
        "coco", classes, root, names, labels, queries=queries, train=train, seed=seed
    )


def _parts(root: Path, year: str) -> list[str]:
    return [
        f"{part}{year}"
        for part in ("train", "val")
        if (root / f"{part}{year}").is_dir()
        and (root / "annotations" / f"instances_{part}{year}.json").is_file()
    ]


def _read(path: Path) -> tuple[list[str], tuple[str, ...], Any]:
    """File names, class names in the order of their ids (which have gaps), and labels."""
    try:
        tree = json.loads(read_file(path))  # not `json_text`, which is slow for half a gigabyte
        images = {image["id"]: image["file_name"] for image in tree["images"]}
        categories = {c["id"]: c["name"] for c in tree["categories"]}
        pairs = {(a["image_id"], a["category_id"]) for a in tree["annotations"]}
    except OSError as error:
        raise DatasetError(f"{path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"{path} is not JSON: {error}") from None
    except (KeyError, TypeError) as error:
        raise DatasetError(f"{path} is not a COCO instances file: no {error}") from None
    row = {image: i for i, image in enumerate(images)}
    column = {category: c for c, category in enumerate(sorted(categories))}
    labels = np.zeros((len(row), len(column)), np.bool_)
    for image, category in pairs:
        if image not in row or category not in column:
            raise DatasetError(
                f"{path}: an annotation refers to image {image} and category {category}, "
                "but the file does not list both"
            )
        labels[row[image], column[category]] = True
    return list(images.values()), tuple(categories[c] for c in column), labels
