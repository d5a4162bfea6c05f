"""Writes files so that a reader never sees a partial one, not even after a power failure."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


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
