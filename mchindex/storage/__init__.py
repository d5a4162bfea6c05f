"""What an index keeps on disk: SQLite with checksums, one writer, many readers."""
