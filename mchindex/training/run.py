"""From labelled images to a model: backbone, features, base method, agent, one after the other.

Each stage leaves its state in the output's `checkpoint` folder, so that an interrupted training
goes on from there, and ends with the weights it would have had.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from mchindex.datasets import Dataset
from mchindex.datasets.base import Rows
from mchindex.errors import DatasetError, ImageError, TrainingError
from mchindex.models.backbones import Backbone, create_backbone
from mchindex.models.extract import Engine, Extractor, choose_device
from mchindex.models.hashing import HashMethod
from mchindex.models.mch import CONFIG, MCHModel
from mchindex.models.methods import create_method
from mchindex.models.policy import Policy
from mchindex.models.seeds import seeded
from mchindex.models.views import Features, Views, pair_weights
from mchindex.progress import Progress, silent
from mchindex.training.agent import train_agent
from mchindex.training.backbone import BackboneSettings, train_backbone
from mchindex.training.checkpoints import Checkpoints
from mchindex.training.crop_labels import CropLabelSettings, with_crop_labels
from mchindex.training.features import FeatureCache, Fixed, unreadable
from mchindex.training.live_views import LiveViews
from mchindex.training.options import TrainingOptions
from mchindex.training.pseudo_labels import PseudoLabelSettings, with_pseudo_labels

CHECKPOINT, REPORT = "checkpoint", "training.json"


@dataclass
class Trained:
    """A model and how it came about."""

    model: MCHModel
    curve: list[dict[str, float]]  # of the agent, empty without one
    seconds: dict[str, float]  # by stage
    skipped: dict[str, int]  # images left out, by reason


def train_model(
    dataset: Dataset,
    options: TrainingOptions,
    *,
    out: Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    device: str | None = None,
    engine: Engine = "auto",
    cache: Path | None = None,
    progress: Progress = silent,
) -> Trained:
    """Trains a model on the data set's training images; with `out`, saves it there."""
    options.check()
    where = choose_device(device)
    dataset, rows = _labelled(dataset, options)
    backbone, pretrained = _backbone(options)  # a file of weights that is none leaves no trace
    backbone.to(where)
    work = Checkpoints(_prepare(out, options, dataset, resume, overwrite))
    seconds: dict[str, float] = {}
    start = time.monotonic()

    def done(stage: str) -> None:
        nonlocal start
        seconds[stage] = round(time.monotonic() - start, 2)
        start = time.monotonic()

    regions = options.views()

    def live() -> LiveViews:
        labels = torch.from_numpy(dataset.labels[rows])
        return LiveViews(backbone, dataset.images, rows.tolist(), labels, regions, options.mode)

    if options.from_scratch:
        dataset, rows = _readable(dataset, options)
        recipe = BackboneSettings().updated(options.backbone_settings)
        if not work.finished("backbone", backbone):
            train_backbone(live(), recipe, options.seed, progress, work.under_way("backbone"))
            work.finish("backbone", backbone)
        done("backbone")

    method = create_method(options.method, backbone.dim, options.bits, options.settings).to(where)
    if options.finetune:
        dataset, rows = _readable(dataset, options)
        if not work.finished("base", method, backbone):
            method.fit(live(), options.seed, progress, work.under_way("base"))
            work.finish("base", method, backbone)
        pretrained = False
        done("base")
    extractor = Extractor(backbone, options.mode, where, engine)
    features = FeatureCache(cache).features(extractor, dataset.images, rows, regions, progress)
    broken = unreadable(features)
    if broken.any():
        dataset, rows = _without(dataset, rows[broken].tolist(), "unreadable", options)
        features = features[~broken]
    array, labels = torch.from_numpy(features), torch.from_numpy(dataset.labels[rows])
    done("features")
    data = labelled(array, labels, options, progress)
    if options.labels != "images":
        done("labels")
    if not options.finetune:
        if not work.finished("base", method):
            method.fit(data, options.seed, progress, work.under_way("base"))
            work.finish("base", method)
        done("base")
    method.eval()
    policy: Policy | None = None
    curve: list[dict[str, float]] = []
    if options.agent:
        part, settings = work.under_way("agent"), options.agent_options()
        policy, curve = train_agent(method, data, settings, options.seed, progress, part)
        done("agent")
    model = MCHModel(
        backbone,
        method,
        policy,
        options.sigma,
        options.xi,
        options.mode,
        where,
        engine,
        {"data": dataset.name, "images": len(rows), "classes": _taught(dataset, options)},
        pretrained,
        options.layout,
    )
    if options.codes is not None:
        model = _on_budget(model, options.codes, dataset, cache, progress)
        done("budget")
    trained = Trained(model, curve, seconds, dict(dataset.skipped))
    if out is not None:
        _save(out, options, trained)
    return trained


def fit_from_features(
    features: Tensor, labels: Tensor, options: TrainingOptions, progress: Progress = silent
) -> tuple[HashMethod, Policy | None, list[dict[str, float]]]:
    """Base method and agent on features that are at hand: (n, 1 + crops, dim), (n, classes)."""
    return fit_from_views(labelled(features, labels, options, progress), options, progress)


def fit_from_views(
    data: Views, options: TrainingOptions, progress: Progress = silent
) -> tuple[HashMethod, Policy | None, list[dict[str, float]]]:
    """Base method and agent on views that have their labels, whatever these came from."""
    method = create_method(options.method, data.dim, options.bits, options.settings)
    method.fit(data, options.seed, progress)
    method.eval()
    if not options.agent:
        return method, None, []
    policy, curve = train_agent(method, data, options.agent_options(), options.seed, progress)
    return method, policy, curve


def labelled(
    array: Tensor, labels: Tensor, options: TrainingOptions, progress: Progress = silent
) -> Features:
    """The views with what is to be learnt of them."""
    if options.labels == "neighbours":
        near = PseudoLabelSettings().updated(options.labels_settings)
        guessed = with_pseudo_labels(array, near, options.seed, progress)
        try:
            pair_weights(guessed.labels)
        except ValueError as error:
            raise ValueError(
                f"without labels, {error}: more pictures help, or other settings of labels.…"
            ) from error
        return guessed
    data = Features(array, labels)
    if options.labels == "crops":
        shown = CropLabelSettings().updated(options.labels_settings)
        return with_crop_labels(data, shown, options.seed, progress)
    return data


def _taught(dataset: Dataset, options: TrainingOptions) -> list[str]:
    """The classes that the model has learnt to tell apart by name."""
    return [] if options.labels == "neighbours" else list(dataset.classes)


BUDGETED = 1000  # images of the database by which xi is set


def _on_budget(
    model: MCHModel, codes: float, dataset: Dataset, cache: Path | None, progress: Progress
) -> MCHModel:
    """The model with the xi at which the database's images have so many codes on average."""
    rows = dataset.splits["database"]
    rows = rows[:: max(1, len(rows) // BUDGETED)]
    wanted = Fixed(model.layout)
    features = FeatureCache(cache).features(model.extractor, dataset.images, rows, wanted, progress)
    found = model.regions_of(features[~unreadable(features)])
    return replace(model, xi=found.xi_for(codes))


def _backbone(options: TrainingOptions) -> tuple[Backbone, bool]:
    """The backbone, and whether its weights are those that come beside it."""
    with seeded(options.seed, torch.device("cpu")):
        if options.weights is not None:
            return create_backbone(options.backbone, options.size, options.weights), False
        weights = None if options.from_scratch else "pretrained"
        return create_backbone(options.backbone, options.size, weights), not options.from_scratch


def _labelled(dataset: Dataset, options: TrainingOptions) -> tuple[Dataset, Rows]:
    """Without the training images of no class, which would be unlike everything."""
    rows = dataset.splits["train"]
    if options.labels == "neighbours":
        return _without(dataset, [], "", options)
    if not dataset.labels.any():
        raise DatasetError(f"{dataset.name} has no labels: train without them (--unsupervised)")
    return _without(dataset, rows[~dataset.labels[rows].any(1)].tolist(), "no label", options)


def _readable(dataset: Dataset, options: TrainingOptions) -> tuple[Dataset, Rows]:
    """Without the training images that cannot be decoded, which would end a live training."""
    bad = []
    for i in dataset.splits["train"].tolist():
        try:
            dataset.images.image(i)
        except ImageError:
            bad.append(i)
    return _without(dataset, bad, "unreadable", options)


def _without(
    dataset: Dataset, bad: list[int], reason: str, options: TrainingOptions
) -> tuple[Dataset, Rows]:
    """Without some training images. Of the rest, two must share a label and two must not."""
    left = len(dataset.splits["train"]) - len(bad)
    if left < 2:
        skipped = dict(dataset.skipped) | ({reason: len(bad)} if bad else {})
        out = ", ".join(f"{n} {why}" for why, n in skipped.items())
        raise DatasetError(
            f"{dataset.name} has {left} training images that can be used: at least 2 are needed"
            + (f" (left out: {out})" if out else "")
        )
    dataset = dataset.without(bad, reason)
    rows = dataset.splits["train"]
    if options.labels != "neighbours":
        pair_weights(torch.from_numpy(dataset.labels[rows]))
    return dataset, rows


def _prepare(
    out: Path | None, options: TrainingOptions, dataset: Dataset, resume: bool, overwrite: bool
) -> Path | None:
    """The folder for checkpoints; refuses to mix two trainings in one output."""
    if out is None:
        return None
    work = out / CHECKPOINT
    rows = dataset.splits["train"]
    train = hashlib.sha256(rows.tobytes() + dataset.labels[rows].tobytes()).hexdigest()
    asked = {"options": asdict(options), "data": dataset.name, "train": train}
    asked = json.loads(json.dumps(asked))
    if overwrite:
        shutil.rmtree(work, ignore_errors=True)
        (out / CONFIG).unlink(missing_ok=True)
    if (out / CONFIG).exists():
        raise TrainingError(f"{out} holds a trained model: choose another --out, or --overwrite it")
    if (work / "options.json").exists():
        if not resume:
            raise TrainingError(
                f"{out} holds an interrupted training: --resume goes on with it, --overwrite "
                "starts anew"
            )
        if json.loads((work / "options.json").read_text()) != asked:
            raise TrainingError(
                f"{out} holds an interrupted training with other options or data: give the same "
                "ones to --resume it, or --overwrite it"
            )
    work.mkdir(parents=True, exist_ok=True)
    (work / "options.json").write_text(json.dumps(asked, indent=1))
    return work


def _save(out: Path, options: TrainingOptions, trained: Trained) -> None:
    trained.model.save(out)
    report = {
        "options": asdict(
            replace(options, agent_settings=asdict(options.agent_options()), xi=trained.model.xi)
        ),
        "seconds": trained.seconds,
        "skipped": trained.skipped,
        "curve": trained.curve,
    }
    (out / REPORT).write_text(json.dumps(report, indent=1) + "\n")
    shutil.rmtree(out / CHECKPOINT, ignore_errors=True)
