"""The lock that allows one writer at a time, among threads and among processes."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mchindex.errors import StoreBusyError, StoreError

FILE = "writer.lock"


class WriterLock:
    """A lock that can be taken again by the thread that holds it."""

    def __init__(self, folder: Path | None, name: str) -> None:
        """`folder` holds the lock file; None locks out threads only. `name` is for messages."""
        self._path = None if folder is None else folder / FILE
        self._name = name
        self._threads = threading.RLock()
        self._file: int | None = None
        self._depth = 0

    @property
    def held(self) -> bool:
        return self._depth > 0

    @contextmanager
    def hold(self, wait: float = 0.0) -> Iterator[None]:
        """Holds the lock, or raises StoreBusyError after `wait` seconds."""
        deadline = time.monotonic() + wait
        if not self._threads.acquire(timeout=max(wait, 0)):
            raise StoreBusyError(self._busy(wait))
        try:
            if self._depth == 0 and self._path is not None:
                self._file = self._locked(self._path, deadline, wait)
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                if self._depth == 0 and self._file is not None:
                    # Closing the file would not unlock it if the process was forked meanwhile.
                    fcntl.flock(self._file, fcntl.LOCK_UN)
                    os.close(self._file)
                    self._file = None
        finally:
            self._threads.release()

    def _locked(self, path: Path, deadline: float, wait: float) -> int:
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StoreError(f"{path}: {error.strerror}") from error
        try:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.truncate(file, 0)
                    os.pwrite(file, str(os.getpid()).encode(), 0)
                    return file
                except BlockingIOError:
                    if time.monotonic() >= deadline:
                        holder = os.pread(file, 20, 0).decode(errors="replace")
                        raise StoreBusyError(self._busy(wait, holder)) from None
                    time.sleep(min(0.05, max(0.001, deadline - time.monotonic())))
        except BaseException:
            os.close(file)
            raise

    def _busy(self, wait: float, holder: str = "") -> str:
        who = f"process {holder}" if holder else "another thread"
        waited = f" (waited {wait:g} s)" if wait else ""
        return f"{self._name}: {who} is writing to it{waited}; only one writer at a time"
