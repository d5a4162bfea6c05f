"""From labelled images to a model: backbone, features, base method, agent, one after the other.

Each stage leaves its state in the output's `checkpoint` folder, so that an interrupted training
goes on from there, and ends with the weights it would have had.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
import warnings
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from mchindex.datasets import Dataset, DatasetError
from mchindex.datasets.base import Rows
from mchindex.images import ImageError
from mchindex.models.backbones import BACKBONES, Backbone, create_backbone
from mchindex.models.deep import DeepHash
from mchindex.models.extract import MODES, Engine, Extractor, Mode, choose_device
from mchindex.models.hashing import (
    Features,
    HashMethod,
    Progress,
    Settings,
    Views,
    check_bits,
    pair_weights,
    seeded,
    silent,
)
from mchindex.models.mch import CONFIG, MCHModel, check_budget, check_xi
from mchindex.models.methods import METHODS, create_method
from mchindex.models.policy import Policy
from mchindex.regions import check_sigma, read_layout
from mchindex.training.agent import AgentSettings, agent_settings, train_agent
from mchindex.training.backbone import BackboneSettings, train_backbone
from mchindex.training.features import FeatureCache, Fixed, WithCrops, unreadable
from mchindex.training.live import LiveViews
from mchindex.training.neighbours import NeighbourSettings, with_neighbours
from mchindex.training.shown import ShownSettings, with_shown

CHECKPOINT, REPORT = "checkpoint", "training.json"


class TrainingError(Exception):
    """A training cannot start or go on as asked."""


Labelling = Literal["images", "crops", "neighbours"]
LABELLINGS: dict[str, type[Settings]] = {
    "images": Settings,
    "crops": ShownSettings,
    "neighbours": NeighbourSettings,
}


@dataclass(frozen=True)
class TrainingOptions:
    """All that decides how a model comes out, besides the data."""

    method: str = "dch"
    bits: int = 64
    backbone: str = "efficientnet-lite0"
    size: int | None = None  # pixels a side of the backbone's input; None: its default
    weights: str | None = None  # a file for the backbone; None: pretrained, or from scratch
    finetune: bool = False  # train the backbone together with the hash layer
    regions: Mode | None = None  # None: pooled where the backbone has a feature map, else crops
    layout: str = "corners"  # which regions; see `read_layout`
    sigma: float = 0.5
    xi: float = 0.5
    crops: int = 8  # random crops a training image
    crop_sigma: tuple[float, float] | None = None  # their sides, drawn between two; None: sigma
    seed: int = 0
    agent: bool = True
    # What is learnt from: the images' labels, as in the paper; "crops": each crop has those of its
    # image's labels that it shows (`shown`); "neighbours": no labels at all (`neighbours`).
    labels: Labelling = "images"
    labels_settings: dict[str, Any] = field(default_factory=dict)  # of "crops" or "neighbours"
    codes: float | None = None  # an image on average; sets xi, which is then not looked at
    settings: dict[str, Any] = field(default_factory=dict)  # of the method
    agent_settings: dict[str, Any] = field(default_factory=dict)
    backbone_settings: dict[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        """Says what is wrong before hours are spent."""
        if self.method not in METHODS:
            raise ValueError(f"no method is called {self.method!r}: there are {', '.join(METHODS)}")
        if self.backbone not in BACKBONES:
            names = ", ".join(BACKBONES)
            raise ValueError(f"no backbone is called {self.backbone!r}: there are {names}")
        if self.regions is not None and self.regions not in MODES:
            raise ValueError(f"regions come as {' or '.join(MODES)}, not {self.regions!r}")
        if self.regions == "pooled" and not self._has_map:
            raise ValueError(f"{self.backbone} has no feature map: use regions='crops'")
        check_bits(self.bits)
        read_layout(self.layout, check_sigma(self.sigma))
        check_xi(self.xi)
        if self.crops < 1:
            raise ValueError(f"the agent learns from crops: at least 1 an image, not {self.crops}")
        if self.finetune and not issubclass(METHODS[self.method], DeepHash):
            deep = ", ".join(k for k, v in METHODS.items() if issubclass(v, DeepHash))
            raise ValueError(f"{self.method} trains no network: only {deep} can be fine-tuned")
        if self.crop_sigma is not None and check_sigma(self.crop_sigma[0]) > check_sigma(
            self.crop_sigma[1]
        ):
            raise ValueError(f"crop_sigma goes from small to large, not {self.crop_sigma}")
        METHODS[self.method].settings_type().updated(self.settings)
        self.agent_options()
        BackboneSettings().updated(self.backbone_settings)
        self._check_labels()
        if self.codes is not None:
            if self.xi != TrainingOptions.xi:
                raise ValueError("a number of codes an image sets xi: give one of them")
            if not self.agent:
                raise ValueError(
                    "a number of codes an image is for an agent to reach: there is none"
                )
            check_budget(self.codes, read_layout(self.layout, self.sigma))

    def _check_labels(self) -> None:
        if self.labels not in LABELLINGS:
            raise ValueError(f"labels are {', '.join(LABELLINGS)}, not {self.labels!r}")
        LABELLINGS[self.labels]().updated(self.labels_settings)
        if self.labels == "images":
            return
        own = METHODS[self.method].settings_type().updated(self.settings)
        if self.labels == "crops" and not getattr(own, "crop_share", 0):
            raise ValueError(
                f"{self.method} learns nothing from crops here: labels for them change nothing"
                + (" (set its crop_share)" if hasattr(own, "crop_share") else "")
            )
        what = "labels for crops" if self.labels == "crops" else "training without labels"
        if self.finetune:
            raise ValueError(f"{what} needs features that stay as they are: it cannot finetune")
        if self.labels == "neighbours" and self.from_scratch:
            raise ValueError(
                f"training without labels needs a backbone that has learnt before: {self.backbone} "
                "starts from nothing, give its weights or choose a pretrained one"
            )

    @property
    def _has_map(self) -> bool:
        return BACKBONES[self.backbone].feature_map is not Backbone.feature_map

    @property
    def mode(self) -> Mode:
        """How a region's features come about."""
        return self.regions or ("pooled" if self._has_map else "crops")

    def views(self) -> WithCrops:
        """What is seen of each training image: crops of the sizes that the layout has."""
        if self.crop_sigma is not None:
            return WithCrops(self.crops, self.crop_sigma)
        boxes = read_layout(self.layout, self.sigma).array()[1:]
        sides = boxes[:, 2] - boxes[:, 0]
        low, high = round(float(sides.min()), 6), round(float(sides.max()), 6)
        return WithCrops(self.crops, low if low == high else (low, high))

    def agent_options(self) -> AgentSettings:
        guessed = self.labels == "neighbours"
        return agent_settings(self.method, self.agent_settings, self.from_scratch, guessed)

    @property
    def from_scratch(self) -> bool:
        """Whether the backbone starts from nothing: there are no weights for it."""
        own = BACKBONES[self.backbone].load_pretrained is not Backbone.load_pretrained
        return self.weights is None and not own


@dataclass
class Trained:
    """A model and how it came about."""

    model: MCHModel
    curve: list[dict[str, float]]  # of the agent, empty without one
    seconds: dict[str, float]  # by stage
    skipped: dict[str, int]  # images left out, by reason


class Stage:
    """A stage's state in a file; read back without pickle."""

    def __init__(self, path: Path | None, every: float = 20.0) -> None:
        self.path, self.every, self.last = path, every, time.monotonic()

    def load(self) -> dict[str, Any] | None:
        if self.path is None or not self.path.exists():
            return None
        try:
            state: dict[str, Any] = torch.load(self.path, map_location="cpu", weights_only=True)
        except Exception:  # a damaged file raises whatever its bytes happen to mean
            warnings.warn(f"{self.path} is damaged: its stage starts anew", stacklevel=2)
            return None
        return state

    def save(self, state: dict[str, Any], force: bool = False) -> None:
        """Writes the state, unless the last one is only seconds old."""
        if self.path is None or (not force and time.monotonic() - self.last < self.every):
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_suffix(f".{os.getpid()}")
        torch.save(state, new)
        os.replace(new, self.path)
        self.last = time.monotonic()


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
    work = _prepare(out, options, dataset, resume, overwrite)
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
        if not _finished(work, "backbone", backbone):
            train_backbone(live(), recipe, options.seed, progress, _stage(work, "backbone-part"))
            _finish(work, "backbone", backbone)
        done("backbone")

    method = create_method(options.method, backbone.dim, options.bits, options.settings).to(where)
    if options.finetune:
        dataset, rows = _readable(dataset, options)
        if not _finished(work, "base", method, backbone):
            method.fit(live(), options.seed, progress, _stage(work, "base-part"))
            _finish(work, "base", method, backbone)
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
        if not _finished(work, "base", method):
            method.fit(data, options.seed, progress, _stage(work, "base-part"))
            _finish(work, "base", method)
        done("base")
    method.eval()
    policy: Policy | None = None
    curve: list[dict[str, float]] = []
    if options.agent:
        part, settings = _stage(work, "agent-part"), options.agent_options()
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
        near = NeighbourSettings().updated(options.labels_settings)
        guessed = with_neighbours(array, near, options.seed, progress)
        try:
            pair_weights(guessed.labels)
        except ValueError as error:
            raise ValueError(
                f"without labels, {error}: more pictures help, or other settings of labels.…"
            ) from error
        return guessed
    data = Features(array, labels)
    if options.labels == "crops":
        shown = ShownSettings().updated(options.labels_settings)
        return with_shown(data, shown, options.seed, progress)
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


def _stage(work: Path | None, name: str) -> Stage:
    return Stage(None if work is None else work / f"{name}.pt")


def _finished(work: Path | None, stage: str, *modules: torch.nn.Module) -> bool:
    """Loads what a stage ended with, if it has ended."""
    state = _stage(work, stage).load()
    if state is None:
        return False
    for i, module in enumerate(modules):
        module.load_state_dict(state[str(i)])
        module.eval()
    return True


def _finish(work: Path | None, stage: str, *modules: torch.nn.Module) -> None:
    state = {str(i): module.state_dict() for i, module in enumerate(modules)}
    _stage(work, stage).save(state, force=True)
    if work is not None:
        (work / f"{stage}-part.pt").unlink(missing_ok=True)


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
