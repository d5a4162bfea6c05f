"""The command `mch`: one file per command. Torch is imported only when a command needs it."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from mchindex import __version__
from mchindex.cli.add import add as add_command  # the name `add` is taken by its module
from mchindex.cli.backup import backup as backup_command
from mchindex.cli.demo import demo as demo_command
from mchindex.cli.duplicates import duplicates as duplicates_command
from mchindex.cli.errors import BAD_INPUT, exit_code, say
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


_COMMANDS: dict[str, dict[str, Callable[..., Any]]] = {
    "Images": {
        "add": add_command,
        "search": search_command,
        "duplicates": duplicates_command,
        "remove": remove_command,
    },
    "Upkeep": {
        "info": info_command,
        "verify": verify_command,
        "backup": backup_command,
        "export": export_command,
        "import": import_command,
    },
    "Learning": {
        "models": models_command,
        "train": train_command,
        "eval": evaluate_command,
        "methods": methods_command,
        "demo": demo_command,
    },
}
for _panel, _commands in _COMMANDS.items():
    for _name, _command in _commands.items():
        app.command(_name, rich_help_panel=_panel)(_command)


def run(arguments: Sequence[str]) -> int:
    """Runs a command line and returns its exit code.

    0: success; 1: partly done, or nothing found; 2: bad input; 130: interrupted by Ctrl-C.
    """
    return exit_code(lambda: app(list(arguments), prog_name="mch", standalone_mode=False))


def main() -> None:
    """The entry point of `mch`."""
    _open_streams()
    try:
        code: Any = run(sys.argv[1:])
    except SystemExit as stop:  # the reader of stdout went away
        code = stop.code
    sys.exit(_flushed(code))


def _open_streams() -> None:
    """Makes the standard streams usable: an index must not be opened under their numbers, and no
    name may keep a result from being printed."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:  # closed by the caller, so the next file to be opened gets this number
            os.open(os.devnull, os.O_RDWR)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _flushed(code: Any) -> Any:
    """The exit code once everything is written."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        # Python flushes again when it exits, and must not fail then.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if not isinstance(error, BrokenPipeError):
            say(f"stdout: {error.strerror}")
            return BAD_INPUT
    return code
