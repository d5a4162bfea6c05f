"""The options that several commands share, and what they stand for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from mchindex.datasets import Dataset
    from mchindex.index import MCHIndex
    from mchindex.storage.records import Id

DATA, MODEL, AGENT, MACHINE = "Data", "Model", "Agent", "Machine"
INDEX, RESULT = "Index", "Result"

Engine = Literal["auto", "torch", "onnx"]

Data = Annotated[
    str,
    typer.Option(
        "--data",
        metavar="SPEC",
        help="A folder with images/ and labels.csv, or coco:DIR, nuswide:DIR, mirflickr:DIR, "
        "lists:DIR, photos:DIR (no labels), scenes:N (drawn pictures); options behind it, as in "
        "coco:DIR?queries=500.",
        rich_help_panel=DATA,
    ),
]
Split = Annotated[
    Path | None,
    typer.Option(
        "--split",
        metavar="FILE",
        help="Who is query, training and database: a split.json that a training left.",
        rich_help_panel=DATA,
    ),
]
Device = Annotated[
    str,
    typer.Option(
        "--device",
        metavar="NAME",
        help="cpu, cuda, cuda:1 …; auto takes a GPU where there is one.",
        rich_help_panel=MACHINE,
    ),
]
UseEngine = Annotated[
    Engine,
    typer.Option(
        "--engine",
        help="What runs the backbone; auto: ONNX Runtime on a CPU where it is installed.",
        rich_help_panel=MACHINE,
    ),
]
Cache = Annotated[
    Path | None,
    typer.Option(
        "--cache",
        metavar="DIR",
        help="Where features are kept for the next time.",
        show_default="$MCH_CACHE, or mchindex in the user's cache",
        rich_help_panel=MACHINE,
    ),
]
NoCache = Annotated[
    bool, typer.Option("--no-cache", help="Keep no features.", rich_help_panel=MACHINE)
]
Threads = Annotated[
    int | None,
    typer.Option(
        "--threads",
        min=1,
        metavar="N",
        help="Threads to compute with.",
        show_default="all cores",
        rich_help_panel=MACHINE,
    ),
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print nothing but the result.")
]  # fmt: skip

INDEX_PATH = Path("photos.mch")
Index = Annotated[
    Path,
    typer.Option(
        "--index",
        "-i",
        metavar="DIR",
        envvar="MCH_INDEX",
        help="The folder of the index.",
        rich_help_panel=INDEX,
    ),
]
Wait = Annotated[
    float,
    typer.Option(
        "--wait",
        min=0,
        metavar="SECONDS",
        help="How long to wait for another process that is writing.",
        rich_help_panel=INDEX,
    ),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON object.", rich_help_panel=RESULT)
]


def model_names() -> list[str]:
    from mchindex.catalogue import names

    return names()


IndexModel = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="NAME|DIR",
        help="What fills a new index: a name of [bold]mch models[/], or a model's folder.",
        show_default="coco-64",
        autocompletion=model_names,
        rich_help_panel=INDEX,
    ),
]


def open_index(folder: Path, *, wait: float = 0.0, device: str | None = None) -> MCHIndex:
    """An index that is there."""
    check_index(folder)
    from mchindex.index import MCHIndex

    return MCHIndex.open(folder, create=False, wait=wait, device=device)


def check_index(folder: Path) -> None:
    from mchindex.storage.store import Store

    if not Store.exists(folder):
        raise ValueError(
            f"there is no index {folder}: mch add makes one, --index or $MCH_INDEX names another"
        )


def stored_id(index: MCHIndex, text: str) -> Id | None:
    """What is meant by an id on the command line, where an integer looks like text."""
    if text in index:
        return text
    try:
        number = int(text)
    except ValueError:
        return None
    return number if number in index else None


def pairs(option: str, given: Sequence[str]) -> Iterator[tuple[str, str]]:
    """`key=value`, taken apart."""
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ValueError(f"{option} {text}: expected key=value, such as album=summer")
        yield key.strip(), value


def scalar(text: str) -> Any:
    """A number, true, false, null or "text" of JSON's; all else is text as it stands."""
    try:
        value = json.loads(text, parse_constant=lambda name: name)
    except (ValueError, RecursionError):
        return text
    if isinstance(value, (dict, list)) or value in (float("inf"), float("-inf")):
        return text
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return text
    return value


def without_labels(spec: str) -> str:
    """A plain folder of pictures is data enough where no labels are needed."""
    from mchindex.datasets import TABLE

    folder = Path(spec)
    return f"photos:{spec}" if folder.is_dir() and not (folder / TABLE).exists() else spec


def open_data(spec: str, seed: int, split: Path | None) -> Dataset:
    """The data set with its own splits, or with those of a manifest."""
    from mchindex.datasets import load_split, open_dataset

    dataset = open_dataset(spec, seed=seed)
    return dataset if split is None else load_split(dataset, split)


def cache_folder(cache: Path | None, no_cache: bool) -> Path | None:
    if no_cache:
        if cache is not None:
            raise ValueError("--cache and --no-cache exclude each other: give one of them")
        return None
    from mchindex.training.features import default_cache

    return default_cache() if cache is None else cache


def use_threads(threads: int | None) -> int:
    """Sets torch's threads; gives the evaluation's, 0 for all cores."""
    if threads is None:
        return 0
    import torch

    torch.set_num_threads(threads)
    return threads
