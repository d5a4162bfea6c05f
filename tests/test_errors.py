"""One base class under all exceptions that mchindex defines."""

import importlib
import pkgutil

import mchindex
from mchindex.errors import MCHError


def test_every_exception_has_the_one_base() -> None:
    found = []
    for module in pkgutil.walk_packages(mchindex.__path__, "mchindex."):
        if module.name.endswith("__main__"):
            continue
        for value in vars(importlib.import_module(module.name)).values():
            own = getattr(value, "__module__", "").startswith("mchindex")
            if own and isinstance(value, type) and issubclass(value, Exception):
                found.append(value)
    assert MCHError in found
    assert [kind for kind in found if not issubclass(kind, MCHError)] == []


def test_built_in_bases_are_kept() -> None:
    assert issubclass(mchindex.DatasetError, ValueError)
    assert issubclass(mchindex.ExportError, ValueError)
