"""Training, from data to a model: backbone, features, base method and agent, one after the other.

With an output directory, each stage saves its state there. A training that was interrupted resumes
from that state and ends with the weights that it would have had.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from mchindex.datasets import Dataset
from mchindex.errors import TrainingError
from mchindex.models.backbones import Backbone, Tuned, create_backbone
from mchindex.models.backbones.tuned import all_blocks
from mchindex.models.deep import diverged
from mchindex.models.extract import Engine, Extractor, choose_device
from mchindex.models.fine import FineHash
from mchindex.models.hashing import Checkpoint, HashMethod
from mchindex.models.mch import MCHModel
from mchindex.models.methods import create_method
from mchindex.models.policy import Policy
from mchindex.models.registry import built_in
from mchindex.models.saved import check_finite
from mchindex.models.seeds import seeded
from mchindex.models.views import Features, Views, pair_weights
from mchindex.models.words import Words
from mchindex.progress import Progress, silent
from mchindex.training.agent import base_of_others, folds_of, train_agent
from mchindex.training.backbone import BackboneSettings, train_backbone
from mchindex.training.checkpoints import Checkpoints
from mchindex.training.crop_labels import CropLabelSettings, with_crop_labels
from mchindex.training.features import FeatureCache, Fixed, unreadable
from mchindex.training.live_views import LiveViews
from mchindex.training.options import TrainingOptions
from mchindex.training.output import CHECKPOINT, REPORT, finish, prepare
from mchindex.training.pseudo_labels import PseudoLabelSettings, with_pseudo_labels
from mchindex.training.selection import readable, trainable, without
from mchindex.training.tuning import TuningSettings, maps_of, tune

__all__ = ["CHECKPOINT", "REPORT", "Trained", "fit_from_views", "labelled", "train_model"]

BUDGETED = 1000  # images of the database from which xi is set


@dataclass
class Trained:
    """A trained model, and how the training went."""

    model: MCHModel
    curve: list[dict[str, float]]  # the agent's learning curve; empty without an agent
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
    """Trains a model on the training images of a data set.

    `out` is the directory in which to save the model; None: it is not saved. `resume` continues a
    training that was interrupted there, `overwrite` replaces what is there. `cache` is a folder for
    features; None: they are not cached. Raises ValueError for options that cannot be used,
    DatasetError for data that cannot be used, OutputExistsError or UnfinishedTrainingError if `out`
    holds something that is neither to be resumed nor to be replaced, and TrainingError if the
    training diverges; no model is saved then.
    """
    options.check()
    where = choose_device(device)
    supervised = options.labels != "neighbours"
    seconds: dict[str, float] = {}

    # Data.
    dataset = trainable(dataset, supervised)

    # Backbone. It is built before `out` is touched, so that what is wrong leaves no trace there.
    backbone, pretrained = _backbone(options)
    backbone.to(where)
    if options.tune:
        all_blocks(backbone, options.tune)
    folder = None if out is None else prepare(out, options, dataset, resume, overwrite)
    checkpoints = Checkpoints(folder)

    def live_views() -> LiveViews:
        rows = dataset.splits["train"]
        labels = torch.from_numpy(dataset.labels[rows])
        views = options.views()
        return LiveViews(backbone, dataset.images, rows.tolist(), labels, views, options.mode)

    if options.from_scratch:
        with _timed("backbone", seconds):
            dataset = readable(dataset)
            recipe = BackboneSettings().updated(options.backbone_settings)
            if not checkpoints.finished("backbone", backbone):
                state = checkpoints.under_way("backbone")
                train_backbone(live_views(), recipe, options.seed, progress, state)
                _check_converged(backbone=backbone)
                checkpoints.finish("backbone", backbone)

    # The last blocks of the backbone.
    if options.tune:
        with _timed("tuning", seconds):
            backbone = tuned = Tuned(backbone, options.tune).to(where)
            if not checkpoints.finished("tuning", tuned.tail):
                rows = dataset.splits["train"]
                labels = torch.from_numpy(dataset.labels[rows])
                store = FeatureCache(cache)
                maps = maps_of(tuned, dataset.images, rows, labels, store, engine, progress)
                plan = TuningSettings().updated(options.tuning_settings)
                state = checkpoints.under_way("tuning")
                tune(tuned, maps, plan, options.seed, progress, state)
                del maps
                _check_converged(tuned=tuned.tail)
                checkpoints.finish("tuning", tuned.tail)

    # Base method and backbone together, if the backbone is fine-tuned.
    method = create_method(options.method, backbone.dim, options.bits, options.settings).to(where)
    if options.finetune:
        with _timed("base", seconds):
            dataset = readable(dataset)
            if not checkpoints.finished("base", method, backbone):
                _fit(method, live_views(), options, progress, checkpoints.under_way("base"))
                _check_converged(backbone=backbone)
                checkpoints.finish("base", method, backbone)
        pretrained = False

    # Features of the whole images and their crops.
    with _timed("features", seconds):
        extractor = Extractor(backbone, options.mode, where, engine)
        rows = dataset.splits["train"]
        array = FeatureCache(cache).features(
            extractor, dataset.images, rows, options.views(), progress
        )
        broken = unreadable(array)
        if broken.any():
            dataset = without(dataset, rows[broken].tolist(), "unreadable", supervised)
            array = array[~broken]
    rows = dataset.splits["train"]
    wild = ~np.isfinite(array).all((1, 2))
    if wild.any():
        raise TrainingError(
            f"the features of {wild.sum()} of {len(array)} images are not finite numbers: use "
            "other weights for the backbone, or leave these images out"
        )
    labels = torch.from_numpy(dataset.labels[rows])
    features = torch.from_numpy(array)

    # Labels of the views.
    if options.labels == "images":
        data = Features(features, labels)
    else:
        with _timed("labels", seconds):
            data = labelled(features, labels, options, progress)

    # Base method.
    if not options.finetune:
        with _timed("base", seconds):
            if not checkpoints.finished("base", method):
                _fit(method, data, options, progress, checkpoints.under_way("base"))
                checkpoints.finish("base", method)
    method.eval()

    # Agent.
    policy: Policy | None = None
    curve: list[dict[str, float]] = []
    if options.agent:
        with _timed("agent", seconds):
            policy, curve = _train_agent(method, data, options, progress, checkpoints)

    # Fine codes.
    fine: FineHash | None = None
    if options.fine:
        with _timed("fine codes", seconds):
            seen, seed = features.flatten(0, 1), options.seed
            fine = FineHash.fit(seen, options.fine, seed, progress, backbone.branches)

    # Words.
    words: Words | None = None
    if fine is not None and supervised:
        with _timed("words", seconds):
            seed = options.seed
            words = Words.of_labels(features, labels, dataset.classes, fine, seed, progress)

    # Model.
    model = MCHModel(
        backbone,
        method,
        policy,
        sigma=options.sigma,
        xi=options.xi,
        mode=options.mode,
        device=where,
        engine=engine,
        about={
            "data": dataset.name,
            "images": len(rows),
            "classes": list(dataset.classes) if supervised else [],
        },
        pretrained=pretrained,
        layout_name=options.layout,
        fine=fine,
        words=words,
    )
    if options.codes is not None:
        with _timed("budget", seconds):
            model = _on_budget(model, options.codes, dataset, cache, progress)
    trained = Trained(model, curve, seconds, dict(dataset.skipped))
    if out is not None:
        finish(out, model, _report(options, trained))
    return trained


def fit_from_views(
    data: Features, options: TrainingOptions, progress: Progress = silent
) -> tuple[HashMethod, Policy | None, list[dict[str, float]]]:
    """Trains the base method and the agent only, on views and their labels.

    Returns the method, the policy (None without an agent) and the agent's learning curve.
    """
    method = create_method(options.method, data.dim, options.bits, options.settings)
    _fit(method, data, options, progress)
    method.eval()
    if not options.agent:
        return method, None, []
    policy, curve = _train_agent(method, data, options, progress, Checkpoints(None))
    return method, policy, curve


def _train_agent(
    method: HashMethod,
    data: Features,
    options: TrainingOptions,
    progress: Progress,
    checkpoints: Checkpoints,
) -> tuple[Policy, list[dict[str, float]]]:
    """Trains base methods on parts of the data, if the agent is to learn from them, and the agent.

    Raises TrainingError if weights are not finite numbers.
    """
    settings = options.agent_options()
    folds = []
    for number, rows in enumerate(folds_of(data, settings.folds, options.seed)):
        base, others = base_of_others(method, data, rows)
        stage = f"fold-{number}"
        if not checkpoints.finished(stage, base):
            step = _as_stage(f"fold {number + 1}", progress)
            _fit(base, others, options, step, checkpoints.under_way(stage))
            checkpoints.finish(stage, base)
        folds.append((base.eval(), rows))
    if settings.folds and not folds:
        settings = options.agent_options(folds=False)
    state = checkpoints.under_way("agent")
    policy, curve = train_agent(method, data, settings, options.seed, progress, state, folds)
    _check_converged(policy=policy)
    return policy, curve


def _as_stage(name: str, progress: Progress) -> Progress:
    """Progress whose steps belong to another stage."""
    return lambda step: progress(replace(step, stage=name))


def _fit(
    method: HashMethod,
    data: Views,
    options: TrainingOptions,
    progress: Progress,
    checkpoint: Checkpoint | None = None,
) -> None:
    """Fits the base method. Raises TrainingError if its weights are not finite numbers."""
    try:
        method.fit(data, options.seed, progress, checkpoint)
    except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
        raise diverged(method.name) from error
    _check_converged(method=method)


def _check_converged(**parts: nn.Module) -> None:
    """Raises TrainingError for a part whose weights are not finite: it must not be saved."""
    for part, module in parts.items():
        try:
            check_finite(part, module)
        except ValueError as error:
            raise diverged(part) from error


def labelled(
    array: Tensor, labels: Tensor, options: TrainingOptions, progress: Progress = silent
) -> Features:
    """Features (n, views, dim) with the labels that `options.labels` asks for.

    `labels` (n, classes) are the images' own. Raises ValueError if labels were to be guessed and
    all images, or no two of them, came to share one.
    """
    if options.labels == "neighbours":
        recipe = PseudoLabelSettings().updated(options.labels_settings)
        data = with_pseudo_labels(array, recipe, options.seed, progress)
        try:
            pair_weights(data.labels)
        except ValueError as error:
            raise ValueError(
                f"without labels, {error}: use more images, or other labels_settings"
            ) from error
        return data
    data = Features(array, labels)
    if options.labels == "crops":
        classifier = CropLabelSettings().updated(options.labels_settings)
        return with_crop_labels(data, classifier, options.seed, progress)
    return data


@contextmanager
def _timed(stage: str, seconds: dict[str, float]) -> Iterator[None]:
    start = time.monotonic()
    yield
    seconds[stage] = round(time.monotonic() - start, 2)


def _backbone(options: TrainingOptions) -> tuple[Backbone, bool]:
    """The backbone, and whether its weights can be left out when the model is saved.

    They can if the backbone is built in and has its pretrained weights. Those of other backbones
    are saved, so that the model does not depend on where they came from.
    """
    with seeded(options.seed, torch.device("cpu")):
        if options.weights is not None:
            return create_backbone(options.backbone, options.size, options.weights), False
        weights = None if options.from_scratch else "pretrained"
        backbone = create_backbone(options.backbone, options.size, weights)
        return backbone, weights == "pretrained" and built_in(type(backbone))


def _on_budget(
    model: MCHModel, codes: float, dataset: Dataset, cache: Path | None, progress: Progress
) -> MCHModel:
    """The model, with xi set so that images of the database have `codes` codes on average."""
    rows = dataset.splits["database"]
    rows = rows[:: max(1, len(rows) // BUDGETED)]
    layout = Fixed(model.layout)
    features = FeatureCache(cache).features(model.extractor, dataset.images, rows, layout, progress)
    regions = model.regions_of(features[~unreadable(features)])
    return replace(model, xi=regions.xi_for(codes))


def _report(options: TrainingOptions, trained: Trained) -> dict[str, object]:
    """What training.json holds: the options as they were used, and how the training went."""
    used = replace(options, agent_settings=asdict(options.agent_options()), xi=trained.model.xi)
    return {
        "options": asdict(used),
        "seconds": trained.seconds,
        "skipped": trained.skipped,
        "curve": trained.curve,
    }
