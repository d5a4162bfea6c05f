"""The command `mch`: one file per command. Torch is imported only when a command needs it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from mchindex import __version__
from mchindex.cli.add import add as add_command
from mchindex.cli.demo import demo as demo_command
from mchindex.cli.errors import exit_code
from mchindex.cli.evaluate import evaluate as evaluate_command
from mchindex.cli.export import export as export_command
from mchindex.cli.importing import import_ as import_command
from mchindex.cli.info import info as info_command
from mchindex.cli.methods import methods as methods_command
from mchindex.cli.models import models as models_command
from mchindex.cli.remove import remove as remove_command
from mchindex.cli.search import search as search_command
from mchindex.cli.train import train as train_command
from mchindex.cli.verify import verify as verify_command

IMAGES, LEARNING, UPKEEP = "Images", "Learning", "Upkeep"

app = typer.Typer(
    name="mch",
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,  # unexpected errors show a plain traceback
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"mchindex {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _mch(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Image search with several hash codes per image.

    Examples:
      mch add photos
      mch search dog.jpg --open
      mch train --data photos --bits 32 --out model
      mch COMMAND --help

    The index is [bold]photos.mch[/] in the current folder unless $MCH_INDEX or --index names
    another. [bold]mch --install-completion[/] makes the shell complete commands, options
    and model names.
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), nl=False)


app.command("add", rich_help_panel=IMAGES)(add_command)
app.command("search", rich_help_panel=IMAGES)(search_command)
app.command("remove", rich_help_panel=IMAGES)(remove_command)
app.command("info", rich_help_panel=UPKEEP)(info_command)
app.command("verify", rich_help_panel=UPKEEP)(verify_command)
app.command("export", rich_help_panel=UPKEEP)(export_command)
app.command("import", rich_help_panel=UPKEEP)(import_command)
app.command("models", rich_help_panel=LEARNING)(models_command)
app.command("train", rich_help_panel=LEARNING)(train_command)
app.command("eval", rich_help_panel=LEARNING)(evaluate_command)
app.command("methods", rich_help_panel=LEARNING)(methods_command)
app.command("demo", rich_help_panel=LEARNING)(demo_command)


def run(arguments: Sequence[str]) -> int:
    """Runs a command line and returns its exit code.

    0: success; 1: partly done, or nothing found; 2: bad input; 130: interrupted by Ctrl-C.
    """
    return exit_code(lambda: app(list(arguments), prog_name="mch", standalone_mode=False))


def main() -> None:
    """The entry point of `mch`."""
    sys.exit(run(sys.argv[1:]))
