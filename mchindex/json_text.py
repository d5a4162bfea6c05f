"""JSON that can be read wherever it was written: finite numbers, valid text, limited nesting.

Python's own `json` reads and writes NaN and Infinity, which are not JSON, and raises RecursionError
for values that are nested deeply. Everything here raises ValueError only.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

DEEPEST = 100  # levels of nesting, at most; SQLite allows 1,000

# A text need not end: otherwise, each quote in one that does not would be tried as its start.
_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*+"?|([\[{])|([\]}])', re.DOTALL)


def loads(text: str | bytes, deepest: int = DEEPEST) -> Any:
    """The value of a JSON text. Bytes must be UTF-8. `deepest`: levels of nesting, at most."""
    if isinstance(text, bytes):
        text = text.decode("utf-8")
    _check_depth(text, deepest)
    return _DECODER.decode(text)


def dumps(value: Any) -> str:
    """The JSON text of a value, which `loads` reads. Raises ValueError if there is none."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except TypeError as error:
        raise ValueError(str(error)) from None
    _check_depth(text, DEEPEST)
    text.encode()  # half a surrogate pair is not text
    return text


def _check_depth(text: str, deepest: int) -> None:
    if text.count("[") + text.count("{") <= deepest:
        return
    depth = 0
    for match in _BRACKET.finditer(text):
        depth += (match[1] is not None) - (match[2] is not None)
        if depth > deepest:
            raise ValueError(f"it is nested more than {deepest} levels deep")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is too large a number")
    return value


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_no_constant)
