"""NUS-WIDE: the published lists and ground truth, with images from any source.

`ImageList/Imagelist.txt`, `ConceptsList/Concepts81.txt` and `Labels_<concept>.txt` in
`Groundtruth/AllLabels/` are read as published. The images are not part of the publication: every
file below the folder with a listed Flickr id in its name is used, such as `0001_2124494179.jpg`,
`2124494179.jpg` or `2124494179_<secret>.jpg`.
"""

from __future__ import annotations

import os
from collections.abc import Container, Iterator
from pathlib import Path, PureWindowsPath

import numpy as np

from mchindex.datasets.base import Dataset, FileSource, Labels, Rows, read_lines
from mchindex.datasets.splits import random_split_per_class
from mchindex.errors import DatasetError
from mchindex.folders import walk
from mchindex.images import PathLike

_IMAGES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff")


def read_nuswide(
    root: PathLike, *, seed: int = 0, queries: int = 100, train: int = 500, concepts: int = 21
) -> Dataset:
    """Reads the `concepts` most frequent classes; `queries` and `train` are images per class."""
    root = Path(root)
    ids = _flickr_ids(root / "ImageList" / "Imagelist.txt")
    names = read_lines(root / "ConceptsList" / "Concepts81.txt")
    if not 1 <= concepts <= len(names):
        raise DatasetError(f"concepts={concepts}: expected 1 to {len(names)}")
    truth = root / "Groundtruth" / "AllLabels"
    labels = np.stack([_labels(truth / f"Labels_{name}.txt", len(ids)) for name in names], 1)
    # Counted over all listed images, so the classes do not depend on which files exist.
    frequent = np.sort(np.argsort(-labels.sum(0), kind="stable")[:concepts])
    labels = labels[:, frequent]

    files: dict[str, str] = {}
    for flickr_id, file in _found(root, set(ids)):
        files.setdefault(flickr_id, file)
    first = {flickr_id: row for row, flickr_id in reversed(list(enumerate(ids)))}
    labelled = np.flatnonzero(labels.any(1))
    single = [row for row in labelled.tolist() if first[ids[row]] == row]
    keep: Rows = np.array([row for row in single if ids[row] in files], np.int64)
    if not len(keep):
        raise DatasetError(
            f"{root}: none of the {len(single)} labelled images exists; expected files named by "
            f"Flickr id, such as {ids[single[0]] if single else '2124494179'}.jpg, in any folder"
        )
    skipped = {
        "no label": len(ids) - len(labelled),
        "listed twice": len(labelled) - len(single),
        "missing file": len(single) - len(keep),
    }
    classes = tuple(names[c] for c in frequent.tolist())
    labels = labels[keep]
    return Dataset(
        name="nuswide",
        classes=classes,
        labels=labels,
        images=FileSource(root, (files[ids[row]] for row in keep.tolist())),
        splits=random_split_per_class(labels, classes, queries, train, seed),
        skipped={reason: n for reason, n in skipped.items() if n},
        seed=seed,
    )


def _flickr_ids(path: Path) -> list[str]:
    ids = []
    for number, line in enumerate(read_lines(path), 1):
        flickr_id = PureWindowsPath(line).stem.rpartition("_")[2]
        if not flickr_id.isdecimal():
            raise DatasetError(
                rf"{path}, line {number}: expected a name such as actor\0001_2124494179.jpg, "
                f"not {line!r}"
            )
        ids.append(flickr_id)
    return ids


def _labels(path: Path, n: int) -> Labels:
    lines = read_lines(path)
    if len(lines) != n:
        raise DatasetError(f"{path} has {len(lines)} lines, but Imagelist.txt has {n}")
    flags = np.array(lines)
    wrong = np.flatnonzero((flags != "0") & (flags != "1"))
    if len(wrong):
        raise DatasetError(f"{path}, line {wrong[0] + 1}: expected 0 or 1, not {flags[wrong[0]]!r}")
    present: Labels = flags == "1"
    return present


def _found(root: Path, ids: Container[str]) -> Iterator[tuple[str, str]]:
    """(Flickr id, path relative to the root) of the image files, ordered by name."""
    for path in walk(str(root), []):
        stem, suffix = os.path.splitext(os.path.basename(path))
        if suffix.lower() in _IMAGES:
            # The id may be preceded by a running number and followed by Flickr's secret.
            flickr_id = max((p for p in stem.split("_")[:2] if p in ids), key=len, default=None)
            if flickr_id is not None:
                yield flickr_id, Path(os.path.relpath(path, root)).as_posix()
