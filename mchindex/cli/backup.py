"""`mch backup`: copy an index while it is in use."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mchindex.cli import show
from mchindex.cli.options import INDEX_PATH, Index, Quiet, open_index


def backup(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder for the copy.")],
    index: Index = INDEX_PATH,
    quiet: Quiet = False,
) -> None:
    """Copy an index to a new folder, as of one moment.

    Others may search and add meanwhile. The copy is an index like any other.

    Examples:
      mch backup /mnt/backup/photos.mch
      mch backup copy.mch --index scans.mch
    """
    with open_index(index) as opened:
        opened.backup(folder)
    if not quiet:
        with open_index(folder) as copy:
            show.echo(f"{show.number(len(copy), 'image')} copied to {folder}")
