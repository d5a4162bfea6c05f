"""Writes the reference of the command line, reference/commands.md, from the commands themselves."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import typer
from mkdocs.structure.pages import Page

from mchindex.cli import make_app

HERE = "<!-- commands -->"


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    return markdown.replace(HERE, reference()) if HERE in markdown else markdown


def reference() -> str:
    return "\n".join(_sections(typer.main.get_command(make_app()), "mch"))


def _sections(command: Any, name: str) -> Iterator[str]:
    """The sections of a command and of all below it."""
    if name != "mch":
        yield f"## {name}" if name.count(" ") == 1 else f"### {name}"
        yield from ["", *_help(command.help or ""), "", *_usage(command, name), ""]
        yield from _options(command)
    for below in sorted(getattr(command, "commands", {}).items()):
        yield from _sections(below[1], f"{name} {below[0]}")


def _help(text: str) -> list[str]:
    """Paragraphs as they are, and examples as code."""
    text = re.sub(r"\[/?\w*\]", "", inspect.cleandoc(text))
    about, _, examples = text.partition("Examples:\n")
    shell, _, rest = examples.partition("\n\n")
    lines = [about.strip()]
    if shell:
        lines += ["", "```sh", inspect.cleandoc(shell), "```", "", rest.strip()]
    return lines


def _usage(command: Any, name: str) -> list[str]:
    context = typer.Context(command, info_name=name)
    return ["```", f"{name} {' '.join(command.collect_usage_pieces(context))}", "```"]


def _options(command: Any) -> Iterator[str]:
    panels: dict[str, list[str]] = {}
    context = typer.Context(command)
    for one in command.params:
        if getattr(one, "hidden", False) or "--help" in one.opts:
            continue
        panel = getattr(one, "rich_help_panel", None) or (
            "Arguments" if one.param_type_name == "argument" else "Options"
        )
        panels.setdefault(panel, []).append(_row(one, context))
    for panel, rows in panels.items():
        yield from [f"| {panel} | |", "|---|---|", *rows, ""]


def _row(one: Any, context: typer.Context) -> str:
    if one.param_type_name == "argument":
        names = one.make_metavar(context)
    else:
        names = ", ".join(sorted([*one.opts, *one.secondary_opts], key=len))
        if not one.is_flag:
            names += f" {one.make_metavar(context)}"
    about = re.sub(r"\[/?\w*\]", "", one.help or "")
    notes = []
    if isinstance(one.show_default, str):
        notes.append(f"by default {one.show_default}")
    elif one.default not in (None, False, (), [], "") and not callable(one.default):
        notes.append(f"by default `{one.default}`")
    if one.envvar:
        notes.append(f"or `${one.envvar}`")
    about += f" ({'; '.join(notes)})" if notes else ""
    about = " ".join(about.split()).replace("|", "\\|")
    return f"| `{names}` | {about} |"
