"""`mch demo`: what several codes an image bring, seen in a few minutes."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mchindex.cli import show
from mchindex.cli.errors import StoppedError, say
from mchindex.cli.options import Quiet, Threads, use_threads
from mchindex.progress import Display

if TYPE_CHECKING:
    from mchindex.demo import PhotosDemo, ScenesDemo

FAILURES = 3  # that are named, of pictures that cannot be read


def demo(
    out: Annotated[
        Path,
        typer.Option("--out", metavar="DIR", help="Where pictures, model, indexes and page go."),
    ] = Path("mch-demo"),
    images: Annotated[
        int | None,
        typer.Option(metavar="N", help="Pictures to draw.", show_default="4000"),
    ] = None,
    photos: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Search your own pictures instead, by a model that ships."
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="With --photos: a model by name or folder.",
            show_default="coco-64, or the index's own",
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, help="Of pictures and training, or of the queries chosen.")
    ] = 0,
    open_page: Annotated[
        bool, typer.Option("--open", help="Open the page in the browser.")
    ] = False,
    threads: Threads = None,
    quiet: Quiet = False,
) -> None:
    """Compare one code an image with several, and write a page about it.

    Draws pictures, trains a small model on them, keeps them in two indexes, one code an
    image and several, and measures both: a few minutes on two cores, nothing is downloaded.
    An interrupted demo goes on where it was; one that is complete only writes its page anew.

    Examples:
      mch demo --open
      mch demo --images 2000 --seed 7 --out other
      mch demo --photos ~/Pictures
    """
    if photos is not None and images is not None:
        raise ValueError("--images is for pictures that are drawn: leave it out with --photos")
    if photos is None and model is not None:
        raise ValueError("--model is for --photos: drawn pictures get a model of their own")
    from mchindex.demo import IMAGES, ScenesDemo, photos_demo, scenes_demo

    workers = use_threads(threads)
    done: ScenesDemo | PhotosDemo
    with Display(quiet, {"dch": "base dch", "index mch": "index MCH"}) as stages:
        try:
            if photos is not None:
                done = photos_demo(photos, out, model=model, seed=seed, progress=stages)
            else:
                done = scenes_demo(
                    out,
                    IMAGES if images is None else images,
                    seed,
                    threads=workers,
                    progress=stages,
                )
        except KeyboardInterrupt:
            raise StoppedError("interrupted: the same command goes on from there") from None
    if isinstance(done, ScenesDemo):
        _tell_scenes(done)
    else:
        _tell_photos(done)
    if open_page:
        webbrowser.open(done.page.resolve().as_uri())


def _tell_scenes(done: ScenesDemo) -> None:
    from rich.markup import escape

    from mchindex.page import counted

    console = show.output()
    console.print(f"\n{escape(done.verdict())}")
    console.print(show.gain_table(done.base, done.mch))
    console.print("Buckets to reach the same F1:")
    console.print(
        show.facts(
            {
                f"MCH after {counted(reach.buckets, 'bucket')}": f"{reach.f1:.4f}   "
                f"the base has as much after: {reach.words()}"
                for reach in done.reaches
            }
        )
    )
    rows = {"time": show.times(done.seconds)}
    if done.reused:
        rows["model"] = f"of the run before; without {done.out} all starts anew"
    _tell_page(rows, done)


def _tell_photos(done: PhotosDemo) -> None:
    if done.failed:
        say(f"{len(done.failed)} could not be read:")
        for failure in done.failed[:FAILURES]:
            say(f"  {failure}")
    _tell_page(done.figures(), done)


def _tell_page(rows: dict[str, str], done: ScenesDemo | PhotosDemo) -> None:
    from rich.markup import escape

    console = show.output()
    rows = rows | {"page": str(done.page)}
    console.print("", show.facts({key: escape(value) for key, value in rows.items()}))
    console.print("\nTry next:")
    for command in done.commands:  # whole lines, to be copied
        console.print(f"  {escape(command)}", soft_wrap=True)
