"""`mch duplicates`: find images of the same picture, and move or delete all but one."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from mchindex.cli import show
from mchindex.cli.errors import FINE, INCOMPLETE, say
from mchindex.cli.options import (
    INDEX_PATH,
    RESULT,
    AsJson,
    Filter,
    Index,
    Quiet,
    Threads,
    Wait,
    conditions,
    open_index,
)
from mchindex.files import replaceable, write_file

if TYPE_CHECKING:
    from mchindex.index.discard import Discarded
    from mchindex.index.duplicates import Duplicates

FILES = "Files"
GROUPS, OTHERS = 500, 11  # shown on the page, at most, and per group besides the keeper


def duplicates(
    level: Annotated[
        Literal["copy", "similar"],
        typer.Option(
            help="copy: saved again, resized or mildly edited; similar: also stronger edits, and "
            "shots taken one after the other."
        ),
    ] = "copy",
    move_to: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Move the files of all images but the one to keep into this folder, and remove "
            "them from the index.",
            rich_help_panel=FILES,
        ),
    ] = None,
    delete: Annotated[
        bool,
        typer.Option("--delete", help="Delete these files instead.", rich_help_panel=FILES),
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask first.", rich_help_panel=FILES)
    ] = False,
    filter: Filter = None,
    index: Index = INDEX_PATH,
    wait: Wait = 0.0,
    as_json: AsJson = False,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write a page with the groups: .html", rich_help_panel=RESULT
        ),
    ] = None,
    quiet: Quiet = False,
    threads: Threads = None,
) -> int:
    """Find copies of the same picture.

    Each group names the image to keep: the one with the most pixels, then the largest file, then
    the oldest. No file is touched unless --move-to or --delete is given. Exit code 1: there are no
    duplicates, or some files could not be moved or deleted.

    Examples:
      mch duplicates --out duplicates.html
      mch duplicates --level similar --filter album=summer
      mch duplicates --move-to duplicates
      mch duplicates --json | jq -r '.groups[].others[].path'
    """
    if move_to is not None and delete:
        raise ValueError("--move-to and --delete contradict each other: give one of them")
    changes = move_to is not None or delete
    if changes and not yes and not _can_ask():
        raise ValueError("there is no terminal to ask on: add --yes to move or delete files")
    if out is not None:
        _check_page(out)
    from mchindex.progress import Display

    with open_index(index, wait=wait) as opened:
        with Display(quiet) as display:
            found = opened.duplicates(
                level, filter=conditions(filter or []), progress=display, threads=threads or 0
            )
        if out is not None:
            out.parent.mkdir(parents=True, exist_ok=True)
            write_file(replaceable(out), page(found))
        if not as_json:
            _print(found)
        done = None
        if changes and len(found) and (yes or _agreed(found, move_to)):
            with Display(quiet) as display:
                done = opened.discard(found, move_to=move_to, delete=delete, progress=display)
    _report(found, done, as_json, quiet)
    if found.without_fine:
        say(f"{show.number(found.without_fine, 'image')} without fine codes: run mch add --again")
    return FINE if len(found) and not (done and done.failed) else INCOMPLETE


def page(found: Duplicates) -> str:
    """A page that shows the groups: one HTML file with its pictures inside, no scripts.

    The template escapes every value, whatever the pictures are called.
    """
    from mchindex.index.page import page_picture, templates

    own = templates("mchindex.cli")
    own.globals |= {"thumbnail": page_picture}
    own.filters |= {"clean": show.clean, "size": show.size}
    template = own.get_template("duplicates.html")
    return template.render(found=found, groups=found[:GROUPS], most=OTHERS)


def _check_page(out: Path) -> None:
    if out.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"--out {out}: the file name must end in .html")
    replaceable(out)


def _can_ask() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


def _agreed(found: Duplicates, move_to: Path | None) -> bool:
    files = show.number(found.images, "file")
    what = f"Delete {files}" if move_to is None else f"Move {files} to {os.path.abspath(move_to)}"
    return typer.confirm(f"{show.clean(what)} and keep {len(found):,}?", err=True)


def _print(found: Duplicates) -> None:
    console = show.output(show.LONG_WIDTH)
    if not len(found):
        console.print(f"no duplicates among {show.number(found.compared, 'image')}")
        return
    table = show.listing("", "similarity", "pixels", "bytes", "image")
    for group in found:
        for image in (group.keeper, *group.others):
            keeper = image is group.keeper
            pixels = "" if image.size is None else f"{image.size[0]} x {image.size[1]}"
            table.add_row(
                "keep" if keeper else "",
                "" if keeper else f"{image.similarity:.2f}",
                pixels,
                "" if image.bytes is None else show.size(image.bytes),
                show.line(image.path or str(image.id)),
            )
        table.add_section()
    console.print(table)
    console.print(
        f"{show.number(len(found), 'group')} among {show.number(found.compared, 'image')}: "
        f"{show.number(found.images, 'image')} besides those to keep"
    )


def _report(found: Duplicates, done: Discarded | None, as_json: bool, quiet: bool) -> None:
    """Prints what was done to files, and with `as_json` the groups too."""
    if as_json:
        result: dict[str, Any] = found.to_dict()
        if done is not None:
            result["moved"], result["deleted"] = done.moved, done.deleted
            result["failed"] = [{"path": f.name, "reason": f.reason} for f in done.failed]
        show.print_json(result)
    if done is None:
        return
    for failure in done.failed:
        say(str(failure))
    if not as_json and not quiet:
        count = show.number(len(done.moved) + len(done.deleted), "file")
        show.echo(f"{count} {'deleted' if done.deleted else 'moved'}, {len(done.failed):,} failed")
