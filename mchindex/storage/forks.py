"""Makes it safe to fork while an index is open, and to open that index again in the child.

SQLite remembers which locks the process holds on a file. A child inherits this memory, but not the
locks, which belong to a process. Without them, the parent could close the index and delete its log
while the child writes to it, and what the child commits would be lost. The child therefore takes
the locks as soon as it exists, and the parent waits until it has.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Iterator

from mchindex.storage.schema import FILE

# What SQLite locks while a file is in use: (start, length). See "unixLock" in its os_unix.c.
_SHARED = (0x40000000 + 2, 510)  # of the file itself
_IN_USE = (128, 1)  # of the memory that processes share, FILE-shm

_one_at_a_time = threading.Lock()  # another child would keep the pipe open
_pipe: tuple[int, int] | None = None  # the child closes it when it has its locks


def _places() -> Iterator[tuple[int, tuple[int, int]]]:
    """The handles of all index files that are open, and the bytes of them to lock."""
    with contextlib.suppress(OSError):  # a system without /proc
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                path = os.readlink(f"/proc/self/fd/{name}")
                if path.endswith(f"/{FILE}"):
                    yield int(name), _SHARED
                elif path.endswith(f"/{FILE}-shm"):
                    yield int(name), _IN_USE


def _before() -> None:
    global _pipe
    _one_at_a_time.acquire()
    _pipe = None
    if any(True for _ in _places()):
        with contextlib.suppress(OSError):  # too many open files
            _pipe = os.pipe()


def _in_child() -> None:
    for handle, (start, length) in list(_places()):
        with contextlib.suppress(OSError):  # a thread of the parent is just closing the index
            fcntl.lockf(handle, fcntl.LOCK_SH | fcntl.LOCK_NB, length, start)
    if _pipe is not None:
        os.close(_pipe[0])
        os.close(_pipe[1])
    _one_at_a_time.release()


def _in_parent() -> None:
    if _pipe is not None:
        os.close(_pipe[1])
        os.read(_pipe[0], 1)  # ends when the child has closed its copy
        os.close(_pipe[0])
    _one_at_a_time.release()


os.register_at_fork(before=_before, after_in_child=_in_child, after_in_parent=_in_parent)
