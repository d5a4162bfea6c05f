"""The paper's studies of one cell's codes: sensitivity to sigma and xi, and distances of pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from common import progress
from mchindex.evaluation import evaluate
from mchindex.evaluation.curves import default_budgets
from mchindex.inference.region_codes import Encoded, Packed, RegionCodes
from mchindex.models import MCHModel
from mchindex.training.features import Fixed
from mchindex.training.measure import Coded, as_codes, kept_by
from paper.records import Curve, PairGroup, Pairs, Sensitivity, TwoClasses
from paper.runs import Data, RunError
from paper.statements import MOST

SIGMAS = (0.1, 0.3, 0.4, 0.5, 0.6, 0.7, 0.9, 1.0)  # at 1 every region is the whole image
XIS = (0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
Flags = NDArray[np.bool_]


def choose_classes(
    names: Sequence[str], labels: Flags, asked: Sequence[str]
) -> tuple[list[str], str]:
    """Two classes whose queries are studied separately, and the rule they were chosen by."""
    if unknown := [name for name in asked if name not in names]:
        raise RunError(f"the data has no class {', '.join(unknown)}: see --classes")
    if asked:
        return list(asked), "as requested"
    if {"airplane", "bird"} <= set(names):
        return ["airplane", "bird"], "the same as in the paper"
    share = labels.mean(0)
    order = sorted(range(len(names)), key=lambda c: (abs(float(share[c]) - 0.05), c))
    return [names[c] for c in order[:2]], "the two that are closest to 5% of the queries"


# Sensitivity


def _curves(
    coded: Coded, chosen: Encoded, labels: Flags, groups: Mapping[str, Flags], threads: int
) -> dict[str, Curve]:
    """F1 by buckets for each group of queries."""
    codes = as_codes(chosen)
    budgets = [b for b in default_budgets(8 * coded.queries.shape[1]) if b <= MOST]
    curves = {}
    for name, which in groups.items():
        queries, wanted = coded.queries[which], coded.query_labels[which]
        result = evaluate(queries, codes, wanted, labels, ks=[1], budgets=budgets, threads=threads)
        curves[name] = [(b, f1) for b, f1, *_ in result.f1_buckets]
    return curves


def answerable(groups: Mapping[str, Flags], wanted: Flags, labels: Flags) -> dict[str, Flags]:
    """The groups in which some query has a similar image; F1 of the others means nothing."""
    able = similar(wanted, labels).any(1)
    if not able.any():
        raise RunError("no query has a similar image in the part of the sigma study: see --part")
    return {name: which for name, which in groups.items() if (which & able).any()}


def sensitivity(data: Data, model: MCHModel, coded: Coded) -> Sensitivity:
    """F1 by buckets and codes per image, by sigma (on part of the database) and by xi."""
    options = data.options
    names, rule = choose_classes(coded.classes, coded.query_labels, options.classes)
    groups = {"all": np.ones(len(coded.queries), bool)}
    groups |= {name: coded.query_labels[:, coded.classes.index(name)] for name in names}
    n = len(coded.labels)
    rows = np.unique(np.linspace(0, n - 1, min(options.part, n)).round().astype(np.int64))
    labels, counts = coded.labels[rows], {name: int(groups[name].sum()) for name in names}
    groups = answerable(groups, coded.query_labels, labels)
    by_xi, by_sigma, xi_anhc, anhc, raw = {}, {}, {}, {}, {}
    for xi in XIS:
        chosen = coded.database.chosen(coded.database.kept(xi))
        by_xi[f"{xi:g}"] = _curves(coded, chosen, coded.labels, groups, options.workers)
        xi_anhc[f"{xi:g}"] = len(chosen) / n
        progress(f"sensitivity: xi {xi:g}")
    for value in SIGMAS:
        of, sigma = replace(model, sigma=value), f"{value:g}"
        if value == options.sigma:
            features = data.database[rows]
        elif value == 1:
            features = np.repeat(data.database[rows][:, :1], len(of.layout), 1)
        else:
            features = data.features("database", Fixed(of.layout), rows)
        found = of.regions_of(features)
        by = {f"{xi:g}": found.chosen(found.kept(xi)) for xi in XIS}
        by_sigma[sigma] = _curves(coded, by[f"{model.xi:g}"], labels, groups, options.workers)
        anhc[sigma] = {xi: len(c) / len(rows) for xi, c in by.items()}
        raw[sigma] = {xi: float(c.kept.mean()) for xi, c in by.items()}
        progress(f"sensitivity: sigma {sigma}, {anhc[sigma]['0.5']:.3f} codes per image")
    sigma_curves, xi_curves = (
        {group: {value: of[group] for value, of in curves.items()} for group in groups}
        for curves in (by_sigma, by_xi)
    )
    sizes = len(coded.queries), n, len(rows)
    return Sensitivity(counts, rule, *sizes, sigma_curves, xi_curves, anhc, raw, xi_anhc)


# Pairs of a query and an image


def distances(
    queries: Packed, found: RegionCodes, kept: Flags, block: int = 64
) -> tuple[NDArray[np.int16], NDArray[np.uint8]]:
    """(q, n): the distance to each image's nearest kept region, and the number of that region, the
    first of several at the same distance."""
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


def similar(wanted: Flags, labels: Flags) -> Flags:
    """(q, n): which images share a class with which query."""
    return np.asarray(wanted.astype(np.float32) @ labels.T.astype(np.float32) > 0)


def pairs(data: Data, model: MCHModel, coded: Coded, block: int = 2048) -> Pairs:
    """Distances of similar and other pairs under X and MCH-X, by the image's number of classes, and
    the images that queries of different classes find in their buckets.

    Takes `block` images at a time, because a table of all pairs would be large.
    """
    classes, _ = choose_classes(coded.classes, coded.query_labels, data.options.classes)
    n = len(coded.labels)
    many = np.minimum(coded.labels.sum(1), 4)
    ways = {way: kept_by(way, coded.database, model.xi) for way in ("base", "mch")}
    # By kind, way and number of classes: pairs, sum of distances, pairs at distance 0.
    tally = {kind: np.zeros((3, 2, 5)) for kind in ("similar", "other")}
    no_common_class = (~similar(coded.query_labels, coded.query_labels)).astype(np.float32)
    other_code = (coded.queries[:, None] != coded.queries[None]).any(-1)
    two = {"base": 0, "mch": 0, "mch_buckets": 0}
    several = coded.database.distinct(ways["mch"]).sum(1) > 1
    both = None
    if len(classes) > 1:
        a, b = (coded.classes.index(name) for name in classes[:2])
        shown = coded.labels[:, a] & coded.labels[:, b]
        queries = coded.query_labels
        only = (queries[:, a] & ~queries[:, b], queries[:, b] & ~queries[:, a])
        count, found = int((several & shown).sum()), {"base": 0, "mch": 0}
        both = TwoClasses(classes[:2], int(shown.sum()), count, found)
    for start in range(0, n, block):
        images = slice(start, start + block)
        regions = RegionCodes(coded.database.codes[images], coded.database.keep[images])
        alike = similar(coded.query_labels, coded.labels[images])
        for w, (way, kept) in enumerate(ways.items()):
            apart, _ = distances(coded.queries, regions, kept[images])
            for kind, which in (("similar", alike), ("other", ~alike)):
                for g in range(5):
                    mine = apart[which & (many[images] == g)]
                    tally[kind][:, w, g] += [len(mine), int(mine.sum()), int((mine == 0).sum())]
            hits = alike & (apart == 0)
            two[way] += _found_by_two(hits, no_common_class)
            if way == "mch":
                two["mch_buckets"] += _found_by_two(hits, no_common_class * other_code)
            if both:
                one, other = (hits[which].any(0) for which in only)
                both.found[way] += int((one & other & shown[images]).sum())

    def group(kind: str, *which: int) -> PairGroup | None:
        count, apart, at0 = tally[kind][..., list(which)].sum(-1)
        if not count[0]:
            return None
        return PairGroup(int(count[0]), *map(float, (*(apart / count), *(at0 / count))))

    return Pairs(
        by_classes={str(g): group("similar", g) for g in (1, 2, 3, 4)},
        similar=group("similar", *range(5)),
        other=group("other", *range(5)),
        several_codes=float(several.mean()),
        by_two=two,
        images=n,
        both=both,
    )


def _found_by_two(hits: Flags, allowed: NDArray[np.float32]) -> int:
    """The number of images that are hits of two queries whose pair is `allowed` (1, else 0)."""
    flags = hits.astype(np.float32)
    return int((((allowed @ flags) * flags).sum(0) > 0).sum())
