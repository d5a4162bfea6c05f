"""A data set: pictures by number, their labels, and which are queries, training and database."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mchindex.errors import DatasetError, ImageError
from mchindex.images import PathLike, digest, open_rgb

SPLITS = ("query", "train", "database")

Rows = NDArray[np.int64]  # numbers of images
Labels = NDArray[np.bool_]  # (images, classes)


class ImageSource(Protocol):
    """Pictures by number, 0 … len - 1."""

    def __len__(self) -> int: ...

    def image(self, i: int) -> Image.Image:
        """The picture in RGB; raises ImageError."""

    def key(self, i: int) -> bytes:
        """32 bytes of the picture's content: equal keys, equal pictures."""

    def name(self, i: int) -> str:
        """For messages and manifests; of a file, its name relative to the root."""


class FileSource:
    """Pictures in files under a root."""

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
    """Some pictures of another source, numbered anew."""

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
    """Pictures, labels and splits that were checked to fit together.

    Training images are in the database too, queries never are. There may be no training images, a
    class may have no images, and an image may be in no split. The arrays are read-only: who changes
    labels works on a copy.
    """

    name: str
    classes: tuple[str, ...]
    labels: Labels  # (images, classes)
    images: ImageSource
    splits: Mapping[str, Rows]  # "query", "train", "database", each ascending
    skipped: Mapping[str, int]  # reason -> how many images were left out for it
    seed: int | None = None  # which the splits were drawn from; None: they were given

    def __post_init__(self) -> None:
        labels = np.array(self.labels)
        shape = (len(self.images), len(self.classes))
        if labels.dtype != np.bool_ or labels.shape != shape or not self.classes:
            raise DatasetError(
                f"{self.name}: labels are bool, one row an image and one column a class, here "
                f"{shape}, with at least one class; given were {labels.dtype} {labels.shape}"
            )
        if len(set(self.classes)) != len(self.classes):
            raise DatasetError(f"{self.name}: a class name occurs twice in {self.classes}")
        if set(self.splits) != set(SPLITS):
            raise DatasetError(
                f"{self.name}: the splits are {', '.join(SPLITS)}; given were {sorted(self.splits)}"
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
                f"{self.name}: the {split} split is a list of image numbers, not "
                f"{rows.dtype} {rows.shape}"
            )
        if len(rows) and not (rows.min() >= 0 and rows.max() < len(self.images)):
            raise DatasetError(
                f"{self.name}: the {split} split names images {rows.min()} to {rows.max()}, "
                f"there are 0 to {len(self.images) - 1}"
            )
        if (np.diff(rows) <= 0).any():
            raise DatasetError(f"{self.name}: the {split} split is not ascending without repeats")
        return rows.astype(np.int64)

    def _check_splits(self) -> None:
        query, train, database = (self.splits[split] for split in SPLITS)
        for split in ("query", "database"):
            # Pictures without labels need no queries: nothing could be measured with them.
            if not len(self.splits[split]) and (split == "database" or self.labels.any()):
                raise DatasetError(f"{self.name}: no image is in the {split} split")
        leaked = np.intersect1d(query, database)
        if len(leaked):
            raise DatasetError(
                f"{self.name}: {len(leaked)} images are queries and in the database, "
                f"such as {self.images.name(int(leaked[0]))}"
            )
        outside = np.setdiff1d(train, database)
        if len(outside):
            raise DatasetError(
                f"{self.name}: {len(outside)} training images are not in the database, "
                f"such as {self.images.name(int(outside[0]))}"
            )

    def __len__(self) -> int:
        return len(self.images)

    def leaks(self) -> list[tuple[int, int]]:
        """(query, database image) of the same content; reads every file of both splits.

        Files that cannot be read are like no other.
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
        """Raises DatasetError where a query's picture is also in the database."""
        leaks = self.leaks()
        if leaks:
            query, database = (self.images.name(i) for i in leaks[0])
            raise DatasetError(
                f"{self.name}: {len(leaks)} database images are also queries by content, such as "
                f"{database}, which is the query {query}; leave them out: "
                "dataset.without([d for _, d in dataset.leaks()], 'also a query')"
            )

    def without(self, bad: Iterable[int], reason: str) -> Dataset:
        """The data set without these images, the rest numbered anew; counted as skipped."""
        out = np.unique(np.fromiter(bad, np.int64))
        if not len(out):
            return self
        if out[0] < 0 or out[-1] >= len(self):
            raise DatasetError(
                f"{self.name}: cannot leave out images {out[0]} to {out[-1]}, "
                f"there are 0 to {len(self) - 1}"
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
    """The rows with a label and a file under the root, and how many others there are, by reason.

    Lists every folder that the names speak of once; no file is opened or asked for.
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
            f"none of the {len(labelled)} labelled images is there; the first was expected at "
            f"{os.path.join(root, names[labelled[0]])}{hint}"
        )
    skipped = {"no label": len(names) - len(labelled), "missing file": len(labelled) - len(keep)}
    return np.array(keep, np.int64), {reason: n for reason, n in skipped.items() if n}


def read_lines(path: Path) -> list[str]:
    """A text file's lines without their ends and the spaces around; trailing empty ones dropped."""
    try:
        text = path.read_text("utf-8-sig")
    except FileNotFoundError:
        raise DatasetError(f"{path} is missing") from None
    except UnicodeDecodeError as error:
        raise DatasetError(f"{path} is not UTF-8 text: {error}") from None
    # Not splitlines(): it also breaks at form feeds and other signs that a file name may hold.
    return [line.strip() for line in text.rstrip().split("\n")] if text.strip() else []


def read_classes(path: Path) -> tuple[str, ...]:
    """Class names, one a line, in their order."""
    lines = read_lines(path)
    for number, line in enumerate(lines, 1):
        if not line or line in lines[: number - 1]:
            raise DatasetError(f"{path}, line {number}: expected a class name not given before")
    if not lines:
        raise DatasetError(f"{path} holds no class name")
    return tuple(lines)


def _files_in(folder: str) -> Collection[str]:
    try:
        return {entry.name for entry in os.scandir(folder)}
    except (FileNotFoundError, NotADirectoryError):
        return ()
