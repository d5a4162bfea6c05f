"""All exceptions that mchindex defines have one base class."""

import importlib
import pkgutil

import mchindex
from mchindex.errors import MCHError


def test_every_exception_derives_from_mch_error() -> None:
    exceptions = []
    for module in pkgutil.walk_packages(mchindex.__path__, "mchindex."):
        if module.name.endswith("__main__"):
            continue
        for value in vars(importlib.import_module(module.name)).values():
            own = getattr(value, "__module__", "").startswith("mchindex")
            if own and isinstance(value, type) and issubclass(value, Exception):
                exceptions.append(value)
    assert MCHError in exceptions
    assert [kind for kind in exceptions if not issubclass(kind, MCHError)] == []


def test_some_exceptions_are_value_errors_too() -> None:
    assert issubclass(mchindex.DatasetError, ValueError)
    assert issubclass(mchindex.ExportError, ValueError)
