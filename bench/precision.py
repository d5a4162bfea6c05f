"""How good are the answers of an int8 index, compared with those of floats?

    python bench/precision.py --data DIR            # COCO images, as for `mch train`

Images, queries and edited copies are those of `answers.py`: the model was not trained on them, and
the int8 graph was not calibrated on them. `answers.py` edits 400 of the indexed images. Rounding
moves the originals of some quadrants up and those of others down, 5 % of all, and with 400 copies
that chance alone can exceed 1 %. So all indexed images are edited, too.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from answer_data import COPIES, Photos
from answers import judged
from common import RESULTS, record, script, verdict, write_json
from mchindex.catalogue import Precision
from mchindex.datasets import open_dataset
from mchindex.inference import load_model
from mchindex.models import MCHModel
from mchindex.training.features import FeatureCache

RANKS = ("best", "fine")
ALLOWED = 0.01  # of a float figure, by which that of int8 may be lower


def figures(row: Mapping[str, Any]) -> dict[str, float]:
    """nDCG@10, and how often each edited copy finds its original first."""
    return {"nDCG@10": row["ndcg"], **row["copies"], "quadrant in ten": row["quadrant_in_ten"]}


def changes(rows: list[dict[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    """By number of copies and rank: the figures of int8 divided by those of floats, less 1."""
    found = {(row["precision"], row["copies"], row["rank"]): row["figures"] for row in rows}
    return {
        str(copies): {
            rank: {
                name: found["int8", copies, rank][name] / value - 1
                for name, value in found["float", copies, rank].items()
            }
            for rank in RANKS
        }
        for copies in dict.fromkeys(row["copies"] for row in rows)
    }


def main() -> None:
    p = script(__doc__)
    p.add_argument("--data", required=True, help="the data set, as for `mch train --data`")
    p.add_argument("--model", default="coco-64", help="%(default)s")
    p.add_argument("--choose", action="store_true", help="on the validation images, for settings")
    p.add_argument("--json", type=Path, default=RESULTS / "precision.json", help="%(default)s")
    args = p.parse_args()
    dataset, rows = open_dataset(args.data), []
    for precision in get_args(Precision):
        model = MCHModel.load(args.model, device="cpu")
        graph = load_model(args.model, device="cpu", precision=precision)
        model.extractor._run = graph.extractor._run
        assert model.fine is not None, "models that ship have fine codes"
        # A cache of its own: the features of the two graphs differ.
        with tempfile.TemporaryDirectory() as place:
            photos = Photos.read(model, dataset, FeatureCache(Path(place)), 0)
            queries, indexed = photos.choosing if args.choose else (photos.queries, photos.indexed)
            cells = model.fine.cells.numpy()
            for copies in dict.fromkeys((min(COPIES, len(indexed)), len(indexed))):
                rows += [
                    {"precision": precision, "copies": copies, "rank": row["label"],
                     "figures": figures(row)}
                    for row in judged(photos, queries, indexed, cells, 0, RANKS, copies)
                ]  # fmt: skip
    changed = changes(rows)
    for copies_, by_rank in changed.items():
        for rank, by in by_rank.items():
            for name, change in by.items():
                met = verdict(change >= -ALLOWED)
                print(f"{copies_} copies, {rank}, {name}: {change:+.2%} {met}")
    settings = {"model": args.model, "queries": len(queries), "indexed": len(indexed)}
    if not args.choose:
        write_json(args.json, record(settings, 0, rows) | {"changes": changed, "allowed": ALLOWED})


if __name__ == "__main__":
    main()
