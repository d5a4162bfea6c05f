"""The command `mch`: one file per command, which is imported when it is run."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any

import typer

from mchindex import __version__
from mchindex.cli.errors import BAD_INPUT, exit_code, say
from mchindex.cli.help import help_text

# The commands by help panel: the module of each in this package, and its function if that has
# another name.
_COMMANDS = {
    "Images": {
        "add": "add",
        "search": "search",
        "serve": "serve",
        "duplicates": "duplicates",
        "remove": "remove",
    },
    "Upkeep": {
        "info": "info",
        "verify": "verify",
        "backup": "backup",
        "export": "export",
        "import": "importing:import_",
        "cluster": "cluster",
    },
    "Learning": {
        "models": "models",
        "train": "train",
        "eval": "evaluate",
        "methods": "methods",
        "demo": "demo",
    },
}


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"mchindex {__version__}")
        raise typer.Exit


def _mch(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Find pictures by a picture, by a part of one, or by a word.

    Examples:
      mch add photos
      mch search dog.jpg --open
      mch search --text "dog, sofa"
      mch serve --open
      mch COMMAND --help

    The index is [bold]photos.mch[/] in the current folder unless $MCH_INDEX or --index names
    another. [bold]mch --install-completion[/] makes the shell complete commands, options
    and model names.
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), nl=False)


def make_app(only: str | None = None) -> typer.Typer:
    """The command line, or that of one command, which takes much less time to build."""
    app = typer.Typer(
        name="mch",
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
        pretty_exceptions_enable=False,  # unexpected errors show a plain traceback
    )
    app.callback(invoke_without_command=True, help=help_text(_mch))(_mch)
    for panel, commands in _COMMANDS.items():
        for name, place in commands.items():
            if only in (None, name):
                module, _, function = place.partition(":")
                found = getattr(import_module(f"mchindex.cli.{module}"), function or module)
                if isinstance(found, typer.Typer):
                    app.add_typer(found, name=name, rich_help_panel=panel)
                else:
                    app.command(name, help=help_text(found), rich_help_panel=panel)(found)
    return app


def run(arguments: Sequence[str]) -> int:
    """Runs a command line and returns its exit code.

    0: success; 1: partly done, or nothing found; 2: bad input; 130: interrupted by Ctrl-C.
    """
    first = arguments[0] if arguments else ""
    only = first if any(first in commands for commands in _COMMANDS.values()) else None

    def work() -> Any:
        return make_app(only)(list(arguments), prog_name="mch", standalone_mode=False)

    return exit_code(work)


def main() -> None:
    """The entry point of `mch`."""
    # Read when NumPy is imported. Its matrices are small here, and we have threads for pictures.
    # More threads would only wait for work in a busy loop, which costs every command CPU time.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
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
