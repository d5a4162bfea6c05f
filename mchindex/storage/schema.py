"""The tables of an index's SQLite file: creates, checks and migrates them."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import tempfile
import uuid
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from mchindex.errors import NotAnIndexError, StoreBusyError, StoreDamagedError, StoreError
from mchindex.files import sync_folder
from mchindex.storage import connection

FORMAT = 3
FILE = "index.sqlite"
PAGE = 4096  # bytes, SQLite's default
CHECKPOINT = 8192  # pages in the write-ahead log at which SQLite moves them to the file

_SCHEMA = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL, crc INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE images (
    key INTEGER PRIMARY KEY,                -- never given twice: a replaced image gets a new one
    id NOT NULL UNIQUE,                     -- text or integer, as the user gave it
    path TEXT,                              -- '': the same as the id
    size INTEGER, time INTEGER,             -- of the file, in bytes and in ns since the epoch
    hash BLOB,                              -- SHA-256 of the file's bytes or of the pixels
    width INTEGER, height INTEGER,          -- of the upright picture
    metadata TEXT,                          -- JSON
    codes BLOB NOT NULL,                    -- see `pack_codes`
    crc INTEGER NOT NULL                    -- of all but the codes, which have their own
);
CREATE TABLE gone (
    seq INTEGER PRIMARY KEY, key INTEGER NOT NULL, id NOT NULL, crc INTEGER NOT NULL
);
"""
# SQLite keeps the text of these statements, comments included, and `check_schema` compares it: a
# changed comment is a changed schema. To add a column, add a migration from FORMAT to FORMAT + 1.

_FINE = """
CREATE TABLE fine (
    key INTEGER PRIMARY KEY,                -- of the image
    codes BLOB NOT NULL                     -- one fine code per region, and their checksum
);
"""

_DECISIONS = """
CREATE TABLE decisions (
    key INTEGER PRIMARY KEY,                -- of the image
    decision TEXT NOT NULL,                 -- what to do with it among duplicates: keep, discard
    crc INTEGER NOT NULL
);
"""

# From each format to the next. Creating an index takes the steps to NEW. An index of format 1 is
# migrated when fine codes are first stored in it, and one of format 2 when a decision is: until
# then, earlier versions can open it.
MIGRATIONS = {0: _SCHEMA, 1: _FINE, 2: _DECISIONS}
WITH_FINE, WITH_DECISIONS = 2, 3
NEW = WITH_FINE

_NEW = ".new-"  # prefix of the folder in which a new index is built


class State(NamedTuple):
    """How much the store holds. It is stored beside the rows, so that a lost row is detected."""

    images: int = 0
    key: int = 0  # the last key assigned
    gone: int = 0  # removals so far
    keys: int = 0  # the sum of the keys of all images


@contextlib.contextmanager
def named_errors(where: str) -> Iterator[None]:
    """Turns SQLite's errors into ours."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        # Undecodable text has no error code, and a statement can only fail if the schema is wrong.
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise StoreBusyError(f"{where}: another process is writing to it") from error
        if code == sqlite3.SQLITE_READONLY:
            raise StoreError(f"{where} is read-only: {error}") from error
        if connection.is_full(error):
            raise StoreError(f"{where}: the disk is full: free some space") from error
        if code in _OUTSIDE:
            raise StoreError(f"{where}: {error}") from error
        raise StoreDamagedError(f"{where} is damaged: {error}") from error
    except OverflowError as error:
        raise ValueError(f"{where} cannot hold numbers of more than 64 bits") from error
    except UnicodeDecodeError as error:  # an error message that quotes a damaged schema
        raise StoreDamagedError(f"{where} is damaged: {error}") from error


# The disk or the system is at fault, not the file's content.
_OUTSIDE = {
    sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_FULL, sqlite3.SQLITE_INTERRUPT, sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_PERM,
}  # fmt: skip


def make_file(folder: Path) -> None:
    """Creates an index's file in one step: neither a crash nor a race leaves a partial one."""
    if folder.exists() and not folder.is_dir():
        raise NotAnIndexError(f"{folder} is a file: an index is a folder")
    folder.mkdir(parents=True, exist_ok=True)
    # If the file was deleted, no new one is created: the other files belong to the old one.
    if any(not f.name.startswith(_NEW) for f in folder.iterdir()) and not (folder / FILE).is_file():
        raise NotAnIndexError(f"{folder} holds other files and no index: choose a new folder")
    with tempfile.TemporaryDirectory(prefix=_NEW, dir=folder) as parent:
        new = Path(parent) / FILE
        with named_errors(str(folder)), contextlib.closing(connection.create(new)) as db:
            create(db)
            # Closing would do this too, but would not say that it failed, and only the file is
            # linked, not its log.
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        try:
            os.link(new, folder / FILE)
        except FileExistsError:
            pass  # another process was first
        except OSError:  # a file system without hard links
            if not (folder / FILE).exists():
                os.rename(new, folder / FILE)
    sync_folder(folder)


def create(db: sqlite3.Connection) -> None:
    """Creates the tables of an empty index."""
    db.execute("BEGIN")
    migrate(db, NEW)
    set_fact(db, "uuid", str(uuid.uuid4()))
    set_fact(db, "state", list(State()))
    db.execute("COMMIT")


def migrate(db: sqlite3.Connection, to: int) -> None:
    """Migrates the tables from their format to a later one. Call it within a transaction."""
    for step in range(version(db), to):
        for statement in MIGRATIONS[step].split(";\n"):
            db.execute(statement)
        db.execute(f"PRAGMA user_version = {step + 1}")


def version(db: sqlite3.Connection) -> int:
    """The format of a file; 0 if it is not the file of an index."""
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def has_fine(db: sqlite3.Connection) -> bool:
    """Whether there is a table of fine codes."""
    return version(db) >= WITH_FINE


def has_decisions(db: sqlite3.Connection) -> bool:
    """Whether there is a table of decisions about duplicates."""
    return version(db) >= WITH_DECISIONS


def is_as_declared(db: sqlite3.Connection) -> bool:
    """Whether the tables are declared as in `MIGRATIONS`.

    If they are not, values may come back as values of other columns.
    """
    return _declared(db) == _expected(version(db))


def _declared(db: sqlite3.Connection) -> list[tuple[Any, ...]]:
    query = "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY name"
    return list(db.execute(query))


@cache
def _expected(format: int) -> list[tuple[Any, ...]]:
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        migrate(db, format)
        return _declared(db)


def get_fact(db: sqlite3.Connection, name: str) -> Any:
    """A fact about the index itself, or None. Raises ValueError if its checksum does not match."""
    row = db.execute("SELECT value, crc FROM meta WHERE name = ?", (name,)).fetchone()
    if row is None:
        return None
    if row[1] != crc32(f"{name} {row[0]}".encode()):
        raise ValueError(f"the checksum of {name!r} does not match")
    return json.loads(row[0])


def set_fact(db: sqlite3.Connection, name: str, value: Any) -> None:
    text = json.dumps(value)
    crc = crc32(f"{name} {text}".encode())
    db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?, ?)", (name, text, crc))
