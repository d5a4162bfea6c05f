"""A page that describes the API: no scripts, nothing from other hosts."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

from mchindex.index.page import templates

STYLE = Path(__file__).parent / "templates" / "docs.css"
TAGS = ("search", "index", "changes", "duplicates", "health")  # as they are shown
METHODS = ("get", "post", "put", "delete")


def docs_page(schema: dict[str, Any], address: str) -> str:
    """The OpenAPI description as HTML, with examples for the service at `address`. The template
    escapes every value."""
    parts = schema["components"]["schemas"]

    def resolved(one: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = parts[_name(one)] if "$ref" in one else one
        return found

    own = templates("mchindex.server")
    own.filters |= {"resolved": resolved, "kind": kind, "parameter": _parameter}
    calls = [
        (method, path, item[method])
        for path, item in schema["paths"].items()
        for method in METHODS
        if method in item
    ]
    groups = [(tag, [call for call in calls if tag in call[2]["tags"]]) for tag in TAGS]
    shown = {_name(one) for call in calls for one in _bodies(call[2]) if "$ref" in one}
    objects = [(name, one) for name, one in parts.items() if name not in shown]
    return own.get_template("docs.html").render(
        schema=schema, groups=groups, address=address,
        keys="securitySchemes" in schema["components"],
        objects=[(name, one) for name, one in objects if "properties" in one],
    )  # fmt: skip


def _bodies(call: dict[str, Any]) -> list[dict[str, Any]]:
    """The schemas of what a call takes and of its answer."""
    contents = (call.get("requestBody", {}), call["responses"]["200"])
    several = chain.from_iterable(one.get("content", {}).values() for one in contents)
    return [one.get("schema", {}) for one in several]


def _parameter(one: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return one["name"], {"description": one.get("description", ""), **one["schema"]}


def _name(one: dict[str, Any]) -> str:
    """The name of the object that a schema refers to."""
    return str(one["$ref"].rpartition("/")[2])


def kind(one: dict[str, Any]) -> str:
    """What a value may be, in a few words."""
    if "$ref" in one:
        return _name(one)
    if several := one.get("anyOf"):
        kinds = [kind(part) for part in several if part.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if "enum" in one:
        return ", ".join(map(str, one["enum"]))
    if one.get("type") == "array":
        return f"array of {kind(one.get('items', {}))}"
    text = "file" if one.get("format") == "binary" else str(one.get("type", "anything"))
    default = one.get("default")
    return text if default in (None, "") else f"{text}, by default {str(default).lower()}"
