"""docs/security.md states the limits that the code has."""

import importlib
import re
from pathlib import Path

import pytest

from mchindex._core import BucketTable

PAGE = (Path(__file__).parents[1] / "docs" / "security.md").read_text("utf-8")
LIMITS = re.findall(r"^\| .* \| ([^|]+) \| `(mchindex\.[\w.]+)\.([A-Z_]+)` \|$", PAGE, re.MULTILINE)
UNITS = {"": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def number(text: str) -> int:
    value, _, unit = text.strip().replace(",", "").partition(" ")
    return int(value) * UNITS[unit]


@pytest.mark.parametrize(("stated", "module", "name"), LIMITS)
def test_a_limit_is_what_the_page_says(stated: str, module: str, name: str) -> None:
    assert getattr(importlib.import_module(module), name) == number(stated)


def test_the_page_states_limits() -> None:
    assert len(LIMITS) >= 9
    assert "all queries together | 2^26 |" in PAGE
    assert f"max_hits: object = {2**26}" in (BucketTable.within.__doc__ or "")
