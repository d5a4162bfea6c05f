"""`mch serve`: an HTTP API and a page for an index."""

from __future__ import annotations

import os
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from mchindex.cli import show
from mchindex.cli.options import (
    INDEX_PATH,
    Device,
    Threads,
    check_index,
    is_cluster,
    open_index,
    use_threads,
)
from mchindex.files import read_file

ACCESS, LIMITS = "Access", "Limits"
KEY, READ_KEY = "MCH_SERVE_KEY", "MCH_SERVE_READ_KEY"
LONGEST_KEY = 4096  # bytes of a file with a key
WAIT = 5.0  # seconds that a change waits for another process that is writing


def serve(
    index: Annotated[
        Path, typer.Argument(metavar="[INDEX]", envvar="MCH_INDEX", help="The folder of the index.")
    ] = INDEX_PATH,
    host: Annotated[
        str,
        typer.Option(help="The address to listen on. One that others can reach needs a key."),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes any free one.")] = 8000,
    open_page: Annotated[
        bool, typer.Option("--open", help="Open the page in the browser.")
    ] = False,
    key_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help=f"A file with the key that callers must send; ${KEY} holds the key itself.",
            rich_help_panel=ACCESS,
        ),
    ] = None,
    read_key_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help=f"A file with a key that may only read; or ${READ_KEY}.",
            rich_help_panel=ACCESS,
        ),
    ] = None,
    allow_delete: Annotated[
        bool,
        typer.Option(
            "--allow-delete",
            help="Let callers with the key delete the files of duplicates.",
            rich_help_panel=ACCESS,
        ),
    ] = False,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A further name by which the service is called, such as photos.example.org.",
            show_default=False,
            rich_help_panel=ACCESS,
        ),
    ] = None,
    uploads: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Where pictures that callers add are kept.",
            show_default="a folder beside the index",
            rich_help_panel=ACCESS,
        ),
    ] = None,
    max_megabytes: Annotated[
        int, typer.Option(min=1, max=1024, help="Of one picture.", rich_help_panel=LIMITS)
    ] = 64,
    max_megapixels: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1000,
            help="Of one picture.",
            show_default="Pillow's: 89",
            rich_help_panel=LIMITS,
        ),
    ] = None,
    max_k: Annotated[
        int, typer.Option(min=1, max=100_000, help="Hits of one search.", rich_help_panel=LIMITS)
    ] = 1000,
    max_batch: Annotated[
        int,
        typer.Option(
            min=1, max=10_000, help="Searches or files of one request.", rich_help_panel=LIMITS
        ),
    ] = 64,
    max_queue: Annotated[
        int,
        typer.Option(min=1, max=100_000, help="Requests that may wait.", rich_help_panel=LIMITS),
    ] = 512,
    max_seconds: Annotated[
        float, typer.Option(min=0.1, max=3600, help="For one request.", rich_help_panel=LIMITS)
    ] = 60.0,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Serve an index: a page for people at /, and an HTTP API for applications.

    It listens on this machine only. For another address, a key is needed, which callers send
    in the header api-key or as a bearer token. Ctrl-C stops it.

    Examples:
      mch serve --open
      mch serve photos.mch --port 9000
      MCH_SERVE_KEY=$(cat key) mch serve --host 0.0.0.0 --allow-host photos.example.org
      curl -d '{"text": "dog"}' -H content-type:application/json localhost:8000/v1/search
    """  # fmt: skip
    if not is_cluster(index):
        check_index(index)  # before the service is imported, which takes longer
    from PIL import Image

    from mchindex.server.run import serve as run
    from mchindex.server.settings import Limits, Settings

    use_threads(threads)
    size = max_megabytes << 20
    limits = Limits(
        bytes=size, request=max(Limits.request, 2 * size), k=max_k, batch=max_batch,
        queue=max_queue, seconds=max_seconds,
    )  # fmt: skip
    settings = Settings(
        host, port, _key(key_file, KEY), _key(read_key_file, READ_KEY), allow_delete,
        tuple(allow_host or ()), uploads, limits,
    )  # fmt: skip
    if max_megapixels is not None:
        Image.MAX_IMAGE_PIXELS = max_megapixels * 1_000_000
    with open_index(index, wait=WAIT, device=device) as opened:
        run(opened, settings, lambda url: announce(url, len(opened), open_page))


def serve_index(index: Path, port: int) -> None:
    """Serves an index on this machine, and opens its page in the browser."""
    from mchindex.server.run import serve as run
    from mchindex.server.settings import Settings

    with open_index(index, wait=WAIT) as opened:
        run(opened, Settings(port=port), lambda url: announce(url, len(opened), True))


def announce(url: str, images: int, open_page: bool) -> None:
    """Says where the page is, and opens it."""
    shown = url.replace("//0.0.0.0:", "//localhost:").replace("//[::]:", "//localhost:")
    show.echo(f"{show.number(images, 'image')} at {shown} (Ctrl-C stops)")
    if open_page:
        webbrowser.open(shown)


def _key(file: Path | None, variable: str) -> str | None:
    """A key from a file or from the environment; it is never an argument, which others see."""
    if file is not None:
        try:
            return read_file(file, LONGEST_KEY).decode("ascii").strip()
        except UnicodeDecodeError:
            raise ValueError(f"{file} does not hold a key: keys are ASCII text") from None
    return os.environ.get(variable) or None
