"""The help text of a command, made of its docstring."""

from __future__ import annotations

import inspect
from typing import Any


def help_text(command: Any) -> str:
    """The docstring of a command, for a terminal of any width.

    Lines that are broken to fit the source are joined; examples keep their lines.
    """
    paragraphs = (inspect.getdoc(command) or "").split("\n\n")
    return "\n\n".join(
        text if "\n " in text else " ".join(text.splitlines()) for text in paragraphs
    )
