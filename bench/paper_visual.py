"""The visual study: queries, similar images of each, and how far they lie under X and MCH-X."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from common import progress
from mchindex.datasets import Dataset, open_dataset
from mchindex.demo import MODEL, PICTURES, scenes_demo
from mchindex.models import MCHModel
from mchindex.models.region_codes import RegionCodes
from mchindex.progress import Step
from mchindex.regions import WHOLE, Box, Layout
from mchindex.training.measure import Coded, encode_dataset, kept_by
from paper_studies import Flags, alike, distances

QUERIES, SIMILAR, MOVED = 4, 10, 5
TRIED = 50  # images of a query for which another query is looked for
BLOCK = 64  # queries at a time: all of them with all images would not fit large data
SIDE = 120  # pixels of a picture


class Near:
    """How near images lie to queries under X and under MCH-X, for some queries at a time."""

    def __init__(self, coded: Coded, xi: float) -> None:
        self.coded = coded
        self.kept = {way: kept_by(way, coded.database, xi) for way in ("base", "mch")}

    def __call__(self, queries: slice) -> tuple[Any, Any, Any, Flags, Flags]:
        """(q, n) each: distances under X and MCH-X, MCH-X's region, who is similar, and who of
        these was brought to distance 0."""
        coded = self.coded
        base, _ = distances(coded.queries[queries], coded.database, self.kept["base"])
        mch, region = distances(coded.queries[queries], coded.database, self.kept["mch"])
        similar = alike(coded.query_labels[queries], coded.labels)
        return base, mch, region, similar, similar & (base > 0) & (mch == 0)

    def one(self, q: int) -> tuple[Any, Any, Any, Flags, Flags]:
        """The same of one query, (n,) each."""
        base, mch, region, similar, moved = self(slice(q, q + 1))
        return base[0], mch[0], region[0], similar[0], moved[0]

    def able(self) -> NDArray[np.int64]:
        """Queries with enough similar images, and one of them brought to distance 0."""
        found = []
        for start in range(0, len(self.coded.queries), BLOCK):
            *_, similar, moved = self(slice(start, start + BLOCK))
            found.append(moved.any(1) & (similar.sum(1) >= SIMILAR))
        return np.flatnonzero(np.concatenate(found))

    def own(self, queries: NDArray[np.int64], images: NDArray[np.int64]) -> Flags:
        """Whether these queries find these images, similar to them, in their own buckets."""
        coded, all_ = self.coded, self.coded.database
        some = RegionCodes(all_.codes[images], all_.keep[images])
        mch, _ = distances(coded.queries[queries], some, self.kept["mch"][images])
        own: Flags = alike(coded.query_labels[queries], coded.labels[images]) & (mch == 0)
        return own


def visual(coded: Coded, dataset: Dataset, layout: Layout, xi: float, seed: int) -> dict[str, Any]:
    """A few queries, similar images of each, and how far they lie under X and under MCH-X."""
    rng = np.random.default_rng(seed)
    near = Near(coded, xi)
    able = near.able()
    total = len(coded.queries)
    rule = (
        f"{QUERIES} queries drawn (seed {seed}) among those {len(able):,} of {total:,} with a "
        "similar image that a kept region brings to distance 0"
    )
    pair = _two_queries(near, able, rng)
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
    of = {q: near.one(q) for q in chosen}
    for q in chosen:
        *_, similar, moved = of[q]
        first = [shared] if shared >= 0 and q in chosen[:2] else []
        at0 = [i for i in rng.permutation(np.flatnonzero(moved)).tolist() if i not in first]
        picked = (first + at0)[:MOVED]
        others = rng.permutation(np.flatnonzero(similar & ~moved)).tolist()
        picked += [i for i in others + at0 if i not in picked][: SIMILAR - len(picked)]
        shown[q] = picked
    for q, picked in shown.items():
        base, mch, region, similar, moved = of[q]
        apart = {
            i
            for i in picked
            for other, theirs in shown.items()
            if i in theirs
            and mch[i] == of[other][1][i] == 0
            and not (coded.query_labels[q] & coded.query_labels[other]).any()
        }
        rows.append(
            {
                "classes": _names(coded.classes, coded.query_labels[q]),
                "picture": _thumbnail(dataset, "query", q),
                "moved": int(moved.sum()),
                "similar": int(similar.sum()),
                "images": [
                    {
                        "picture": _thumbnail(dataset, "database", i),
                        "classes": _names(coded.classes, coded.labels[i]),
                        "base": int(base[i]),
                        "mch": int(mch[i]),
                        "region": layout.names[region[i]],
                        "box": _box(layout.boxes[region[i]]),
                        "red": i in apart,
                    }
                    for i in picked
                ],
            }
        )
    return {"rule": rule, "rows": rows, "queries_with_moved": len(able), "queries": total}


def _two_queries(
    near: Near, able: NDArray[np.int64], rng: np.random.Generator
) -> tuple[int, int, int] | None:
    """An image and two queries without a common class that both find it, one through a region."""
    labels = near.coded.query_labels
    for q in rng.permutation(able).tolist():
        apart = able[~(labels[able] & labels[q]).any(1)]
        images = rng.permutation(np.flatnonzero(near.one(q)[-1]))[:TRIED]
        for i, finds in zip(images.tolist(), near.own(apart, images).T, strict=True):
            others = apart[finds]
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

    def tell(step: Step) -> None:
        if step.done == step.total:
            progress(f"scenes: {step.stage}")

    scenes_demo(work, images, seed, threads=1, progress=tell)
    dataset = open_dataset(str(work / PICTURES), seed=seed)
    model = MCHModel.load(work / MODEL)
    coded = encode_dataset(model, dataset, cache=work / "features")
    found = visual(coded, dataset, model.layout, model.xi, seed)
    what = f"{model.method.name.upper()} with {model.bits} bits on a small net of its own"
    return found | {"about": f"{images:,} pictures that we draw, not the data's; {what}"}
