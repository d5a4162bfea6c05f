"""Connections to SQLite: how they are opened, shared by threads, and closed."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from mchindex.errors import NotAnIndexError


class Connection:
    """A connection that one thread at a time uses, and that is never closed during a use."""

    def __init__(self, db: sqlite3.Connection, name: str) -> None:
        """`name` is that of the store, for messages."""
        self._db, self._name = db, name
        self._lock = threading.RLock()
        self._depth = 0  # of uses within uses, by the thread that has the lock
        self.closed = False

    @contextlib.contextmanager
    def use(self) -> Iterator[sqlite3.Connection]:
        """The connection, for this thread alone. Raises ValueError if it is closed."""
        with self._lock:
            if self.closed and not self._depth:
                raise ValueError(f"{self._name} is closed")
            self._depth += 1
            try:
                yield self._db
            finally:
                self._depth -= 1
                if self.closed and not self._depth:
                    self._db.close()

    def close(self) -> None:
        """Waits until other threads have finished with the connection, and closes it.

        Within a use by the same thread, as in a signal handler, it is closed when that use ends.
        """
        self.closed = True
        with self._lock:
            if not self._depth:
                self._db.close()

    def replace(self, db: sqlite3.Connection) -> bool:
        """Uses another connection from now on, unless this thread is using the present one."""
        with self._lock:
            if self._depth or self.closed:
                db.close()
                return False
            self._db.close()
            self._db = db
            return True


def in_memory() -> sqlite3.Connection:
    return _connect(":memory:", uri=False)


def create(file: Path) -> sqlite3.Connection:
    """A connection to a new file."""
    return _with_log(_connect(_uri(file, "mode=rwc")))


def to_write(file: Path) -> sqlite3.Connection:
    """A connection with a write-ahead log, whose commits are on disk when they return."""
    _check_kind(file)
    db = _with_log(_connect(_uri(file, "mode=rw")))
    try:
        _check_writable(db)
    except BaseException:
        db.close()
        raise
    return db


def to_read(file: Path) -> sqlite3.Connection:
    """A connection that follows what others write to a file, but cannot write itself."""
    _check_kind(file)
    db = _connect(_uri(file, "mode=ro"))
    return _started(db, f"PRAGMA cache_size = {-(1 << 16)}", "PRAGMA user_version")


def to_read_still(file: Path) -> sqlite3.Connection:
    """A connection to a file that no one can write to, such as one on a read-only disk.

    It needs no shared memory, which SQLite would have to create beside the file.
    """
    _check_kind(file)
    log = Path(f"{file}-wal")
    if log.exists() and log.stat().st_size:
        # Without locks and shared memory, but with what was committed to the log.
        db = _connect(_uri(file, "mode=ro&vfs=unix-none"))
        return _started(db, "PRAGMA locking_mode = EXCLUSIVE", "PRAGMA user_version")
    return _started(_connect(_uri(file, "mode=ro&immutable=1")), "PRAGMA user_version")


def is_full(error: BaseException | None) -> bool:
    """Whether an error of SQLite, or one that it caused, says that the disk is full."""
    while error is not None:
        if getattr(error, "sqlite_errorname", "") in ("SQLITE_FULL", "SQLITE_IOERR_SHMSIZE"):
            return True
        error = error.__cause__
    return False


def _uri(file: Path, options: str) -> str:
    return f"file:{quote(os.fsencode(os.path.abspath(file)))}?{options}"


def _connect(where: str, *, uri: bool = True) -> sqlite3.Connection:
    return sqlite3.connect(
        where, timeout=10, isolation_level=None, check_same_thread=False, uri=uri
    )


def _with_log(db: sqlite3.Connection) -> sqlite3.Connection:
    return _started(
        db,
        "PRAGMA journal_mode = WAL",
        "PRAGMA synchronous = FULL",
        f"PRAGMA cache_size = {-(1 << 16)}",  # KiB
    )


def _started(db: sqlite3.Connection, *statements: str) -> sqlite3.Connection:
    try:
        for statement in statements:
            db.execute(statement).fetchall()
    except BaseException:
        db.close()
        raise
    return db


def _check_writable(db: sqlite3.Connection) -> None:
    """Raises OperationalError if the file could only be opened to be read, which SQLite does
    without a word, for example when the system had too many open files for a moment."""
    db.execute("PRAGMA busy_timeout = 0")
    try:
        db.execute("BEGIN IMMEDIATE")
        db.execute("ROLLBACK")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:  # another process is writing
            raise
    finally:
        db.execute("PRAGMA busy_timeout = 10000")


def _check_kind(file: Path) -> None:
    """Raises NotAnIndexError if SQLite would wait for a named pipe or read a device."""
    for path in (file, Path(f"{file}-wal"), Path(f"{file}-shm")):
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISREG(path.stat().st_mode):
                raise NotAnIndexError(f"{path} is not a regular file")
