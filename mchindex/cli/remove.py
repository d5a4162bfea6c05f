"""`mch remove`: remove images from an index."""

from __future__ import annotations

from typing import Annotated

import typer

from mchindex.cli import show
from mchindex.cli.errors import FINE, INCOMPLETE, say
from mchindex.cli.options import (
    INDEX_PATH,
    Filter,
    Index,
    Quiet,
    Wait,
    conditions,
    open_index,
    stored_id,
)


def remove(
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="ID...", help="Ids of images, or paths.")
    ] = None,
    filter: Filter = None,
    index: Index = INDEX_PATH,
    wait: Wait = 0.0,
    quiet: Quiet = False,
) -> int:
    """Remove images from an index. Their files stay.

    To remove images whose files no longer exist, run [bold]mch add FOLDER --prune[/].
    Exit code 1: none of them was in the index.

    Examples:
      mch remove photos/blurred.jpg
      mch remove 17 18 --index scans.mch
      mch remove --filter 'year<2010'
    """
    if bool(ids) == bool(filter):
        raise ValueError("give the ids of images, or --filter")
    missing = []
    with open_index(index, wait=wait) as opened:
        if filter:
            removed = opened.remove(filter=conditions(filter))
        else:
            by_text = {text: stored_id(opened, text) for text in ids or []}
            missing = [text for text, id in by_text.items() if id is None]
            stored = [id for id in by_text.values() if id is not None]
            removed = opened.remove(stored) if stored else 0
        left = len(opened)
    for text in missing:
        say(f"there is no image {text} in {index}")
    if not quiet:
        show.echo(f"{show.number(removed, 'image')} removed, {left:,} left")
    return FINE if removed else INCOMPLETE
