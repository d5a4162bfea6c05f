"""A folder with `images/` and `labels.csv`: the layout to use for pictures of one's own.

`labels.csv` has the columns file, split and labels. Files are relative to `images/`. A split is
query, train or database, where train images belong to the database too. Labels are joined by `|`.
`classes.txt` beside it, a name a line, fixes the classes and their order; without it they are the
sorted names. A class of `classes.txt` may have no images.

Without the split column, or where it is empty throughout, the split is drawn: a tenth of the images
are queries, the rest is the database, and half of that is for training.
"""

from __future__ import annotations

import csv
import posixpath
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mchindex.datasets.base import SPLITS, Dataset, FileSource, read_classes, usable
from mchindex.datasets.splits import draw
from mchindex.errors import DatasetError
from mchindex.images import PathLike

TABLE = "labels.csv"


class _Row(NamedTuple):
    file: str
    split: str  # empty: to be drawn
    labels: list[str]
    line: int


def read_folder(root: PathLike, *, seed: int = 0) -> Dataset:
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

    drawn = not rows[0].split
    if drawn:
        queries = max(1, round(len(rows) / 10))
        splits = draw(len(rows), queries, (len(rows) - queries) // 2, seed)
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
        seed=seed if drawn else None,
    )


def _rows(table: Path) -> Iterator[_Row]:
    try:
        file = table.open(encoding="utf-8-sig", newline="")
    except OSError as error:
        raise DatasetError(f"{table}: {error.strerror}") from None
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
            f"{table}, line 1: expected a header of the columns file, split (may be left out) and "
            f"labels, not {','.join(columns)!r}"
        )
    seen: dict[str, int] = {}
    with_split: bool | None = None
    for cells in reader:
        if not cells:
            continue
        line: int = reader.line_num  # type: ignore[attr-defined]  # a csv.reader has it
        where = f"{table}, line {line}"
        if len(cells) != len(columns):
            raise DatasetError(
                f"{where}: expected {len(columns)} columns ({', '.join(columns)}), "
                f"not {len(cells)}; a name with a comma needs quotes"
            )
        row = {name: cell.strip() for name, cell in zip(columns, cells, strict=True)}
        if not row["file"]:
            raise DatasetError(f"{where}: the file is empty")
        name = posixpath.normpath(row["file"])
        if name in seen:
            raise DatasetError(f"{where}: {name!r} stands in line {seen[name]} already")
        seen[name] = line
        split = row.get("split", "")
        if split and split not in SPLITS:
            raise DatasetError(f"{where}: split {split!r} is none of {', '.join(SPLITS)}")
        if with_split is not None and bool(split) != with_split:
            raise DatasetError(
                f"{where}: expected {'a' if with_split else 'no'} split as in the lines before; "
                "give every image a split, or none"
            )
        with_split = bool(split)
        labels = [label.strip() for label in row["labels"].split("|") if label.strip()]
        yield _Row(name, split, labels, line)
