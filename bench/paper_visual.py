"""The visual study: queries, similar images of each, and how far they lie under X and MCH-X."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from common import progress
from mchindex.datasets import Dataset, open_dataset
from mchindex.demo import MODEL, PICTURES, scenes_demo
from mchindex.models import MCHModel
from mchindex.regions import WHOLE, Box, Layout
from mchindex.training.measure import Coded, encode_dataset, kept_by
from paper_studies import Flags, alike, distances

QUERIES, SIMILAR, MOVED = 4, 10, 5
SIDE = 120  # pixels of a picture


def visual(coded: Coded, dataset: Dataset, layout: Layout, xi: float, seed: int) -> dict[str, Any]:
    """A few queries, similar images of each, and how far they lie under X and under MCH-X."""
    rng = np.random.default_rng(seed)
    base, _ = distances(coded.queries, coded.database, kept_by("base", coded.database, xi))
    mch, region = distances(coded.queries, coded.database, kept_by("mch", coded.database, xi))
    similar = alike(coded.query_labels, coded.labels)
    moved = similar & (base > 0) & (mch == 0)
    able = np.flatnonzero(moved.any(1) & (similar.sum(1) >= SIMILAR))
    rule = (
        f"{QUERIES} queries drawn (seed {seed}) among those {len(able):,} of {len(moved):,} with a "
        "similar image that a kept region brings to distance 0"
    )
    pair = _two_queries(similar & (mch == 0), moved, coded.query_labels, able, rng)
    chosen: list[int] = []
    shared = -1
    if pair is not None:
        shared, *chosen = pair
        rule += (
            "; the first two are drawn among the pairs of queries without a common class that find "
            "the same similar image in their own buckets"
        )
    rest = [int(q) for q in rng.permutation(able) if q not in chosen]
    chosen = (chosen + rest)[:QUERIES]
    rule += (
        f". Of the {SIMILAR} similar images of each at most {MOVED} are drawn from those that a "
        "region brought to distance 0, the rest from all other similar images."
    )
    rows, shown = [], {}
    for q in chosen:
        first = [shared] if shared >= 0 and q in chosen[:2] else []
        near = [i for i in rng.permutation(np.flatnonzero(moved[q])).tolist() if i not in first]
        picked = (first + near)[:MOVED]
        others = rng.permutation(np.flatnonzero(similar[q] & ~moved[q])).tolist()
        picked += [i for i in others + near if i not in picked][: SIMILAR - len(picked)]
        shown[q] = picked
    for q, picked in shown.items():
        apart = {
            i
            for i in picked
            for other, theirs in shown.items()
            if i in theirs
            and mch[q, i] == mch[other, i] == 0
            and not (coded.query_labels[q] & coded.query_labels[other]).any()
        }
        rows.append(
            {
                "classes": _names(coded.classes, coded.query_labels[q]),
                "picture": _thumbnail(dataset, "query", q),
                "moved": int(moved[q].sum()),
                "similar": int(similar[q].sum()),
                "images": [
                    {
                        "picture": _thumbnail(dataset, "database", i),
                        "classes": _names(coded.classes, coded.labels[i]),
                        "base": int(base[q, i]),
                        "mch": int(mch[q, i]),
                        "region": layout.names[region[q, i]],
                        "box": _box(layout.boxes[region[q, i]]),
                        "red": i in apart,
                    }
                    for i in picked
                ],
            }
        )
    return {"rule": rule, "rows": rows, "queries_with_moved": len(able), "queries": len(moved)}


def _two_queries(
    own: Flags, moved: Flags, labels: Flags, able: NDArray[np.int64], rng: np.random.Generator
) -> tuple[int, int, int] | None:
    """An image and two queries without a common class that both find it, one through a region."""
    apart = ~alike(labels, labels)
    for q in rng.permutation(able).tolist():
        for i in rng.permutation(np.flatnonzero(moved[q])).tolist()[:50]:
            others = np.flatnonzero(own[:, i] & apart[q])
            others = others[np.isin(others, able)]
            if len(others):
                return int(i), int(q), int(rng.choice(others))
    return None


def _names(classes: Sequence[str], flags: Flags) -> list[str]:
    return [classes[c] for c in np.flatnonzero(flags).tolist()]


def _box(box: Box) -> list[float] | None:
    return None if box == WHOLE else [round(side, 4) for side in box]


def _thumbnail(dataset: Dataset, split: str, row: int) -> dict[str, Any]:
    image = dataset.images.image(int(dataset.splits[split][row])).convert("RGB")
    image.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=78, optimize=True)
    data = base64.b64encode(stream.getvalue()).decode()
    return {"jpeg": data, "width": image.width, "height": image.height}


def visual_of_scenes(work: Path, images: int, seed: int) -> dict[str, Any]:
    """The same on pictures that we draw, with the model that `mch demo` trains on them."""

    def tell(stage: str, done: int, total: int, figures: Mapping[str, float]) -> None:
        if done == total:
            progress(f"scenes: {stage}")

    scenes_demo(work, images, seed, threads=1, progress=tell)
    dataset = open_dataset(str(work / PICTURES), seed=seed)
    model = MCHModel.load(work / MODEL)
    coded = encode_dataset(model, dataset, cache=work / "features")
    found = visual(coded, dataset, model.layout, model.xi, seed)
    what = f"{model.method.name.upper()} with {model.bits} bits on a small net of its own"
    return found | {"about": f"{images:,} pictures that we draw, not the data's; {what}"}
