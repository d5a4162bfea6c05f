"""`mch train`: from labelled images to a model's directory."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from mchindex.cli import show
from mchindex.cli.errors import BAD_INPUT_ERRORS, StoppedError
from mchindex.cli.options import (
    AGENT,
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
    without_labels,
)
from mchindex.progress import Display

if TYPE_CHECKING:
    from mchindex.datasets import Dataset
    from mchindex.evaluation import Evaluation
    from mchindex.training import Trained, TrainingOptions

METHODS = ("lsh", "itq", "pca", "ksh", "hashnet", "adsh", "dch", "mmhh")
BACKBONES = ("efficientnet-lite0", "alexnet", "small")
METHOD = "dch"
UNSUPERVISED_METHOD = "hashnet"  # ranks best where similarities are guessed
SPLIT, CURVE = "split.json", "learning-curve"


def train(
    data: Data,
    out: Annotated[
        Path,
        typer.Option("--out", metavar="DIR", help="Where the model goes.", rich_help_panel=DATA),
    ],
    method: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help=f"The base method: {', '.join(METHODS)}.",
            autocompletion=lambda: list(METHODS),
            show_default=f"{METHOD}; {UNSUPERVISED_METHOD} with --unsupervised",
            rich_help_panel=MODEL,
        ),
    ] = None,
    bits: Annotated[
        int, typer.Option(help="Length of a code, a multiple of 8 to 256.", rich_help_panel=MODEL)
    ] = 64,
    backbone: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help=f"The network: {', '.join(BACKBONES)} (trained from scratch).",
            autocompletion=lambda: list(BACKBONES),
            rich_help_panel=MODEL,
        ),
    ] = "efficientnet-lite0",
    size: Annotated[
        int | None,
        typer.Option(
            metavar="PIXELS",
            help="Side of the network's input.",
            show_default="the backbone's",
            rich_help_panel=MODEL,
        ),
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The backbone's weights: .safetensors, or .pth.",
            show_default="pretrained, or from scratch",
            rich_help_panel=MODEL,
        ),
    ] = None,
    finetune: Annotated[
        bool,
        typer.Option(
            "--finetune", help="Train the backbone with the hash layer.", rich_help_panel=MODEL
        ),
    ] = False,
    regions: Annotated[
        Literal["crops", "pooled"] | None,
        typer.Option(
            help="A pass for each region, or all from one pass's feature map.",
            show_default="pooled where the backbone has a map",
            rich_help_panel=MODEL,
        ),
    ] = None,
    layout: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Which regions: corners (and the centre), grid:ROWSxCOLUMNS, with @SIGMA behind "
            "it where it is not --sigma; joined by +, as in corners+grid:3x3@0.33. An image keeps "
            "six codes at most.",
            rich_help_panel=MODEL,
        ),
    ] = "corners",
    sigma: Annotated[
        float, typer.Option(help="A region's side over the image's.", rich_help_panel=MODEL)
    ] = 0.5,
    crops: Annotated[
        int, typer.Option(help="Random crops a training image.", rich_help_panel=MODEL)
    ] = 8,
    crop_sigma: Annotated[
        tuple[float, float] | None,
        typer.Option(
            metavar="LOW HIGH",
            help="Draw the crops' sides between two shares of the image's.",
            show_default="--sigma",
            rich_help_panel=MODEL,
        ),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="A setting of the method, or agent.NAME, backbone.NAME; may be repeated. "
            "[bold]mch methods[/] lists them.",
            show_default=False,
            rich_help_panel=MODEL,
        ),
    ] = None,
    crop_labels: Annotated[
        bool,
        typer.Option(
            "--crop-labels",
            help="Teach crops what they show, as a classifier sees it, not all that their image is "
            "labelled with.",
            rich_help_panel=MODEL,
        ),
    ] = False,
    unsupervised: Annotated[
        bool,
        typer.Option(
            "--unsupervised",
            help="Learn without labels, from which pictures look alike; --data may then be any "
            "folder of pictures.",
            rich_help_panel=MODEL,
        ),
    ] = False,
    seed: Annotated[
        int,
        typer.Option(
            min=0,
            help="The same seed gives the same weights; splits that are drawn come from it, too.",
            rich_help_panel=MODEL,
        ),
    ] = 0,
    xi: Annotated[
        float,
        typer.Option(help="Probability from which on a region is kept.", rich_help_panel=AGENT),
    ] = 0.5,
    codes: Annotated[
        float | None,
        typer.Option(
            metavar="MEAN",
            help="How many codes an image has on average, such as 1.5: sets --xi.",
            show_default="whatever --xi gives",
            rich_help_panel=AGENT,
        ),
    ] = None,
    paper_agent: Annotated[
        bool,
        typer.Option(
            "--paper-agent", help="Train the agent as the paper does.", rich_help_panel=AGENT
        ),
    ] = False,
    no_agent: Annotated[
        bool,
        typer.Option(
            "--no-agent", help="The base method only: one code an image.", rich_help_panel=AGENT
        ),
    ] = False,
    split: Split = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on with an interrupted training.", rich_help_panel=DATA),
    ] = False,
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="Replace what is in --out.", rich_help_panel=DATA),
    ] = False,
    no_eval: Annotated[
        bool,
        typer.Option("--no-eval", help="Do not measure the model.", rich_help_panel=DATA),
    ] = False,
    device: Device = "auto",
    engine: UseEngine = "auto",
    cache: Cache = None,
    no_cache: NoCache = False,
    threads: Threads = None,
    quiet: Quiet = False,
) -> None:
    """Train a model on labelled images, and measure it.

    The base method learns codes, then an agent learns which regions of an image
    are worth a code of their own. An interrupted training goes on with [bold]--resume[/].

    Examples:
      mch train --data scenes:4000 --backbone small --bits 32 --out model
      mch train --data photos --method hashnet --set lr=0.0005 --out model
      mch train --data coco:DIR --size 224 --seed 1 --out model
      mch train --data photos --bits 32 --no-agent --out base
      mch train --data photos --crop-labels --codes 1.5 --out model
      mch train --data holiday-pictures --unsupervised --out model
    """
    if resume and overwrite:
        raise ValueError("--resume goes on and --overwrite starts anew: give one of them")
    if crop_labels and unsupervised:
        raise ValueError("--crop-labels needs labels and --unsupervised has none: give one of them")
    labels = "neighbours" if unsupervised else "crops" if crop_labels else "images"
    if unsupervised:
        data = without_labels(data)
    method = method or (UNSUPERVISED_METHOD if unsupervised else METHOD)
    dataset = open_data(data, seed, split)
    from mchindex.training import train_model

    workers = use_threads(threads)
    features = cache_folder(cache, no_cache)
    options = training_options(
        changes or [],
        paper_agent,
        method=method,
        bits=bits,
        backbone=backbone,
        size=size,
        weights=None if weights is None else str(weights),
        finetune=finetune,
        regions=regions,
        layout=layout,
        sigma=sigma,
        xi=xi,
        crops=crops,
        crop_sigma=crop_sigma,
        seed=seed,
        agent=not no_agent,
        labels=labels,
        codes=codes,
    )
    with Display(quiet, {method: f"base {method}"}) as stages:
        try:
            trained = train_model(
                dataset,
                options,
                out=out,
                resume=resume,
                overwrite=overwrite,
                device=device,
                engine=engine,
                cache=features,
                progress=stages,
            )
        except KeyboardInterrupt:
            raise StoppedError(
                "interrupted: the same command with --resume goes on from its last checkpoint"
            ) from None
        try:
            _leave_papers(out, dataset, trained)
            results, note = None, ""
            if not no_eval:
                results, note = _measured(trained, dataset, features, workers, stages)
        except KeyboardInterrupt:
            raise StoppedError(
                f"interrupted: the model is saved, mch eval {out} measures it"
            ) from None
    _summary(out, dataset, trained, results, note)


def training_options(changes: list[str], paper_agent: bool, **options: Any) -> TrainingOptions:
    """What was given on the command line, checked."""
    from dataclasses import asdict, replace

    from mchindex.cli import settings
    from mchindex.training import TrainingOptions
    from mchindex.training.agent import PAPER

    plain = TrainingOptions(**options)
    plain.check()
    read = settings.read_changes(plain.method, changes, plain.labels)
    if not plain.agent and (paper_agent or read[settings.AGENT]):
        raise ValueError("--no-agent trains no agent: it has no settings to change")
    agent = (asdict(PAPER) if paper_agent else {}) | read[settings.AGENT]
    full = replace(
        plain,
        settings=read[""],
        agent_settings=agent,
        backbone_settings=read[settings.BACKBONE],
        labels_settings=read[settings.LABELS],
    )
    full.check()
    return full


def _leave_papers(out: Path, dataset: Dataset, trained: Trained) -> None:
    """The split and the learning curve's picture, beside the model."""
    from mchindex.datasets import save_split

    save_split(dataset, out / SPLIT)
    if trained.curve and can_plot():
        from mchindex.evaluation import plot_learning_curve

        for kind in ("svg", "png"):
            plot_learning_curve(trained.curve, out / f"{CURVE}.{kind}")


def can_plot() -> bool:
    return find_spec("matplotlib") is not None


def _measured(
    trained: Trained, dataset: Dataset, cache: Path | None, threads: int, stages: Display
) -> tuple[dict[str, Evaluation] | None, str]:
    """The base method and MCH on the data's queries, and a word on what was measured.

    The model is saved by now: data that cannot be measured are no reason to fail.
    """
    from mchindex.training import encode_dataset, measure

    if not dataset.labels.any():
        return None, "not measured: pictures without labels cannot say which are alike"
    if not len(dataset.splits["query"]):
        return None, "not measured: the data have no queries"
    ways = ("base",) if trained.model.policy is None else ("base", "mch")
    try:
        coded = encode_dataset(trained.model, dataset, cache, stages)
        results = measure(coded, trained.model.xi, ways, threads=threads, progress=stages)
    except BAD_INPUT_ERRORS as error:
        return None, f"not measured: {error}"
    trained.skipped = coded.skipped
    return results, f"{len(coded.queries):,} queries against {len(coded.labels):,} images"


def _summary(
    out: Path,
    dataset: Dataset,
    trained: Trained,
    results: dict[str, Evaluation] | None,
    note: str,
) -> None:
    from rich.markup import escape

    model, console = trained.model, show.output()
    name = model.method.name.upper()
    title = name if model.policy is None else f"MCH-{name}"
    console.print(
        f"\n[bold]{title}[/], {model.bits} bits, {model.backbone.name} at {model.backbone.size} px,"
        f" {model.mode} regions"
    )
    if results is not None:
        console.print(show.gain_table(results["base"], results.get("mch")))
    rows = {
        "trained on": f"{model.about['images']:,} images of {dataset.name}",
        "measured": note,
        "skipped": show.skipped_images(trained.skipped),
        "time": show.times(trained.seconds),
        "model": str(out),
    }
    if trained.curve:
        hint = "not drawn without matplotlib: pip install 'mchindex[plot]'"
        rows["learning curve"] = str(out / f"{CURVE}.svg") if can_plot() else hint
    console.print(show.facts({key: escape(value) for key, value in rows.items() if value}))
