"""`mch import`: import an exported file into an index."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from mchindex.cli import show
from mchindex.cli.errors import FINE, INCOMPLETE, StoppedError, say
from mchindex.cli.options import INDEX_PATH, Device, Index, IndexModel, Quiet, Wait
from mchindex.progress import Display, on_terminal

LISTED = 20  # invalid lines listed, at most


def import_(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="A file written by mch export; - is stdin.")
    ],
    index: Index = INDEX_PATH,
    model: IndexModel = None,
    partial: Annotated[
        bool,
        typer.Option("--partial", help="Import what is intact of a truncated or damaged file."),
    ] = False,
    wait: Wait = 0.0,
    device: Device = "auto",
    quiet: Quiet = False,
) -> int:
    """Import an exported file into a new or existing index, replacing images that are there.

    Nothing is written unless the file is complete and comes from the same model.
    Exit code 1: with --partial, some of the file could not be imported.

    Examples:
      mch import backup.jsonl.gz --index restored.mch
      mch import backup.jsonl --index restored.mch --model trained/model
      ssh home mch export - | mch import -
    """
    from mchindex.index.importing import import_index

    if file == "-" and sys.stdin is None:
        raise ValueError("stdin is closed: name a file to read")
    if file != "-" and not Path(file).exists():
        raise ValueError(f"{file}: No such file")
    source = sys.stdin.buffer if file == "-" else Path(file)
    with Display(quiet or not on_terminal()) as progress:
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
            raise StoppedError(
                "interrupted: run the same command again to import the rest"
            ) from None
    if not quiet:
        replaced = f", {done.replaced:,} replaced" if done.replaced else ""
        show.echo(f"{show.number(done.added, 'image')} added to {index}{replaced}")
    if done.without_fine:
        say(show.without_fine(done.without_fine))
    for line in done.refused[:LISTED]:
        say(line)
    if done.invalid > LISTED:
        say(f"… {done.invalid - LISTED:,} more invalid lines")
    if done.cut:
        say(f"{file} is truncated or damaged: it may have held more images")
    return INCOMPLETE if done.invalid or done.cut else FINE
