"""The store of an index: SQLite with checksums, one writer, many readers."""

from mchindex.storage import forks as forks  # it takes effect when it is imported
