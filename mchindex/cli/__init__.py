"""The command `mch`. A file a command; torch is imported only once a command runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from mchindex import __version__
from mchindex.cli.errors import exit_code
from mchindex.cli.evaluate import evaluate as evaluate_command
from mchindex.cli.methods import methods as methods_command
from mchindex.cli.train import train as train_command

app = typer.Typer(
    name="mch",
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,  # what we did not foresee shows its plain traceback
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
    """Image search in which an image may stand under several hash codes.

    Examples:
      mch train --data photos --bits 32 --out model
      mch eval model --data photos
      mch COMMAND --help
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), nl=False)


app.command("train")(train_command)
app.command("eval")(evaluate_command)
app.command("methods")(methods_command)


def run(arguments: Sequence[str]) -> int:
    """Runs a command line and gives its exit code: 0, 2 for bad input, 130 for Ctrl-C."""
    return exit_code(lambda: app(list(arguments), prog_name="mch", standalone_mode=False))


def main() -> None:
    sys.exit(run(sys.argv[1:]))
