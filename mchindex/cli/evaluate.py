"""`mch eval`: measure the retrieval quality of a model on a data set."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from mchindex import json_text
from mchindex.cli import show
from mchindex.cli.errors import say
from mchindex.cli.learning_options import (
    SIGMA_HELP,
    XI_HELP,
    data_option,
    model_option,
    result_option,
)
from mchindex.cli.options import (
    LARGEST_SEED,
    AsJson,
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
from mchindex.files import read_file, replaceable
from mchindex.progress import Display

if TYPE_CHECKING:
    from mchindex.datasets import Dataset
    from mchindex.evaluation import Evaluation
    from mchindex.models import MCHModel


def evaluate(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a trained model.")],
    data: Data,
    split: Split = None,
    seed: Annotated[
        int | None,
        data_option(
            min=0,
            max=LARGEST_SEED,
            help="Seed of random splits and of random keeping.",
            show_default="that of the model's training split",
        ),
    ] = None,
    sigma: Annotated[
        float | None, model_option(help=SIGMA_HELP, show_default="the model's")
    ] = None,
    xi: Annotated[float | None, model_option(help=XI_HELP, show_default="the model's")] = None,
    radius: Annotated[
        int, result_option(min=0, help="Hamming radius for precision, recall and empty results.")
    ] = 0,
    as_json: AsJson = False,
    per_class: Annotated[
        bool, result_option("--per-class", help="Also print one line per class.")
    ] = False,
    copies: Annotated[
        int,
        result_option(
            min=0,
            metavar="N",
            help="Also edit this many images of the database (saved again, cropped, a quarter of "
            "it …), and count how often a search by the edited one finds the original first.",
        ),
    ] = 0,
    plot: Annotated[
        Path | None,
        result_option(metavar="FILE", help="Plot F1 by number of buckets, as .svg or .png."),
    ] = None,
    device: Device = "auto",
    engine: UseEngine = "auto",
    cache: Cache = None,
    no_cache: NoCache = False,
    threads: Threads = None,
    quiet: Quiet = False,
) -> None:
    """Evaluate a model on a data set with queries and a database.

    The data set may be new to the model, with other classes. Four ways to choose the codes
    of an image are compared: [bold]base[/] (only the code of the whole image), [bold]MCH[/]
    (the regions that the policy keeps), [bold]random keeping[/] (random regions, as many
    codes as MCH) and [bold]all regions[/]. Their keys in JSON are base, mch, random_keep and
    keep_all. A model trained with --no-agent has no policy: only base and all regions apply.

    Examples:
      mch eval model --data photos
      mch eval model --data scenes:2000 --seed 7 --per-class
      mch eval model --data coco:DIR --xi 0.7 --plot curves.svg
      mch eval model --data photos --copies 200
      mch eval model --data photos --json | jq .mch.map
    """
    if plot is not None:
        _check_plot(plot)
    before = _training_split(folder)
    seed = before.seed if seed is None else seed
    dataset = open_data(data, seed, split)
    model = _load(folder, sigma, xi, device, engine)
    from mchindex.cli.copies import find_copies
    from mchindex.training import encode_dataset, measure
    from mchindex.training.measure import WAYS

    workers = use_threads(threads)
    if radius > model.bits:
        raise ValueError(f"--radius {radius} exceeds the {model.bits} bits of the model's codes")
    trained = _trained_queries(dataset, before)
    if trained:
        say(
            f"warning: the model was trained on {trained:,} of the "
            f"{len(dataset.splits['query']):,} queries, so its results are too good: use --split "
            f"{folder / SPLIT}"
        )
    if leaks := dataset.leaks():
        say(
            f"warning: {len(leaks):,} images of the database have the same content as a query, so "
            f"all results are too good: for example {dataset.images.name(leaks[0][1])} and the "
            f"query {dataset.images.name(leaks[0][0])}"
        )
    ways = WAYS if model.policy is not None else ("base", "keep_all")
    with Display(quiet) as stages:
        coded = encode_dataset(model, dataset, cache_folder(cache, no_cache), stages)
        results = measure(
            coded, model.xi, ways, seed=seed, threads=workers, progress=stages, radius=radius
        )
        edited = find_copies(model, dataset, copies, seed, stages) if copies else None
    if plot is not None:
        _plot(plot, model, results)
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
        "seed": seed,
        "queries": len(coded.queries),
        "trained_queries": trained,
        "images": len(coded.labels),
        "skipped": coded.skipped,
        "radius": radius,
    }
    if edited is not None:
        about |= {
            "edited": edited[0],
            "copies": {edit: found.to_json() for edit, found in edited[1].items()},
        }
    if as_json:
        figures = {way: result.to_json() for way, result in results.items()}
        show.print_json(about | figures)
        return
    _print(about, results, per_class, plot)
    if edited is not None:
        show.output().print(show.copies_table(*edited))


def _check_plot(plot: Path) -> None:
    """Raises ValueError, before the evaluation starts, for a plot that cannot be written."""
    if plot.suffix.lower() not in (".svg", ".png"):
        raise ValueError(f"--plot {plot}: the file name must end in .svg or .png")
    replaceable(plot)
    if not can_plot():
        raise ValueError("--plot needs matplotlib: pip install 'mchindex[plot]'")


def _load(
    folder: Path, sigma: float | None, xi: float | None, device: str, engine: Any
) -> MCHModel:
    """Loads the model. Checks the options first: errors while loading are blamed on its files."""
    from mchindex.catalogue import CONFIG
    from mchindex.models import MCHModel
    from mchindex.models.extract import choose_device
    from mchindex.regions import check_sigma
    from mchindex.training.run import CHECKPOINT

    choose_device(device)
    if sigma is not None:
        check_sigma(sigma)
    if xi is not None and not 0 <= xi <= 1:
        raise ValueError(f"xi must be a probability, 0 to 1, not {xi}")
    if not (folder / CONFIG).exists() and (folder / CHECKPOINT).exists():
        raise ValueError(
            f"{folder} holds an interrupted training run: finish it with mch train … --resume"
        )
    return MCHModel.load(folder, sigma=sigma, xi=xi, device=device, engine=engine)


class _TrainingSplit(NamedTuple):
    """The split.json that mch train saves with a model."""

    name: str = ""  # of the data set
    seed: int = 0
    train: frozenset[str] = frozenset()  # names of the training images


def _training_split(folder: Path) -> _TrainingSplit:
    """The split that a model was trained with; empty if it is missing or unreadable."""
    try:
        manifest = json_text.loads(read_file(folder / SPLIT))
        train = frozenset(map(str, manifest["splits"]["train"]))
        return _TrainingSplit(str(manifest["name"]), int(manifest["seed"] or 0), train)
    except (OSError, ValueError, KeyError, TypeError):
        return _TrainingSplit()


def _trained_queries(dataset: Dataset, before: _TrainingSplit) -> int:
    """How many of the queries are training images of the model, by name."""
    if before.name != dataset.name:
        return 0
    return sum(dataset.images.name(i) in before.train for i in dataset.splits["query"].tolist())


def _plot(path: Path, model: MCHModel, results: dict[str, Evaluation]) -> None:
    from mchindex.evaluation import plot_f1_buckets

    method = model.method.name.upper()
    names = show.NAMES | {"base": method, "mch": f"MCH-{method}"}
    curves = {names[way]: result.f1_buckets for way, result in results.items()}
    plot_f1_buckets(curves, path, f"F1 by number of buckets visited, {model.bits} bits")


def _print(
    about: dict[str, Any], results: dict[str, Evaluation], per_class: bool, plot: Path | None
) -> None:
    console, mch = show.output(), results.get("mch")
    base = results["base"]
    method = about["method"].upper()
    console.print()
    console.print(
        show.line(
            (f"{'MCH-' if mch else ''}{method}", "bold"),
            f", {about['bits']} bits, {about['backbone']} at {about['size']} px, "
            f"{about['regions']} regions, sigma {about['sigma']:g}, xi {about['xi']:g}",
        )
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
        rows["no policy"] = "the model was trained with --no-agent, so there is no MCH to evaluate"
    else:
        chance = results["random_keep"]
        rows["MCH over random keeping"] = (
            f"mAP {mch.map - chance.map:+.4f}, F1 within the query's bucket (H=0) "
            f"{mch.f1_own - chance.f1_own:+.4f}"
        )
    if plot is not None:
        rows["plot"] = str(plot)
    console.print(show.facts(rows))
