"""`mch import`: an exported file into an index."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from mchindex.cli import show
from mchindex.cli.errors import FINE, INCOMPLETE, StoppedError, say
from mchindex.cli.options import INDEX_PATH, Device, Index, IndexModel, Quiet, Wait
from mchindex.progress import Display

SHOWN = 20  # wrong lines named


def import_(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="What mch export has written; - is stdin.")
    ],
    index: Index = INDEX_PATH,
    model: IndexModel = None,
    partial: Annotated[
        bool,
        typer.Option("--partial", help="Take what is sound of a file that is cut or damaged."),
    ] = False,
    wait: Wait = 0.0,
    device: Device = "auto",
    quiet: Quiet = False,
) -> int:
    """Take an exported file into an index, new or not; images that are there are replaced.

    Nothing is written unless the file is whole and of the index's own model.
    Exit code 1: with --partial, not all of the file could be taken.

    Examples:
      mch import backup.jsonl.gz --index restored.mch
      mch import backup.jsonl --index restored.mch --model trained/model
      ssh home mch export - | mch import -
    """
    from mchindex.index.importing import import_index

    if file != "-" and not Path(file).exists():
        raise ValueError(f"{file}: No such file")
    source = sys.stdin.buffer if file == "-" else Path(file)
    with Display(quiet or not sys.stderr.isatty()) as progress:
        try:
            done = import_index(
                source,
                index,
                model=model,
                partial=partial,
                wait=wait,
                device=device,
                progress=progress,
            )
        except KeyboardInterrupt:
            raise StoppedError("interrupted: the same command starts again, and ends it") from None
    if not quiet:
        replaced = f", {done.replaced:,} replaced" if done.replaced else ""
        typer.echo(f"{show.number(done.added, 'image')} added{replaced} in {index}")
    for wrong in done.refused[:SHOWN]:
        say(wrong)
    if len(done.refused) > SHOWN:
        say(f"… {len(done.refused) - SHOWN:,} more wrong lines")
    if done.cut:
        say(f"{file} is truncated or damaged: it may have held more images")
    return INCOMPLETE if done.refused or done.cut else FINE
