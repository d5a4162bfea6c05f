"""The paper's studies on codes that a cell left behind: sensitivity to sigma and xi, and pairs.

Each returns plain numbers for the report.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cells import Data, Kept, RunError
from common import progress
from mchindex.evaluation import evaluate
from mchindex.evaluation.curves import default_budgets
from mchindex.models import MCHModel
from mchindex.models.hashing import Packed
from mchindex.models.region_codes import RegionCodes
from mchindex.regions import Boxes, Layout, corners_and_centre
from mchindex.training.features import FeatureCache
from mchindex.training.measure import Coded, as_codes, kept_by

SIGMAS = (0.1, 0.3, 0.4, 0.5, 0.6, 0.7, 0.9, 1.0)  # at 1 every region is the whole image: the base
XI = 0.5
XIS = (0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
MOST_BUCKETS = 10**6  # where curves of the sensitivity study end

Flags = NDArray[np.bool_]


def coded_of(kept: Kept, data: Data) -> Coded:
    """A cell's codes with the labels of the data."""
    return Coded(
        kept.queries,
        kept.database,
        data.labels("query"),
        data.labels("database"),
        data.dataset.classes,
        {},
    )


def choose_classes(
    names: Sequence[str], labels: Flags, asked: Sequence[str]
) -> tuple[list[str], str]:
    """Two classes whose queries are looked at apart, and the rule they were chosen by."""
    if unknown := [name for name in asked if name not in names]:
        raise RunError(f"the data has no class {', '.join(unknown)}: see --classes")
    if asked:
        return list(asked), "as asked for"
    if {"airplane", "bird"} <= set(names):
        return ["airplane", "bird"], "the paper's two"
    share = labels.mean(0)
    order = sorted(range(len(names)), key=lambda c: (abs(float(share[c]) - 0.05), c))
    rule = "the two whose share of the queries is nearest to 5 %"
    return [names[c] for c in order[:2]], rule


# Sensitivity


@dataclass(frozen=True)
class Parts:
    """The regions of a layout without the whole image, whose features are at hand already."""

    layout: Layout

    @property
    def about(self) -> str:
        return f"parts {self.layout.boxes[1:]}"

    def boxes(self, key: bytes) -> Boxes:
        return self.layout.array()[1:]


def _curves(
    coded: Coded,
    found: RegionCodes,
    labels: Flags,
    xi: float,
    groups: Mapping[str, Flags],
    threads: int,
) -> dict[str, list[list[float]]]:
    """F1 by buckets for each group of queries."""
    codes = as_codes(found.chosen(kept_by("mch", found, xi)))
    budgets = [b for b in default_budgets(8 * coded.queries.shape[1]) if b <= MOST_BUCKETS]
    return {
        name: evaluate(
            coded.queries[which],
            codes,
            coded.query_labels[which],
            labels,
            ks=[1],
            budgets=budgets,
            threads=threads,
        ).f1_buckets
        for name, which in groups.items()
    }


def answerable(groups: Mapping[str, Flags], wanted: Flags, labels: Flags) -> dict[str, Flags]:
    """The groups of queries with a similar image among these: of the others F1 says nothing."""
    able = alike(wanted, labels).any(1)
    if not able.any():
        raise RunError("no query has a similar image in the sigma study's part: see --part")
    return {name: which for name, which in groups.items() if (which & able).any()}


def sensitivity(
    kept: Kept, data: Data, args: argparse.Namespace, classes: Sequence[str], threads: int
) -> dict[str, Any]:
    """F1 by buckets and codes an image, by sigma (on a part of the database) and by xi."""
    coded = coded_of(kept, data)
    names, rule = choose_classes(coded.classes, coded.query_labels, classes)
    groups = {"all": np.ones(len(coded.queries), bool)}
    groups |= {name: coded.query_labels[:, coded.classes.index(name)] for name in names}
    counts = {name: int(groups[name].sum()) for name in names}
    n = len(coded.labels)
    rows = np.unique(np.linspace(0, n - 1, min(args.part, n)).round().astype(np.int64))
    groups = answerable(groups, coded.query_labels, coded.labels[rows])
    xi_curves: dict[str, dict[str, Any]] = {name: {} for name in groups}
    for xi in XIS:
        for name, curve in _curves(
            coded, coded.database, coded.labels, xi, groups, threads
        ).items():
            xi_curves[name][f"{xi:g}"] = curve
        progress(f"sensitivity: xi {xi:g}")

    whole = data.database[rows][:, :1]
    sigma_curves: dict[str, dict[str, Any]] = {name: {} for name in groups}
    anhc: dict[str, dict[str, float]] = {}
    raw: dict[str, dict[str, float]] = {}
    for sigma in SIGMAS:
        model = MCHModel(data.backbone, kept.method, kept.policy, sigma, mode=args.regions)
        if sigma == args.sigma:
            features = data.database[rows]
        elif sigma == 1:
            features = np.repeat(whole, len(model.layout), 1)
        else:
            images, wanted = data.dataset.images, Parts(corners_and_centre(sigma))
            store, these = FeatureCache(args.cache), data.dataset.splits["database"][rows]
            others = store.features(model.extractor, images, these, wanted)
            features = np.concatenate([whole, others], 1)
        found = model.regions_of(features)
        curves = _curves(coded, found, coded.labels[rows], XI, groups, threads)
        for name, curve in curves.items():
            sigma_curves[name][f"{sigma:g}"] = curve
        chosen = {xi: found.chosen(kept_by("mch", found, xi)) for xi in XIS}
        anhc[f"{sigma:g}"] = {f"{xi:g}": len(c) / len(rows) for xi, c in chosen.items()}
        raw[f"{sigma:g}"] = {f"{xi:g}": float(c.kept.mean()) for xi, c in chosen.items()}
        progress(f"sensitivity: sigma {sigma:g}, {anhc[f'{sigma:g}']['0.5']:.3f} codes an image")
    xi_anhc = {
        f"{xi:g}": len(coded.database.chosen(kept_by("mch", coded.database, xi))) / n for xi in XIS
    }
    return {
        "classes": counts,
        "rule": rule,
        "queries": len(coded.queries),
        "database": n,
        "part": len(rows),
        "sigma": sigma_curves,
        "xi": xi_curves,
        "anhc": anhc,
        "anhc_raw": raw,
        "xi_anhc": xi_anhc,
    }


# Pairs: what lies how near to what


def distances(
    queries: Packed, found: RegionCodes, kept: Flags, block: int = 64
) -> tuple[NDArray[np.int16], NDArray[np.uint8]]:
    """(q, n): the distance of each image's nearest kept region, and the number of the region, the
    first of equals."""
    shape = (len(queries), len(found.codes))
    least = np.full(shape, 8 * queries.shape[1] + 1, np.int16)
    region = np.zeros(shape, np.uint8)
    for number in range(found.codes.shape[1]):
        images = np.flatnonzero(kept[:, number])
        codes = found.codes[images, number]
        for start in range(0, len(queries), block):
            part = np.ix_(np.arange(start, min(start + block, len(queries))), images)
            apart = np.bitwise_count(queries[start : start + block, None] ^ codes[None])
            here = apart.sum(-1, dtype=np.int16)
            nearer = here < least[part]
            least[part] = np.where(nearer, here, least[part])
            region[part] = np.where(nearer, number, region[part])
    return least, region


def alike(wanted: Flags, labels: Flags) -> Flags:
    shared: Flags = wanted.astype(np.float32) @ labels.T.astype(np.float32) > 0
    return shared


def pairs(coded: Coded, xi: float, classes: Sequence[str], block: int = 2048) -> dict[str, Any]:
    """How far similar and other pairs lie apart under X and under MCH-X, by the number of classes
    of the database image, and which images queries of different classes find in their buckets.

    Some of the database's images at a time: a table of all pairs would be large.
    """
    n = len(coded.labels)
    many = np.minimum(coded.labels.sum(1), 4)
    ways = {way: kept_by(way, coded.database, xi) for way in ("base", "mch")}
    sums = {kind: np.zeros((2, 5)) for kind in ("similar", "other")}  # of distances
    counts = {kind: np.zeros(5) for kind in ("similar", "other")}
    at0 = {kind: np.zeros((2, 5)) for kind in ("similar", "other")}
    apart_labels = (~alike(coded.query_labels, coded.query_labels)).astype(np.float32)
    other_code = (coded.queries[:, None] != coded.queries[None]).any(-1)
    two = {"base": 0, "mch": 0, "mch_buckets": 0}
    both = Both(coded, classes[:2]) if len(classes) > 1 else None
    for start in range(0, n, block):
        images = slice(start, start + block)
        regions = RegionCodes(coded.database.codes[images], coded.database.keep[images])
        similar = alike(coded.query_labels, coded.labels[images])
        for w, (way, kept) in enumerate(ways.items()):
            apart, _ = distances(coded.queries, regions, kept[images])
            for kind, which in (("similar", similar), ("other", ~similar)):
                for g in range(5):
                    mine = which & (many[images] == g)
                    sums[kind][w, g] += apart[mine].sum()
                    at0[kind][w, g] += np.count_nonzero(apart[mine] == 0)
                    if w == 0:
                        counts[kind][g] += np.count_nonzero(mine)
            own = similar & (apart == 0)
            two[way] += _found_by_pairs(own, apart_labels)
            if way == "mch":
                two["mch_buckets"] += _found_by_pairs(own, apart_labels * other_code)
            if both:
                both.look(way, own, images)

    def line(kind: str, which: Sequence[int]) -> dict[str, Any] | None:
        total = counts[kind][list(which)].sum()
        if not total:
            return None
        mean = sums[kind][:, list(which)].sum(1) / total
        zero = at0[kind][:, list(which)].sum(1) / total
        names = ("distance", "distance_mch", "at0", "at0_mch")
        return {"pairs": int(total)} | dict(zip(names, map(float, (*mean, *zero)), strict=True))

    several = coded.database.distinct(ways["mch"]).sum(1) > 1
    return {
        "by_classes": {str(g): line("similar", [g]) for g in (1, 2, 3, 4)},
        "similar": line("similar", range(5)),
        "other": line("other", range(5)),
        "several_codes": float(several.mean()),
        "by_two": two,
        "images": n,
        "both": both.result(several) if both else None,
    }


def _found_by_pairs(own: Flags, allowed: NDArray[np.float32]) -> int:
    """Images in the own bucket of two queries, both similar to it, that make a pair which is
    `allowed` (1, else 0)."""
    flags = own.astype(np.float32)
    return int((((allowed @ flags) * flags).sum(0) > 0).sum())


class Both:
    """Images of two classes, and whether queries of the one and of the other find them."""

    def __init__(self, coded: Coded, classes: Sequence[str]) -> None:
        self.classes = list(classes)
        a, b = (coded.classes.index(name) for name in classes)
        self.images = coded.labels[:, a] & coded.labels[:, b]
        self.only = (
            coded.query_labels[:, a] & ~coded.query_labels[:, b],
            coded.query_labels[:, b] & ~coded.query_labels[:, a],
        )
        self.found = {"base": 0, "mch": 0}

    def look(self, way: str, own: Flags, images: slice) -> None:
        one, other = (own[only].any(0) for only in self.only)
        self.found[way] += int((one & other & self.images[images]).sum())

    def result(self, several: Flags) -> dict[str, Any]:
        return {
            "classes": self.classes,
            "images": int(self.images.sum()),
            "several": int((several & self.images).sum()),
            "found": self.found,
        }
