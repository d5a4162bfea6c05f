"""`mch remove`: images out of an index."""

from __future__ import annotations

from typing import Annotated

import typer

from mchindex.cli import show
from mchindex.cli.errors import FINE, INCOMPLETE, say
from mchindex.cli.options import INDEX_PATH, Index, Quiet, Wait, open_index, stored_id


def remove(
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Ids of images, or paths.")],
    index: Index = INDEX_PATH,
    wait: Wait = 0.0,
    quiet: Quiet = False,
) -> int:
    """Remove images from an index. Their files stay.

    Images whose files are gone are removed by [bold]mch add FOLDER --prune[/].
    Exit code 1: none of them was in the index.

    Examples:
      mch remove photos/blurred.jpg
      mch remove 17 18 --index scans.mch
    """
    with open_index(index, wait=wait) as opened:
        found = {text: stored_id(opened, text) for text in ids}
        there = [id for id in found.values() if id is not None]
        removed = opened.remove(there) if there else 0
        left = len(opened)
    for text, id in found.items():
        if id is None:
            say(f"there is no image {text} in {index}")
    if not quiet:
        typer.echo(f"{show.number(removed, 'image')} removed, {left:,} left")
    return FINE if removed else INCOMPLETE
