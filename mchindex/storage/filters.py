"""Translates conditions on metadata into SQL.

    {"album": "2024"}                    # equal, or a list in the metadata that contains it
    {"album": ["2023", "2024"]}          # any of several values
    {"album": None}                      # missing or null
    {"year": {">=": 2020, "<": 2024}}    # all of several comparisons
    {"camera.model": "X100"}             # a key inside an object, or a key that contains a dot

Numbers are compared with numbers and text with text. A record whose metadata are not JSON matches
no condition.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from mchindex import json_text

OPERATORS = ("=", "!=", "<", "<=", ">", ">=")
Sql = tuple[str, list[Any]]  # an expression and the values of its parameters

# SQLite's JSON functions end a text at its first null character. So both sides are compared with
# U+0001 U+0001 for each null character and U+0001 U+0002 for each U+0001, which keeps their order
# and keeps different texts different. An escaped backslash is rewritten first: the JSON text
# "\\u0000" has no null character.
_REWRITTEN = (
    "replace(replace(replace(metadata, '\\\\', '\\u005c'), "
    "'\\u0001', '\\u0001\\u0002'), '\\u0000', '\\u0001\\u0001')"
)
_METADATA = (
    f"CASE WHEN instr(metadata, '\\u000') THEN {_REWRITTEN} ELSE coalesce(metadata, '{{}}') END"
)


def where(conditions: Mapping[str, Any]) -> Sql:
    """An expression over the column `metadata` that is true where all conditions hold."""
    parts: list[Sql] = []
    for name, wanted in conditions.items():
        if not isinstance(name, str):
            raise ValueError(f"the keys of a filter must be text, not {type(name).__name__}")
        _check_unicode(name, name)
        comparisons = wanted if isinstance(wanted, Mapping) else {"=": wanted}
        if not comparisons:
            raise ValueError(
                f"the filter for {name!r} has no comparison: use {', '.join(OPERATORS)}"
            )
        parts += [_comparison(name, str(op), operand) for op, operand in comparisons.items()]
    if not parts:
        return "1", []
    text, values = _joined(" AND ", parts)
    # CASE, because SQLite may evaluate the operands of AND in any order.
    return f"CASE WHEN json_valid(coalesce(metadata, '{{}}')) THEN {text} ELSE 0 END", values


def _comparison(name: str, operator: str, operand: Any) -> Sql:
    if operator not in OPERATORS:
        raise ValueError(
            f"the filter for {name!r} has an unknown comparison, {operator!r}: use "
            f"{', '.join(OPERATORS)}"
        )
    several = isinstance(operand, (list, tuple, set, frozenset))
    operands = [_scalar(name, value) for value in (operand if several else [operand])]
    if operator == "!=":
        text, values = _equal(name, operands)
        return f"NOT {text}", values
    return _equal(name, operands) if operator == "=" else _ordered(name, operator, operands)


def _equal(name: str, operands: list[Any]) -> Sql:
    wanted = json_text.dumps([o for o in operands if o is not None])
    equal = _some_value(name, "{v}.atom IN (SELECT value FROM json_each(?))", [wanted])
    if None not in operands:
        return equal
    text, values = _exists(name, "{v}.type <> 'null'", [])
    return _joined(" OR ", [equal, (f"NOT {text}", values)])


def _ordered(name: str, operator: str, operands: list[Any]) -> Sql:
    parts: list[Sql] = []
    for operand in operands:
        if operand is None or isinstance(operand, bool):
            raise ValueError(
                f"the filter for {name!r} can use {operator} only with numbers or text, not "
                f"{operand!r}"
            )
        if isinstance(operand, int):
            operand = float(operand) if abs(operand) >= 2**63 else operand
        kinds = "('text')" if isinstance(operand, str) else "('integer', 'real')"
        # SQLite sorts every text after every number, so the types must agree.
        test = f"({{v}}.type IN {kinds} AND {{v}}.atom {operator} ?)"
        parts.append(_some_value(name, test, [operand]))
    return _joined(" OR ", parts) if parts else ("0", [])


def _some_value(name: str, test: str, values: list[Any]) -> Sql:
    """Whether the value under `name` passes the test or is a list with an element that does."""
    elements = f"SELECT 1 FROM json_each({{v}}.value) AS e WHERE {test.replace('{v}', 'e')}"
    # For an array or an object, `value` is its JSON text, which must not be compared.
    both = (
        f"({{v}}.type NOT IN ('array', 'object') AND {test} "
        f"OR {{v}}.type = 'array' AND EXISTS ({elements}))"
    )
    return _exists(name, both, [*values, *values])


def _exists(name: str, test: str, values: list[Any]) -> Sql:
    """Whether a value under `name`, read as a key or as a dotted path, passes the test."""
    name = _without_nulls(name)
    paths = [[name]] + ([name.split(".")] if "." in name else [])
    return _joined(" OR ", [_exists_at(path, test, values) for path in paths])


def _exists_at(path: list[str], test: str, values: list[Any]) -> Sql:
    tables, keys = [], []
    source = _METADATA
    for depth in range(len(path)):
        tables.append(f"json_each({source}) AS m{depth}")
        keys.append(f"m{depth}.key = ?")
        # Only an object has keys; json_each would fail on plain text.
        source = f"CASE m{depth}.type WHEN 'object' THEN m{depth}.value ELSE '{{}}' END"
    passes = test.replace("{v}", f"m{len(path) - 1}")
    text = f"EXISTS (SELECT 1 FROM {', '.join(tables)} WHERE {' AND '.join(keys)} AND {passes})"
    return text, [*path, *values]


def _joined(word: str, parts: Iterable[Sql]) -> Sql:
    several = list(parts)
    text = word.join(text for text, _ in several)
    return f"({text})", [value for _, values in several for value in values]


def _scalar(name: str, value: Any) -> Any:
    """An operand as a plain value, with text as it is compared."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        _check_unicode(name, value)
        return _without_nulls(value)
    if isinstance(value, int):
        return int(value)
    if not isinstance(value, float):
        raise ValueError(
            f"the filter for {name!r} must compare with text, a number, True, False or None, not "
            f"with {type(value).__name__}"
        )
    if not math.isfinite(value):
        raise ValueError(f"the filter for {name!r} must compare with a finite number, not {value}")
    return float(value)


def _check_unicode(name: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"the filter for {name!r} has text that is not valid Unicode") from None


def _without_nulls(text: str) -> str:
    """The text in the form that `_METADATA` gives to text."""
    return str.__str__(text).replace("\x01", "\x01\x02").replace("\0", "\x01\x01")
