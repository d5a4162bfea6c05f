"""HTML elements from Python, for the report of the paper's experiments."""

from __future__ import annotations

import html
from collections.abc import Iterable

VOID = frozenset({"br", "img", "meta"})
_RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def tag(name: str, /, *inside: str, **attributes: object) -> Markup:
    """An element; in the names of attributes `class_` is class and `text_anchor` text-anchor."""
    given = "".join(
        f' {_attribute(key)}="{html.escape(str(value))}"' for key, value in attributes.items()
    )
    if name in VOID:
        return Markup(f"<{name}{given}>")
    return Markup(f"<{name}{given}>{joined(inside)}</{name}>")


def joined(parts: Iterable[str]) -> Markup:
    return Markup("".join(p if isinstance(p, Markup) else html.escape(p) for p in parts))


def _attribute(key: str) -> str:
    return "viewBox" if key == "view_box" else key.rstrip("_").replace("_", "-")


def power_of_ten(power: int) -> str:
    return f"{10**power:,}" if power < 5 else "10" + str(power).translate(_RAISED)
