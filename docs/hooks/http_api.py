"""Writes the reference of the HTTP API, reference/http.md, from its OpenAPI description."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
from mkdocs.structure.pages import Page

from mchindex import MCHIndex
from mchindex.server.app import create_app
from mchindex.server.docs import kind

HERE = "<!-- http -->"


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    if HERE not in markdown:
        return markdown
    return markdown.replace(HERE, "\n".join(_reference(asyncio.run(_description()))))


async def _description() -> dict[str, Any]:
    with MCHIndex(bits=64) as index:
        transport = httpx.ASGITransport(create_app(index))  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            found: dict[str, Any] = (await client.get("/openapi.json")).raise_for_status().json()
            return found


def _reference(schema: dict[str, Any]) -> Iterator[str]:
    parts = schema["components"]["schemas"]
    for path, methods in schema["paths"].items():
        for method, call in methods.items():
            yield from ["", f"## {method.upper()} {path}", "", f"{call['summary']}.", ""]
            if "description" in call:
                yield from [call["description"], ""]
            if call.get("parameters"):
                yield from ["| parameter | |", "|---|---|"]
                yield from (_row(one["name"], one, one["schema"]) for one in call["parameters"])
                yield ""
            for media, body in call.get("requestBody", {}).get("content", {}).items():
                name = body["schema"].get("$ref", "").rpartition("/")[2]
                which = f"[{name}](#{name.lower()})" if name else "a form"
                yield from [f"Body, `{media}`: {which}.", ""]
                if not name:
                    yield from _fields(body["schema"])
            for status, answer in call["responses"].items():
                for body in answer.get("content", {}).values():
                    if status.startswith("2") and "$ref" in body.get("schema", {}):
                        name = body["schema"]["$ref"].rpartition("/")[2]
                        yield from [f"Answer: [{name}](#{name.lower()}).", ""]
    yield from ["", "## Bodies", ""]
    for name, part in sorted(parts.items()):
        yield from ["", f"### {name}", "", part.get("description", ""), "", *_fields(part)]


def _fields(part: dict[str, Any]) -> Iterator[str]:
    yield from ["| field | |", "|---|---|"]
    required = part.get("required", ())
    for name, one in part.get("properties", {}).items():
        yield _row(name, {**one, "required": name in required}, one)
    yield ""


def _row(name: str, one: dict[str, Any], schema: dict[str, Any]) -> str:
    about = [one.get("description", ""), kind(schema), "required" if one.get("required") else ""]
    text = "; ".join(part.rstrip(".") for part in about if part)
    return f"| `{name}` | {text} |".replace("\n", " ")
