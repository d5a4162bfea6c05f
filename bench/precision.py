"""How good are the answers of an int8 index, compared with those of floats?

    python bench/precision.py --data DIR            # COCO images, as for `mch train`

Images, queries and edited copies are those of `answers.py`: the model was not trained on them, and
the int8 graph was not calibrated on them. A change of one copy in 400 is .25 points.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from answer_data import Photos
from answers import judged
from common import RESULTS, record, script, verdict, write_json
from mchindex.datasets import open_dataset
from mchindex.files import read_file
from mchindex.inference.graph import INT8, SHARED, SHARED_NAMES, GraphRunner
from mchindex.models import MCHModel
from mchindex.training.features import FeatureCache

RANKS = ("best", "fine")
GRAPHS = {"float": SHARED_NAMES[0], "int8": INT8}
ALLOWED = 0.01  # of a float figure, by which that of int8 may be lower


def figures(row: Mapping[str, Any]) -> dict[str, float]:
    """nDCG@10, and how often each edited copy finds its original first."""
    return {"nDCG@10": row["ndcg"], **row["copies"], "quadrant in ten": row["quadrant_in_ten"]}


def changes(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """By rank: the figures of int8 divided by those of floats, less 1."""
    found = {(row["precision"], row["rank"]): row["figures"] for row in rows}
    return {
        rank: {
            name: found["int8", rank][name] / value - 1
            for name, value in found["float", rank].items()
        }
        for rank in RANKS
    }


def main() -> None:
    p = script(__doc__)
    p.add_argument("--data", required=True, help="the data set, as for `mch train --data`")
    p.add_argument("--model", default="coco-64", help="%(default)s")
    p.add_argument("--choose", action="store_true", help="on the validation images, for settings")
    p.add_argument("--json", type=Path, default=RESULTS / "precision.json", help="%(default)s")
    args = p.parse_args()
    dataset, rows = open_dataset(args.data), []
    for precision, graph in GRAPHS.items():
        model = MCHModel.load(args.model, device="cpu")
        model.extractor._run = GraphRunner(partial(read_file, SHARED / graph), False, "cpu")
        assert model.fine is not None, "models that ship have fine codes"
        # A cache of its own: the features of the two graphs differ.
        with tempfile.TemporaryDirectory() as place:
            photos = Photos.read(model, dataset, FeatureCache(Path(place)), 0)
            queries, indexed = photos.choosing if args.choose else (photos.queries, photos.indexed)
            found = judged(photos, queries, indexed, model.fine.cells.numpy(), 0, RANKS)
        rows += [
            {"precision": precision, "rank": row["label"], "figures": figures(row)} for row in found
        ]
    changed = changes(rows)
    for rank, by in changed.items():
        for name, change in by.items():
            print(f"{rank}, {name}: {change:+.2%} {verdict(change >= -ALLOWED)}")
    settings = {"model": args.model, "queries": len(queries), "indexed": len(indexed)}
    if not args.choose:
        write_json(args.json, record(settings, 0, rows) | {"changes": changed, "allowed": ALLOWED})


if __name__ == "__main__":
    main()
