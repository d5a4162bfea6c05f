"""The lock that allows one writer at a time, among threads and among processes."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import math
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mchindex.errors import StoreBusyError, StoreError
from mchindex.storage.folder import Folder

FILE = "writer.lock"
READ_ONLY = {errno.EACCES, errno.EPERM, errno.EROFS}
NO_SPACE = {errno.ENOSPC, errno.EDQUOT}


def checked_wait(wait: Any) -> float:
    """A number of seconds to wait; infinity means for ever."""
    try:
        seconds = math.nan if isinstance(wait, (bool, str, bytes)) else float(wait)
    except (TypeError, ValueError, OverflowError):
        seconds = math.nan
    if not seconds >= 0:
        raise ValueError(f"wait must be a number of seconds, 0 or more, not {wait!r}")
    return seconds


class WriterLock:
    """A lock that can be taken again by the thread that holds it."""

    def __init__(self, folder: Folder | None, name: str) -> None:
        """`folder` holds the lock file; None locks out threads only. `name` is for messages."""
        self._folder, self._name = folder, name
        self._threads = threading.RLock()
        self._file: int | None = None
        self._depth = 0

    @property
    def held(self) -> bool:
        return self._depth > 0

    @contextmanager
    def hold(self, wait: float = 0.0) -> Iterator[None]:
        """Holds the lock, or raises StoreBusyError after `wait` seconds."""
        wait = checked_wait(wait)
        deadline, process = time.monotonic() + wait, os.getpid()
        if not self._threads.acquire(timeout=-1 if wait > threading.TIMEOUT_MAX else wait):
            raise StoreBusyError(self._busy(wait))
        try:
            if self._depth == 0 and self._folder is not None:
                self._file = self._locked(self._folder, deadline, wait)
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                if self._depth == 0 and self._file is not None:
                    file, self._file = self._file, None
                    # Closing the file would not unlock it if the process was forked meanwhile. A
                    # forked process shares the lock of its parent and must leave it alone.
                    if os.getpid() == process:
                        fcntl.flock(file, fcntl.LOCK_UN)
                    os.close(file)
        finally:
            self._threads.release()

    @contextmanager
    def keep_out(self, wait: float = 0.0) -> Iterator[None]:
        """Keeps other processes from writing, without writing anything oneself.

        If the lock file cannot be opened, the block runs without it.
        """
        wait = checked_wait(wait)
        file: int | None = None
        with contextlib.suppress(OSError):
            if self._folder is not None:
                file = self._folder.open(FILE, os.O_RDONLY)
        try:
            if file is not None:
                with contextlib.suppress(OSError):  # a file system without locks
                    self._flock(file, fcntl.LOCK_SH, time.monotonic() + wait, wait)
            yield
        finally:
            if file is not None:
                os.close(file)

    def _locked(self, folder: Folder, deadline: float, wait: float) -> int:
        try:
            while True:
                file = folder.open(FILE, os.O_RDWR | os.O_CREAT)
                try:
                    self._flock(file, fcntl.LOCK_EX, deadline, wait)
                    if os.path.samestat(os.fstat(file), folder.stat(FILE)):
                        with contextlib.suppress(OSError):  # a full disk: only messages need it
                            os.truncate(file, 0)
                            os.pwrite(file, str(os.getpid()).encode(), 0)
                        return file
                except FileNotFoundError:
                    pass  # deleted since it was opened: a lock on it would keep no one out
                except BaseException:
                    os.close(file)
                    raise
                os.close(file)
        except OSError as error:
            if error.errno in READ_ONLY:
                text = f"{self._name} is read-only: {FILE}: {error.strerror}"
            elif error.errno in NO_SPACE:
                text = f"{self._name} cannot be changed, because its disk is full: free some space"
            else:
                text = f"{self._name} cannot be changed: {FILE}: {error.strerror}"
            raise StoreError(text) from error

    def _flock(self, file: int, how: int, deadline: float, wait: float) -> None:
        while True:
            try:
                return fcntl.flock(file, how | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    holder = os.pread(file, 20, 0).decode(errors="replace")
                    raise StoreBusyError(self._busy(wait, holder)) from None
                time.sleep(min(0.05, max(0.001, deadline - time.monotonic())))

    def _busy(self, wait: float, holder: str = "") -> str:
        who = f"process {holder}" if holder else "another thread"
        waited = f" (waited {wait:g} s)" if wait else ""
        return f"{self._name}: {who} is writing to it{waited}; only one writer at a time"
