"""Settings of a hashing method or of a training stage: the fields of a frozen dataclass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
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
            raise ValueError(f"{name}={value}: expected one of {', '.join(get_args(kind))}")
        return value
    if not isinstance(value, str) or kind is str:
        return value
    try:
        if kind is bool:
            return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[
                value.lower()
            ]
        if value.lower() == "none" and type(None) in getattr(kind, "__args__", ()):
            return None
        plain = next((t for t in getattr(kind, "__args__", (kind,)) if t is not type(None)), kind)
        return plain(value)
    except (KeyError, ValueError, TypeError):
        expected = getattr(kind, "__name__", str(kind))
        raise ValueError(f"{name}={value}: expected a value of type {expected}") from None
