"""`mch train`: train a model on a data set and evaluate it."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from mchindex.cli import show
from mchindex.cli.errors import BAD_INPUT_ERRORS, StoppedError
from mchindex.cli.learning_options import (
    SIGMA_HELP,
    XI_HELP,
    agent_option,
    data_option,
    model_option,
)
from mchindex.cli.options import (
    LARGEST_SEED,
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
from mchindex.cli.settings import read_blocks, training_options
from mchindex.errors import OutputExistsError, UnfinishedTrainingError
from mchindex.progress import Display

if TYPE_CHECKING:
    from mchindex.datasets import Dataset
    from mchindex.evaluation import Evaluation
    from mchindex.training import Trained

# The built-in names, written out because help must not import torch. Any registered name works.
METHODS = ("lsh", "itq", "pca", "ksh", "hashnet", "adsh", "dch", "mmhh")
BACKBONES = ("efficientnet-lite0", "alexnet", "small")
METHOD = "dch"
UNSUPERVISED_METHOD = "hashnet"  # ranks best if there are no labels
SPLIT, CURVE = "split.json", "learning-curve"


def train(
    data: Data,
    out: Annotated[Path, data_option("--out", metavar="DIR", help="Folder for the new model.")],
    method: Annotated[
        str | None,
        model_option(
            metavar="NAME",
            help=f"Base method: {', '.join(METHODS)}, or a registered one.",
            autocompletion=lambda: list(METHODS),
            show_default=f"{METHOD}; {UNSUPERVISED_METHOD} with --unsupervised",
        ),
    ] = None,
    bits: Annotated[int, model_option(help="Bits per code, a multiple of 8 up to 256.")] = 64,
    fine: Annotated[
        int,
        model_option(
            "--fine-bits",
            help="Bits per fine code, by which hits are ranked: a multiple of 8 up to 1024, or 0 "
            "for none.",
        ),
    ] = 256,
    backbone: Annotated[
        str,
        model_option(
            metavar="NAME",
            help=f"Network: {', '.join(BACKBONES)}, or a registered one.",
            autocompletion=lambda: list(BACKBONES),
        ),
    ] = "efficientnet-lite0",
    size: Annotated[
        int | None,
        model_option(
            metavar="PIXELS",
            max=4096,
            help="Side of the network's input.",
            show_default="the backbone's",
        ),
    ] = None,
    weights: Annotated[
        Path | None,
        model_option(
            metavar="FILE",
            help="Weights of the backbone, .safetensors or .pth.",
            show_default="pretrained if available, else trained from scratch",
        ),
    ] = None,
    finetune: Annotated[
        bool, model_option("--finetune", help="Train the backbone together with the hash layer.")
    ] = False,
    tune: Annotated[
        str | None,
        model_option(
            metavar="blocks=N",
            help="Tune the last N blocks of the network to the labels, for the codes; the fine "
            "codes and words keep the network as it was.",
            show_default="none",
        ),
    ] = None,
    regions: Annotated[
        Literal["crops", "pooled"] | None,
        model_option(
            help="Run the network on a crop of each region, or pool all regions from one feature "
            "map.",
            show_default="pooled if the backbone has a feature map",
        ),
    ] = None,
    layout: Annotated[
        str,
        model_option(
            metavar="NAME",
            help="Regions to choose from: corners (four corners and the centre) or "
            "grid:ROWSxCOLUMNS, optionally with their own @SIGMA; combine them with +, as in "
            "corners+grid:3x3@0.33. An image keeps at most six codes.",
        ),
    ] = "corners",
    sigma: Annotated[float, model_option(help=SIGMA_HELP)] = 0.5,
    crops: Annotated[int, model_option(help="Random crops per training image.")] = 8,
    crop_sigma: Annotated[
        tuple[float, float] | None,
        model_option(
            metavar="LOW HIGH",
            help="Smallest and largest side of the random crops, as shares of the image's side.",
            show_default="the sides of the layout's regions",
        ),
    ] = None,
    changes: Annotated[
        list[str] | None,
        model_option(
            "--set",
            metavar="NAME=VALUE",
            help="Change a setting of the method, or agent.NAME, backbone.NAME, labels.NAME; can "
            "be repeated. [bold]mch methods[/] lists the settings.",
            show_default=False,
        ),
    ] = None,
    crop_labels: Annotated[
        bool,
        model_option(
            "--crop-labels",
            help="Give each crop only those labels of its image that a classifier sees in it.",
        ),
    ] = False,
    unsupervised: Annotated[
        bool,
        model_option(
            "--unsupervised",
            help="Learn without labels, from which pictures look alike; --data may be any folder "
            "of pictures.",
        ),
    ] = False,
    seed: Annotated[
        int,
        model_option(
            min=0,
            max=LARGEST_SEED,
            help="Seed of weights and random splits; the same seed gives the same model.",
        ),
    ] = 0,
    xi: Annotated[float, agent_option(help=XI_HELP)] = 0.5,
    codes: Annotated[
        float | None,
        agent_option(
            metavar="MEAN",
            help="Average number of codes per image, such as 1.5; sets --xi.",
            show_default="determined by --xi",
        ),
    ] = None,
    paper_agent: Annotated[
        bool, agent_option("--paper-agent", help="Train the agent with the paper's settings.")
    ] = False,
    no_agent: Annotated[
        bool,
        agent_option("--no-agent", help="Train only the base method: one code per image."),
    ] = False,
    split: Split = None,
    resume: Annotated[
        bool, data_option("--resume", help="Continue an interrupted training run.")
    ] = False,
    overwrite: Annotated[
        bool, data_option("--overwrite", help="Replace a model or an interrupted run in --out.")
    ] = False,
    no_eval: Annotated[bool, data_option("--no-eval", help="Do not evaluate the model.")] = False,
    device: Device = "auto",
    engine: UseEngine = "auto",
    cache: Cache = None,
    no_cache: NoCache = False,
    threads: Threads = None,
    quiet: Quiet = False,
) -> None:
    """Train a model on labelled images and evaluate it.

    The base method learns hash codes; then an agent learns which regions of an image
    deserve a code of their own. Continue an interrupted run with [bold]--resume[/].

    Examples:
      mch train --data scenes:4000 --backbone small --bits 32 --out model
      mch train --data photos --method hashnet --set lr=0.0005 --out model
      mch train --data coco:DIR --size 224 --seed 1 --out model
      mch train --data photos --bits 32 --no-agent --out base
      mch train --data photos --crop-labels --codes 1.5 --out model
      mch train --data holiday-pictures --unsupervised --out model
    """
    if resume and overwrite:
        raise ValueError("--resume continues a run and --overwrite starts over: give one of them")
    if crop_labels and unsupervised:
        raise ValueError("--crop-labels needs labels, --unsupervised has none: give one of them")
    labels = "neighbours" if unsupervised else "crops" if crop_labels else "images"
    method = method or (UNSUPERVISED_METHOD if unsupervised else METHOD)
    dataset = _open(data, seed, split, unsupervised)
    from mchindex.training import train_model

    workers = use_threads(threads)
    features = cache_folder(cache, no_cache)
    options = training_options(
        changes or [],
        paper_agent,
        method=method,
        bits=bits,
        fine=fine,
        backbone=backbone,
        size=size,
        weights=None if weights is None else str(weights),
        finetune=finetune,
        tune=read_blocks(tune),
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
        except OutputExistsError as error:
            raise OutputExistsError(
                f"{out} already holds a trained model: choose another --out, or replace it with "
                "--overwrite"
            ) from error
        except UnfinishedTrainingError as error:
            what, how = "", "continue it with --resume"
            if resume:
                what, how = " with other options or data", "give the same ones to resume it"
            raise UnfinishedTrainingError(
                f"{out} holds an interrupted training run{what}: {how}, or start over with "
                "--overwrite"
            ) from error
        except KeyboardInterrupt:
            raise StoppedError(
                "interrupted: repeat the command with --resume to continue from the last checkpoint"
            ) from None
        try:
            _save_extras(out, dataset, trained)
            results, note = None, ""
            if not no_eval:
                results, note = _evaluated(trained, dataset, features, workers, stages)
        except KeyboardInterrupt:
            raise StoppedError(
                f"interrupted: the model is saved; evaluate it with mch eval {out}"
            ) from None
    _summary(out, dataset, trained, results, note)


def _open(data: str, seed: int, split: Path | None, unsupervised: bool) -> Dataset:
    """Opens the data set, which must have labels unless the training is unsupervised."""
    spec = without_labels(data)
    if unsupervised:
        return open_data(spec, seed, split)
    if spec != data:
        raise ValueError(
            f"{data} is a folder without labels.csv: add --unsupervised to learn without labels, "
            f"or say what kind of data set it is, as in coco:{data}"
        )
    dataset = open_data(data, seed, split)
    if not dataset.labels.any():
        raise ValueError(f"{data} has no labels: add --unsupervised to learn without labels")
    return dataset


def _save_extras(out: Path, dataset: Dataset, trained: Trained) -> None:
    """Saves the split and plots of the learning curve next to the model."""
    from mchindex.datasets import save_split

    save_split(dataset, out / SPLIT)
    if trained.curve and can_plot():
        from mchindex.evaluation import plot_learning_curve

        for kind in ("svg", "png"):
            plot_learning_curve(trained.curve, out / f"{CURVE}.{kind}")


def can_plot() -> bool:
    """Whether matplotlib is installed, without importing it."""
    return find_spec("matplotlib") is not None


def _evaluated(
    trained: Trained, dataset: Dataset, cache: Path | None, threads: int, stages: Display
) -> tuple[dict[str, Evaluation] | None, str]:
    """Results of the base method and MCH, and a note on the data or on why there are none.

    The model is already saved, so data that cannot be evaluated is not an error.
    """
    from mchindex.training import encode_dataset, measure

    if not dataset.labels.any():
        return None, "not measured: pictures without labels cannot be evaluated"
    if not len(dataset.splits["query"]):
        return None, "not measured: the data set has no queries"
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
    model, console = trained.model, show.output()
    name = model.method.name.upper()
    title = name if model.policy is None else f"MCH-{name}"
    fine_bits = "" if model.fine is None else f" and fine codes of {model.fine.bits}"
    console.print()
    console.print(
        show.line(
            (title, "bold"),
            f", {model.bits} bits{fine_bits}, {model.backbone.name} at {model.backbone.size} px,"
            f" {model.mode} regions",
        )
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
    if advice := _advice(results):
        rows["advice"] = advice
    if trained.curve:
        hint = "needs matplotlib: pip install 'mchindex[plot]'"
        rows["learning curve"] = str(out / f"{CURVE}.svg") if can_plot() else hint
    console.print(show.facts({key: value for key, value in rows.items() if value}))


FEW_CODES = 1.1  # per image; with fewer, several codes change next to nothing


def _advice(results: dict[str, Evaluation] | None) -> str:
    """What to try if the agent found next to nothing worth a code; empty if it found enough, or if
    nothing was measured."""
    if results is None or "mch" not in results or results["mch"].anhc >= FEW_CODES:
        return ""
    codes = results["mch"].anhc
    found = "no region" if codes < 1.005 else "few regions"
    return (
        f"the agent found {found} worth a code: with {codes:.2f} codes per image, this model "
        "searches almost as with one. To keep the best regions all the same, set the number of "
        "codes, as in --codes 1.3. More training images, --crop-labels or another method may give "
        "regions that pay; hashnet gains most"
    )
