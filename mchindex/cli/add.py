"""`mch add`: images into an index."""

from __future__ import annotations

import csv
import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mchindex.cli import show
from mchindex.cli.errors import FINE, INCOMPLETE, StoppedError, say
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
    Wait,
    pairs,
    scalar,
    use_threads,
)
from mchindex.progress import per_second, seconds

if TYPE_CHECKING:
    from mchindex.index.adding import Added
    from mchindex.models import MCHModel

SHOWN = 20  # failed images named without --verbose
SAMPLE = 300  # images by which --codes is settled


def add(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="PATH...", help="Images, folders of them, or 'patterns/**/*.jpg'."),
    ],
    index: Index = INDEX_PATH,
    model: IndexModel = None,
    metadata: Annotated[
        list[str] | None,
        typer.Option(
            "--metadata",
            metavar="KEY=VALUE",
            help="Metadata of all these images; may be repeated. Numbers, true and false are "
            "stored as such.",
            show_default=False,
            rich_help_panel=DATA,
        ),
    ] = None,
    metadata_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Metadata of each image: .csv with a column file, or .jsonl with a key file; "
            "names are absolute or relative to FILE's folder.",
            show_default=False,
            rich_help_panel=DATA,
        ),
    ] = None,
    codes: Annotated[
        float | None,
        typer.Option(
            "--codes",
            metavar="MEAN",
            help="How many codes an image of a new index has on average, such as 1.5; settled by "
            "some of these images.",
            show_default="whatever the model keeps",
            rich_help_panel=INDEX,
        ),
    ] = None,
    prune: Annotated[
        bool,
        typer.Option(
            "--prune",
            help="Remove images of these folders whose files are gone.",
            rich_help_panel=INDEX,
        ),
    ] = False,
    wait: Wait = 0.0,
    batch: Annotated[
        int, typer.Option(min=1, help="Images committed at a time.", rich_help_panel=MACHINE)
    ] = 256,
    device: Device = "auto",
    threads: Threads = None,
    as_json: AsJson = False,
    verbose: Annotated[
        bool,
        typer.Option("--verbose", "-v", help="Name every failed image.", rich_help_panel=RESULT),
    ] = False,
    quiet: Quiet = False,
) -> int:
    """Add images to an index; those that are in it unchanged are skipped.

    What is stored survives Ctrl-C and crashes: the same command goes on from there.
    Exit code 1: some images could not be read, all others are in the index.

    Examples:
      mch add photos
      mch add photos --prune --quiet
      mch add holiday/*.jpg --metadata album=holiday --metadata year=2024
      mch add scans --index scans.mch --metadata-file scans/captions.csv
      mch add photos --index small.mch --codes 1.2
    """
    folders = _checked(paths, prune)
    notes = Notes(metadata or [], metadata_file)
    _check_model(index, model)
    from mchindex.index import MCHIndex

    use_threads(threads)
    chosen = model if codes is None else _on_budget(index, model, codes, paths, device)
    with MCHIndex.open(index, chosen, wait=wait, device=device) as opened:
        try:
            _ = opened.model.extractor  # made ready before the clock starts
            began = time.monotonic()
            result = opened.add(
                paths,
                metadata=notes if notes else None,
                progress=not quiet,
                batch=batch,
            )
            pruned = sum(len(opened.prune(folder)) for folder in folders)
        except KeyboardInterrupt:
            raise StoppedError(
                f"interrupted: {index} holds {show.number(len(opened), 'image')}; the same command "
                "goes on from there"
            ) from None
        took, images = time.monotonic() - began, len(opened)
    if unused := notes.unused():
        say(f"warning: lines of {metadata_file} of no image given here: {unused:,}")
    done = len(result) + len(result.failed)
    facts = {
        "index": str(index),
        "images": images,
        "added": len(result.added),
        "replaced": len(result.replaced),
        "skipped": len(result.skipped),
        "failed": len(result.failed),
        "ignored": len(result.ignored),
        "pruned": pruned,
        "failures": [{"name": f.name, "reason": f.reason} for f in result.failed],
        "seconds": round(took, 3),
        "images_per_second": round(done / took, 1) if took else 0.0,
    }
    if as_json:
        typer.echo(json.dumps(facts, ensure_ascii=False))
    else:
        _summary(facts, result, verbose)
    return INCOMPLETE if result.failed else FINE


def _checked(paths: Sequence[str], prune: bool) -> list[str]:
    """The folders to prune. One path that is not there is a failed image, none at all a mistake."""
    import glob

    if not any(os.path.lexists(p) or (glob.has_magic(p) and glob.glob(p)) for p in paths):
        what = "no file matches this pattern" if glob.has_magic(paths[0]) else "No such file"
        raise ValueError(f"{paths[0]}: {what}")
    folders = [p for p in paths if os.path.isdir(p)] if prune else []
    if prune and not folders:
        raise ValueError("--prune needs a folder: what is gone is looked for in it")
    return folders


def _check_model(index: Path, model: str | None) -> None:
    """Before an index is made that nothing can fill."""
    from mchindex.catalogue import CONFIG, find, names
    from mchindex.index.facade import DEFAULT_MODEL
    from mchindex.storage.store import Store

    if model is None and Store.exists(index):
        return
    name = DEFAULT_MODEL if model is None else model
    if not (find(name) / CONFIG).is_file():
        known = ", ".join(names()) or "none"
        raise ValueError(f"there is no model {name} (models by name: {known})")


def _on_budget(
    index: Path, model: str | None, codes: float, paths: Sequence[str], device: str
) -> MCHModel | None:
    """For a new index the model, keeping so many codes of images like these."""
    from mchindex.errors import ImageError
    from mchindex.images import open_rgb
    from mchindex.index.facade import DEFAULT_MODEL
    from mchindex.index.inputs import to_items
    from mchindex.models import MCHModel
    from mchindex.storage.store import Store

    if Store.exists(index):
        given_both = "--model and --codes were" if model else "--codes was"
        say(f"{given_both} settled when {index} was made: it goes on as it began")
        return None
    loaded = MCHModel.load(DEFAULT_MODEL if model is None else model, device=device)
    loaded.check_codes(codes)
    files = [item.path for item in to_items(list(paths))[0] if item.path and not item.error]
    sample = []
    for path in files[:: -(-len(files) // SAMPLE) or 1]:
        try:
            open_rgb(path)  # not kept: some hundred photographs are too much memory
        except ImageError:
            continue  # `add` will say what is wrong with it
        sample.append(path)
    if not sample:
        raise ValueError("--codes is settled by some of the images: none of them can be read")
    return loaded.with_codes(codes, sample)


class Notes:
    """Metadata by path: what is said of all images, and over it what a file says of each."""

    def __init__(self, general: Sequence[str], file: Path | None) -> None:
        self.general = {key: scalar(value) for key, value in pairs("--metadata", general)}
        self.own = {} if file is None else dict(_read_notes(file))
        self._used: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self.general or self.own)

    def __call__(self, path: str) -> Any:
        """None, which leaves what is stored, where nothing is said."""
        own = self.own.get(path)
        if own is not None:
            self._used.add(path)
        return {**self.general, **(own or {})} or None

    def unused(self) -> int:
        return len(self.own) - len(self._used)


def _read_notes(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Absolute names and metadata."""
    kinds = {".csv": _of_csv, ".jsonl": _of_jsonl}
    read = kinds.get(file.suffix.lower())
    if read is None:
        raise ValueError(f"--metadata-file {file}: it must be .csv or .jsonl")
    home, seen = os.path.dirname(os.path.abspath(file)), set()
    for number, record in read(file):
        name = record.pop("file", None)
        if not isinstance(name, str) or not name:
            raise ValueError(f"{file}:{number}: it does not say of which file")
        full = os.path.normpath(os.path.join(home, name))
        if full in seen:
            raise ValueError(f"{file}:{number}: {name} came before")
        seen.add(full)
        yield full, record


def _of_csv(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with open(file, encoding="utf-8-sig", newline="") as stream:
        rows = csv.DictReader(stream, strict=True)
        try:
            if "file" not in (rows.fieldnames or ()):
                raise ValueError(f"{file}:1: its header has no column file")
            for row in rows:
                if None in row:
                    raise ValueError(f"{file}:{rows.line_num}: more cells than the header has")
                yield rows.line_num, {key: cell for key, cell in row.items() if cell}
        except (csv.Error, UnicodeDecodeError) as error:
            raise ValueError(f"{file}:{rows.line_num + 1}: {error}") from None


def _of_jsonl(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with open(file, "rb") as stream:
        for number, line in enumerate(stream, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except ValueError as error:
                raise ValueError(f"{file}:{number}: {error}") from None
            if not isinstance(record, dict):
                raise ValueError(f"{file}:{number}: a line is an object")
            yield number, record


def _summary(facts: dict[str, Any], result: Added, verbose: bool) -> None:
    from rich.markup import escape

    console = show.output(show.LONG_WIDTH)
    counts = [f"[bold]{facts['added']:,}[/] added"]
    counts += [
        f"{facts[name]:,} {word}"
        for name, word in {
            "replaced": "replaced",
            "skipped": "unchanged",
            "ignored": "no images by their names",
            "pruned": "removed, their files being gone",
        }.items()
        if facts[name]
    ]
    if result.failed:
        counts.append(f"[red]{facts['failed']:,} failed[/]")
    speed = per_second(facts["images_per_second"], "images")
    console.print(f"{', '.join(counts)} in {seconds(facts['seconds'])} ({speed})")
    shown = result.failed if verbose else result.failed[:SHOWN]
    for failure in shown:
        console.print(f"  [red]{escape(failure.name)}[/]: {escape(failure.reason)}", soft_wrap=True)
    if len(result.failed) > len(shown):
        console.print(f"  … {len(result.failed) - len(shown):,} more (--verbose names them)")
    console.print(f"[dim]{escape(facts['index'])}: {show.number(facts['images'], 'image')}[/]")
