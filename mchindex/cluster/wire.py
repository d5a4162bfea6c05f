"""Values as bytes and back, for messages between processes.

A message holds plain values, containers, arrays, exceptions, and the classes of `_CLASSES`. Unlike
a pickle it can name nothing else, so reading one runs no code of its sender's choice.
"""

from __future__ import annotations

import builtins
import itertools
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import fields
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from mchindex import errors


def _no_object(value: dict[str, Any]) -> Any:
    raise ValueError("mappings have a tag")


# The classes that messages may hold, and their modules. Each is a dataclass or a named tuple.
_CLASSES = {
    "Part": "mchindex.cluster.shard",
    "Facts": "mchindex.cluster.shard",
    "Search": "mchindex.index.searching",
    "Selection": "mchindex.index.searching",
    "Query": "mchindex.index.ranking",
    "Budget": "mchindex.index.ranking",
    "Near": "mchindex.index.ranking",
    "Reach": "mchindex.index.ranking",
    "Found": "mchindex.index.results",
    "WordQuery": "mchindex.inference.words",
    "Row": "mchindex.storage.records",
    "Known": "mchindex.storage.records",
    "Facet": "mchindex.storage.store",
}
_HEAD = json.JSONDecoder(object_hook=_no_object)
_JSON = frozenset((type(None), bool, int, str))  # the types of values that JSON has as they are
_NUMBERS = "biuf"  # the kinds of numbers that arrays may hold
_ALIGNED = 8  # arrays start at multiples of this, in bytes


def encode(value: Any) -> bytes:
    """The message that holds a value. Raises TypeError if no message can."""
    blobs = _Blobs()
    head = json.dumps(_tagged(value, blobs)).encode()
    head += b" " * (-(8 + len(head)) % _ALIGNED)
    return b"".join((len(head).to_bytes(8, "little"), head, *blobs.parts))


def decode(message: bytearray) -> Any:
    """The value of a message; its arrays are views of it. Raises ValueError if it is none."""
    try:
        start = 8 + int.from_bytes(message[:8], "little")
        tagged = _HEAD.decode(message[8:start].decode())
        return _value(tagged, memoryview(message)[start:])
    except (ArithmeticError, LookupError, TypeError, RecursionError, ValueError) as error:
        raise ValueError(f"not a message: {error}") from None


class _Blobs:
    """What follows the head of a message: bytes and the content of arrays."""

    def __init__(self) -> None:
        self.parts: list[Any] = []
        self._size = 0

    def add(self, blob: Any, size: int) -> int:
        """Adds a blob; returns where it starts."""
        start = self._size
        self.parts.append(blob)
        if padding := -size % _ALIGNED:
            self.parts.append(bytes(padding))
        self._size += size + padding
        return start


def _tagged(value: Any, blobs: _Blobs) -> Any:
    """A value as JSON: what JSON does not have is a list that starts with a tag."""
    kind = type(value)
    if kind in _JSON:
        return value
    if kind is float:
        return value if math.isfinite(value) else ["float", repr(value)]
    if kind in (list, range):
        return ["list", *_all_tagged(value, blobs)]
    if kind is tuple:
        return ["tuple", *_all_tagged(value, blobs)]
    if kind in (bytes, bytearray, memoryview):
        return ["bytes", blobs.add(value, len(value)), len(value)]
    if _CLASSES.get(kind.__name__) == kind.__module__:
        return [kind.__name__, *_all_tagged(_items(value), blobs)]
    if isinstance(value, Mapping):
        return ["dict", *_all_tagged(itertools.chain.from_iterable(value.items()), blobs)]
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in _NUMBERS:
        array = np.ascontiguousarray(value)
        start = blobs.add(array.tobytes(), array.nbytes)
        return ["array", array.dtype.str, list(value.shape), start]
    if isinstance(value, Exception) and _exception(kind.__name__) is kind:
        reduced: Any = value.__reduce__()
        if reduced[0] is kind:
            return ["exception", kind.__name__, *_all_tagged(reduced[1], blobs)]
    raise TypeError(f"a message cannot hold a {kind.__module__}.{kind.__qualname__}")


def _all_tagged(values: Iterable[Any], blobs: _Blobs) -> list[Any]:
    return [value if type(value) in _JSON else _tagged(value, blobs) for value in values]


def _value(tagged: Any, blobs: memoryview) -> Any:
    if not isinstance(tagged, list):
        return tagged
    tag: str = tagged[0]
    items: list[Any] = tagged[1:]
    if tag == "float":
        return float(items[0])
    if tag == "bytes":
        start, size = items
        return bytes(_slice(blobs, start, size))
    if tag == "array":
        return _array(blobs, *items)
    if tag == "exception":
        if (kind := _exception(items[0])) is None:
            raise ValueError(f"there is no exception {items[0]!r}")
        return kind(*_values(items[1:], blobs))
    values = _values(items, blobs)
    if tag == "list":
        return values
    if tag == "tuple":
        return tuple(values)
    if tag == "dict":
        return dict(zip(values[::2], values[1::2], strict=True))
    return _class(tag)(*values)


def _values(items: list[Any], blobs: memoryview) -> list[Any]:
    return [_value(item, blobs) if isinstance(item, list) else item for item in items]


@cache
def _class(name: str) -> Any:
    return getattr(import_module(_CLASSES[name]), name)


def _items(value: Any) -> Iterable[Any]:
    """The fields of a dataclass or a named tuple."""
    if isinstance(value, tuple):
        return value
    kind: Any = type(value)
    return [getattr(value, name) for name in _names(kind)]


@cache
def _names(kind: Any) -> list[str]:
    """The names of a dataclass's fields."""
    return [field.name for field in fields(kind)]


def _array(blobs: memoryview, name: str, shape: list[int], start: int) -> Any:
    """An array that can be written to, or a number if it has no dimensions."""
    kind = np.dtype(name)
    if kind.kind not in _NUMBERS or any(size < 0 for size in shape):
        raise ValueError("no array of numbers")
    content = _slice(blobs, start, math.prod(shape) * kind.itemsize)
    array = np.frombuffer(content, kind).reshape(shape)
    return array if shape else array[()]


def _slice(blobs: memoryview, start: int, size: int) -> memoryview:
    if not 0 <= start <= start + size <= len(blobs):
        raise ValueError("it is cut off")
    return blobs[start : start + size]


def _exception(name: str) -> type[Exception] | None:
    """An exception of mchindex or of Python, by its name."""
    found = getattr(errors, name, None) or getattr(builtins, name, None)
    return found if isinstance(found, type) and issubclass(found, Exception) else None
