"""Finding image files in folders."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import cache

from PIL import Image


def walk(
    root: str, unreadable: list[OSError], skip: Callable[[str], bool] = lambda folder: False
) -> Iterator[str]:
    """The paths of all files in a folder and its subfolders, sorted by folder and name.

    Links are followed, and each folder is read once. Hidden files and folders, and folders for
    which `skip` is true, are left out. Errors about folders that cannot be read are added to
    `unreadable`.
    """
    seen: set[tuple[int, int]] = set()
    for folder, folders, files in os.walk(root, onerror=unreadable.append, followlinks=True):
        try:
            here = os.stat(folder)
        except OSError as error:
            unreadable.append(error)
            folders.clear()
            continue
        if (here.st_dev, here.st_ino) in seen:
            folders.clear()
            continue
        seen.add((here.st_dev, here.st_ino))
        folders[:] = sorted(
            f for f in folders if not f.startswith(".") and not skip(os.path.join(folder, f))
        )
        for name in sorted(files):
            if not name.startswith("."):
                yield os.path.join(folder, name)


def is_image_name(path: str) -> bool:
    """Whether a file has the suffix of an image format that Pillow reads."""
    return os.path.splitext(path)[1].lower() in _suffixes()


@cache
def _suffixes() -> frozenset[str]:
    readable = {s for s, kind in Image.registered_extensions().items() if kind in Image.OPEN}
    # Formats that are not pictures, or that Pillow opens only with the help of other programs.
    return frozenset(readable - {".pdf", ".mpg", ".mpeg", ".h5", ".hdf", ".eps", ".ps"})
