"""JSON is read and written strictly."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mchindex import json_text

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


@given(VALUES)
def test_what_is_written_is_read_back_and_is_standard_json(value: Any) -> None:
    text = json_text.dumps(value)
    assert json_text.loads(text) == value
    assert json_text.loads(text.encode()) == value
    assert json.loads(text) == value


@pytest.mark.parametrize(
    "text", ["1e999", "-1e999", "NaN", "Infinity", "-Infinity", '{"a": [1e400]}']
)
def test_numbers_that_are_not_finite_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"too large a number|is not JSON"):
        json_text.loads(text)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1, 2}, "\ud800", b"x"])
def test_values_without_a_json_text_are_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"not JSON|surrogates"):
        json_text.dumps(value)


@pytest.mark.parametrize("depth", [101, 1_100, 100_000])
@pytest.mark.parametrize(("start", "end"), [("[", "]"), ('{"a":', "}")])
def test_deep_nesting_is_refused(start: str, end: str, depth: int) -> None:
    with pytest.raises(ValueError, match="nested"):
        json_text.loads(start * depth + "1" + end * depth)
    value: Any = 1
    for _ in range(depth):
        value = [value]
    with pytest.raises(ValueError, match="nested"):
        json_text.dumps(value)
    while isinstance(value, list):  # freed level by level: Python frees it recursively otherwise
        value = value[0]


def test_the_deepest_allowed_nesting_is_kept() -> None:
    text = "[" * 100 + "]" * 100
    assert json_text.dumps(json_text.loads(text)) == text


@given(st.text('[]{}"\\a', max_size=300))
def test_brackets_in_text_do_not_count(text: str) -> None:
    wide = [text] * 200
    assert json_text.loads(json_text.dumps(wide)) == wide


@given(st.binary(max_size=50) | st.text('[]{}",:0123456789.eE+-', max_size=50).map(str.encode))
def test_any_bytes_give_a_value_or_a_value_error(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        json_text.dumps(json_text.loads(data))


def test_text_that_does_not_end_is_refused_at_once() -> None:
    """The time grows with the length, not with its square."""
    with pytest.raises(ValueError, match=r"Unterminated|Extra data"):
        json_text.loads("[]" * 101 + '"' + '\\"' * 5_000_000)
