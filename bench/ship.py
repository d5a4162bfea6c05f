"""Trains the models that ship with mchindex, and writes their cards.

    python bench/ship.py --data DIR                 # COCO images, as for `mch train`
    python bench/ship.py --data DIR --names coco-32 # one of them
    python bench/ship.py --data DIR --fine          # only fit their fine codes and words again
    python bench/ship.py --data DIR --words         # only learn their words again
    python bench/ship.py --cards                    # only write the cards again

2,000 images of the database are not used in training. The figures on a card are measured by
searching those with the queries of the data set, which are not used in training either.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from common import progress, script
from mchindex.catalogue import SHIPPED
from mchindex.datasets import Dataset, open_dataset
from mchindex.files import write_file
from mchindex.models import MCHModel
from mchindex.models.fine import FINE_BITS, FineHash
from mchindex.training.features import FeatureCache, Fixed, default_cache
from mchindex.training.measure import encode_dataset, measure
from mchindex.training.options import TrainingOptions
from mchindex.training.run import train_model
from words import words_of

HELD_OUT = 2000
WAYS = {
    "base": "one code per image",
    "mch": "**MCH**",
    "random_keep": "as many regions, chosen at random",
    "keep_all": "all regions",
}
FIGURES = ("map", "r0", "p0_nonempty", "empty", "anhc", "f1_own")


@dataclass(frozen=True)
class Recipe:
    bits: int
    method: str
    settings: dict[str, Any]
    agent: dict[str, Any]


# Chosen on parts of the training images: HashNet ranks best by far of all methods, and gains most
# from several codes.
RECIPES = {
    "coco-64": Recipe(64, "hashnet", {"power": 0.5, "dropout": 0.3}, {"bonus": 0.2}),
    "coco-32": Recipe(32, "hashnet", {"power": 0.5, "dropout": 0.3}, {"bonus": 0.2}),
}


def parts(dataset: Dataset, seed: int) -> tuple[Dataset, Dataset]:
    """The data to train on, and the data to measure on, which share no image."""
    database, train = dataset.splits["database"], dataset.splits["train"]
    others = np.setdiff1d(database, train)
    held = np.sort(np.random.default_rng(seed).permutation(others)[:HELD_OUT])
    rest = np.setdiff1d(database, held)
    query = dataset.splits["query"]
    return (
        replace(dataset, splits={"query": query, "train": rest, "database": rest}),
        replace(dataset, splits={"query": query, "train": rest[:0], "database": held}),
    )


def round_weights(model: MCHModel) -> None:
    """Rounds the weights to half precision, so that the model takes half the space."""
    with torch.no_grad():
        for module in (model.method, model.policy):
            for tensor in () if module is None else module.state_dict().values():
                if tensor.dtype == torch.float32:
                    tensor.copy_(tensor.half().float())


def train(name: str, dataset: Dataset, args: argparse.Namespace) -> None:
    recipe = RECIPES[name]
    options = TrainingOptions(
        recipe.method, recipe.bits, size=224, regions="pooled", seed=args.seed,
        settings=recipe.settings, agent_settings=recipe.agent,
    )  # fmt: skip
    training, unseen = parts(dataset, args.seed)
    trained = train_model(training, options, cache=args.cache, device="cpu")
    model = trained.model
    round_weights(model)
    set_words(model, training, args)
    found = measure(encode_dataset(model, unseen, args.cache), model.xi)
    figures = {
        way: {f: round(float(getattr(e, f)), 4) for f in FIGURES} for way, e in found.items()
    }
    model.about = {
        "data": "MS-COCO, 80 classes",
        "trained_on": len(training.splits["train"]),
        "measured_on": {"queries": len(unseen.splits["query"]), "database": HELD_OUT},
        "figures": figures,
        "seed": args.seed,
    }
    model.save(args.out / name)
    write_card(name, args.out)
    progress(f"{name}: {figures['base']} -> {figures['mch']}")


def fit_fine(name: str, dataset: Dataset, args: argparse.Namespace) -> None:
    """Fits the fine codes of a model that is there, whose other codes stay the same."""
    model = MCHModel.load(args.out / name)
    training, _ = parts(dataset, args.seed)
    features = FeatureCache(args.cache).features(
        model.extractor, training.images, training.splits["train"], Fixed(model.layout)
    )
    model.fine = FineHash.fit(torch.from_numpy(features).flatten(0, 1), FINE_BITS, args.seed)
    set_words(model, training, args)
    model.save(args.out / name)
    write_card(name, args.out)


def fit_words(name: str, dataset: Dataset, args: argparse.Namespace) -> None:
    """Learns the words of a model that is there, whose codes stay the same."""
    model = MCHModel.load(args.out / name)
    set_words(model, parts(dataset, args.seed)[0], args)
    model.save(args.out / name)
    write_card(name, args.out)


def set_words(model: MCHModel, training: Dataset, args: argparse.Namespace) -> None:
    assert model.fine is not None
    rows = training.splits["train"]
    features = FeatureCache(args.cache).features(
        model.extractor, training.images, rows, Fixed(model.layout)
    )
    model.words = words_of(features, training.labels[rows], list(training.classes), model.fine)


def write_card(name: str, folder: Path) -> None:
    """Writes the card of a saved model beside it."""
    model = MCHModel.load(folder / name)
    write_file(folder / name / "README.md", card(name, model))


def card(name: str, model: MCHModel) -> str:
    """What the model is, what it was trained on and how well it does, in Markdown."""
    about, figures = model.about, model.about["figures"]
    fine = 0 if model.fine is None else model.fine.bits
    words = 0 if model.words is None else len(model.words.rows)
    queries, database = (about["measured_on"][part] for part in ("queries", "database"))
    lines = [
        f"| {way_words} | {f['map']:.3f} | {f['r0']:.4f} | {f['f1_own']:.4f} | {f['empty']:.2f} "
        f"| {f['anhc']:.2f} |"
        for way, way_words in WAYS.items()
        for f in [figures[way]]
    ]
    title = {"hashnet": "HashNet", "dch": "DCH"}.get(model.method.name, model.method.name)
    return f"""# {name}

Codes of {model.bits} bits for everyday photographs. `MCHIndex.open(path, model="{name}")`.

- **Backbone**: EfficientNet-Lite0 with its ImageNet weights, frozen, {model.backbone.size} px; one
  pass per image, regions are pooled from its feature map.
- **Hash layer**: {title}, two layers. **Policy**: decides which of five regions (the corners and
  the centre, each half as wide and high as the image) get their own code.
- **Fine codes** of {fine} bits for all six regions, learnt without labels (principal
  components of the features, rotated: ITQ), by which hits are ranked.
- **Words**: {words:,} names of things, of COCO's and ImageNet's classes and of what WordNet has
  above them ([licence](../../WORDNET.txt)): `index.search(text="dog, sofa")`.
- **Trained on** {about["trained_on"]:,} labelled MS-COCO images of 80 everyday classes, with seed
  {about["seed"]}: `python bench/ship.py --data DIR --names {name}`.

Measured with {queries:,} queries on {database:,} images, none of them used in training. Two images
count as similar if they share a class. H=0 is the query's bucket: images with the query's code.

| | mAP | R@H=0 | F1@H=0 | share of empty buckets at H=0 | codes per image |
|---|---|---|---|---|---|
{chr(10).join(lines)}

The model was not trained on faces, text, places or anything outside COCO's classes. It tells those
apart only as far as the backbone's features do.
"""


def main() -> None:
    p = script(__doc__)
    what = p.add_mutually_exclusive_group(required=True)
    what.add_argument("--data", help="the data set, as for `mch train --data`")
    what.add_argument("--cards", action="store_true", help="train nothing, write the cards again")
    p.add_argument(
        "--names", nargs="+", choices=RECIPES, default=list(RECIPES), help="which models (all)"
    )
    p.add_argument("--fine", action="store_true", help="only fit the fine codes and words again")
    p.add_argument("--words", action="store_true", help="only learn the words again")
    p.add_argument("--seed", type=int, default=0, help="%(default)s")
    p.add_argument("--cache", type=Path, default=default_cache(), help="features (%(default)s)")
    p.add_argument("--out", type=Path, default=SHIPPED, help="folder of models (%(default)s)")
    args = p.parse_args()
    if args.cards:
        for name in args.names:
            write_card(name, args.out)
        return
    dataset = open_dataset(args.data)
    for name in args.names:
        (fit_fine if args.fine else fit_words if args.words else train)(name, dataset, args)


if __name__ == "__main__":
    main()
