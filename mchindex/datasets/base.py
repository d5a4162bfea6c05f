"""A data set: numbered images, their labels, and their query, training and database splits."""

from __future__ import annotations

import io
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mchindex.errors import DatasetError, ImageError
from mchindex.files import open_file
from mchindex.images import PathLike, digest, open_rgb

SPLITS = ("query", "train", "database")

Rows = NDArray[np.int64]  # image numbers
Labels = NDArray[np.bool_]  # (images, classes)


class ImageSource(Protocol):
    """Images numbered 0 … len - 1."""

    def __len__(self) -> int: ...

    def image(self, i: int) -> Image.Image:
        """The image in RGB. Raises ImageError if it cannot be read."""

    def key(self, i: int) -> bytes:
        """A 32-byte digest of the content: equal keys mean equal images."""

    def name(self, i: int) -> str:
        """The name in messages and manifests; for a file, its path relative to the root."""


class FileSource:
    """Image files under a root folder."""

    def __init__(self, root: PathLike, names: Iterable[str]) -> None:
        self.root = Path(root)
        self.names = tuple(names)

    def __len__(self) -> int:
        return len(self.names)

    def path(self, i: int) -> Path:
        return self.root / self.names[i]

    def image(self, i: int) -> Image.Image:
        return open_rgb(self.path(i))

    def key(self, i: int) -> bytes:
        return digest(self.path(i))

    def name(self, i: int) -> str:
        return self.names[i]


class SubsetSource:
    """Some images of another source, renumbered from 0."""

    def __init__(self, images: ImageSource, rows: Rows) -> None:
        self._images = images
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def image(self, i: int) -> Image.Image:
        return self._images.image(int(self._rows[i]))

    def key(self, i: int) -> bytes:
        return self._images.key(int(self._rows[i]))

    def name(self, i: int) -> str:
        return self._images.name(int(self._rows[i]))


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images, labels and splits, checked for consistency.

    Training images belong to the database as well; queries never do. The training split may be
    empty, a class may have no images, and an image may be in no split. The arrays are read-only: to
    change labels, copy them.

    Raises DatasetError if the parts do not fit together.
    """

    name: str
    classes: tuple[str, ...]
    labels: Labels  # (images, classes)
    images: ImageSource
    splits: Mapping[str, Rows]  # "query", "train", "database", each ascending
    skipped: Mapping[str, int]  # reason -> number of images left out
    seed: int | None = None  # of random splits; None: the splits are fixed

    def __post_init__(self) -> None:
        labels = np.array(self.labels)
        shape = (len(self.images), len(self.classes))
        if not self.classes:
            raise DatasetError(f"{self.name}: at least one class is required")
        if labels.dtype != np.bool_ or labels.shape != shape:
            raise DatasetError(
                f"{self.name}: labels must be a bool array of shape {shape}, one row per image and "
                f"one column per class, not {labels.dtype} {labels.shape}"
            )
        if len(set(self.classes)) != len(self.classes):
            raise DatasetError(f"{self.name}: class names must be unique: {self.classes}")
        if set(self.splits) != set(SPLITS):
            raise DatasetError(
                f"{self.name}: the splits must be {', '.join(SPLITS)}, not {sorted(self.splits)}"
            )
        splits = {split: self._rows_of(split) for split in SPLITS}
        for array in (labels, *splits.values()):
            array.setflags(write=False)
        object.__setattr__(self, "labels", labels)
        object.__setattr__(self, "splits", splits)
        self._check_splits()

    def _rows_of(self, split: str) -> Rows:
        rows = np.array(self.splits[split])
        if not rows.size:
            rows = np.empty(0, np.int64)
        if rows.ndim != 1 or not np.issubdtype(rows.dtype, np.integer):
            raise DatasetError(
                f"{self.name}: the {split} split must be a list of image numbers, not "
                f"{rows.dtype} {rows.shape}"
            )
        if len(rows) and not (rows.min() >= 0 and rows.max() < len(self.images)):
            raise DatasetError(
                f"{self.name}: the {split} split contains images {rows.min()} to {rows.max()}, "
                f"but only 0 to {len(self.images) - 1} exist"
            )
        if (np.diff(rows) <= 0).any():
            raise DatasetError(f"{self.name}: the {split} split must be ascending, without repeats")
        return rows.astype(np.int64)

    def _check_splits(self) -> None:
        query, train, database = (self.splits[split] for split in SPLITS)
        for split in ("query", "database"):
            # Without labels there is nothing to evaluate, so no queries are needed.
            if not len(self.splits[split]) and (split == "database" or self.labels.any()):
                raise DatasetError(f"{self.name}: the {split} split is empty")
        leaked = np.intersect1d(query, database)
        if len(leaked):
            raise DatasetError(
                f"{self.name}: {len(leaked)} images are both queries and in the database, "
                f"for example {self.images.name(int(leaked[0]))}"
            )
        outside = np.setdiff1d(train, database)
        if len(outside):
            raise DatasetError(
                f"{self.name}: {len(outside)} training images are not in the database, "
                f"for example {self.images.name(int(outside[0]))}"
            )

    def __len__(self) -> int:
        return len(self.images)

    def leaks(self) -> list[tuple[int, int]]:
        """Pairs (query, database image) with the same content.

        Reads every file of both splits. Unreadable files match nothing.
        """
        queries: dict[bytes, int] = {}
        for q, key in self._keys("query"):
            queries.setdefault(key, q)
        return [(queries[key], d) for d, key in self._keys("database") if key in queries]

    def _keys(self, split: str) -> Iterator[tuple[int, bytes]]:
        for i in self.splits[split].tolist():
            try:
                yield i, self.images.key(i)
            except (OSError, ImageError):
                continue

    def check_leakage(self) -> None:
        """Raises DatasetError if the content of a query also occurs in the database."""
        leaks = self.leaks()
        if leaks:
            query, database = (self.images.name(i) for i in leaks[0])
            raise DatasetError(
                f"{self.name}: {len(leaks)} database images have the same content as a query, for "
                f"example {database} and the query {query}; leave them out with "
                "dataset.without([d for _, d in dataset.leaks()], 'also a query')"
            )

    def without(self, bad: Iterable[int], reason: str) -> Dataset:
        """The data set without these images, which `skipped` counts; the others are renumbered."""
        out = np.unique(np.fromiter(bad, np.int64))
        if not len(out):
            return self
        if out[0] < 0 or out[-1] >= len(self):
            raise DatasetError(
                f"{self.name}: cannot leave out images {out[0]} to {out[-1]}, "
                f"only 0 to {len(self) - 1} exist"
            )
        keep = np.setdiff1d(np.arange(len(self)), out)
        return replace(
            self,
            labels=self.labels[keep],
            images=SubsetSource(self.images, keep),
            splits={
                split: np.searchsorted(keep, np.setdiff1d(rows, out))
                for split, rows in self.splits.items()
            },
            skipped={**self.skipped, reason: self.skipped.get(reason, 0) + len(out)},
        )


def usable(
    root: PathLike, names: Sequence[str], labels: Labels, hint: str = ""
) -> tuple[Rows, dict[str, int]]:
    """The rows that have a label and a file under the root, and the numbers of others by reason.

    Lists each folder once instead of looking up every file. `hint` ends the error that is raised
    if no file exists.
    """
    labelled = np.flatnonzero(labels.any(1))
    if not len(labelled):
        raise DatasetError(f"{root}: none of the {len(names)} images listed has a label")
    folders: dict[str, Collection[str]] = {}
    keep = []
    for row in labelled.tolist():
        folder, file = os.path.split(names[row])
        if folder not in folders:
            folders[folder] = _files_in(os.path.join(root, folder))
        if file in folders[folder]:
            keep.append(row)
    if not keep:
        raise DatasetError(
            f"none of the {len(labelled)} labelled images exists; the first was expected at "
            f"{os.path.join(root, names[labelled[0]])}{hint}"
        )
    skipped = {"no label": len(names) - len(labelled), "missing file": len(labelled) - len(keep)}
    return np.array(keep, np.int64), {reason: n for reason, n in skipped.items() if n}


def read_lines(path: Path) -> list[str]:
    """The stripped lines of a text file, without trailing empty ones."""
    try:
        with io.TextIOWrapper(open_file(path), "utf-8-sig") as file:
            text = file.read()
    except FileNotFoundError:
        raise DatasetError(f"{path} is missing") from None
    except OSError as error:
        raise DatasetError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise DatasetError(f"{path} is not UTF-8 text: {error}") from None
    # Not splitlines(), which also breaks at form feeds and other characters allowed in file names.
    return [line.strip() for line in text.rstrip().split("\n")] if text.strip() else []


def read_classes(path: Path) -> tuple[str, ...]:
    """The class names in a file with one name per line."""
    lines = read_lines(path)
    for number, line in enumerate(lines, 1):
        if not line or line in lines[: number - 1]:
            raise DatasetError(f"{path}, line {number}: expected a class name not listed before")
    if not lines:
        raise DatasetError(f"{path} contains no class name")
    return tuple(lines)


def _files_in(folder: str) -> Collection[str]:
    try:
        return {entry.name for entry in os.scandir(folder)}
    except (FileNotFoundError, NotADirectoryError):
        return ()
