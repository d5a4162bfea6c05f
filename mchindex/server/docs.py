"""A page that describes the API: no scripts, nothing from other hosts."""

from __future__ import annotations

from typing import Any

from mchindex.index.page import templates


def docs_page(schema: dict[str, Any]) -> str:
    """The OpenAPI description as HTML. The template escapes every value."""
    parts = schema["components"]["schemas"]

    def resolved(one: dict[str, Any]) -> dict[str, Any]:
        name = one.get("$ref", "").rpartition("/")[2]
        found: dict[str, Any] = parts[name] if name else one
        return found

    own = templates("mchindex.server")
    own.filters |= {"resolved": resolved, "kind": kind}
    keys = "securitySchemes" in schema["components"]
    return own.get_template("docs.html").render(schema=schema, keys=keys)


def kind(one: dict[str, Any]) -> str:
    """What a value may be, in a few words."""
    if "$ref" in one:
        return str(one["$ref"].rpartition("/")[2])
    if several := one.get("anyOf"):
        return " or ".join(dict.fromkeys(kind(part) for part in several))
    if "enum" in one:
        return ", ".join(map(str, one["enum"]))
    if one.get("type") == "array":
        return f"array of {kind(one.get('items', {}))}"
    text = str(one.get("type", "anything"))
    default = one.get("default")
    return text if default in (None, "") else f"{text}, by default {default}"
