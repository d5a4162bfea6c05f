"""What the options of the learning commands share: help panels and some help texts."""

from __future__ import annotations

from functools import partial

import typer

from mchindex.cli.options import AGENT, DATA, MODEL, RESULT

data_option = partial(typer.Option, rich_help_panel=DATA)
model_option = partial(typer.Option, rich_help_panel=MODEL)
agent_option = partial(typer.Option, rich_help_panel=AGENT)
result_option = partial(typer.Option, rich_help_panel=RESULT)

SIGMA_HELP = "Side of a region, as a share of the image's side."
XI_HELP = "Keep a region if its probability is at least this."
