"""Opens and writes files.

Files that a user names are opened without blocking, and only if they are regular files. Files are
written so that a reader never sees a partial one, not even after a power failure.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


def open_file(path: str | os.PathLike[str]) -> IO[bytes]:
    """Opens a regular file for reading; raises OSError for anything else.

    A named pipe would block until something writes to it, and a device may never end.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        mode = os.fstat(handle).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
        return open(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def read_file(path: str | os.PathLike[str], most: int | None = None) -> bytes:
    """The bytes of a regular file; raises OSError if there are more than `most`."""
    with open_file(path) as stream:
        if most is None:
            return stream.read()
        content = stream.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"larger than the {most:,} bytes allowed", os.fspath(path))
    return content


def replaceable(path: str | os.PathLike[str]) -> Path:
    """The file that writing to `path` replaces: `path` itself, or what it links to.

    Raises OSError if there is something other than a regular file, such as a folder or a device.
    """
    target = Path(os.path.realpath(path))
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        return target
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
    return target


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """A new file that replaces `path` once it has been written completely.

    The content goes to a temporary file in the same folder, is synced to disk, and is renamed when
    the block ends. If the block raises, `path` stays as it was.
    """
    target = Path(path)
    new = target.with_name(f".{target.name}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        with open(new, "xb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(new, target)
    finally:
        new.unlink(missing_ok=True)
    sync_folder(target.parent)


def write_file(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Replaces the content of `path` atomically; text is written as UTF-8."""
    with replacing(path) as stream:
        stream.write(content.encode() if isinstance(content, str) else content)


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Makes new and renamed files in a folder survive a power failure."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
