"""The options that several commands share, and what they stand for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from mchindex.datasets import Dataset

DATA, MODEL, AGENT, MACHINE = "Data", "Model", "Agent", "Machine"

Engine = Literal["auto", "torch", "onnx"]

Data = Annotated[
    str,
    typer.Option(
        "--data",
        metavar="SPEC",
        help="A folder with images/ and labels.csv, or coco:DIR, nuswide:DIR, mirflickr:DIR, "
        "lists:DIR, scenes:N (drawn pictures); options behind it, as in coco:DIR?queries=500.",
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
        help="Threads of torch and of the evaluation.",
        show_default="all cores",
        rich_help_panel=MACHINE,
    ),
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print nothing but the result.")
]  # fmt: skip


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
