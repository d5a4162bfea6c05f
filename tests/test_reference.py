"""Docstrings of the public API: every name has one, and it explains the arguments."""

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import mchindex
from mchindex.cluster import ClusterIndex

PAGE = (Path(__file__).parents[1] / "docs" / "reference" / "python.md").read_text("utf-8")
WITH_ARGUMENTS = (mchindex.MCHIndex, ClusterIndex, mchindex.BucketTable)


def methods(kind: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    for name, member in vars(kind).items():
        found = getattr(kind, name)
        if not name.startswith("_") and callable(found) and not isinstance(member, property):
            yield f"{kind.__name__}.{name}", found


METHODS = dict(
    [pair for kind in WITH_ARGUMENTS for pair in methods(kind)]
    + [("connect", mchindex.connect), ("connect_async", mchindex.connect_async)]
)


def parameters(function: Callable[..., Any]) -> set[str]:
    """The names of the parameters; pybind11 states those of the engine in the docstring."""
    try:
        names = set(inspect.signature(function).parameters)
    except ValueError:
        head = (function.__doc__ or "").partition("\n")[0]
        names = set(re.findall(r"(?:^|[(,] ?)(\w+): ", head))
    return names - {"self", "limits"}


@pytest.mark.parametrize("name", METHODS)
def test_a_docstring_explains_its_arguments(name: str) -> None:
    text = METHODS[name].__doc__ or ""
    assert text
    arguments = text.partition("Args:\n")[2].partition("\n\n")[0]
    named = set(re.findall(r"^ *(?:\*\*)?(\w+): ", arguments, re.MULTILINE))
    wanted = parameters(METHODS[name])
    assert named >= wanted or wanted in ({"filter"}, set())  # count(filter) needs no list


@pytest.mark.parametrize("name", mchindex.__all__)
def test_every_public_name_is_in_the_reference(name: str) -> None:
    thing = getattr(mchindex, name)
    if isinstance(thing, type) and issubclass(thing, mchindex.MCHError):
        assert thing.__module__ == "mchindex.errors"
        assert "::: mchindex.errors" in PAGE
    elif name != "__version__":
        assert f"::: mchindex.{name}\n" in PAGE
    assert thing.__doc__
