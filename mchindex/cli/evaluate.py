"""`mch eval`: what a model is worth on data with queries and a database."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from mchindex.cli import show
from mchindex.cli.errors import say
from mchindex.cli.options import (
    DATA,
    MODEL,
    Cache,
    Data,
    Device,
    NoCache,
    Quiet,
    Split,
    Threads,
    UseEngine,
    cache_folder,
    open_data,
    use_threads,
)
from mchindex.cli.train import SPLIT, can_plot
from mchindex.progress import Display

if TYPE_CHECKING:
    from mchindex.datasets import Dataset
    from mchindex.evaluation import Evaluation
    from mchindex.models import MCHModel

RESULT = "Result"


def evaluate(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A model that mch train has saved.")
    ],
    data: Data,
    split: Split = None,
    seed: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Of splits that are drawn, and of keeping at random.",
            show_default="that of the training's split",
            rich_help_panel=DATA,
        ),
    ] = None,
    sigma: Annotated[
        float | None,
        typer.Option(
            help="A region's side over the image's.",
            show_default="the model's",
            rich_help_panel=MODEL,
        ),
    ] = None,
    xi: Annotated[
        float | None,
        typer.Option(
            help="Probability from which on a region is kept.",
            show_default="the model's",
            rich_help_panel=MODEL,
        ),
    ] = None,
    radius: Annotated[
        int,
        typer.Option(min=0, help="Of precision, recall and empty buckets.", rich_help_panel=RESULT),
    ] = 0,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print one JSON object.", rich_help_panel=RESULT),
    ] = False,
    per_class: Annotated[
        bool, typer.Option("--per-class", help="A line a class, too.", rich_help_panel=RESULT)
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Draw F1 against buckets, .svg or .png.", rich_help_panel=RESULT
        ),
    ] = None,
    device: Device = "auto",
    engine: UseEngine = "auto",
    cache: Cache = None,
    no_cache: NoCache = False,
    threads: Threads = None,
    quiet: Quiet = False,
) -> None:
    """Measure a model on data with queries and a database, also on data it has never seen.

    Four ways of keeping are compared: [bold]base[/] (the whole image's code only),
    [bold]MCH[/] (what the policy keeps), [bold]random keeping[/] (regions by lot, as many codes
    as MCH has) and [bold]all regions[/]. In JSON they are base, mch, random_keep and keep_all.
    A model trained with --no-agent has no policy: base and all regions only.

    Examples:
      mch eval model --data photos
      mch eval model --data scenes:2000 --seed 7 --per-class
      mch eval model --data coco:DIR --xi 0.7 --plot curves.svg
      mch eval model --data photos --json | jq .mch.map
    """
    if plot is not None:
        _check_plot(plot)
    before = _training_split(folder)
    drawn = before.seed if seed is None else seed
    dataset = open_data(data, drawn, split)
    model = _load(folder, sigma, xi, device, engine)
    from mchindex.training import encode_dataset, measure
    from mchindex.training.measure import WAYS

    workers = use_threads(threads)
    if radius > model.bits:
        raise ValueError(f"--radius {radius} is beyond the {model.bits} bits of the model's codes")
    known = _trained_queries(dataset, before)
    if known:
        say(
            f"warning: the model was trained on {known:,} of the {len(dataset.splits['query']):,} "
            f"queries, which flatters it: --split {folder / SPLIT} takes its own"
        )
    if leaks := dataset.leaks():
        say(
            f"warning: {len(leaks):,} images of the database are also queries by content, which "
            f"flatters any model: {dataset.images.name(leaks[0][1])} is the query "
            f"{dataset.images.name(leaks[0][0])}"
        )
    ways = WAYS if model.policy is not None else ("base", "keep_all")
    with Display(quiet) as stages:
        coded = encode_dataset(model, dataset, cache_folder(cache, no_cache), stages)
        results = measure(
            coded, model.xi, ways, seed=drawn, threads=workers, progress=stages, radius=radius
        )
    if plot is not None:
        _draw(plot, model, results)
    about = {
        "model": str(folder),
        "fingerprint": model.fingerprint,
        "method": model.method.name,
        "bits": model.bits,
        "backbone": model.backbone.name,
        "size": model.backbone.size,
        "regions": model.mode,
        "layout": model.layout_name,
        "sigma": model.sigma,
        "xi": model.xi,
        "data": data,
        "split": None if split is None else str(split),
        "seed": drawn,
        "queries": len(coded.queries),
        "trained_queries": known,
        "images": len(coded.labels),
        "skipped": coded.skipped,
        "radius": radius,
    }
    if as_json:
        figures = {way: result.to_json() for way, result in results.items()}
        typer.echo(json.dumps(about | figures, allow_nan=False))
        return
    _print(about, results, per_class, plot)


def _check_plot(plot: Path) -> None:
    """Before minutes are spent on the figures."""
    if plot.suffix.lower() not in (".svg", ".png"):
        raise ValueError(f"--plot {plot}: a plot is written as .svg or .png")
    if not can_plot():
        raise ValueError("--plot needs matplotlib: pip install 'mchindex[plot]'")


def _load(
    folder: Path, sigma: float | None, xi: float | None, device: str, engine: Any
) -> MCHModel:
    """The model; what was asked of it is checked first, so as not to be blamed on its files."""
    from mchindex.models import MCHModel
    from mchindex.models.extract import choose_device
    from mchindex.models.mch import CONFIG
    from mchindex.regions import check_sigma
    from mchindex.training.run import CHECKPOINT

    choose_device(device)
    if sigma is not None:
        check_sigma(sigma)
    if xi is not None and not 0 <= xi <= 1:
        raise ValueError(f"xi is a probability, 0 to 1, not {xi}")
    if not (folder / CONFIG).exists() and (folder / CHECKPOINT).exists():
        raise ValueError(f"{folder} holds an interrupted training: mch train … --resume ends it")
    return MCHModel.load(folder, sigma=sigma, xi=xi, device=device, engine=engine)


class _TrainingSplit(NamedTuple):
    """What a training has left in its split.json."""

    name: str = ""  # of the data set
    seed: int = 0
    train: frozenset[str] = frozenset()  # names of images


def _training_split(folder: Path) -> _TrainingSplit:
    """That of the model; an empty one where there is none, or none that can be read."""
    try:
        manifest = json.loads((folder / SPLIT).read_text("utf-8"))
        train = frozenset(map(str, manifest["splits"]["train"]))
        return _TrainingSplit(str(manifest["name"]), int(manifest["seed"] or 0), train)
    except (OSError, ValueError, KeyError, TypeError):
        return _TrainingSplit()


def _trained_queries(dataset: Dataset, before: _TrainingSplit) -> int:
    """How many of the queries the model has learnt from, by name."""
    if before.name != dataset.name:
        return 0
    return sum(dataset.images.name(i) in before.train for i in dataset.splits["query"].tolist())


def _draw(plot: Path, model: MCHModel, results: dict[str, Evaluation]) -> None:
    from mchindex.evaluation import plot_f1_buckets

    method = model.method.name.upper()
    names = show.NAMES | {"base": method, "mch": f"MCH-{method}"}
    curves = {names[way]: result.f1_buckets for way, result in results.items()}
    plot_f1_buckets(curves, plot, f"F1 against buckets visited, {model.bits} bits")


def _print(
    about: dict[str, Any], results: dict[str, Evaluation], per_class: bool, plot: Path | None
) -> None:
    from rich.markup import escape

    console, mch = show.output(), results.get("mch")
    base = results["base"]
    method = about["method"].upper()
    console.print(
        f"\n[bold]{'MCH-' if mch else ''}{method}[/], {about['bits']} bits, {about['backbone']} at "
        f"{about['size']} px, {about['regions']} regions, sigma {about['sigma']:g}, "
        f"xi {about['xi']:g}"
    )
    console.print(show.ways_table(results))
    if per_class:
        console.print(show.classes_table(results))
    rows = {
        "data": f"{about['data']}: {about['queries']:,} queries against {about['images']:,} images",
        "skipped": show.skipped_images(about["skipped"]),
    }
    if base.without_relevant:
        rows["left out"] = f"{base.without_relevant:,} queries without a relevant image"
    if mch is None:
        rows["no policy"] = "the model was trained with --no-agent: there is no MCH to measure"
    else:
        chance = results["random_keep"]
        rows["learnt"] = (
            f"against random keeping mAP {mch.map - chance.map:+.4f}, "
            f"F1 of the own bucket {mch.f1_own - chance.f1_own:+.4f}"
        )
    if plot is not None:
        rows["plot"] = str(plot)
    console.print(show.facts({key: escape(value) for key, value in rows.items()}))
