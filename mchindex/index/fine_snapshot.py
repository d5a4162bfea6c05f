"""Saves a table of fine codes, so that opening an index need not read them from the store."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np

from mchindex import json_text
from mchindex._core import FineTable
from mchindex.errors import NotASnapshotError, SnapshotDamagedError
from mchindex.files import open_file, replacing

_MAGIC = b"MCHFINE1"
_LONGEST = 4096  # bytes of the header, at most
_ARRAYS = {"keys": "<i8", "counts": "<u4", "fine": "u1", "codes": "u1", "cells": "<u2"}


def save_fine(table: FineTable, file: Path) -> None:
    """Writes everything in a table to a file: a line of JSON, then the arrays."""
    arrays = {
        name: np.ascontiguousarray(values, _ARRAYS[name])
        for name, values in table.content().items()
        if values is not None
    }
    crc = 0
    for values in arrays.values():
        crc = zlib.crc32(values.data, crc)
    header = {"arrays": {name: values.shape for name, values in arrays.items()}, "crc": crc}
    line = json_text.dumps(header).encode() + b"\n"
    with replacing(file) as stream:
        stream.write(_MAGIC + zlib.crc32(line).to_bytes(4, "little") + line)
        for values in arrays.values():
            stream.write(values.data)


def load_fine(table: FineTable, file: Path) -> None:
    """Adds to an empty table what `save_fine` wrote. Raises SnapshotError or OSError."""
    with open_file(file) as stream:
        start = stream.read(len(_MAGIC) + 4)
        if start[: len(_MAGIC)] != _MAGIC:
            raise NotASnapshotError(f"{file} does not hold fine codes")
        line = stream.readline(_LONGEST)
        try:
            if zlib.crc32(line) != int.from_bytes(start[len(_MAGIC) :], "little"):
                raise ValueError("the header does not match its checksum")
            header = json_text.loads(line)
            arrays: dict[str, Any] = {}
            crc, left = 0, file.stat().st_size - stream.tell()
            for name, shape in header["arrays"].items():
                kind = np.dtype(_ARRAYS[name])
                size = kind.itemsize * int(np.prod([int(n) for n in shape], dtype=object))
                left -= size
                if left < 0:
                    raise ValueError("the file is too short")
                content = stream.read(size)
                crc = zlib.crc32(content, crc)
                arrays[name] = np.frombuffer(content, kind).reshape(shape)
            if left or crc != header["crc"]:
                raise ValueError("the content does not match its checksum")
            table.add(**arrays)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise SnapshotDamagedError(f"{file} is damaged: {error}") from error
