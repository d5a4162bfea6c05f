"""The visual study: queries, similar images of each, and their distances under X and MCH-X."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mchindex.datasets import Dataset, open_dataset
from mchindex.demo.scenes import MODEL, PICTURES, scenes_demo
from mchindex.inference.region_codes import RegionCodes
from mchindex.models import MCHModel
from mchindex.progress import Display
from mchindex.regions import WHOLE
from mchindex.training.measure import Coded, encode_dataset, kept_by
from paper.records import Neighbour, Picture, Query, Visual
from paper.runs import Data
from paper.studies import Flags, distances, similar

QUERIES, SIMILAR, MOVED = 4, 10, 5
TRIED = 50  # images of a query for which a second query is sought
BLOCK = 64  # queries at a time: all of them with all images may not fit in memory
SIDE = 120  # pixels of a picture
Ids = NDArray[np.int64]


class Near:
    """Distances between queries and images under X and MCH-X."""

    def __init__(self, coded: Coded, xi: float) -> None:
        self.coded = coded
        self.kept = {way: kept_by(way, coded.database, xi) for way in ("base", "mch")}

    def __call__(self, queries: Any, images: Any = ...) -> tuple[Any, Any, Any, Flags, Flags]:
        """Of some queries and images, (q, i) each: distance under X, distance under MCH-X and its
        region, which images are similar, and which of these MCH-X moved to distance 0."""
        coded, codes = self.coded, self.coded.database
        some, wanted = RegionCodes(codes.codes[images], codes.keep[images]), coded.queries[queries]
        base, _ = distances(wanted, some, self.kept["base"][images])
        mch, region = distances(wanted, some, self.kept["mch"][images])
        alike = similar(coded.query_labels[queries], coded.labels[images])
        return base, mch, region, alike, alike & (base > 0) & (mch == 0)

    def able(self) -> Ids:
        """The queries with enough similar images, at least one of them moved to distance 0."""
        found = []
        for start in range(0, len(self.coded.queries), BLOCK):
            *_, alike, moved = self(slice(start, start + BLOCK))
            found.append(moved.any(1) & (alike.sum(1) >= SIMILAR))
        return np.flatnonzero(np.concatenate(found))


def visual(data: Data, model: MCHModel, coded: Coded) -> Visual:
    """The study on pictures of the data."""
    return _visual(data.dataset, model, coded)


def _visual(dataset: Dataset, model: MCHModel, coded: Coded) -> Visual:
    """A few queries with similar images of each, drawn by the rule that the report states.

    The first two queries have no class in common and show the same image first, if there are such.
    """
    rng = np.random.default_rng(0)
    near = Near(coded, model.xi)
    able = near.able()
    shared, *chosen = _two_queries(near, able, rng) or (-1,)
    chosen += [int(q) for q in rng.permutation(able) if q not in chosen]
    chosen = chosen[:QUERIES]
    of = {q: [part[0] for part in near([q])] for q in chosen}
    shown = {}
    for q in chosen:
        *_, alike, moved = of[q]
        first = [shared] if shared >= 0 and q in chosen[:2] else []
        at0 = [i for i in rng.permutation(np.flatnonzero(moved)).tolist() if i not in first]
        picked = (first + at0)[:MOVED]
        others = rng.permutation(np.flatnonzero(alike & ~moved)).tolist()
        picked += [i for i in others + at0 if i not in picked][: SIMILAR - len(picked)]
        shown[q] = picked

    def red(q: int, i: int) -> bool:
        """Whether another of the queries, without a common class, shows the image at 0 too."""
        labels = coded.query_labels
        return any(
            i in picked and of[q][1][i] == of[other][1][i] == 0
            for other, picked in shown.items()
            if not (labels[q] & labels[other]).any()
        )

    def neighbour(q: int, i: int) -> Neighbour:
        base, mch, region, *_ = of[q]
        name, box = model.layout.names[region[i]], model.layout.boxes[region[i]]
        frame = None if box == WHOLE else [round(side, 4) for side in box]
        picture, classes = _thumbnail(dataset, "database", i), _names(coded, coded.labels[i])
        return Neighbour(classes, int(base[i]), int(mch[i]), name, red(q, i), frame, picture)

    rows = []
    for q, picked in shown.items():
        *_, alike, moved = of[q]
        images = [neighbour(q, i) for i in picked]
        picture, classes = _thumbnail(dataset, "query", q), _names(coded, coded.query_labels[q])
        rows.append(Query(classes, int(moved.sum()), int(alike.sum()), images, picture))
    return Visual(rows, len(able), len(coded.queries))


def _two_queries(near: Near, able: Ids, rng: np.random.Generator) -> tuple[int, int, int] | None:
    """An image and two queries without a common class that find it, one through a region."""
    labels = near.coded.query_labels
    for q in rng.permutation(able).tolist():
        apart = able[~(labels[able] & labels[q]).any(1)]
        images = rng.permutation(np.flatnonzero(near([q])[-1]))[:TRIED]
        _, mch, _, alike, _ = near(apart, images)
        for i, finds in zip(images.tolist(), (alike & (mch == 0)).T, strict=True):
            if len(others := apart[finds]):
                return int(i), int(q), int(rng.choice(others))
    return None


def _names(coded: Coded, flags: Flags) -> list[str]:
    return [coded.classes[c] for c in np.flatnonzero(flags).tolist()]


def _thumbnail(dataset: Dataset, split: str, row: int) -> Picture:
    image = dataset.images.image(int(dataset.splits[split][row])).convert("RGB")
    image.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=78, optimize=True)
    return Picture(base64.b64encode(stream.getvalue()).decode(), image.width, image.height)


def visual_of_scenes(work: Path, images: int) -> Visual:
    """The study on drawn pictures, with the model that `mch demo` trains on them."""
    with Display() as display:
        scenes_demo(work, images, 0, threads=1, progress=display)
    dataset = open_dataset(str(work / PICTURES), seed=0)
    model = MCHModel.load(work / MODEL)
    coded = encode_dataset(model, dataset, cache=work / "features")
    found = _visual(dataset, model, coded)
    found.about = (
        f"{images:,} drawn pictures in place of the data's; {model.method.name.upper()} with "
        f"{model.bits} bits on a small network trained for them"
    )
    return found
