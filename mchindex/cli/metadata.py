"""Metadata given on the command line or in a file."""

from __future__ import annotations

import codecs
import csv
import os
from collections.abc import Iterator, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from mchindex import json_text
from mchindex.cli.options import pairs, scalar
from mchindex.files import open_file


class MetadataByPath:
    """The metadata of each path: what all images get, overridden by what a file gives."""

    def __init__(self, general: Sequence[str], file: Path | None) -> None:
        self.general = {key: scalar(value) for key, value in pairs("--metadata", general)}
        try:
            json_text.dumps(self.general)
        except ValueError:
            raise ValueError("--metadata: the text is not valid Unicode") from None
        self.own = {} if file is None else dict(_read(file))
        self._used: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self.general or self.own)

    def __call__(self, path: str) -> Any:
        """The metadata of an image; None leaves the stored metadata unchanged."""
        own = self.own.get(path)
        if own is not None:
            self._used.add(path)
        return {**self.general, **(own or {})} or None

    def unused(self) -> int:
        return len(self.own) - len(self._used)


def _read(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Reads a metadata file; yields absolute file names and their metadata."""
    kinds = {".csv": _of_csv, ".jsonl": _of_jsonl}
    read = kinds.get(file.suffix.lower())
    if read is None:
        raise ValueError(f"--metadata-file {file}: the file name must end in .csv or .jsonl")
    home, seen = os.path.dirname(os.path.abspath(file)), set()
    for number, record in read(file):
        name = record.pop("file", None)
        if not isinstance(name, str) or not name:
            raise ValueError(f"{file}:{number}: the line names no file")
        full = os.path.normpath(os.path.join(home, name))
        if full in seen:
            raise ValueError(f"{file}:{number}: {name} appears twice")
        seen.add(full)
        yield full, record


def _of_csv(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with open_file(file) as raw, TextIOWrapper(raw, "utf-8-sig", newline="") as stream:
        rows = csv.DictReader(stream, strict=True)
        try:
            if "file" not in (rows.fieldnames or ()):
                raise ValueError(f"{file}:1: the header has no column named file")
            for row in rows:
                if None in row:
                    raise ValueError(f"{file}:{rows.line_num}: more cells than in the header")
                cells = {key: cell for key, cell in row.items() if cell}
                name = cells.pop("file", None)
                yield rows.line_num, {"file": name} | {k: scalar(v) for k, v in cells.items()}
        except (csv.Error, UnicodeDecodeError) as error:
            raise ValueError(f"{file}:{rows.line_num + 1}: {error}") from None


def _of_jsonl(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with open_file(file) as stream:
        for number, line in enumerate(stream, 1):
            if not line.strip():
                continue
            try:
                record = json_text.loads(line.removeprefix(codecs.BOM_UTF8))
                json_text.dumps(record)  # half a surrogate pair can be read, but not stored
            except ValueError as error:
                raise ValueError(f"{file}:{number}: {error}") from None
            if not isinstance(record, dict):
                raise ValueError(f"{file}:{number}: each line must be an object")
            yield number, record
