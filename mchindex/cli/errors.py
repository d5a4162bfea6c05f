"""Turns exceptions into exit codes. Bad input prints one line; a bug shows its traceback."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from typing import Any, TextIO

from mchindex.errors import MCHError, NoFineCodesError, StoreBusyError

FINE, INCOMPLETE, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
TRACEBACK = "MCH_TRACEBACK"  # environment variable: shows tracebacks for bad input too

# What the caller can fix. Everything else is a bug and shows its traceback.
BAD_INPUT_ERRORS = (MCHError, ValueError, OSError)


class StoppedError(MCHError):
    """Interrupted by Ctrl-C. The message says how to continue."""


def exit_code(work: Callable[[], Any]) -> int:
    """Runs a command and returns its exit code; prints bad input as one line on stderr."""
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            code = work()
            return code if isinstance(code, int) else FINE
        except StoppedError as error:
            say(str(error))
            return INTERRUPTED
        except KeyboardInterrupt:
            return INTERRUPTED
        except Exception as error:
            if hasattr(error, "format_message"):  # typer's: an unknown option, a missing one …
                context = getattr(error, "ctx", None)
                more = f" (see {context.command_path} --help)" if context else ""
                say(one_line(error.format_message()).rstrip(".") + more)
                return BAD_INPUT
            if not isinstance(error, BAD_INPUT_ERRORS) or os.environ.get(TRACEBACK):
                raise
            say(_message(error))
            return BAD_INPUT


def say(message: str) -> None:
    """Prints a line on stderr."""
    from mchindex.cli.show import clean

    if sys.stderr is not None:  # print() would take stdout instead
        print(f"mch: {clean(message)}", file=sys.stderr)


def one_line(text: str) -> str:
    """A message on one line; the lines of a list are joined with semicolons."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return "; ".join(lines).replace(":; ", ": ")


def _message(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, StoreBusyError):
        return f"{one_line(str(error))}: --wait 60 waits a minute for it"
    if isinstance(error, NoFineCodesError):
        return f"{error.reason}: run mch add --again with their folders"
    return one_line(str(error)) or type(error).__name__


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Prints a warning without file name, line number and source."""
    say("warning: " + one_line(str(message)))
