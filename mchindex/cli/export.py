"""`mch export`: write an index to a file of JSON lines."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from mchindex.cli import show
from mchindex.cli.errors import FINE, INCOMPLETE, say
from mchindex.cli.options import INDEX_PATH, Index, Quiet, check_index, open_index
from mchindex.files import replaceable

LISTED = 20  # images that could not be exported that are listed, at most


def export(
    file: Annotated[
        str,
        typer.Argument(metavar="FILE", help="The file to write: .gz is compressed, - is stdout."),
    ],
    index: Index = INDEX_PATH,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an existing file.")
    ] = False,
    postgres: Annotated[
        bool,
        typer.Option(
            "--postgres", help="Write a script for PostgreSQL: tables, and SQL that searches them."
        ),
    ] = False,
    quiet: Quiet = False,
) -> int:
    """Write an index to a file of JSON lines: records, metadata and codes, not the pictures.

    If the index is damaged, what can be read is written. Exit code 1: something was lost.
    --overwrite writes through a link; it never replaces a folder, a device or a pipe.

    Examples:
      mch export backup.jsonl.gz
      mch export - --index scans.mch | head -n 2 | jq .
      mch export photos.sql --postgres && psql -f photos.sql
      mch export rescued.jsonl && mch import rescued.jsonl --index new.mch
    """
    if not postgres:
        check_index(index)
    if file == "-" and sys.stdout is None:
        raise ValueError("stdout is closed: name a file to write to")
    if file != "-" and os.path.lexists(file):
        replaceable(file)
        if not overwrite:
            raise ValueError(f"{file} already exists: replace it with --overwrite")
    from mchindex.index.export import created, export_index

    if postgres:
        return _postgres(file, index, overwrite, quiet)
    if file == "-":
        done = export_index(index, sys.stdout.buffer)
        sys.stdout.buffer.flush()
    else:
        with created(file, overwrite) as stream:
            done = export_index(index, stream)
    if not quiet and file != "-":
        show.echo(f"{show.number(done.images, 'image')} written to {file}")
    for reason in done.reasons[:LISTED]:
        say(f"image {reason}")
    if done.lost:
        say(f"{index} is damaged: {show.number(done.lost, 'image')} could not be read")
    if done.fine_lost:
        images = show.number(done.fine_lost, "image")
        say(f"{index} is damaged: {images} were exported without their fine codes")
    if done.header.model_lost:
        say(f"{index} is damaged: it no longer knows its model; name it with mch import --model")
    lost = done.lost or done.fine_lost or done.header.model_lost
    return INCOMPLETE if lost else FINE


def _postgres(file: str, index: Path, overwrite: bool, quiet: bool) -> int:
    from mchindex.index.export import created
    from mchindex.index.postgres import export_postgres

    with open_index(index) as opened:
        if file == "-":
            export_postgres(opened, sys.stdout.buffer)
            sys.stdout.buffer.flush()
            return FINE
        with created(file, overwrite) as stream:
            images = export_postgres(opened, stream)
    if not quiet:
        show.echo(f"{show.number(images, 'image')} written to {file}")
    return FINE
