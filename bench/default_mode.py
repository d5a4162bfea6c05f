"""Do several codes per image pay in the mode that `mch train` uses by default?

    python bench/default_mode.py --data DIR                                 # all cells, three seeds
    python bench/default_mode.py --data DIR --methods dch --bits 32 --seeds 0

A cell is a base method with a number of bits and a seed, trained with the defaults of `mch train`
(pooled regions, frozen EfficientNet-Lite0) and measured like `mch eval`: one code per image, the
regions that the policy keeps, and as many codes of random regions. Queries are also made of parts:
the top-left quadrant of an indexed image, searched by semantic codes alone, has to find that image.
Each cell is written when it is finished; a run that was interrupted computes only those missing.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from common import RESULTS, Ids, progress, record, script, write_json
from mchindex.datasets import Dataset, open_dataset
from mchindex.evaluation import Evaluation
from mchindex.inference.region_codes import Encoded, Packed
from mchindex.models import MCHModel
from mchindex.models.backbones import create_backbone
from mchindex.models.extract import Extractor
from mchindex.models.hashing import unpack
from mchindex.regions import read_layout
from mchindex.training.features import WHOLE_ONLY, FeatureCache, Fixed, default_cache
from mchindex.training.measure import Coded, kept_by, measure
from mchindex.training.options import TrainingOptions
from mchindex.training.run import fit_from_views, labelled
from recipes import RegionsAndCrops

METHODS = ("dch", "hashnet", "adsh", "mmhh", "ksh")
BITS = (32, 64)
SEEDS = (0, 1, 2)
WAYS = ("base", "mch", "random_keep")
FIGURES = ("map", "map_tie_aware", "r0", "p0", "f1_own", "anhc")
PARTS = 400  # images of which the quadrant is searched for
TOP = 10


class Seen:
    """What all cells share: the features of training views, database, queries and quadrants."""

    def __init__(self, dataset: Dataset, cache: FeatureCache) -> None:
        options = TrainingOptions(regions="pooled")
        self.dataset = dataset
        self.backbone = create_backbone(options.backbone, options.size, "pretrained")
        extractor = Extractor(self.backbone, options.mode, torch.device("cpu"))
        layout = read_layout(options.layout, options.sigma)
        train, rows = dataset.splits["train"], dataset.splits["database"]

        def features(name: str, which: Ids, regions: Any) -> NDArray[np.float16]:
            progress(f"features of {len(which):,} {name}")
            return cache.features(extractor, dataset.images, which, regions)

        rest = np.setdiff1d(rows, train)
        views = features("training images", train, RegionsAndCrops(layout, options.views()))
        self.queries = features("queries", dataset.splits["query"], WHOLE_ONLY)[:, 0]
        others = features("other images of the database", rest, Fixed(layout))
        regions = len(layout)
        self.views = torch.from_numpy(np.concatenate([views[:, :1], views[:, regions:]], 1))
        self.labels = torch.from_numpy(dataset.labels[train])
        self.database = np.concatenate([views[:, :regions], others])
        self.rows: Ids = np.concatenate([train, rest])
        # The quadrants of images that no method has learnt.
        self.asked = len(train) + np.arange(min(PARTS, len(rest)))
        images = [dataset.images.image(int(i)) for i in self.rows[self.asked]]
        cut = [im.crop((0, 0, max(1, im.width // 2), max(1, im.height // 2))) for im in images]
        self.parts = extractor(cut, np.array([[0.0, 0.0, 1.0, 1.0]]))[:, 0]

    def coded(self, model: MCHModel) -> Coded:
        dataset = self.dataset
        return Coded(
            model.codes_of(torch.from_numpy(self.queries)),
            model.regions_of(self.database),
            dataset.labels[dataset.splits["query"]],
            dataset.labels[self.rows],
            dataset.classes,
            {},
        )


def found_in_ten(parts: Packed, database: Encoded, wanted: Ids, images: int) -> float:
    """How often the picture of a part is among the first TOP by distance of its codes.

    Of images that tie with it, each is as likely to come first as any other.
    """
    codes, asked = unpack(database.codes), unpack(parts)
    chance = []
    for query, own in zip(asked, wanted.tolist(), strict=True):
        distance = (codes.shape[1] - codes @ query) / 2
        nearest = torch.full((images,), torch.inf)
        nearest.scatter_reduce_(0, torch.from_numpy(database.images), distance, "amin")
        before = int((nearest < nearest[own]).sum())
        ties = int((nearest == nearest[own]).sum())
        chance.append(min(1.0, max(0, TOP - before) / ties))
    return float(np.mean(chance))


def figures(of: Evaluation) -> dict[str, float]:
    return {name: float(getattr(of, name)) for name in FIGURES}


def cell(seen: Seen, method: str, bits: int, seed: int) -> dict[str, Any]:
    """The figures of one cell."""
    options = TrainingOptions(method, bits, seed=seed)
    start, cpu = time.monotonic(), time.process_time()
    base, policy, _ = fit_from_views(labelled(seen.views, seen.labels, options), options)
    row: dict[str, Any] = {"method": method, "bits": bits, "seed": seed}
    row |= {"train_s": time.monotonic() - start, "train_cpu_s": time.process_time() - cpu}
    model = MCHModel(
        seen.backbone, base, policy, options.sigma, options.xi, options.mode, torch.device("cpu")
    )
    coded = seen.coded(model)
    # The curves are not used.
    found = measure(coded, model.xi, WAYS, seed=seed, ks=[1], budgets=[1])
    parts = model.codes_of(torch.from_numpy(seen.parts))
    for way, one in found.items():
        kept = coded.database.chosen(kept_by(way, coded.database, model.xi, seed))
        part = found_in_ten(parts, kept, seen.asked, len(seen.rows))
        row[way] = figures(one) | {"quadrant_in_ten": part}
    return row


def cells(args: argparse.Namespace, done: list[dict[str, Any]]) -> Iterator[tuple[str, int, int]]:
    """The cells that are missing, one seed after the other."""
    have = {(row["method"], row["bits"], row["seed"]) for row in done}
    for seed, bits, method in product(args.seeds, args.bits, args.methods):
        if (method, bits, seed) not in have:
            yield method, bits, seed


def line(row: dict[str, Any]) -> str:
    base, mch, chance = (row[way] for way in WAYS)
    shown = (
        f"{name} {base[name]:.4f} -> {mch[name]:.4f} (random {chance[name]:.4f})"
        for name in (*FIGURES[:-1], "quadrant_in_ten")
    )
    where = f"{row['method']}-{row['bits']} seed {row['seed']}"
    return f"{where}: {', '.join(shown)}, {mch['anhc']:.3f} codes, {row['train_s']:.0f} s"


def main() -> None:
    p = script(__doc__)
    p.add_argument("--data", required=True, help="the data set, as for `mch train --data`")
    p.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS, help="which (all)")
    p.add_argument("--bits", nargs="+", type=int, default=BITS, help="which (32 64)")
    p.add_argument("--seeds", nargs="+", type=int, default=SEEDS, help="which (0 1 2)")
    p.add_argument("--cache", type=Path, default=default_cache(), help="features (%(default)s)")
    p.add_argument("--json", type=Path, default=RESULTS / "default_mode.json", help="%(default)s")
    p.add_argument("--again", action="store_true", help="also compute the cells that are there")
    args = p.parse_args()
    keep = args.json.is_file() and not args.again
    rows: list[dict[str, Any]] = json.loads(args.json.read_text())["rows"] if keep else []
    dataset = open_dataset(args.data)
    seen = Seen(dataset, FeatureCache(args.cache))
    settings = {
        "data": dataset.name, "train": len(dataset.splits["train"]), "queries": len(seen.queries),
        "database": len(seen.rows), "size": seen.backbone.size, "parts": len(seen.asked),
    }  # fmt: skip
    for one in cells(args, rows):
        row = cell(seen, *one)
        rows = sorted([*rows, row], key=lambda r: (r["method"], r["bits"], r["seed"]))
        write_json(args.json, record(settings, row["seed"], rows))
        progress(line(row))


if __name__ == "__main__":
    main()
