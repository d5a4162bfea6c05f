"""Finding image files in folders."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase

from PIL import Image

from mchindex.decoders import extra_of_name
from mchindex.images import is_read


def walk(
    root: str, unreadable: list[OSError], skip: Callable[[str], bool] = lambda folder: False
) -> Iterator[str]:
    """The paths of all files in a folder and its subfolders, sorted by folder and name.

    Links are followed, and each folder is read once. Hidden files and folders, and folders for
    which `skip` is true, are left out. Errors about folders that cannot be read are added to
    `unreadable`.
    """
    seen: set[tuple[int, int]] = set()
    waiting = [root]  # a list, because folders may be nested more deeply than functions
    while waiting:
        folder = waiting.pop()
        folders: list[str] = []
        files: list[str] = []
        try:
            here = os.stat(folder)
            if (here.st_dev, here.st_ino) in seen:
                continue
            seen.add((here.st_dev, here.st_ino))
            with os.scandir(folder) as entries:
                for entry in entries:
                    if not entry.name.startswith("."):
                        (folders if _is_folder(entry) else files).append(entry.name)
        except OSError as error:
            unreadable.append(error)
            continue
        for name in sorted(files):
            yield os.path.join(folder, name)
        inner = (os.path.join(folder, name) for name in sorted(folders, reverse=True))
        waiting += [path for path in inner if not skip(path)]


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def matching(
    pattern: str, unreadable: list[OSError], skip: Callable[[str], bool] = lambda folder: False
) -> list[str]:
    """The paths of the files that match a pattern, sorted. `**` means any number of folders, which
    are read like those of `walk`."""
    parts = pattern.split("/")
    if "**" not in parts:
        return sorted(path for path in glob.glob(pattern) if not os.path.isdir(path))
    at = parts.index("**")
    top = "/".join(parts[:at]) or ("/" if pattern.startswith("/") else ".")
    found = []
    for root in glob.glob(top) if glob.has_magic(top) else [top]:
        if os.path.isdir(root):
            start = len(os.path.join(root, ""))
            for path in walk(root, unreadable, skip):
                if _fits(path[start:].split("/"), parts[at:]):
                    found.append(path)
    return sorted(found)


def _fits(names: Sequence[str], parts: Sequence[str]) -> bool:
    """Whether the names of folders and a file match the parts of a pattern."""
    if "**" not in parts:
        return len(names) == len(parts) and all(map(fnmatchcase, names, parts))
    at = parts.index("**")
    before, after = parts[:at], parts[at + 1 :]
    if len(names) < at or not all(map(fnmatchcase, names, before)):
        return False
    if "**" not in after:
        return not after or (
            len(names) >= at + len(after) and _fits(names[len(names) - len(after) :], after)
        )
    return any(_fits(names[i:], after) for i in range(at, len(names) + 1))


def is_image_name(path: str) -> bool:
    """Whether a file has the suffix of an image format that is read, perhaps with an extra."""
    if extra_of_name(path) is not None:
        return True
    suffix = os.path.splitext(path)[1].lower()
    Image.preinit()  # the common formats: loading all takes longer than looking up many files
    return is_read(Image.EXTENSION.get(suffix) or Image.registered_extensions().get(suffix))
