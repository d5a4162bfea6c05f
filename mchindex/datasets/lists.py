"""`database.txt`, `test.txt` and `train.txt`, the format in which hashing code is often published.

Each line has the path of an image, relative to the folder and without spaces, then a 0 or 1 for
each class. An optional `classes.txt` names the classes; otherwise their names are their numbers.
`test.txt` lists the queries. Published lists sometimes repeat queries in the other two files: they
are removed there and counted as skipped. Training images are added to the database if they are
missing from it. `train.txt` is optional.
"""

from __future__ import annotations

import posixpath
from pathlib import Path

import numpy as np

from mchindex.datasets.base import Dataset, FileSource, read_classes, read_lines, usable
from mchindex.errors import DatasetError
from mchindex.images import PathLike


def read_lists(root: PathLike, *, strip: str = "") -> Dataset:
    """Reads the lists; `strip` is a prefix to remove from paths, such as the author's folder."""
    root = Path(root)
    test, database = (_read(root / f"{part}.txt", strip) for part in ("test", "database"))
    train = _read(root / "train.txt", strip) if (root / "train.txt").exists() else {}

    merged: dict[str, str] = {}  # path -> its labels, as one string of 0 and 1
    for part, entries in (("test", test), ("database", database), ("train", train)):
        for path, flags in entries.items():
            if len(flags) != len(first := next(iter(merged.values()), flags)):
                raise DatasetError(
                    f"{root / part}.txt has {len(flags)} labels per line, another list has "
                    f"{len(first)}"
                )
            if merged.setdefault(path, flags) != flags:
                raise DatasetError(f"{root / part}.txt and another list label {path} differently")
    names = list(merged)
    labels = np.array([np.frombuffer(flags.encode(), np.uint8) for flags in merged.values()]) == 49
    if (root / "classes.txt").exists():
        classes = read_classes(root / "classes.txt")
        if len(classes) != labels.shape[1]:
            raise DatasetError(
                f"{root / 'classes.txt'} names {len(classes)} classes, "
                f"but the lists have {labels.shape[1]} labels per line"
            )
    else:
        classes = tuple(map(str, range(labels.shape[1])))

    keep, skipped = usable(
        root, names, labels, "; use strip= to remove a prefix that does not exist in your folder"
    )
    both = len((database.keys() | train.keys()) & test.keys())
    names = [names[i] for i in keep.tolist()]
    return Dataset(
        name=root.resolve().name,
        classes=classes,
        labels=labels[keep],
        images=FileSource(root, names),
        splits={
            "query": np.flatnonzero([name in test for name in names]),
            "train": np.flatnonzero([name in train and name not in test for name in names]),
            "database": np.flatnonzero([name not in test for name in names]),
        },
        skipped={**skipped, "also a query": both} if both else skipped,
    )


def _read(path: Path, strip: str) -> dict[str, str]:
    entries: dict[str, str] = {}
    width = None
    for number, line in enumerate(read_lines(path), 1):
        name, *flags = line.split() or [""]
        width = width or len(flags)
        where = f"{path}, line {number}"
        if not flags or any(flag not in ("0", "1") for flag in flags):
            raise DatasetError(
                f"{where}: expected a path and a 0 or 1 for each class, not {line[:60]!r}"
            )
        if len(flags) != width:
            raise DatasetError(f"{where}: expected {width} labels as in line 1, not {len(flags)}")
        name = posixpath.normpath(name.removeprefix(strip).lstrip("/") if strip else name)
        if name in entries:
            raise DatasetError(f"{where}: {name!r} is already in this list")
        entries[name] = "".join(flags)
    if not entries:
        raise DatasetError(f"{path} is empty")
    return entries
