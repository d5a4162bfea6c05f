"""The store of an index: SQLite with checksums, one writer, many readers."""
