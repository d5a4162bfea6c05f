"""Settings of a hashing method or of a training stage: the fields of a frozen dataclass."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from numbers import Integral, Real
from typing import Any, Literal, Self, get_args, get_origin, get_type_hints


@dataclass(frozen=True)
class Settings:
    """The base class of settings. Subclasses add fields with defaults, and check them."""

    def updated(self, changes: Mapping[str, Any]) -> Self:
        """A copy with some fields changed. A value given as text is converted to the field's type.

        Raises ValueError for an unknown name or a value that does not fit.
        """
        known = get_type_hints(type(self))
        values: dict[str, Any] = {}
        for name, value in changes.items():
            if name not in known:
                raise ValueError(f"no setting is called {name!r}: there are {', '.join(known)}")
            values[name] = read_setting(name, value, known[name])
        return replace(self, **values)

    def to_json(self) -> dict[str, Any]:
        """The fields and their values."""
        return asdict(self)

    @classmethod
    def names(cls) -> list[str]:
        """The names of the fields."""
        return [field.name for field in fields(cls)]


def read_setting(name: str, value: Any, kind: Any) -> Any:
    """Converts text to a field's type. Raises ValueError for what the type does not allow."""
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            expected = ", ".join(map(str, get_args(kind)))
            raise ValueError(f"{name}={value}: expected one of {expected}")
        return value
    kinds = get_args(kind) or (kind,)
    plain = next((k for k in kinds if k is not type(None)), kind)
    if plain not in _ALLOWED:
        return value
    if value is None and type(None) in kinds:
        return None
    if isinstance(value, str) and plain is not str:
        value = _from_text(value, plain, optional=type(None) in kinds)
        if value is None:
            return None
    allowed = isinstance(value, _ALLOWED[plain]) and (plain is bool or not isinstance(value, bool))
    if allowed and plain is float and not math.isfinite(value):
        raise ValueError(f"{name}={value}: expected a finite number")
    if not allowed:
        expected = getattr(kind, "__name__", str(kind))
        shown = value[:60] if isinstance(value, str) else reprlib.repr(value)
        raise ValueError(f"{name}={shown}: expected a value of type {expected}")
    return value


_ALLOWED: dict[Any, type] = {int: Integral, float: Real, bool: bool, str: str}
_BOOLEANS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def _from_text(text: str, kind: Any, optional: bool) -> Any:
    """The value that text stands for; the text itself if it stands for none."""
    if optional and text.lower() == "none":
        return None
    try:
        return _BOOLEANS[text.lower()] if kind is bool else kind(text)
    except (KeyError, ValueError):
        return text
