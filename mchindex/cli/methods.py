"""`mch methods`: list methods, backbones and their settings."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from mchindex.cli.settings import AGENT, BACKBONE, LABELS, as_text, settings_of
from mchindex.cli.show import line, output


def methods(
    name: Annotated[
        str | None, typer.Argument(help="List only this method.", metavar="METHOD")
    ] = None,
) -> None:
    """List base methods and backbones, and the settings that [bold]mch train --set[/] changes.

    Registered methods and backbones are listed as well. The values shown are the defaults.

    Examples:
      mch methods
      mch methods dch
      mch train --method dch --set gamma=2 --set agent.steps=2000 …
    """
    from rich.table import Table

    from mchindex.models.backbones import BACKBONES, Backbone
    from mchindex.models.methods import METHODS

    if name is not None and name not in METHODS:
        raise ValueError(f"no method is called {name!r}: there are {', '.join(METHODS)}")
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold cyan", no_wrap=True)
    table.add_column()
    for method in METHODS if name is None else (name,):
        table.add_row(line(method), line(_about(METHODS[method])))
        settings = as_text(settings_of(method)[""])
        table.add_row("", line((settings or "no settings", "dim")))
    others = settings_of(name or "dch")
    table.add_row()
    table.add_row(f"{AGENT}.…", "The agent, which decides which regions of an image are kept.")
    table.add_row("", line((as_text(others[AGENT]), "dim")))
    table.add_row(f"{BACKBONE}.…", "Training of a backbone from scratch.")
    table.add_row("", line((as_text(others[BACKBONE]), "dim")))
    for labels, option in (("crops", "--crop-labels"), ("neighbours", "--unsupervised")):
        table.add_row(f"{LABELS}.…", f"The labels that {option} makes.")
        table.add_row("", line((as_text(settings_of("dch", labels)[LABELS]), "dim")))
    table.add_row()
    for backbone, kind in BACKBONES.items():
        own = kind.load_pretrained is not Backbone.load_pretrained
        weights = "pretrained" if own else "from scratch, or --weights FILE"
        size = f"{kind.dim} features from {kind.default_size} x {kind.default_size} pixels"
        table.add_row(line(backbone), f"Backbone: {size}, {weights}.")
    output().print(table)


def _about(method: type) -> str:
    """The first line of the docstring of a class, or else of its module."""
    text = method.__dict__.get("__doc__") or sys.modules[method.__module__].__doc__ or ""
    return text.strip().partition("\n")[0]
