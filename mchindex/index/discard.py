"""Moves or deletes the files of duplicates, and removes their images from the index.

A file is touched only if it and the file of its keeper are still what was added to the index. It is
never moved over another file. An image is removed from the index after its file is gone.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BufferedIOBase, BufferedRandom
from pathlib import Path
from typing import NamedTuple

from mchindex.errors import MCHError
from mchindex.files import open_file, sync_folder
from mchindex.index.adding import Failure
from mchindex.index.duplicates import Duplicate, DuplicateGroup
from mchindex.index.table import LiveTable
from mchindex.progress import Progress, Step
from mchindex.storage.records import Id, Row
from mchindex.storage.store import Store

TOGETHER = 256  # images removed from the index in one go
TRIES = 10_000  # names tried for a file whose name is taken


@dataclass
class Discarded:
    """The result of `discard`."""

    ids: list[Id] = field(default_factory=list)  # no longer in the index
    moved: dict[str, str] = field(default_factory=dict)  # old paths to new paths
    deleted: list[str] = field(default_factory=list)  # paths
    failed: list[Failure] = field(default_factory=list)  # files that were not touched, and why

    def __repr__(self) -> str:
        return f"{len(self.moved)} moved, {len(self.deleted)} deleted, {len(self.failed)} failed"


class _NotTouchedError(MCHError):
    """Why a file is left as it is."""


def discard(
    store: Store,
    live: LiveTable,
    wait: float,
    groups: Iterable[DuplicateGroup],
    move_to: Path | None,
    progress: Progress,
) -> Discarded:
    """Moves the files of all images but the keepers to a folder, or deletes them if it is None."""
    result = Discarded()
    todo = list(groups)
    total = sum(len(group.others) for group in todo)
    if move_to is not None:
        move_to = Path(os.path.abspath(move_to))
        move_to.mkdir(parents=True, exist_ok=True)
    with live.writing(wait, removing=True):
        waiting: list[Id] = []
        done = 0
        try:
            for group in todo:
                keeper = _checked(store, group.keeper)
                for image in group.others:
                    failure = _discard_one(store, keeper, image, move_to, result)
                    if failure is None:
                        waiting.append(image.id)
                    else:
                        result.failed.append(Failure(image.path or str(image.id), failure))
                    done += 1
                    progress(Step("moving" if move_to else "deleting", done, total, unit="files"))
                    if len(waiting) >= TOGETHER:
                        live.remove(waiting)
                        result.ids += waiting
                        waiting = []
        finally:  # also if it is interrupted: these files are gone
            if waiting:
                live.remove(waiting)
                result.ids += waiting
    return result


class _Checked(NamedTuple):
    """A file that is what was added to the index, or else the reason why it must stay."""

    file: str
    digest: bytes
    failure: str | None = None


def _checked(store: Store, image: Duplicate) -> _Checked:
    try:
        row = _record(store, image)
        return _Checked(*_unchanged(row))
    except (_NotTouchedError, OSError) as error:
        return _Checked("", b"", _reason(error))


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def _discard_one(
    store: Store, keeper: _Checked, image: Duplicate, move_to: Path | None, result: Discarded
) -> str | None:
    """Checks one file, then moves or deletes it. Returns why not if it cannot be."""
    if keeper.failure is not None:
        return f"the image to keep: {keeper.failure}"
    found = _checked(store, image)
    if found.failure is not None:
        return found.failure
    try:
        if os.path.samefile(found.file, keeper.file):
            return f"it is the same file as the image to keep, {keeper.file}"
        if move_to is None:
            os.unlink(found.file)
            result.deleted.append(found.file)
        else:
            result.moved[found.file] = _moved(found.file, move_to, found.digest)
    except (_NotTouchedError, OSError) as error:
        return _reason(error)
    return None


def _record(store: Store, image: Duplicate) -> Row:
    row = store.row(image.id)
    if row is None or row.key != image.key:
        raise _NotTouchedError(
            f"image {image.id!r} was replaced or removed since the duplicates were found: find "
            "them again"
        )
    return row


def _unchanged(row: Row) -> tuple[str, bytes]:
    """The file of an image, and its digest. Raises _NotTouchedError unless the file is what was
    added to the index."""
    if row.path is None or row.hash is None:
        raise _NotTouchedError(f"image {row.id!r} has no file")
    if stat.S_ISLNK(os.lstat(row.path).st_mode):
        raise _NotTouchedError(f"{row.path} is a symbolic link")
    with open_file(row.path) as stream:
        assert isinstance(stream, BufferedIOBase)
        size = os.fstat(stream.fileno()).st_size
        if size != row.size or _digest(stream) != row.hash:
            raise _NotTouchedError(f"{row.path} has changed since it was added: add it again")
    return row.path, row.hash


def _digest(stream: BufferedIOBase) -> bytes:
    return hashlib.file_digest(stream, "sha256").digest()


def _moved(file: str, folder: Path, digest: bytes) -> str:
    """Moves a file into a folder under a name that is not taken; returns its new path."""
    copied = False
    with _new_file(folder, os.path.basename(file)) as (target, stream):
        try:
            os.rename(file, target)  # over the empty file that was just made
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            _copy(file, target, stream, digest)
            copied = True
    sync_folder(folder)
    if copied:
        os.unlink(file)
    return str(target)


def _copy(file: str, target: Path, stream: BufferedRandom, digest: bytes) -> None:
    """Copies a file to another disk."""
    with open_file(file) as source:
        shutil.copyfileobj(source, stream)
    stream.flush()
    os.fsync(stream.fileno())
    stream.seek(0)
    if _digest(stream) != digest:
        raise _NotTouchedError(f"{file} changed while it was being copied")
    shutil.copystat(file, target)


@contextmanager
def _new_file(folder: Path, name: str) -> Iterator[tuple[Path, BufferedRandom]]:
    """A new, empty file: `name`, or if that is taken, the name with a number.

    If the block raises, it is deleted, unless another file has been moved over it.
    """
    stem, suffix = os.path.splitext(name)
    for number in range(1, TRIES):
        target = folder / (name if number == 1 else f"{stem}-{number}{suffix}")
        try:
            stream = open(target, "x+b")  # noqa: SIM115  # closed below
        except FileExistsError:
            continue
        with stream:
            try:
                yield target, stream
            except BaseException:
                if os.path.samestat(os.lstat(target), os.fstat(stream.fileno())):
                    target.unlink()
                raise
        return
    raise _NotTouchedError(f"{folder} has {TRIES:,} files named like {name}")
