"""`mch demo`: show in a few minutes what several codes per image are good for."""

from __future__ import annotations

import shlex
import shutil
import sys
import webbrowser
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mchindex.cli import show
from mchindex.cli.errors import StoppedError, say
from mchindex.cli.options import LARGEST_SEED, Quiet, Threads, use_threads
from mchindex.cli.serve import serve_index
from mchindex.progress import Display

if TYPE_CHECKING:
    from mchindex.demo.photos import PhotosDemo
    from mchindex.demo.scenes import ScenesDemo

FAILURES = 3  # unreadable pictures listed, at most


def demo(
    out: Annotated[
        Path,
        typer.Option(
            "--out", metavar="DIR", help="Folder for the pictures, model, indexes and page."
        ),
    ] = Path("mch-demo"),
    images: Annotated[
        int | None,
        typer.Option(
            metavar="N", max=10_000_000, help="How many pictures to draw.", show_default="3000"
        ),
    ] = None,
    photos: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            exists=True,
            file_okay=False,
            help="Search your own pictures in this folder, with a shipped model.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="With --photos: the name or folder of a model.",
            show_default="the index's model, or coco-64",
        ),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(
            min=0,
            max=LARGEST_SEED,
            help="Seed of the pictures and the training; with --photos, of the queries.",
        ),
    ] = 0,
    open_page: Annotated[
        bool, typer.Option("--open", help="Open the page in the browser.")
    ] = False,
    serve: Annotated[
        bool,
        typer.Option(
            "--serve", help="Then serve the index, and open its page in the browser: mch serve."
        ),
    ] = False,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="With --serve: the port; 0 takes any free one.")
    ] = 8000,
    threads: Threads = None,
    quiet: Quiet = False,
) -> None:
    """Compare one hash code per image with several, and write a page about it.

    Draws pictures, trains a small model on them, stores them in two indexes (one code per
    image, and several) and measures both. This takes a few minutes on two cores and
    downloads nothing. An interrupted demo resumes when it is run again; a complete one
    only writes its page again.

    Examples:
      mch demo --serve
      mch demo --open
      mch demo --images 2000 --seed 7 --out other
      mch demo --photos ~/Pictures
    """
    if photos is not None and images is not None:
        raise ValueError("--images is the number of pictures to draw: leave it out with --photos")
    if photos is None and model is not None:
        raise ValueError("--model needs --photos: for drawn pictures the demo trains its own model")
    if serve:
        import mchindex.server  # noqa: F401  # says now, not in minutes, what is not installed
    workers = use_threads(threads)
    result: ScenesDemo | PhotosDemo
    with Display(quiet, {"hashnet": "base hashnet"}) as display:
        try:
            if photos is not None:
                from mchindex.demo.photos import photos_demo

                result = photos_demo(photos, out, model=model, seed=seed, progress=display)
                report = partial(_print_photos, result)
            else:
                from mchindex.demo.scenes import IMAGES, scenes_demo  # needs torch

                drawn = IMAGES if images is None else images
                result = scenes_demo(out, drawn, seed, threads=workers, progress=display)
                report = partial(_print_scenes, result)
        except KeyboardInterrupt:
            raise StoppedError("interrupted: run the same command again to resume") from None
    report()
    if open_page:
        webbrowser.open(result.page.resolve().as_uri())
    if serve:
        serve_index(result.index, port)


def _print_scenes(result: ScenesDemo) -> None:
    from mchindex.demo.examples import HITS, RANKED
    from mchindex.demo.parts import AMONG

    console = show.output()
    first, parts, words = result.first, result.parts, result.words
    console.print(
        f"\nThe first {HITS} hits of {result.mch.queries:,} queries: how many share a class with "
        f"the query (at random: {first.chance:.1%}), and how often a quarter of a picture finds it:"
    )
    table = show.listing("ranked by", "hits that share a class", "part: first", f"in {AMONG}")
    for name, share in first.shares.items():
        found = (parts.first[name], parts.among[name])
        table.add_row(RANKED[name], f"{share:.1%}", *(f"{part:.0%}" for part in found))
    console.print(table)
    console.print(show.line(result.trade()))
    console.print(
        show.line(
            f"Of the first {HITS} hits for a word, {words.share:.1%} show the thing (mean of "
            f"{show.number(len(words.shares), 'word')})."
        )
    )
    console.print(
        "\nHow well one code per image (base) and several (MCH) find all images that share a class "
        "with the query; the page says what the figures mean:"
    )
    console.print(show.gain_table(result.base, result.mch))
    console.print(show.line(result.verdict()))
    console.print("\nBuckets that the base needs for the same F1:")
    console.print(
        show.facts(
            {
                f"F1 {needed.f1:.4f} (MCH after {show.number(needed.buckets, 'bucket')})": (
                    needed.words()
                )
                for needed in result.buckets_needed
            }
        )
    )
    rows = {"time": show.times(result.seconds)}
    if result.reused:
        rows["model"] = f"from an earlier run; delete {result.out} to start from scratch"
    _print_page(rows, result)


def _print_photos(result: PhotosDemo) -> None:
    if result.failed:
        say(f"{show.number(len(result.failed), 'picture')} could not be read:")
        for failure in result.failed[:FAILURES]:
            say(f"  {failure}")
    _print_page(result.figures(), result)


def _print_page(rows: dict[str, str], result: ScenesDemo | PhotosDemo) -> None:
    console = show.output()
    rows = rows | {"page": str(result.page)}
    console.print("", show.facts(rows))
    console.print("\nTry next:")
    for command in result.commands:  # never wrapped: lines to copy
        console.print(show.line(f"  {as_called(command)}"), soft_wrap=True)


def as_called(command: str) -> str:
    """A command that starts with "mch", as it can be called here, where that may not be found."""
    program, _, rest = command.partition(" ")
    called = Path(sys.argv[0])
    if shutil.which(program) is not None or called.name != program:
        return command
    return f"{shlex.quote(str(called))} {rest}"
