"""`mch cluster`: an index in shards on Ray."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from mchindex.cli import show
from mchindex.cli.add import add
from mchindex.cli.help import help_text
from mchindex.cli.info import info
from mchindex.cli.options import (
    INDEX,
    INDEX_PATH,
    Index,
    IndexModel,
    Quiet,
    UsePrecision,
    Wait,
    is_cluster,
)
from mchindex.cli.search import search
from mchindex.cli.serve import serve

Replicas = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=64,
        help="Further processes that search each shard.",
        show_default="0, or as it is",
        rich_help_panel=INDEX,
    ),
]
Resources = Annotated[
    list[str] | None,
    typer.Option(
        "--resource",
        metavar="NAME",
        help="A resource of Ray, such as one per machine; repeated, shards are spread over them.",
        show_default=False,
        rich_help_panel=INDEX,
    ),
]

cluster = typer.Typer(
    help="Keep an index in shards on Ray, for more images or queries than one machine takes.",
    no_args_is_help=True,
)


@cluster.command()
def create(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of the cluster.")],
    shards: Annotated[int, typer.Option(min=1, max=1024, rich_help_panel=INDEX)] = 2,
    replicas: Replicas = None,
    resource: Resources = None,
    model: IndexModel = None,
    precision: UsePrecision = None,
    quiet: Quiet = False,
) -> None:
    """Create a cluster. Ray must be running: see docs/cluster.md.

    All other commands take the folder of a cluster as they take that of an index.

    Examples:
      mch cluster create photos.cluster
      mch cluster create photos.cluster --shards 4 --replicas 1
      mch cluster create /data/photos --shards 4 --resource disk-a --resource disk-b
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} already exists: name a new folder")
    from mchindex.cluster import ClusterIndex

    with ClusterIndex.open(
        folder, model, shards=shards, replicas=replicas, resources=resource, precision=precision
    ) as made:
        if not quiet:
            show.echo(f"{folder}: {show.number(made.shards, 'shard')}")


@cluster.command()
def rebalance(
    index: Index = INDEX_PATH,
    shards: Annotated[
        int | None,
        typer.Option(min=1, max=1024, show_default="as it is", rich_help_panel=INDEX),
    ] = None,
    replicas: Replicas = None,
    resource: Resources = None,
    wait: Wait = 0.0,
    quiet: Quiet = False,
) -> None:
    """Move the images of a cluster to another number of shards.

    Searches go on meanwhile; adding waits. To continue after an interruption, run it again.

    Examples:
      mch cluster rebalance --index photos.cluster --shards 8
      mch cluster rebalance --index photos.cluster --replicas 2
    """
    _check(index)
    from mchindex.cluster import ClusterIndex

    with ClusterIndex.open(index, create=False, wait=wait) as opened:
        opened.rebalance(shards, replicas=replicas, resources=resource, progress=not quiet)
        if not quiet:
            images = show.number(len(opened), "image")
            show.echo(f"{index}: {images} in {show.number(opened.shards, 'shard')}")


def _of_cluster(command: Callable[..., Any]) -> Callable[..., Any]:
    """A command for an index, which takes a cluster here, and nothing else."""

    @functools.wraps(command)
    def run(*, index: Path, **options: Any) -> Any:
        _check(index)
        return command(index=index, **options)

    return run


def _check(index: Path) -> None:
    if not is_cluster(index):
        raise ValueError(f"there is no cluster {index}: create it with mch cluster create")


for _command in (add, search, info, serve):
    cluster.command(_command.__name__, help=help_text(_command))(_of_cluster(_command))
