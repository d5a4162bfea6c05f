"""A folder with `images/` and `labels.csv`: the layout for your own data.

`labels.csv` has the columns file, split and labels. Files are relative to `images/`. A split is
query, train or database; training images belong to the database as well. Labels are separated by
`|`. An optional `classes.txt`, with one name per line, fixes the classes and their order, and may
name classes that have no images; otherwise the classes are the sorted labels.

If the split column is missing or empty, images are split at random: a tenth are queries, the rest
is the database, and half of the database is for training.
"""

from __future__ import annotations

import csv
import io
import posixpath
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mchindex.datasets.base import SPLITS, Dataset, FileSource, read_classes, usable
from mchindex.datasets.splits import random_split
from mchindex.errors import DatasetError
from mchindex.files import open_file
from mchindex.images import PathLike

TABLE = "labels.csv"


class _Row(NamedTuple):
    file: str
    split: str  # empty: chosen at random
    labels: list[str]
    line: int


def read_folder(root: PathLike, *, seed: int = 0) -> Dataset:
    """Reads the folder; `seed` determines the splits if the table has none."""
    root = Path(root)
    table = root / TABLE
    rows = list(_rows(table))
    if not rows:
        raise DatasetError(f"{table} has no rows")
    listed = root / "classes.txt"
    if listed.exists():
        classes = read_classes(listed)
    else:
        classes = tuple(sorted({label for row in rows for label in row.labels}))
    column = {label: c for c, label in enumerate(classes)}

    labels = np.zeros((len(rows), len(classes)), np.bool_)
    for i, row in enumerate(rows):
        for label in row.labels:
            if label not in column:
                raise DatasetError(
                    f"{table}, line {row.line}: class {label!r} is not in {listed.name}"
                )
            labels[i, column[label]] = True
    keep, skipped = usable(root / "images", [row.file for row in rows], labels)
    rows = [rows[i] for i in keep.tolist()]

    at_random = not rows[0].split
    if at_random:
        queries = max(1, round(len(rows) / 10))
        splits = random_split(len(rows), queries, (len(rows) - queries) // 2, seed)
    else:
        given = np.array([row.split for row in rows])
        splits = {split: np.flatnonzero(given == split) for split in SPLITS}
        splits["database"] = np.flatnonzero(given != "query")
    return Dataset(
        name=root.resolve().name,
        classes=classes,
        labels=labels[keep],
        images=FileSource(root / "images", (row.file for row in rows)),
        splits=splits,
        skipped=skipped,
        seed=seed if at_random else None,
    )


def _rows(table: Path) -> Iterator[_Row]:
    try:
        file = io.TextIOWrapper(open_file(table), "utf-8-sig", newline="")
    except OSError as error:
        raise DatasetError(f"{table}: {error.strerror or error}") from None
    with file:
        reader = csv.reader(file, strict=True)
        try:
            yield from _checked(table, reader)
        except csv.Error as error:
            raise DatasetError(f"{table}, line {reader.line_num}: {error}") from None
        except UnicodeDecodeError as error:
            raise DatasetError(f"{table} is not UTF-8 text: {error}") from None


def _checked(table: Path, reader: Iterator[list[str]]) -> Iterator[_Row]:
    columns = [name.strip() for name in next(reader, [])]
    if sorted(columns) not in (["file", "labels"], ["file", "labels", "split"]):
        raise DatasetError(
            f"{table}, line 1: expected a header with the columns file, split (optional) and "
            f"labels, not {','.join(columns)!r}"
        )
    seen: dict[str, int] = {}
    with_split: bool | None = None
    for cells in reader:
        if not cells:
            continue
        line: int = reader.line_num  # type: ignore[attr-defined]  # present on every csv.reader
        where = f"{table}, line {line}"
        if len(cells) != len(columns):
            raise DatasetError(
                f"{where}: expected {len(columns)} columns ({', '.join(columns)}), "
                f"not {len(cells)}; quote names that contain a comma"
            )
        row = {name: cell.strip() for name, cell in zip(columns, cells, strict=True)}
        if not row["file"]:
            raise DatasetError(f"{where}: the file name is empty")
        name = posixpath.normpath(row["file"])
        if name in seen:
            raise DatasetError(f"{where}: {name!r} is already in line {seen[name]}")
        seen[name] = line
        split = row.get("split", "")
        if split and split not in SPLITS:
            raise DatasetError(f"{where}: split {split!r} is not one of {', '.join(SPLITS)}")
        if with_split is not None and bool(split) != with_split:
            raise DatasetError(
                f"{where}: expected {'a' if with_split else 'no'} split, as in the lines before; "
                "give a split for every image or for none"
            )
        with_split = bool(split)
        labels = [label.strip() for label in row["labels"].split("|") if label.strip()]
        yield _Row(name, split, labels, line)
