"""Options that several commands share, and how their values are read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from mchindex import json_text
from mchindex.catalogue import Precision

if TYPE_CHECKING:
    from mchindex.datasets import Dataset
    from mchindex.index import MCHIndex
    from mchindex.storage.records import Id

DATA, MODEL, AGENT, MACHINE = "Data", "Model", "Agent", "Machine"
INDEX, RESULT, QUERY = "Index", "Result", "Query"

MOST_THREADS = 4096
LARGEST_SEED = 2**63 - 1

Engine = Literal["auto", "torch", "onnx"]

Data = Annotated[
    str,
    typer.Option(
        "--data",
        metavar="SPEC",
        help="A folder with images/ and labels.csv, or coco:DIR, nuswide:DIR, mirflickr:DIR, "
        "lists:DIR, photos:DIR (no labels), scenes:N (synthetic pictures). Options follow a "
        "question mark: coco:DIR?queries=500.",
        rich_help_panel=DATA,
    ),
]
Split = Annotated[
    Path | None,
    typer.Option(
        "--split",
        metavar="FILE",
        help="Use the splits of this file: a split.json written by an earlier training run.",
        rich_help_panel=DATA,
    ),
]
Device = Annotated[
    str,
    typer.Option(
        "--device",
        metavar="NAME",
        help="cpu, cuda, cuda:1 …; auto uses a GPU if there is one.",
        rich_help_panel=MACHINE,
    ),
]
UsePrecision = Annotated[
    Precision | None,
    typer.Option(
        "--precision",
        help="How the backbone computes for a new index: int8 is faster, float exact.",
        show_default="int8 for models that ship, on a CPU",
        rich_help_panel=INDEX,
    ),
]
UseEngine = Annotated[
    Engine,
    typer.Option(
        "--engine",
        help="What runs the backbone; auto: ONNX Runtime on a CPU, if it is installed.",
        rich_help_panel=MACHINE,
    ),
]
Cache = Annotated[
    Path | None,
    typer.Option(
        "--cache",
        metavar="DIR",
        help="Folder in which features are kept for the next run.",
        show_default="$MCH_CACHE, or mchindex in the user's cache",
        rich_help_panel=MACHINE,
    ),
]
NoCache = Annotated[
    bool, typer.Option("--no-cache", help="Do not keep features.", rich_help_panel=MACHINE)
]
Threads = Annotated[
    int | None,
    typer.Option(
        "--threads",
        min=1,
        max=MOST_THREADS,
        metavar="N",
        help="Number of threads.",
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
        help="How long to wait while another process is writing.",
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
        help="The model of a new index: a name listed by [bold]mch models[/], or a folder.",
        show_default="coco-64",
        autocompletion=model_names,
        rich_help_panel=INDEX,
    ),
]


def open_index(folder: Path, *, wait: float = 0.0, device: str | None = None) -> MCHIndex:
    """An existing index."""
    if is_cluster(folder):
        from mchindex.cluster import ClusterIndex

        return ClusterIndex.open(folder, create=False, wait=wait, device=device)
    check_index(folder)
    from mchindex.index import MCHIndex

    return MCHIndex.open(folder, create=False, wait=wait, device=device)


def is_cluster(folder: Path) -> bool:
    """Whether a folder holds a cluster. The package need not be imported for this."""
    return (folder / "cluster.json").is_file()


def check_index(folder: Path) -> None:
    from mchindex.storage.store import Store

    if is_cluster(folder):
        raise ValueError(
            f"{folder} is a cluster: name one of the indexes in it, such as "
            f"{folder / 'shard-000.mch'}"
        )
    if not Store.exists(folder):
        raise ValueError(
            f"there is no index {folder}: create it with mch add, or name another with --index or "
            "$MCH_INDEX"
        )


def stored_id(index: MCHIndex, text: str) -> Id | None:
    """The id of the image that a command-line argument names, as text or as an integer."""
    if text in index:
        return text
    try:
        number = int(text)
    except ValueError:
        return None
    return number if number in index else None


def pairs(option: str, given: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Splits each text `key=value`. `option` is for messages."""
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ValueError(f"{option} {text}: expected key=value, such as album=summer")
        yield key.strip(), value


_COMPARISON = re.compile(r"(?P<key>[^=<>!]+)(?P<operator>>=|<=|!=|=|<|>)(?P<value>.*)", re.DOTALL)


def conditions(given: Sequence[str]) -> dict[str, Any] | None:
    """The filter that `--filter` options describe: for each key, the comparisons to make.

    What looks like a number here may be stored as text, so the filter matches both.
    """
    filter: dict[str, dict[str, list[Any]]] = {}
    for text in given:
        match = _COMPARISON.fullmatch(text)
        if match is None or not match["key"].strip():
            raise ValueError(
                f"--filter {text}: expected a comparison, such as album=summer or 'year>=2020'"
            )
        value = scalar(match["value"])
        both = [value] if value == match["value"] else [value, match["value"]]
        comparisons = filter.setdefault(match["key"].strip(), {})
        if match["operator"] in comparisons and match["operator"] not in ("=", "!="):
            raise ValueError(f"--filter {text}: there is another {match['operator']} for this key")
        comparisons.setdefault(match["operator"], []).extend(both)
    return filter or None


Filter = Annotated[
    list[str] | None,
    typer.Option(
        "--filter",
        metavar="KEY=VALUE",
        help="Only images with this metadata. Comparisons are =, !=, <, <=, > and >=; quote the "
        "last four, as in 'year>=2020'. A dot reaches into objects: camera.model=X100. The same "
        "key twice with = means either value.",
        show_default=False,
        rich_help_panel=QUERY,
    ),
]


def scalar(text: str) -> Any:
    """A JSON number, true, false, null or "text"; everything else is plain text."""
    try:
        value = json_text.loads(text)
    except ValueError:
        return text
    if isinstance(value, (dict, list)):
        return text
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return text
    return value


def without_labels(spec: str) -> str:
    """The data set `photos:FOLDER` for a plain folder of pictures; any other spec unchanged."""
    from mchindex.datasets import TABLE

    folder = Path(spec)
    return f"photos:{spec}" if folder.is_dir() and not (folder / TABLE).exists() else spec


def open_data(spec: str, seed: int, split: Path | None) -> Dataset:
    """Opens a data set, with its own splits or those of a file."""
    from mchindex.datasets import load_split, open_dataset

    dataset = open_dataset(spec, seed=seed)
    return dataset if split is None else load_split(dataset, split)


def cache_folder(cache: Path | None, no_cache: bool) -> Path | None:
    if no_cache:
        if cache is not None:
            raise ValueError("--cache and --no-cache contradict each other: give one of them")
        return None
    from mchindex.training.features import default_cache

    return default_cache() if cache is None else cache


def use_threads(threads: int | None) -> int:
    """Sets the number of threads that torch uses; returns it, or 0 for all cores."""
    if threads is None:
        return 0
    from mchindex.inference.threads import set_threads

    set_threads(threads)
    return threads
