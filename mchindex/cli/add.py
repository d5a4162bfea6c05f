"""`mch add`: add images to an index."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mchindex.cli import show
from mchindex.cli.errors import FINE, INCOMPLETE, StoppedError, say
from mchindex.cli.metadata import MetadataByPath
from mchindex.cli.options import (
    DATA,
    INDEX,
    INDEX_PATH,
    MACHINE,
    RESULT,
    AsJson,
    Device,
    Index,
    IndexModel,
    Quiet,
    Threads,
    UsePrecision,
    Wait,
    is_cluster,
    use_threads,
)
from mchindex.progress import per_second, seconds

if TYPE_CHECKING:
    from mchindex.catalogue import Precision
    from mchindex.index.adding import Added
    from mchindex.inference import Encoder

LISTED = 20  # failed images listed without --verbose, at most
SAMPLE = 300  # images on which --codes is calibrated, at most


def add(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="PATH...", help="Images, folders, or 'patterns/**/*.jpg'."),
    ],
    index: Index = INDEX_PATH,
    model: IndexModel = None,
    metadata: Annotated[
        list[str] | None,
        typer.Option(
            "--metadata",
            metavar="KEY=VALUE",
            help="Metadata for all these images; may be repeated. Numbers, true and false are "
            "stored as such.",
            show_default=False,
            rich_help_panel=DATA,
        ),
    ] = None,
    metadata_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Metadata for each image: a .csv with a column named file, or a .jsonl with a key "
            "named file. File names are absolute or relative to FILE's folder. Cells of a .csv are "
            "read as in --metadata: 2024 is a number.",
            show_default=False,
            rich_help_panel=DATA,
        ),
    ] = None,
    codes: Annotated[
        float | None,
        typer.Option(
            "--codes",
            metavar="MEAN",
            help="Average number of codes per image in a new index, such as 1.5, calibrated on a "
            "sample of these images.",
            show_default="as the model decides",
            rich_help_panel=INDEX,
        ),
    ] = None,
    prune: Annotated[
        bool,
        typer.Option(
            "--prune",
            help="Remove images in these folders whose files no longer exist.",
            rich_help_panel=INDEX,
        ),
    ] = False,
    again: Annotated[
        bool,
        typer.Option(
            "--again",
            help="Encode unchanged images again that have no fine codes, because an earlier "
            "version added them.",
            rich_help_panel=INDEX,
        ),
    ] = False,
    precision: UsePrecision = None,
    wait: Wait = 0.0,
    batch: Annotated[
        int,
        typer.Option(
            min=1, max=1_000_000, help="Number of images per commit.", rich_help_panel=MACHINE
        ),
    ] = 256,
    device: Device = "auto",
    threads: Threads = None,
    as_json: AsJson = False,
    verbose: Annotated[
        bool,
        typer.Option("--verbose", "-v", help="List every failed image.", rich_help_panel=RESULT),
    ] = False,
    quiet: Quiet = False,
) -> int:
    """Add images to an index. Unchanged images are skipped.

    What has been stored survives Ctrl-C and crashes: run the same command again to continue.
    Exit code 1: some images could not be read; all others are in the index.

    Examples:
      mch add photos
      mch add photos --prune --quiet
      mch add holiday/*.jpg --metadata album=holiday --metadata year=2024
      mch add scans --index scans.mch --metadata-file scans/captions.csv
      mch add photos --index small.mch --codes 1.2
      mch add photos --again
    """
    folders = _checked(paths, prune)
    notes = MetadataByPath(metadata or [], metadata_file)
    _check_model(index, model)
    from mchindex.index import MCHIndex

    use_threads(threads)
    chosen = model if codes is None else _on_budget(index, model, codes, paths, device, precision)
    kind: type[MCHIndex] = MCHIndex
    if is_cluster(index):
        from mchindex.cluster import ClusterIndex

        kind = ClusterIndex
    with kind.open(index, chosen, wait=wait, device=device, precision=precision) as opened:
        try:
            began = time.monotonic()
            result = opened.add(
                paths,
                metadata=notes if notes else None,
                progress=not quiet,
                batch=batch,
                again=again,
            )
            pruned = sum(len(opened.prune(folder)) for folder in folders)
        except KeyboardInterrupt:
            raise StoppedError(
                f"interrupted: {index} holds {show.number(len(opened), 'image')}; run the same "
                "command again to continue"
            ) from None
        took, stats = time.monotonic() - began, opened.stats()
    images = stats["images"]
    without_fine = images - stats["fine_images"] if stats["fine_bits"] else 0
    if unused := notes.unused():
        say(f"warning: lines of {metadata_file} that match no image given here: {unused:,}")
    done = len(result) + len(result.failed)
    if not done:
        say(f"no pictures found in {', '.join(paths)}")
    facts = {
        "index": str(index),
        "images": images,
        "added": len(result.added),
        "replaced": len(result.replaced),
        "skipped": len(result.skipped),
        "failed": len(result.failed),
        "ignored": len(result.ignored),
        "pruned": pruned,
        "without_fine": without_fine,
        "missing_extras": Counter(f.extra for f in result.failed if f.extra is not None),
        "failures": [{"name": f.name, "reason": f.reason} for f in result.failed],
        "seconds": round(took, 3),
        "images_per_second": round(done / took, 1) if took else 0.0,
    }
    if as_json:
        show.print_json(facts)
    else:
        _summary(facts, result, verbose)
    return INCOMPLETE if result.failed else FINE


def _checked(paths: Sequence[str], prune: bool) -> list[str]:
    """The folders to prune. Raises ValueError if no path exists; if only some are missing, `add`
    reports them as failed images."""
    import glob

    if not any(os.path.lexists(p) or (glob.has_magic(p) and glob.glob(p)) for p in paths):
        what = "no file matches this pattern" if glob.has_magic(paths[0]) else "No such file"
        raise ValueError(f"{paths[0]}: {what}")
    folders = [p for p in paths if os.path.isdir(p)] if prune else []
    if prune and not folders:
        raise ValueError("--prune needs a folder: it removes images in that folder")
    return folders


def _check_model(index: Path, model: str | None) -> None:
    """Raises ValueError for an unknown model before an index is created."""
    from mchindex.catalogue import CONFIG, find, names
    from mchindex.index.model import DEFAULT_MODEL
    from mchindex.storage.store import Store

    if model is None and (Store.exists(index) or is_cluster(index)):
        return
    name = DEFAULT_MODEL if model is None else model
    if not (find(name) / CONFIG).is_file():
        raise ValueError(f"there is no model {name} (there are {', '.join(names()) or 'none'})")


def _on_budget(
    index: Path,
    model: str | None,
    codes: float,
    paths: Sequence[str],
    device: str,
    precision: Precision | None,
) -> Encoder | None:
    """The model of a new index, set to keep this many codes per image on average."""
    from mchindex.errors import ImageError
    from mchindex.images import open_rgb
    from mchindex.index.inputs import to_items
    from mchindex.index.model import DEFAULT_MODEL
    from mchindex.inference import load_model
    from mchindex.storage.store import Store

    if Store.exists(index):
        options = "--model and --codes are" if model else "--codes is"
        say(f"{options} ignored: {index} already exists")
        return None
    loaded = load_model(
        DEFAULT_MODEL if model is None else model, device=device, precision=precision
    )
    loaded.check_codes(codes)
    files = [item.path for item in to_items(list(paths))[0] if item.path and not item.error]
    sample = []
    for path in files[:: -(-len(files) // SAMPLE) or 1]:
        try:
            open_rgb(path)  # not kept: hundreds of photographs take too much memory
        except ImageError:
            continue  # `add` will report it
        sample.append(path)
    if not sample:
        raise ValueError("--codes needs at least one image that can be read")
    return loaded.with_codes(codes, sample)


def _summary(facts: dict[str, Any], result: Added, verbose: bool) -> None:
    console = show.output(show.LONG_WIDTH)
    counts = [f"[bold]{facts['added']:,}[/] added"]
    counts += [
        f"{facts[name]:,} {word}"
        for name, word in {
            "replaced": "replaced",
            "skipped": "unchanged",
            "ignored": "not images (by name)",
            "pruned": "removed (file no longer exists)",
        }.items()
        if facts[name]
    ]
    if result.failed:
        counts.append(f"[red]{facts['failed']:,} failed[/]")
    speed = per_second(facts["images_per_second"], "images")
    took = f" in {seconds(facts['seconds'])} ({speed})" if len(result) or result.failed else ""
    console.print(f"{', '.join(counts)}{took}")
    failures = result.failed if verbose else result.failed[:LISTED]
    for failure in failures:
        parts = "  ", (failure.name, "red"), f": {failure.reason}"
        console.print(show.line(*parts), soft_wrap=True)
    if len(result.failed) > len(failures):
        console.print(f"  … {len(result.failed) - len(failures):,} more (--verbose lists them)")
    for extra, count in facts["missing_extras"].items():
        advice = f'{show.number(count, "image")} not read: pip install "mchindex[{extra}]"'
        console.print(show.line((advice, "bold")), soft_wrap=True)
    total = f"{facts['index']}: {show.number(facts['images'], 'image')}"
    console.print(show.line((total, "dim")), soft_wrap=True)
    if facts["without_fine"]:
        console.print(show.line(show.without_fine(facts["without_fine"])), soft_wrap=True)
