"""`database.txt`, `test.txt` and `train.txt`, as public hashing code ships its data sets.

A line is an image's path, relative to the folder and without spaces, and a 0 or 1 for each class.
`classes.txt` beside them may name the classes; else they are called by their numbers. `test.txt`
are the queries: where a public list has them in the database or the training images too, they are
taken out there and counted. Training images are put into the database where they are not.
`train.txt` may be missing.
"""

from __future__ import annotations

import posixpath
from pathlib import Path

import numpy as np

from mchindex.datasets.base import Dataset, FileSource, read_classes, read_lines, usable
from mchindex.errors import DatasetError
from mchindex.images import PathLike


def read_lists(root: PathLike, *, strip: str = "") -> Dataset:
    """`strip` is taken off the front of paths: public lists often hold their author's folders."""
    root = Path(root)
    test, database = (_read(root / f"{part}.txt", strip) for part in ("test", "database"))
    train = _read(root / "train.txt", strip) if (root / "train.txt").exists() else {}

    merged: dict[str, str] = {}  # path -> its labels, as one string of 0 and 1
    for part, entries in (("test", test), ("database", database), ("train", train)):
        for path, flags in entries.items():
            if len(flags) != len(first := next(iter(merged.values()), flags)):
                raise DatasetError(
                    f"{root / part}.txt has {len(flags)} labels a line, another list {len(first)}"
                )
            if merged.setdefault(path, flags) != flags:
                raise DatasetError(f"{root / part}.txt gives {path} other labels than another list")
    names = list(merged)
    labels = np.array([np.frombuffer(flags.encode(), np.uint8) for flags in merged.values()]) == 49
    if (root / "classes.txt").exists():
        classes = read_classes(root / "classes.txt")
        if len(classes) != labels.shape[1]:
            raise DatasetError(
                f"{root / 'classes.txt'} names {len(classes)} classes, "
                f"the lists have {labels.shape[1]} labels a line"
            )
    else:
        classes = tuple(map(str, range(labels.shape[1])))

    keep, skipped = usable(
        root, names, labels, "; use strip= for a beginning that is not in your folder"
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
                f"{where}: expected a path and a 0 or 1 for each class: {line[:60]!r}"
            )
        if len(flags) != width:
            raise DatasetError(f"{where}: expected {width} labels as in line 1, not {len(flags)}")
        name = posixpath.normpath(name.removeprefix(strip).lstrip("/") if strip else name)
        if name in entries:
            raise DatasetError(f"{where}: {name!r} stands in this list already")
        entries[name] = "".join(flags)
    if not entries:
        raise DatasetError(f"{path} is empty")
    return entries
