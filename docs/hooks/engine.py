"""Gives the stub of the compiled engine the docstrings of the extension, for the reference."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from typing import Any

from griffe import Docstring, Extension, Object

ENGINE = "mchindex._core"
OPTIONS = {"returns_multiple_items": False, "returns_named_value": False}  # as in mkdocs.yml
SIGNATURE = re.compile(r"^\w+\(.*\) -> .*\n+")  # pybind11's, above what we wrote


class EngineDocstrings(Extension):
    def on_object(self, *, obj: Object, **_: Any) -> None:
        if not obj.path.startswith(f"{ENGINE}.") or obj.docstring is not None:
            return
        found: Any = import_module(ENGINE)
        for name in obj.path.removeprefix(f"{ENGINE}.").split("."):
            found = getattr(found, name, None)
        text = SIGNATURE.sub("", getattr(found, "__doc__", None) or "")
        if text:
            obj.docstring = Docstring(
                inspect.cleandoc(text), parent=obj, parser="google", parser_options=OPTIONS
            )
