"""MIRFLICKR-25k as published: `mirflickr/im1.jpg` … and `mirflickr25k_annotations_v080/`.

The given folder may also be that of the images, with the annotations inside it or next to it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mchindex.datasets.base import Dataset, read_lines
from mchindex.datasets.splits import randomly_split_files
from mchindex.errors import DatasetError
from mchindex.images import PathLike

# The 24 "potential" labels. The 14 stricter "relevant" ones are named `<name>_r1`.
# fmt: off
CLASSES = (
    "animals", "baby", "bird", "car", "clouds", "dog", "female", "flower", "food", "indoor", "lake",
    "male", "night", "people", "plant_life", "portrait", "river", "sea", "sky", "structures",
    "sunset", "transport", "tree", "water",
)
# fmt: on
_ANNOTATIONS = "mirflickr25k_annotations_v080"


def read_mirflickr(
    root: PathLike,
    *,
    seed: int = 0,
    queries: int = 5_000,
    train: int = 10_000,
    classes: Sequence[str] = CLASSES,
) -> Dataset:
    """Reads the given `classes`, which are names of annotation files, such as dog or dog_r1.

    `queries` and `train` are numbers of images.
    """
    root = Path(root)
    images = root / "mirflickr" if (root / "mirflickr").is_dir() else root
    places = (root / _ANNOTATIONS, root.resolve().parent / _ANNOTATIONS)
    annotations = next((place for place in places if place.is_dir()), None)
    if annotations is None or not images.is_dir():
        raise DatasetError(
            f"{root} is not a MIRFLICKR folder: expected mirflickr/im1.jpg … and {_ANNOTATIONS}/"
        )
    marked = [_ids(annotations, name) for name in classes]
    there = {int(m[1]) for m in map(re.compile(r"im(\d+)\.jpg").fullmatch, os.listdir(images)) if m}
    ids = sorted(there.union(*marked))
    names = [f"im{i}.jpg" for i in ids]
    labels = np.array([[i in m for m in marked] for i in ids], np.bool_).reshape(len(ids), -1)
    return randomly_split_files(
        "mirflickr", tuple(classes), images, names, labels, queries=queries, train=train, seed=seed
    )


def _ids(annotations: Path, name: str) -> set[int]:
    path = annotations / f"{name}.txt"
    if not path.is_file():
        there = sorted(file.stem for file in annotations.glob("*.txt") if file.stem != "README")
        raise DatasetError(f"{path} is missing; available classes: {', '.join(there)}")
    ids = set()
    for number, line in enumerate(read_lines(path), 1):
        if not line.isdecimal() or int(line) < 1:
            raise DatasetError(
                f"{path}, line {number}: expected an image number, 1 or more, not {line!r}"
            )
        ids.add(int(line))
    return ids
