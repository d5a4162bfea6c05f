"""How good are our answers, and how fast and large, compared with floats and other long codes?

    python bench/answers.py --data DIR            # COCO images, as for `mch train`
    python bench/answers.py --data DIR --many 0   # only at the size of the data

The shipped model is measured on images that it was not trained on. Features and windows are cached,
so that a run that was interrupted resumes. bench/README.md explains the output.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from answer_data import COPIES, Components, Images, Photos, Queries, frozen, many_images
from answer_measures import TOP, mean_average_precision, quality
from answer_race import Row, race
from answer_report import draw, table, targets
from common import RESULTS, Codes, Ids, engine, progress, record, script, write_json
from mchindex import BucketTable
from mchindex._core import FineTable
from mchindex.datasets import open_dataset
from mchindex.datasets.edits import EDITS
from mchindex.index import ranking
from mchindex.index.arguments import Rank
from mchindex.models import MCHModel
from mchindex.training.features import FeatureCache, default_cache
from verdicts import target_lines

RANKS: tuple[Rank, ...] = ("best", "fine", "code")
FLOAT, ONE = "float cosine, flat", "fine, one code per image"
TUNED = "float cosine, with tuned features"
QUADRANT = "top-left quadrant"
# Weights of `best` to choose from: of the code, the whole image, the best region, its fourth power.
CHOICES = ((40, 64), (0, 15, 30), (0, 30, 60), (160, 250, 400, 600))


class Answerer:
    """Ways to answer queries from the same images."""

    def __init__(self, images: Images, cells: Codes) -> None:
        self.images = images
        bits, (regions, width) = images.codes.shape[1] * 8, images.fine.shape[1:]
        self.buckets = BucketTable(bits)
        self.buckets.add(images.owners, images.codes, images.regions)
        ids = np.arange(len(images))
        self.fine = FineTable(bits, width * 8, regions, cells)
        self.fine.add(ids, images.fine, images.counts, images.codes)
        self.one = FineTable(bits, width * 8, 1)
        self.one.add(ids, images.fine[:, :1], images.counts, images.codes)

    def __call__(self, way: str, queries: Queries, k: int) -> Ids:
        """(q, k): the best images by one of RANKS, FLOAT, TUNED or ONE."""
        if way in (FLOAT, TUNED):
            ours, theirs = self.images.floats, queries.floats
            if way == TUNED:
                ours, theirs = self.images.all_floats, queries.all_floats
            order: Ids = np.argsort(-(theirs @ ours.T), axis=1, kind="stable")
            return order[:, :k]
        if way == ONE:
            return self.one.rank(queries.fine, k).keys
        if way == "code":
            return self.buckets.search(queries.codes, k).ids
        asked, budget = (
            ranking.Query(queries.codes, queries.fine),
            ranking.Budget(None, None, None, 0),
        )
        rank: Rank = "best" if way == "best" else "fine"
        return ranking.ranked(self.buckets, self.fine, asked, k, rank, budget).keys


def judged(
    photos: Photos, queries: Ids, indexed: Ids, cells: Codes, seed: int,
    ways: Sequence[str] = (*RANKS, FLOAT, TUNED, ONE), most: int = COPIES,
) -> list[Row]:  # fmt: skip
    """How good the answers of our ranks and of floats are at the data's own size; `most` images are
    edited."""
    images, asked = photos.as_images(indexed), photos.as_queries(queries)
    labels = photos.dataset.labels[queries]
    answer, n = Answerer(images, cells), len(images)
    places = np.sort(np.random.default_rng(seed).permutation(n)[:most])
    copies = {edit: photos.copies(edit, indexed[places]) for edit in EDITS}
    own = photos.as_queries(indexed)
    rows: list[Row] = []
    for way in ways:
        order = answer(way, asked, n)
        row: Row = {"label": way, **asdict(quality(order, labels, images.labels))}
        row["map"] = mean_average_precision(order, labels, images.labels)
        row["itself"] = float((answer(way, own, 1)[:, 0] == np.arange(n)).mean())
        first = {edit: answer(way, copy, TOP) == places[:, None] for edit, copy in copies.items()}
        row["copies"] = {edit: float(hit[:, 0].mean()) for edit, hit in first.items()}
        row["quadrant_in_ten"] = float(first[QUADRANT].any(1).mean())
        rows.append(row)
        progress(f"{way}: nDCG@10 {row['ndcg']:.3f}, quadrant {row['copies'][QUADRANT]:.2f}")
    return rows


def shortened(queries: Queries, short: Components) -> Queries:
    return replace(queries, floats=short(queries.floats))


def choose(photos: Photos, cells: Codes) -> list[Row]:
    """The figures of several weights of `best`, and of other ways, on the validation images."""
    queries, indexed = photos.choosing
    rows = judged(photos, queries, indexed, cells, 0)[1:]
    for weights in product(*CHOICES):
        ranking.WEIGHTS["best"] = tuple(np.array(weights, float) / sum(weights))
        (row,) = judged(photos, queries, indexed, cells, 0, ("best",))
        rows.append(row | {"label": "/".join(map(str, weights))})
    return rows


def settings_of(args: argparse.Namespace, photos: Photos) -> dict[str, Any]:
    keys = ("model", "threads", "repeats", "budget", "build_limit", "many")
    return {
        **{key: getattr(args, key) for key in keys},
        "data": photos.dataset.name,
        "images": {
            "validation": len(photos.validation),
            "queries": len(photos.queries),
            "indexed": len(photos.indexed),
        },
        "weights": dict(ranking.WEIGHTS),
        "all": ranking.ALL,
        "candidates": ranking.CANDIDATES,
        "near": ranking.NEAR,
        "probes": ranking.PROBES,
    }


def run(args: argparse.Namespace) -> dict[str, Any]:
    before = engine()
    model = MCHModel.load(args.model)
    assert model.fine is not None, "a model without fine codes is refused below"
    cells: Codes = model.fine.cells.numpy()
    photos = Photos.read(model, open_dataset(args.data), FeatureCache(args.cache), args.seed)
    if args.choose:
        return {"rows": choose(photos, cells)}
    content: dict[str, Any] = {
        "quality": judged(photos, photos.queries, photos.indexed, cells, args.seed)
    }
    queries, labels = photos.as_queries(photos.queries), photos.dataset.labels[photos.queries]
    sizes: dict[str, tuple[Images, Queries]] = {
        "own": (photos.as_images(photos.indexed), queries),
    }
    speed: dict[str, list[Row]] = {}
    if args.many:
        short = Components.fit(frozen(model, photos.regions(photos.validation)))
        many = many_images(photos, photos.sources, args.many, args.seed, short)
        sizes["many"] = many, shortened(queries, short)
    for size, (images, asked) in sizes.items():
        progress(f"{size}: {len(images):,} images")
        with tempfile.TemporaryDirectory(prefix="mch-answers-") as folder:
            speed[size] = race(Path(folder), images, asked, labels, cells, args)
    content |= {"speed": speed}
    content["targets"] = targets(content)
    whole = record(settings_of(args, photos), args.seed, []) | content
    del whole["rows"]
    if whole["engine"] != before:
        progress("the engine was rebuilt during the run: measure again")
    return whole


def main() -> None:
    p = script(__doc__)
    p.add_argument("--data", required=True, help="the data set, as for `mch train --data`")
    p.add_argument("--model", default="coco-64", help="%(default)s")
    p.add_argument("--many", type=int, default=1_000_000, help="windows; 0: none (%(default)s)")
    p.add_argument("--seed", type=int, default=0, help="%(default)s")
    p.add_argument("--threads", type=int, default=1, help="of each contender (%(default)s)")
    p.add_argument("--repeats", type=int, default=5, help="%(default)s")
    p.add_argument("--budget", type=float, default=2.0, metavar="S",
                   help="seconds per measurement (%(default)s)")  # fmt: skip
    p.add_argument("--build-limit", type=float, default=600.0, metavar="S",
                   help="leave out an index that takes longer to build (%(default)s)")  # fmt: skip
    p.add_argument("--cache", type=Path, default=default_cache(), help="features (%(default)s)")
    p.add_argument("--json", type=Path, default=RESULTS / "answers.json", help="%(default)s")
    p.add_argument("--choose", action="store_true",
                   help="only compare weights of `best` on the validation images")  # fmt: skip
    args = p.parse_args()
    content = run(args)
    if args.choose:
        for row in content["rows"]:
            print(f"{row['label']}: {summary(row)}")
        return
    print(table(content))
    print("\n".join(target_lines(content["targets"], False)))
    write_json(args.json, content)
    draw(content, args.json.with_suffix(".svg"))


def summary(row: Mapping[str, Any]) -> str:
    figures = {"nDCG@10": row["ndcg"], "P@10": row["precision"], "mAP": row["map"], **row["copies"],
               "quadrant in ten": row["quadrant_in_ten"]}  # fmt: skip
    return ", ".join(f"{name} {value:.3f}" for name, value in figures.items())


if __name__ == "__main__":
    main()
