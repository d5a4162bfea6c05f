"""Saves a table of fine codes, so that opening an index need not read them from the store."""

from __future__ import annotations

import math
import os
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from mchindex import json_text
from mchindex._core import FineTable
from mchindex.errors import NotASnapshotError, SnapshotDamagedError
from mchindex.files import open_file, replacing

_MAGIC = b"MCHFINE1"
_LONGEST = 4096  # bytes of the header, at most
_ARRAYS = {"keys": "<i8", "counts": "<u4", "fine": "u1", "codes": "u1", "cells": "<u2"}


def save_fine(table: FineTable, file: Path) -> int:
    """Writes everything in a table to a file: a line of JSON, then the arrays.

    Returns their checksum, by which `load_fine` knows the file again.
    """
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
    return crc


def load_fine(table: FineTable, file: Path, crc: int, last: int) -> None:
    """Adds to an empty table what `save_fine` wrote. Raises SnapshotError or OSError.

    A file with another checksum than `crc` holds another state of the index. No key may be above
    `last`, because later images have those.
    """
    with open_file(file) as stream:
        start = stream.read(len(_MAGIC) + 4)
        if start[: len(_MAGIC)] != _MAGIC:
            raise NotASnapshotError(f"{file} does not hold fine codes")
        line = stream.readline(_LONGEST)
        try:
            if zlib.crc32(line) != int.from_bytes(start[len(_MAGIC) :], "little"):
                raise ValueError("the header does not match its checksum")
            header = json_text.loads(line)
            if header["crc"] != crc:
                raise ValueError("it belongs to another snapshot")
            arrays = _arrays(stream, dict(header["arrays"]), crc)
            if arrays["keys"].max(initial=0) > last:
                raise ValueError("it has images that were stored later")
            table.add(**arrays)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise SnapshotDamagedError(f"{file} is damaged: {error}") from error


def _arrays(stream: IO[bytes], shapes: dict[str, Any], crc: int) -> dict[str, NDArray[Any]]:
    """The arrays that follow the header. Raises an exception if they do not match `crc`."""
    arrays: dict[str, NDArray[Any]] = {}
    actual, left = 0, os.fstat(stream.fileno()).st_size - stream.tell()
    for name, shape in shapes.items():
        if not all(type(side) is int and side >= 0 for side in shape):
            raise ValueError(f"{name} cannot have the shape {shape}")
        kind = np.dtype(_ARRAYS[name])
        size = kind.itemsize * math.prod(shape)
        left -= size
        if left < 0:
            raise ValueError("the file is too short")
        content = stream.read(size)
        actual = zlib.crc32(content, actual)
        arrays[name] = np.frombuffer(content, kind).reshape(shape)
    if left or actual != crc:
        raise ValueError("the content does not match its checksum")
    return arrays
