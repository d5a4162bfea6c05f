"""Trains the models that ship with mchindex, and writes their cards.

    python bench/ship.py --data DIR                 # COCO images, as for `mch train`
    python bench/ship.py --data DIR --names coco-32 # one of them
    python bench/ship.py --data DIR --fine          # only fit their fine codes and words again
    python bench/ship.py --data DIR --words         # only learn their words again
    python bench/ship.py --data DIR --measure       # only measure fine codes and words again
    python bench/ship.py --cards                    # only write the cards again
    python bench/ship.py --graphs                   # only make the graphs again

2,000 images of the database are not used in training, nor are the queries of the data set. The
codes are measured by searching those images with the queries, ranks as `answers.py` does, and words
as `word_search.py` does.

A fit of fine codes to the same features depends on rounding, which differs between machines and
numbers of threads: some 3 % of the bits differ then, and the figures do not.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from common import progress, script
from mchindex.catalogue import SHIPPED
from mchindex.datasets import Dataset, open_dataset
from mchindex.files import write_file
from mchindex.inference.fine import FINE_BITS
from mchindex.inference.graph import SHARED, SHARED_NAMES
from mchindex.models import MCHModel
from mchindex.models.backbones import Tuned
from mchindex.models.fine import FineHash
from mchindex.models.graph import shared_graph
from mchindex.models.words import Words
from mchindex.progress import Step
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
RANKS = ("best", "fine", "code")
QUADRANT = "top-left quadrant"
LEARNT: dict[str, Words] = {}  # by the fine codes, which models may share


@dataclass(frozen=True)
class Recipe:
    bits: int
    method: str
    settings: dict[str, Any]
    agent: dict[str, Any]
    tune: int = 0  # how many of the backbone's last blocks are tuned


# Chosen on parts of the training images: HashNet ranks best by far of all methods, and gains most
# from several codes. `recipes.py` compares it with others on validation images.
RECIPES = {
    "coco-64": Recipe(
        64, "hashnet", {"power": 0.5, "dropout": 0.3}, {"reward": "loss", "bonus": 0.2}, tune=2
    ),
    "coco-64-frozen": Recipe(
        64, "hashnet", {"power": 0.5, "dropout": 0.3}, {"reward": "loss", "bonus": 0.2}
    ),
    "coco-32": Recipe(
        32, "hashnet", {"power": 0.5, "dropout": 0.3}, {"reward": "loss", "bonus": 0.2}
    ),
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
        tail = model.backbone.tail if isinstance(model.backbone, Tuned) else None
        for module in (model.method, model.policy, tail):
            for tensor in () if module is None else module.state_dict().values():
                if tensor.dtype == torch.float32:
                    tensor.copy_(tensor.half().float())
    model.backbone.requires_grad_(False)


def shown(step: Step) -> None:
    """Reports the end of a stage, and every tenth part of it."""
    if step.total and step.done * 10 // step.total > (step.done - 1) * 10 // step.total:
        values = " ".join(f"{name} {value:.4f}" for name, value in step.figures.items())
        progress(f"{step.stage} {step.done:,} of {step.total:,} {values}")


def train(name: str, dataset: Dataset, args: argparse.Namespace) -> None:
    recipe = RECIPES[name]
    options = TrainingOptions(
        recipe.method, recipe.bits, size=224, regions="pooled", seed=args.seed,
        settings=recipe.settings, agent_settings=recipe.agent, tune=recipe.tune, fine=0,
    )  # fmt: skip
    training, unseen = parts(dataset, args.seed)
    trained = train_model(training, options, cache=args.cache, device="cpu", progress=shown)
    model = trained.model
    round_weights(model)
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
    progress(f"{name}: {figures['base']} -> {figures['mch']}")
    set_fine(model, training, args)
    finish(name, model, dataset, args)


def fit_fine(name: str, dataset: Dataset, args: argparse.Namespace) -> None:
    """Fits the fine codes of a model that is there, whose other codes stay the same."""
    model = MCHModel.load(args.out / name)
    set_fine(model, parts(dataset, args.seed)[0], args)
    finish(name, model, dataset, args)


def fit_words(name: str, dataset: Dataset, args: argparse.Namespace) -> None:
    """Learns the words of a model that is there, whose codes stay the same."""
    model = MCHModel.load(args.out / name)
    set_words(model, parts(dataset, args.seed)[0], args)
    finish(name, model, dataset, args)


def measure_again(name: str, dataset: Dataset, args: argparse.Namespace) -> None:
    """Measures the fine codes and the words of a model that is there."""
    finish(name, MCHModel.load(args.out / name), dataset, args)


def set_fine(model: MCHModel, training: Dataset, args: argparse.Namespace) -> None:
    """Fits fine codes to the regions of the training images, and learns words of them."""
    features = torch.from_numpy(features_of(model, training, args))
    branches = model.backbone.branches
    model.fine = FineHash.fit(features.flatten(0, 1), FINE_BITS, args.seed, branches=branches)
    set_words(model, training, args)


def set_words(model: MCHModel, training: Dataset, args: argparse.Namespace) -> None:
    assert model.fine is not None
    if (key := model.fine.fingerprint) not in LEARNT:
        labels = training.labels[training.splits["train"]]
        features = features_of(model, training, args)
        LEARNT[key] = words_of(features, labels, list(training.classes), model.fine)
    model.words = LEARNT[key]


def features_of(
    model: MCHModel, training: Dataset, args: argparse.Namespace
) -> NDArray[np.float16]:
    """(images, regions, dim)"""
    return FeatureCache(args.cache).features(
        model.extractor, training.images, training.splits["train"], Fixed(model.layout)
    )


def finish(name: str, model: MCHModel, dataset: Dataset, args: argparse.Namespace) -> None:
    """Measures fine codes and words, and saves the model with its card."""
    from answer_data import Photos  # here, because these modules import `parts`
    from answers import judged
    from word_search import Unseen, unseen_rows

    assert model.fine is not None
    cache = FeatureCache(args.cache)
    photos = Photos.read(model, dataset, cache, 0)
    rows = judged(photos, photos.queries, photos.indexed, model.fine.cells.numpy(), 0, RANKS)
    model.about["ranks"] = {
        "queries": len(photos.queries),
        "database": len(photos.indexed),
        **{row["label"]: rank_figures(row) for row in rows},
    }
    unseen = unseen_rows(dataset)
    model.about["words"] = {
        "images": len(unseen),
        **Unseen.read(model, dataset, cache, unseen).classes(),
    }
    model.about = rounded(model.about)
    model.save(args.out / name)
    write_card(name, args.out)


def write_graphs(names: Sequence[str], folder: Path) -> None:
    """Makes the graph of the backbone that all models share, and those of models that are there."""
    write_file(SHARED / SHARED_NAMES[0], shared_graph())
    for name in names:
        if not MCHModel.load(folder / name, device="cpu").save_graph(folder / name):
            raise SystemExit(f"{name} has no graph: ONNX Runtime gives something else than torch")


def rank_figures(row: Mapping[str, Any]) -> dict[str, float]:
    """What a card says of one rank, of the figures of `answers.judged`."""
    return {
        **{key: row[key] for key in ("ndcg", "precision", "map", "itself")},
        "quadrant": row["copies"][QUADRANT],
        "quadrant_in_ten": row["quadrant_in_ten"],
    }


def rounded(figures: Any) -> Any:
    """The same, with four digits after the point."""
    if isinstance(figures, dict):
        return {key: rounded(value) for key, value in figures.items()}
    return round(figures, 4) if isinstance(figures, float) else figures


# Whether blocks are tuned: what a card says of the backbone and of the fine codes.
NETWORKS = {
    False: ("It is frozen.", "learnt without labels"),
    True: (
        """Its last two
  blocks are there twice: frozen, and tuned to the labels of the training images.""",
        "learnt from the features of both kinds of blocks",
    ),
}


def write_card(name: str, folder: Path) -> None:
    """Writes the card of a saved model beside it."""
    model = MCHModel.load(folder / name)
    write_file(folder / name / "README.md", card(name, model))


def card(name: str, model: MCHModel) -> str:
    """What the model is, what it was trained on and how well it does, in Markdown."""
    about, figures = model.about, model.about["figures"]
    fine = 0 if model.fine is None else model.fine.bits
    regions, names = len(model.layout), 0 if model.words is None else len(model.words.rows)
    queries, database = (about["measured_on"][part] for part in ("queries", "database"))
    ranks, words = about["ranks"], about["words"]
    lines = [
        f"| {way_words} | {f['map']:.3f} | {f['r0']:.4f} | {f['f1_own']:.4f} | {f['empty']:.2f} "
        f"| {f['anhc']:.2f} |"
        for way, way_words in WAYS.items()
        for f in [figures[way]]
    ]
    by_rank = [
        f"| `{rank}` | {r['ndcg']:.3f} | {r['precision']:.3f} | {r['map']:.3f} | {r['itself']:.3f} "
        f"| {r['quadrant']:.2f} | {r['quadrant_in_ten']:.2f} |"
        for rank in RANKS
        for r in [ranks[rank]]
    ]
    by_word = [
        f"| {what} | {w['map']:.3f} | {w['p10']:.3f} |"
        for what, w in (("words", words["words"]), ("classifiers on floats", words["floats"]))
    ]
    title = {"hashnet": "HashNet", "dch": "DCH"}.get(model.method.name, model.method.name)
    network, learnt = NETWORKS[isinstance(model.backbone, Tuned)]
    return f"""# {name}

Codes of {model.bits} bits for everyday photographs. `MCHIndex.open(path, model="{name}")`.

- **Backbone**: EfficientNet-Lite0 with its ImageNet weights, {model.backbone.size} px; one pass per
  image, regions are pooled from its feature map. {network}
- **Hash layer**: {title}, two layers. **Policy**: decides which of five regions (the corners and
  the centre, each half as wide and high as the image) get their own code.
- **Fine codes** of {fine} bits for all {regions} regions ({regions * fine // 8} bytes per image),
  by which hits are ranked: {learnt} (principal components, rotated: ITQ).
- **Words**: {names:,} names of things, of COCO's and ImageNet's classes and of what WordNet has
  above them ([licence](../../WORDNET.txt)): `index.search(text="dog, sofa")`.
- **Trained on** {about["trained_on"]:,} labelled MS-COCO images of 80 everyday classes, with seed
  {about["seed"]}: `python bench/ship.py --data DIR --names {name}`.

Measured with {queries:,} queries on {database:,} images, none of them used in training. Two images
count as similar if they share a class. H=0 is the query's bucket: images with the query's code.

| | mAP | R@H=0 | F1@H=0 | share of empty buckets at H=0 | codes per image |
|---|---|---|---|---|---|
{chr(10).join(lines)}

Ranks, measured as `bench/answers.py` does, with {ranks["queries"]:,} queries on
{ranks["database"]:,} images, none of them used in training or to choose settings. The gain in nDCG
is the Jaccard index of the labels. Itself: an indexed image as a query comes first. Quadrant: the
top-left quarter of an indexed image finds it.

| rank | nDCG@10 | P@10 | mAP | itself | quadrant: first | in the first ten |
|---|---|---|---|---|---|---|
{chr(10).join(by_rank)}

Words, measured as `bench/word_search.py` does, with the names of COCO's 80 classes on
{words["images"]:,} images that were not used in training. The classifiers are learnt in the same
way, on the features themselves.

| | mAP | P@10 |
|---|---|---|
{chr(10).join(by_word)}

The model was not trained on faces, text, places or anything outside COCO's classes. It tells those
apart only as far as the backbone's features do.
"""


def main() -> None:
    p = script(__doc__)
    what = p.add_mutually_exclusive_group(required=True)
    what.add_argument("--data", help="the data set, as for `mch train --data`")
    what.add_argument("--cards", action="store_true", help="train nothing, write the cards again")
    what.add_argument("--graphs", action="store_true", help="train nothing, make graphs again")
    p.add_argument(
        "--names", nargs="+", choices=RECIPES, default=list(RECIPES), help="which models (all)"
    )
    for flag, part in (
        ("--fine", "fit the fine codes and words"),
        ("--words", "learn the words"),
        ("--measure", "measure fine codes and words"),
    ):
        p.add_argument(flag, action="store_true", help=f"only {part} again")
    p.add_argument("--seed", type=int, default=0, help="%(default)s")
    p.add_argument("--cache", type=Path, default=default_cache(), help="features (%(default)s)")
    p.add_argument("--out", type=Path, default=SHIPPED, help="folder of models (%(default)s)")
    args = p.parse_args()
    if args.cards:
        for name in args.names:
            write_card(name, args.out)
        return
    if args.graphs:
        write_graphs(args.names, args.out)
        return
    dataset = open_dataset(args.data)
    again = ((args.fine, fit_fine), (args.words, fit_words), (args.measure, measure_again))
    act = next((action for asked, action in again if asked), train)
    for name in args.names:
        act(name, dataset, args)


if __name__ == "__main__":
    main()
