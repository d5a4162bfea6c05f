"""Filters, compared with the same conditions in plain Python."""

from operator import ge, gt, le, lt
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mchindex import json_text
from mchindex.storage import filters
from mchindex.storage.records import Row
from mchindex.storage.store import Store

# Keys and text that a JSON text, SQL or C may take for something else.
ODD = (
    "a\0",
    "a\0b",
    "\0",
    "\x01",
    "a\x01",
    "a\x01\x01",
    "\\u0000",
    "\\",
    "a\\\0",
    "'",
    "%",
    "\x1b",
)
KEYS = ("a", "b", "a.b", "camera", 'quo"te', "", "$", "$.a", "[0]", *ODD)
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.sampled_from([0.5, 2.0, -1.5]),
    st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["", "a", "b", "2", "äö", "\U0001f63a", "\uffff", *ODD]),
    st.text("ab\0\x01\x02\\u0\"'.\U0001f63a", max_size=6),
)  # fmt: skip
values = st.one_of(
    scalars,
    st.lists(scalars, max_size=3),
    st.dictionaries(st.sampled_from(KEYS), scalars, max_size=2),
)
metadata = st.one_of(st.none(), st.dictionaries(st.sampled_from(KEYS), values, max_size=4))
ordered = st.one_of(
    st.integers(-3, 3), st.sampled_from([0.5, -1.5]), st.sampled_from(["", "a", "\uffff", *ODD])
)


def several(one: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(one, st.lists(one, max_size=3))


comparisons = st.one_of(
    several(scalars),
    st.fixed_dictionaries(
        {},
        optional={
            "=": several(scalars), "!=": several(scalars), "<": several(ordered),
            "<=": several(ordered), ">": several(ordered), ">=": several(ordered),
        },
    ).filter(bool),
)  # fmt: skip
conditions = st.dictionaries(
    st.sampled_from([*KEYS, "camera.a", "a.a.b", "b.a", "a.a\0", "a\0.a\0b"]),
    comparisons,
    max_size=2,
)


def values_at(data: Any, name: str) -> list[Any]:
    """The values under `name`, read as a key and as a dotted path; elements in place of lists."""
    at_name = [data[name]] if isinstance(data, dict) and name in data else []
    if "." in name:
        at: Any = data
        for part in name.split("."):
            at = at.get(part, ...) if isinstance(at, dict) else ...
        at_name += [] if at is ... else [at]
    return [v for a in at_name for v in (a if isinstance(a, list) else [a])
            if not isinstance(v, (dict, list))]  # fmt: skip


def kind(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return type(value).__name__
    return "text" if isinstance(value, str) else "number"


def holds(data: Any, name: str, operator: str, operand: Any) -> bool:
    operands = operand if isinstance(operand, list) else [operand]
    stored = values_at(data or {}, name)
    if operator == "!=":
        return not holds(data, name, "=", operand)
    if operator == "=":
        present = any(v is not None for v in stored) or _has_compound(data or {}, name)
        equal = any(v is not None and o is not None and v == o for v in stored for o in operands)
        return equal or (None in operands and not present)
    compare = {"<": lt, "<=": le, ">": gt, ">=": ge}[operator]
    return any(
        kind(v) == kind(o) and kind(v) in ("text", "number") and compare(v, o)
        for v in stored
        for o in operands
    )


def _has_compound(data: Any, name: str) -> bool:
    """Whether a list or an object is stored under `name`, which is then not missing."""
    at: list[Any] = [data.get(name)]
    deep: Any = data
    for part in name.split("."):
        deep = deep.get(part) if isinstance(deep, dict) else None
    return any(isinstance(v, (dict, list)) for v in [*at, deep])


def matches(data: Any, wanted: dict[str, Any]) -> bool:
    return all(
        holds(data, name, operator, operand)
        for name, value in wanted.items()
        for operator, operand in (value if isinstance(value, dict) else {"=": value}).items()
    )


@settings(max_examples=1000)
@given(st.lists(metadata, max_size=6), conditions)
@example([{"a": []}, {"a": {}}, {"a": [None]}, {"a": None}, {}, None], {"a": None})
@example([{"a": "2"}, {"a": 3}, {"a": [1, 5]}, {"a": True}], {"a": {">=": 2}})
@example([{"camera": {"a": 1}}, {"camera.a": 1}, {"camera": "a"}], {"camera.a": {"!=": 1}})
@example([{"a": "x"}, {"a": "x\0y"}, {"a": ["x\0"]}, {"a\0": "x"}], {"a": "x"})
@example([{"a": "x"}, {"a": "x\0y"}, {"a": ["x\0y"]}], {"a": ["x\0y", "x\0z"]})
@example([{"a": "\\u0000"}, {"a": "\0"}, {"a": "\\\0"}, {"a": "\x01\x01"}], {"a": "\0"})
def test_filters_agree_with_plain_python(rows: list[Any], wanted: dict[str, Any]) -> None:
    stored = [None if m is None else json_text.dumps(m) for m in rows]
    assert matching(stored, wanted) == [i for i, m in enumerate(rows) if matches(m, wanted)]


def matching(metadata: list[str | None], wanted: dict[str, Any]) -> list[Any]:
    """The places of the texts that match when they are stored as metadata."""
    store = Store(None)
    try:
        with store.writer():
            store.insert([Row(i, b"\0" * 7, metadata=text) for i, text in enumerate(metadata)])
        return store.ids(store.matching(wanted).tolist())
    finally:
        store.close()


@pytest.mark.parametrize(
    "bad", ['{"a": Infinity}', '{"a": NaN}', "{", "", '{"a": ' + "[" * 3000 + "]" * 3000 + "}"]
)
@pytest.mark.parametrize("wanted", [{"a": 1}, {"a": {"!=": 5}}, {"b.c": None}, {"a": {">": 0}}])
def test_metadata_that_are_not_json_match_nothing(bad: str, wanted: dict[str, Any]) -> None:
    assert matching(['{"a": 1}', bad, '{"a": 1}'], wanted) == [0, 2]


class Shouted(str):
    def __str__(self) -> str:
        return self.upper()


@pytest.mark.parametrize("value", [Shouted("summer"), np.str_("summer")])
def test_subclasses_of_text_are_compared_as_text(value: Any) -> None:
    assert matching(['{"a": "summer"}', '{"a": "SUMMER"}'], {"a": value}) == [0]
    assert matching(['{"a": "summer"}', '{"a": "z"}'], {"a": {"<=": value}}) == [0]


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"a": {"~": 1}}, "unknown comparison, '~': use =, !=, <"),
        ({"a": {}}, "has no comparison"),
        ({"a": {">": None}}, "numbers or text"),
        ({"a": {">": True}}, "numbers or text"),
        ({"a": {">": [1, object()]}}, "text, a number"),
        ({"a": float("nan")}, "finite"),
        ({"a": [1, float("inf")]}, "finite"),
        ({"a": {">": np.float64("inf")}}, "finite"),
        ({1: 2}, "keys of a filter must be text"),
        ({"\ud800": 2}, "not valid Unicode"),
        ({"a": "\udcff"}, "not valid Unicode"),
        ({"a": {">": "\udcff"}}, "not valid Unicode"),
    ],
)
def test_invalid_conditions_are_refused(wanted: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        filters.where(wanted)
