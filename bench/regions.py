"""Do regions find the things that they show, and do they say where these are?

    python bench/regions.py --data DIR              # COCO images, as for `mch train`

A folder of labelled photographs has no boxes, so things with known boxes are made: a photograph
(the thing) is pasted into another one that shares no label with it, at a random place, with 0.3 to
0.6 of its sides. None of the photographs was used in training. Reported are, for the model's layout
and for finer ones,

- how often the thing as a query finds the picture that it was pasted into, also by the floats that
  the fine codes are made from, and how much of the region that the hit names lies inside the box of
  the thing, beside the mean of all regions but the whole;
- the same for the words of the thing's labels;
- for parts that are cut out of indexed images and encoded as pictures of their own, how often they
  find their image, and how often the hit names the region that was cut out;
- P@10 of queries by a region of an image, and by the same part cut out.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from answer_data import CELLS, Images, Photos, Queries, coded, frozen, map_cells, queries_of, unit
from answer_measures import TOP, quality
from common import RESULTS, Ids, progress, record, script, write_json
from mchindex._core import FineTable
from mchindex.datasets import ImageSource, open_dataset
from mchindex.index.ranking import WEIGHTS
from mchindex.index.words import ranked_by_words
from mchindex.models import MCHModel
from mchindex.regions import Boxes, Layout, in_pixels, overlaps, random_boxes, read_layout
from mchindex.training.features import WHOLE_ONLY, FeatureCache, Fixed, default_cache

PASTED, CUT = 600, 200  # pictures with a pasted thing; images whose parts are cut out
SIDES = (0.3, 0.6)  # of a thing, as shares of the picture's
FINER = ("grid:3x3", "corners+grid:3x3@0.34", "grid:4x4@0.3")
RANKS = ("best", "fine", "floats")


class Pasted:
    """Images with another image pasted into each."""

    def __init__(self, images: ImageSource, under: Ids, over: Ids, seed: int) -> None:
        self._images, self._under, self._over, self._seed = images, under, over, seed

    def __len__(self) -> int:
        return len(self._under)

    def key(self, i: int) -> bytes:
        keys = (self._images.key(int(rows[i])) for rows in (self._under, self._over))
        return hashlib.sha256(b"pasted" + b"".join(keys)).digest()

    def box(self, i: int) -> NDArray[np.float64]:
        box: NDArray[np.float64] = random_boxes(1, SIDES, self._seed, self.key(i))[0]
        return box

    def image(self, i: int) -> Image.Image:
        picture = self._images.image(int(self._under[i])).convert("RGB")
        left, top, right, bottom = in_pixels(self.box(i).tolist(), *picture.size)
        thing = self._images.image(int(self._over[i])).convert("RGB")
        picture.paste(ImageOps.fit(thing, (right - left, bottom - top)), (left, top))
        return picture

    def name(self, i: int) -> str:
        names = (self._images.name(int(rows[i])) for rows in (self._over, self._under))
        return " in ".join(names)


class CutOut:
    """One region of each image of another source."""

    def __init__(self, images: ImageSource, box: NDArray[np.float64]) -> None:
        self._images, self._box = images, box

    def __len__(self) -> int:
        return len(self._images)

    def key(self, i: int) -> bytes:
        return hashlib.sha256(b"part" + self._box.tobytes() + self._images.key(i)).digest()

    def image(self, i: int) -> Image.Image:
        image = self._images.image(i)
        return image.crop(in_pixels(self._box.tolist(), *image.size))

    def name(self, i: int) -> str:
        return f"a part of {self._images.name(i)}"


def inside(regions: Boxes, boxes: Boxes) -> NDArray[np.float64]:
    """(boxes, regions): the share of each region that lies inside each box."""
    low = np.maximum(regions[None, :, :2], boxes[:, None, :2])
    high = np.minimum(regions[None, :, 2:], boxes[:, None, 2:])
    common = (high - low).clip(0).prod(-1)
    shares: NDArray[np.float64] = common / (regions[:, 2:] - regions[:, :2]).prod(-1)
    return shares


def pairs(labels: NDArray[np.bool_], under: Ids, over: Ids) -> Ids:
    """For each image under, one of `over` that shares no label with it; each is used once."""
    free = over.tolist()
    chosen = []
    for row in under.tolist():
        place = next((p for p, o in enumerate(free) if not (labels[row] & labels[o]).any()), 0)
        chosen.append(free.pop(place))
    return np.array(chosen)


class Table:
    """Images under the fine codes of one layout; their other codes are those of the model."""

    def __init__(self, model: MCHModel, images: Images, maps: NDArray[np.float16], layout: Layout):
        assert model.fine is not None
        self.layout = layout
        shares = overlaps(layout.array(), CELLS, CELLS)
        features = [(shares @ part).astype(np.float16) for part in split(maps)]
        fine = [model.fine.codes(part) for part in features]
        self.floats = np.concatenate([unit(frozen(model, part)) for part in features])
        self.table = FineTable(model.bits, model.fine.bits, len(layout))
        self.table.add(np.arange(len(images)), np.concatenate(fine), images.counts, images.codes)

    def search(self, queries: Queries, rank: str, k: int = TOP) -> tuple[Ids, Ids]:
        """Images and regions, (q, k) each. "floats" stands for the largest cosine of a region."""
        if rank == "floats":
            cosines = np.stack([queries.floats @ x.T for x in self.floats.swapaxes(0, 1)], -1)
            order = np.argsort(-cosines.max(-1), axis=1, kind="stable")[:, :k]
            return order, np.take_along_axis(cosines.argmax(-1), order, 1)
        found = self.table.rank(queries.fine, k, queries.codes, WEIGHTS[rank])
        return found.keys, found.regions.astype(np.int64)


def split(maps: NDArray[np.float16]) -> list[NDArray[np.float32]]:
    """Maps in parts that fit into memory as wider numbers."""
    return [part.astype(np.float32) for part in np.array_split(maps, len(maps) // 256 + 1)]


def where(layout: Layout, boxes: Boxes, shown: Ids) -> dict[str, float]:
    """How much of the regions shown lies inside the boxes; the whole image is no place."""
    parts = shown > 0
    shares = inside(layout.array(), boxes)[parts]
    named = np.take_along_axis(shares, shown[parts, None], 1)[:, 0]
    return {
        "hits": len(shown),
        "name_a_part": float(parts.mean()) if len(shown) else 0.0,
        "inside": float(named.mean()) if len(named) else 0.0,
        "inside_by_chance": float(shares[:, 1:].mean()) if len(named) else 0.0,
        "best_part": float((named == shares[:, 1:].max(1)).mean()) if len(named) else 0.0,
        "best_part_by_chance": 1 / (len(layout) - 1),
    }


def by_things(table: Table, things: Queries, boxes: Boxes) -> dict[str, Any]:
    """Things as queries; thing i was pasted into image i."""
    out: dict[str, Any] = {}
    own = np.arange(len(things))[:, None]
    for rank in RANKS:
        found, regions = table.search(things, rank)
        right = found == own
        rows = right.any(1)
        shown = np.take_along_axis(regions, right.argmax(1)[:, None], 1)[rows, 0]
        out[rank] = {
            "first": float(right[:, 0].mean()),
            "in_ten": float(rows.mean()),
            **where(table.layout, boxes[rows], shown),
        }
    return out


def by_words(
    table: Table, model: MCHModel, classes: list[str], labels: NDArray[np.bool_], boxes: Boxes
) -> dict[str, Any]:
    """Words of the labels of the things: of the pictures among the first hits that have the thing
    pasted, which region is named?"""
    assert model.words is not None
    rows, shown = [], []
    for column, name in enumerate(classes):
        found = ranked_by_words(table.table, model.words.query(name), 5 * TOP, None, 0)
        for key, region in zip(found.keys[0].tolist(), found.regions[0].tolist(), strict=True):
            if 0 <= key < len(labels) and labels[key, column]:
                rows.append(key)
                shown.append(region)
    return where(table.layout, boxes[rows], np.array(shown, np.int64))


def by_parts(photos: Photos, table: Table, images: Ids, places: Ids) -> dict[str, Any]:
    """Parts that are cut out of indexed images find them, and the hits name the part."""
    out: dict[str, Any] = {}
    for rank in RANKS:
        first, in_ten = [], []
        named: list[NDArray[np.bool_]] = []
        for region, box in enumerate(photos.model.layout.array()[1:], 1):
            source = CutOut(photos.dataset.images, box)
            features = photos.cache.features(photos.model.extractor, source, images, WHOLE_ONLY)
            found, regions = table.search(queries_of(photos.model, features[:, 0]), rank)
            right = found == places[:, None]
            first.append(right[:, 0].mean())
            in_ten.append(right.any(1).mean())
            named.append(regions[right] == region)
        means = (float(np.mean(x)) for x in (first, in_ten, np.concatenate(named)))
        out[rank] = dict(zip(("first", "in_ten", "names_the_part"), means, strict=True))
    return out


def by_regions(
    photos: Photos, table: Table, rows: Ids, labels: NDArray[np.bool_]
) -> dict[str, Any]:
    """P@10 of queries by regions of images that are not indexed, and by the same parts cut out."""
    model, asked = photos.model, photos.dataset.labels[rows]
    features = photos.regions(rows)

    def precision(queries: Queries) -> float:
        return quality(table.search(queries, "best")[0], asked, labels).precision

    pooled, cut = [], []
    for region, box in enumerate(model.layout.array()[1:], 1):
        pooled.append(precision(queries_of(model, features[:, region])))
        source = CutOut(photos.dataset.images, box)
        parts = photos.cache.features(model.extractor, source, rows, WHOLE_ONLY)
        cut.append(precision(queries_of(model, parts[:, 0])))
    shared = asked.astype(np.float32) @ labels.T.astype(np.float32) > 0
    return {
        "whole": precision(queries_of(model, features[:, 0])),
        "region": float(np.mean(pooled)),
        "cut_out": float(np.mean(cut)),
        "chance": float(shared.mean()),
    }


def run(args: argparse.Namespace) -> dict[str, Any]:
    model = MCHModel.load(args.model)
    dataset = open_dataset(args.data)
    photos = Photos.read(model, dataset, FeatureCache(args.cache), args.seed)
    pasted = min(args.pasted, len(photos.indexed) // 2, len(photos.queries))
    under, rest = photos.indexed[:pasted], photos.indexed[pasted:]
    over = pairs(dataset.labels, under, photos.queries)
    source = Pasted(dataset.images, under, over, args.seed)
    progress(f"features of {pasted:,} pictures with a pasted thing")
    made = photos.cache.features(
        model.extractor, source, np.arange(pasted), Fixed(model.layout + map_cells())
    )
    boxes = np.array([source.box(i) for i in range(pasted)])
    features = np.concatenate([made[:, : len(model.layout)], photos.regions(rest)])
    maps = np.concatenate([made[:, -(CELLS**2) :], photos.maps(rest)])
    labels = np.concatenate([dataset.labels[under] | dataset.labels[over], dataset.labels[rest]])
    fine, encoded = coded(model, features)
    images = Images(
        unit(frozen(model, features[:, 0])), fine, encoded.codes, encoded.regions,
        np.bincount(encoded.images, minlength=len(features)), labels, unit(features[:, 0]),
    )  # fmt: skip
    things = photos.as_queries(over)
    cut = min(args.cut, len(rest), len(photos.queries))
    layouts = {"as the model has it": model.layout} | {x: read_layout(x) for x in FINER}
    rows = []
    for name, layout in layouts.items():
        progress(f"layout: {name}")
        table = Table(model, images, maps, layout)
        row: dict[str, Any] = {"layout": name, "regions": len(layout)}
        row["bytes"] = len(layout) * fine.shape[-1]
        row["things"] = by_things(table, things, boxes)
        if model.words is not None:
            own = dataset.labels[over] & ~dataset.labels[under]
            row["words"] = by_words(table, model, list(dataset.classes), own, boxes)
        row["queries"] = by_regions(photos, table, photos.queries[:cut], labels)
        if layout is model.layout:
            row["parts"] = by_parts(photos, table, rest[:cut], pasted + np.arange(cut))
        rows.append(row)
    settings = {
        "model": args.model, "data": dataset.name, "pasted": pasted, "cut": cut,
        "indexed": len(images), "sides": SIDES,
    }  # fmt: skip
    return record(settings, args.seed, rows)


def table(rows: list[Mapping[str, Any]]) -> str:
    """The record of a run as text."""
    lines = [
        f"{'layout':24}{'regions':>8}{'bytes':>7} |{'thing first':>12}{'in ten':>8}{'fine':>7}"
        f"{'in ten':>8}{'floats':>8}{'in ten':>8} |{'inside':>7}{'chance':>8}"
        f"{'best part':>10}{'chance':>8} |"
        f"{'words':>7}{'chance':>8}{'best part':>10} |{'P@10':>6}{'region':>8}{'cut out':>8}"
    ]
    for row in rows:
        best, fine, floats = (row["things"][rank] for rank in RANKS)
        words, asked = row.get("words") or dict.fromkeys(best, float("nan")), row["queries"]
        lines.append(
            f"{row['layout']:24}{row['regions']:8}{row['bytes']:7} |{best['first']:12.3f}"
            f"{best['in_ten']:8.3f}{fine['first']:7.3f}{fine['in_ten']:8.3f}"
            f"{floats['first']:8.3f}{floats['in_ten']:8.3f} |"
            f"{fine['inside']:7.3f}{fine['inside_by_chance']:8.3f}{fine['best_part']:10.3f}"
            f"{fine['best_part_by_chance']:8.3f} |{words['inside']:7.3f}"
            f"{words['inside_by_chance']:8.3f}{words['best_part']:10.3f} |{asked['whole']:6.3f}"
            f"{asked['region']:8.3f}{asked['cut_out']:8.3f}"
        )
    for rank, found in rows[0]["parts"].items():
        lines.append(
            f"parts cut out of indexed images, {rank}: first {found['first']:.3f}, in ten "
            f"{found['in_ten']:.3f}, names the part {found['names_the_part']:.3f}"
        )
    return "\n".join(lines)


def main() -> None:
    p = script(__doc__)
    p.add_argument("--data", required=True, help="the data set, as for `mch train --data`")
    p.add_argument("--model", default="coco-64", help="%(default)s")
    p.add_argument("--pasted", type=int, default=PASTED, help="%(default)s")
    p.add_argument("--cut", type=int, default=CUT, help="images cut into parts (%(default)s)")
    p.add_argument("--seed", type=int, default=0, help="%(default)s")
    p.add_argument("--cache", type=Path, default=default_cache(), help="features (%(default)s)")
    p.add_argument("--json", type=Path, default=RESULTS / "regions.json", help="%(default)s")
    args = p.parse_args()
    content = run(args)
    print(table(content["rows"]))
    write_json(args.json, content)


if __name__ == "__main__":
    main()
