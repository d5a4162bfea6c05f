"""The folder of an index, held open so that it stays the same folder when it is renamed."""

from __future__ import annotations

import os
import threading
import weakref
from pathlib import Path


class Folder:
    """A handle of a folder. Files are opened, listed and deleted by it, whatever its path is now.

    Methods raise ValueError once the handle is closed.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(os.path.abspath(path))
        self._handle = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._lock = threading.RLock()  # a handle must not be closed, and reused, while in use
        self._finalizer = weakref.finalize(self, os.close, self._handle)

    def close(self) -> None:
        with self._lock:
            self._finalizer()

    def _opened(self) -> int:
        if not self._finalizer.alive:
            raise ValueError(f"{self.path} is closed")
        return self._handle

    def open(self, name: str, flags: int, mode: int = 0o644) -> int:
        """Opens a file, but follows no link: a link may lead to any other file."""
        with self._lock:
            return os.open(
                name, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, mode,
                dir_fd=self._opened(),
            )  # fmt: skip

    def delete(self, name: str) -> None:
        with self._lock:
            os.unlink(name, dir_fd=self._opened())

    def names(self) -> list[str]:
        with self._lock:
            return os.listdir(self._opened())

    def stat(self, name: str) -> os.stat_result:
        with self._lock:
            return os.stat(name, dir_fd=self._opened())

    def size(self) -> int:
        """The bytes of all files in it and in its subfolders."""
        total = 0
        with self._lock:
            for _, _, files, handle in os.fwalk(".", dir_fd=self._opened()):
                for name in files:
                    try:
                        total += os.stat(name, dir_fd=handle, follow_symlinks=False).st_size
                    except OSError:
                        continue  # a snapshot or a log may be deleted at any time
        return total

    def free(self) -> int | None:
        """The bytes that can still be written to its disk; None if the system does not say."""
        with self._lock:
            disk = os.fstatvfs(self._opened())
        blocks = disk.f_bfree if os.geteuid() == 0 else disk.f_bavail
        return blocks * disk.f_frsize if disk.f_blocks else None

    def is_in_place(self) -> bool:
        """Whether its path still leads to it."""
        try:
            with self._lock:
                return os.path.samestat(os.stat(self.path), os.fstat(self._opened()))
        except (OSError, ValueError):
            return False
