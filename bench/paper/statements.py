"""The tests of the paper's statements. statements.toml holds the quotes, and each test in words.

A statement's test is the function below with its name, or the one that it names as `judge`.
"""
# ruff: noqa: RUF001 - the Greek letters are meant

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from paper import records
from paper.figures import LABELS, UNSUPERVISED, every_pair
from paper.records import Curve, MCHRow, PairGroup, Pairs, Record, Row, Sensitivity, Timing

BUDGETS = (1, 10, 100, 1000)
REACHED = (1, 10, 100)  # buckets after which F1 of MCH-X is compared with X
SYMMETRIC = ("ksh", "hashnet", "dch", "mmhh")
MOST = 1e6  # buckets up to which mean F1 over a curve is taken
NEVER = math.inf
HOLDS, FAILS, UNKNOWN = "holds", "does not hold here", "cannot be judged"
LACKING = {"compared": "no cell with MCH was computed"}


class CannotJudge(Exception):  # noqa: N818 - an outcome rather than an error
    """The record lacks what the test needs. The message says what."""


@dataclass
class Judgement:
    passed: bool | Mapping[str, bool]  # by cell, width or method where the test is made on several
    evidence: str | Mapping[str, Any]  # or what statements.toml has in braces
    paper: str | None = None  # the same test on the paper's figures
    fails: Sequence[str] = ()


def statements(record: Record) -> list[records.Statement]:
    """All of them, in the paper's order."""
    entries = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
    classes = list(record.sensitivity.classes) if record.sensitivity else []
    one, two = (*classes, "the first class", "the second class")[:2]
    out = []
    for name, entry in entries.items():
        given = entry.get("with", {})
        try:
            if "why" in entry:
                raise CannotJudge(entry["why"])
            if not (part := getattr(record, of := entry["of"])):
                raise CannotJudge(LACKING.get(of, f"the study of {of} is missing"))
            found: Judgement = globals()[entry.get("judge", name)](part, **given)
            if found.passed == {}:
                raise CannotJudge("no such cell was computed")
            said, fails = verdict(found, entry.get("noun", "cells"))
        except CannotJudge as reason:
            found, said, fails = Judgement(False, str(reason)), UNKNOWN, []
        words = {"one": one, "two": two, **given}
        shown = {n: entry[n] for n in ("where", "quote", "figure", "constructed") if n in entry}
        test, evidence = entry.get("test", "").format(**words), found.evidence
        if not isinstance(evidence, str):
            evidence = entry["evidence"].format(**{**words, **evidence})
        judged = records.Statement(**shown, test=test, verdict=said, evidence=evidence)
        out.append(replace(judged, fails=fails, paper=found.paper))
    return out


def verdict(found: Judgement, noun: str) -> tuple[str, list[str]]:
    """The verdict in words, and where the test fails."""
    if isinstance(found.passed, Mapping):
        fails = [name for name, ok in found.passed.items() if not ok]
        number, of = len(found.passed) - len(fails), len(found.passed)
        part = f"holds in {number} of {of} {noun}" if number else FAILS
        return part if fails else HOLDS, fails
    return HOLDS if found.passed else FAILS, list(found.fails)


# Arithmetic


def buckets_for(curve: Curve, f1: float) -> float:
    """The number of buckets at which a curve first reaches an F1, or NEVER.

    Between its points the curve is taken to be straight on a log axis.
    """
    if curve[0][1] >= f1:
        return float(curve[0][0])
    for (b0, y0), (b1, y1) in pairwise(curve):
        if y1 >= f1:
            share = (f1 - y0) / (y1 - y0)
            return float(math.exp(math.log(b0) + share * (math.log(b1) - math.log(b0))))
    return NEVER


def bucket_ratios(row: MCHRow) -> dict[int, float]:
    """How many times MCH-X's buckets X needs for the same F1, by MCH-X's buckets."""
    reached = dict(row.mch.f1_buckets)
    return {b: buckets_for(row.base.f1_buckets, reached[b]) / b for b in REACHED if b in reached}


def at_least(ratios: Collection[float], factor: float) -> bool:
    """Whether the geometric mean reaches a factor. NEVER counts only if there is nothing else."""
    known = [ratio for ratio in ratios if ratio < NEVER]
    return geometric(known) >= factor if known else bool(ratios)


def area(curve: Curve) -> float:
    """Mean F1 over the points of a curve, which are evenly spaced on a log axis."""
    return float(np.mean([f for b, f in curve if b <= MOST]))


def spread(curves: Sequence[Curve]) -> float:
    """The largest relative difference in F1 between curves, over BUDGETS."""
    worst = 0.0
    for b in BUDGETS:
        values = [points[b] for points in map(dict, curves) if b in points]
        if values and max(values) > 0:
            worst = max(worst, (max(values) - min(values)) / max(values))
    return worst


def spearman(x: Sequence[float], y: Sequence[float]) -> float:
    """Rank correlation; equal values share their mean rank, and a constant side gives 0."""
    a, b = (np.array([(v < u).sum() + ((v == u).sum() - 1) / 2 for u in v])
            for v in (np.asarray(x), np.asarray(y)))  # fmt: skip
    return 0.0 if a.std() == 0 or b.std() == 0 else float(np.corrcoef(a, b)[0, 1])


def geometric(values: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(np.maximum(values, 1e-9)))))


# Words for the evidence


def named(row: Row | records.StepCell) -> str:
    return f"{LABELS[row.method]}-{row.bits}"


def in_paper(figure: str, ok: Callable[[float, float], bool]) -> str:
    """The test on every cell that the paper prints, over its three data sets."""
    cells = {name: ok(x, mch) for name, x, mch in every_pair(figure)}
    failed = [name for name, passed in cells.items() if not passed]
    text = f"{len(cells) - len(failed)} of {len(cells)} cells"
    return text + (f" (not: {', '.join(failed)})" if failed else "")


def ratio_words(cells: Sequence[MCHRow], name: str) -> str:
    ratios = {named(r): getattr(r.mch, name) / max(getattr(r.base, name), 1e-9) for r in cells}
    least, most = min(ratios, key=ratios.__getitem__), max(ratios, key=ratios.__getitem__)
    return (
        f"{geometric(list(ratios.values())):.2f} times as high (geometric mean), from "
        f"{ratios[least]:.2f} ({least}) to {ratios[most]:.2f} ({most})"
    )


def change_words(cells: Sequence[MCHRow], name: str) -> str:
    both = [(getattr(r.base, name), getattr(r.mch, name)) for r in cells]
    change = [m - x for x, m in both if x is not None and m is not None]
    if not change:
        return "not defined"
    return f"{np.mean(change):+.4f} on average, from {min(change):+.4f} to {max(change):+.4f}"


def bucket_words(cells: Sequence[MCHRow]) -> str:
    parts = []
    for b in REACHED:
        found = [ratios[b] for r in cells if b in (ratios := bucket_ratios(r))]
        values = [v for v in found if v < NEVER]
        if found:
            never = len(found) - len(values)
            text = f"{geometric(values):.3g} times as many" if values else "more"
            lacks = f" ({never} of {len(found)} cells never reach it)" if never else ""
            parts.append(f"{text} for its F1 after {b:,}{lacks}")
    return f"buckets that X needs compared with MCH-X, geometric mean: {'; '.join(parts)}"


# Abstract and introduction


def simple_and_complex(pairs: Pairs) -> tuple[PairGroup, PairGroup]:
    """Similar pairs whose image has one class, and those whose image has three or more."""
    simple = pairs.by_classes.get("1")
    rich = [group for g in ("3", "4") if (group := pairs.by_classes.get(g))]
    if simple is None or not rich:
        raise CannotJudge("there are no images of one class or none of several classes")
    total = sum(g.pairs for g in rich)
    mean = {name: sum(g.pairs * getattr(g, name) for g in rich) / total
            for name in ("distance", "distance_mch", "at0", "at0_mch")}  # fmt: skip
    return simple, PairGroup(total, **mean)


def complex(pairs: Pairs) -> Judgement:
    simple, rich = simple_and_complex(pairs)
    return Judgement(rich.at0 < simple.at0, {"rich": rich, "simple": simple})


def many_buckets(cells: Sequence[MCHRow]) -> Judgement:
    curves = {named(r): r.base.f1_buckets for r in cells}
    needs = {n: buckets_for(c, 0.9 * max(f for _, f in c)) for n, c in curves.items()}
    median = np.median(list(needs.values()))
    return Judgement({name: n >= 100 for name, n in needs.items()}, {"median": median})


def significant(cells: Sequence[MCHRow]) -> Judgement:
    gains = {named(r): (r.mch.f1_own - r.base.f1_own, r.mch.f1_own_gain_se or 0) for r in cells}
    passed = {name: gain > max(2 * error, 0) for name, (gain, error) in gains.items()}
    return Judgement(passed, ratio_words(cells, "f1_own"))


def exponential(rows: Sequence[Row]) -> Judgement:
    widths = sorted({r.bits for r in rows})
    growth = {q: [sum(math.comb(q, i) for i in range(r + 1)) for r in range(4)] for q in widths}
    passed = {f"{q} bits": all(b >= 4 * a for a, b in pairwise(g)) for q, g in growth.items()}
    text = "; ".join(f"{q} bits: {', '.join(f'{n:,}' for n in g)}" for q, g in growth.items())
    return Judgement(passed, f"{text}; true by construction")


def nearer(pairs: Pairs) -> Judgement:
    similar, other = pairs.similar, pairs.other
    if similar is None or other is None:
        raise CannotJudge("all pairs are similar, or none is")
    less, others = (1 - g.distance_mch / max(g.distance, 1e-9) for g in (similar, other))
    return Judgement(less > others, {"less": less, "others": others, "similar": similar})


def regions(cells: Sequence[MCHRow]) -> Judgement:
    passed, parts = dict.fromkeys(map(named, cells), True), []
    for way, name in (("base", "X"), ("random_keep", "random regions")):
        gains = [(r.mch.f1_own - getattr(r, way).f1_own, r.mch.map - getattr(r, way).map)
                 for r in cells]  # fmt: skip
        for cell, gain in zip(passed, gains, strict=True):
            passed[cell] &= min(gain) > 0
        f1, ap = np.mean(gains, axis=0)
        parts.append(f"compared with {name}: F1 {f1:+.4f}, mAP {ap:+.4f}")
    return Judgement(passed, f"{'; '.join(parts)}, on average")


def integration(cells: Sequence[MCHRow]) -> Judgement:
    gains: dict[str, list[float]] = {}
    for r in cells:
        gains.setdefault(LABELS[r.method], []).append(r.mch.f1_own - r.random_keep.f1_own)
    means = {method: float(np.mean(values)) for method, values in gains.items()}
    text = ", ".join(f"{m} {v:+.4f}" for m, v in means.items())
    return Judgement({m: v > 0 for m, v in means.items()}, text)


# Search time


def timed(one: records.TimeCurve | records.BucketTime) -> str:
    method, bits = one.cell.split("-")
    return f"{'MCH-' if one.way == 'mch' else ''}{LABELS[method]}-{bits}"


def practical(time: Timing) -> Judgement:
    micro = {(c.engine, timed(c), p.k): max(p.microseconds, 1e-9)
             for c in time.curves for p in c.points if p.k <= 1000}  # fmt: skip
    flat = {(name, k): value for (engine, name, k), value in micro.items() if engine == "faiss"}
    if not flat:
        raise CannotJudge("; ".join(time.missing) or "FAISS was not timed")
    words: dict[str, Any] = {"points": len(flat)}
    for engine in ("auto", "probe"):
        # By cell: how many times as fast as FAISS, at each K that both have.
        faster: dict[str, list[float]] = {name: [] for name, _ in flat}
        for (name, k), theirs in flat.items():
            faster[name] += [theirs / micro[engine, name, k]] if (engine, name, k) in micro else []
        means = [geometric(ratios) for ratios in faster.values() if ratios]
        text = f"{geometric(means):.2f} times as fast, geometric mean" if means else "no point"
        words[engine] = text
    words["left"] = len(flat) - sum(map(len, faster.values()))
    wanted = [name for name, _ in flat]
    passed = {n: len(r) == wanted.count(n) and min(r) > 1 for n, r in faster.items()}
    return Judgement(passed, words)


def constant_time(time: Timing) -> Judgement:
    by: dict[str, list[float]] = {}
    for one in sorted(time.own_bucket, key=lambda one: one.images):
        by.setdefault(timed(one), []).append(one.microseconds)
    if not by:
        raise CannotJudge("nothing was timed")
    low, high = (geometric([v[i] for v in by.values()]) for i in (0, -1))
    passed = {name: v[-1] <= 2 * v[0] for name, v in by.items()}
    return Judgement(passed, {"low": low, "high": high})


def advantages(time: Timing) -> list[records.Advantage]:
    """For each F1 that MCH-X has at some K: how many times its buckets and its time X needs to
    reach it, as geometric means over the K at which X does."""
    out = []
    curves = {(c.cell, c.engine, c.way): c.points for c in time.curves}
    for (cell, engine, way), points in curves.items():
        base = curves.get((cell, engine, "base"), [])
        shared = [p for p in points if base and base[0].f1 < p.f1 <= max(q.f1 for q in base)]
        if way == "base" or not shared:
            continue
        times = []
        for axis in ("buckets", "microseconds"):
            curve = [(max(getattr(q, axis), 1e-9), q.f1) for q in base]
            ours = [(max(getattr(p, axis), 1e-9), p.f1) for p in shared]
            times.append(geometric([buckets_for(curve, f1) / x for x, f1 in ours]))
        out.append(records.Advantage(cell, engine, len(shared), *times))
    return out


# Accuracy


def compare(cells: Sequence[MCHRow], figure: str, factor: float = 1, slack: float = 0) -> Judgement:
    """MCH-X is higher than X; or at least `factor` times as high, or at most `slack` lower."""

    def ok(x: float, mch: float) -> bool:
        return mch > x if (factor, slack) == (1, 0) else mch >= factor * x - slack

    passed = {named(r): ok(getattr(r.base, figure), getattr(r.mch, figure)) for r in cells}
    change, ratio = change_words(cells, figure), ratio_words(cells, figure)
    words = {"change": change, "ratio": ratio, "answered": change_words(cells, "p0_nonempty")}
    return Judgement(passed, words, in_paper(figure, ok))


def more_found(cells: Sequence[MCHRow]) -> Judgement:
    passed = {named(r): r.mch.r0 > r.base.r0 and r.mch.f1_own > r.base.f1_own for r in cells}
    paper = f"{in_paper('r0', lambda x, m: m > x)}, R@H=0 alone"
    return Judgement(passed, f"F1 {change_words(cells, 'f1_own')}", paper)


# F1-bucket curves


def fewer_buckets(rows: Sequence[MCHRow], factor: float, method: str | None = None) -> Judgement:
    cells = [r for r in rows if method in (None, r.method)]
    passed = {named(r): at_least(bucket_ratios(r).values(), factor) for r in cells}
    return Judgement(passed, bucket_words(cells))


def above_unsupervised(rows: Sequence[Row], method: str | None = None) -> Judgement:
    best: dict[int, float] = {}
    for r in rows:
        if r.method in UNSUPERVISED:
            best[r.bits] = max(best.get(r.bits, 0.0), area(r.base.f1_buckets))
    cells = [r for r in rows if isinstance(r, MCHRow) and method in (None, r.method)]
    areas = {named(r): (area(r.base.f1_buckets), best[r.bits]) for r in cells if r.bits in best}
    ours, theirs = np.mean(list(areas.values()) or [(0, 0)], axis=0)
    passed = {name: mine > other for name, (mine, other) in areas.items()}
    return Judgement(passed, {"ours": ours, "theirs": theirs})


def efficient_everywhere(cells: Sequence[MCHRow]) -> Judgement:
    passed = {}
    for r in cells:
        x, mch = dict(r.base.f1_buckets), dict(r.mch.f1_buckets)
        passed[named(r)] = all(mch.get(b, 0) > x.get(b, 0) for b in BUDGETS)
    return Judgement(passed, f"{change_words(cells, 'f1_own')}, after one bucket")


def asymmetric(rows: Sequence[Row]) -> Judgement:
    adsh = {r.bits: dict(r.base.f1_buckets) for r in rows if r.method == "adsh"}
    wins: dict[str, list[bool]] = {}
    for r in rows:
        if r.method in SYMMETRIC and r.bits in adsh:
            ours, other = adsh[r.bits], dict(r.base.f1_buckets)
            cases = [ours[b] > other[b] for b in BUDGETS if b in ours and b in other]
            wins[LABELS[r.method]] = wins.get(LABELS[r.method], []) + cases
    total = [win for cases in wins.values() for win in cases]
    if not total:
        raise CannotJudge("ADSH or all symmetric methods are missing")
    by = ", ".join(f"{m} {sum(v)} of {len(v)}" for m, v in wins.items())
    text = f"in {sum(total)} of {len(total)} cases: {by}"
    fails = [m for m, v in wins.items() if sum(v) <= len(v) / 2]
    return Judgement(sum(total) > len(total) / 2, text, fails=fails)


def distinct(rows: Sequence[Row], factor: float) -> Judgement:
    factors = {}
    for bits in sorted({r.bits for r in rows}):
        f1 = [r.base.f1_own for r in rows if r.bits == bits and r.method in SYMMETRIC]
        if len(f1) > 1:
            factors[f"{bits} bits"] = max(f1) / max(min(f1), 1e-9)
    if not factors:
        raise CannotJudge("fewer than two symmetric methods were computed")
    text = ", ".join(f"{f:.1f} times at {width}" for width, f in factors.items())
    return Judgement({width: f >= factor for width, f in factors.items()}, text)


# Visualization study


def complex_gain(pairs: Pairs) -> Judgement:
    simple, rich = simple_and_complex(pairs)
    if not simple.at0 or not rich.at0:
        raise CannotJudge("no similar pairs share a bucket under X")
    low, high = simple.at0_mch / simple.at0, rich.at0_mch / rich.at0
    return Judgement(high > low, {"low": low, "high": high, "simple": simple, "rich": rich})


def both_of(pairs: Pairs) -> records.TwoClasses:
    if pairs.both is None:
        raise CannotJudge("the data has fewer than two classes")
    return pairs.both


def both_classes(pairs: Pairs) -> Judgement:
    return Judgement(both_of(pairs).images > 0, {"images": both_of(pairs).images})


def several_buckets(pairs: Pairs) -> Judgement:
    both = both_of(pairs)
    if not both.images:
        raise CannotJudge("no image shows both classes")
    return Judgement(both.several > 0, {"both": both, "share": pairs.several_codes})


def two_categories(pairs: Pairs) -> Judgement:
    by, found = pairs.by_two, both_of(pairs).found
    more = by["mch"] > by["base"] and by["mch_buckets"] > 0
    return Judgement(more, {"by": by, "images": pairs.images, "found": found})


# Sensitivity


def curves_of(found: Sensitivity, by: str, group: int | None) -> dict[str, Curve]:
    """By sigma or xi: the curves of all queries, or of those of the first or second class."""
    name = "all" if group is None else [*found.classes, "", ""][group]
    curves: dict[str, dict[str, Curve]] = getattr(found, by)
    if name not in curves:
        raise CannotJudge(f"none of the queries with “{name}” has a similar image")
    return curves[name]


def steady(
    found: Sensitivity, by: str, values: Sequence[str], most: float, group: int | None = None
) -> Judgement:
    curves = curves_of(found, by, group)
    some = [curves[v] for v in values if v in curves]
    wide, best, start = spread(some), max(area(c) for c in some), area(curves["1"])
    gain = f"{best / start - 1:+.1%}" if start else f"{best:.4f}"
    return Judgement(wide <= most, {"wide": wide, "gain": gain})


def alike(found: Sensitivity, by: str, group: int, least: float) -> Judgement:
    every, some = (curves_of(found, by, of) for of in (None, group))
    values = [value for value in every if value != "1"]
    rank = spearman(*([area(curves[s]) for s in values] for curves in (every, some)))
    return Judgement(rank >= least, {"rank": rank, "values": ", ".join(values)})


def chosen(found: Sensitivity, most: float) -> Judgement:
    lacks, words = [], []
    for curves, sign in ((found.sigma, "σ"), (found.xi, "ξ")):
        areas = {v: area(c) for v, c in curves["all"].items()}
        best = max(areas, key=areas.__getitem__)
        lacks.append(1 - areas["0.5"] / areas[best] if areas[best] else 0.0)
        words.append(f"the best {sign} is {best}, and 0.5 is {lacks[-1]:.1%} below it")
    return Judgement(max(lacks) <= most, "; ".join(words))


def degenerate(found: Sensitivity) -> Judgement:
    values = list(found.anhc["1"].values())
    return Judgement(set(values) == {1}, {"low": min(values), "high": max(values)})


def more_codes(found: Sensitivity, least: float) -> Judgement:
    sigma, xi = found.sigma["all"], found.xi["all"]
    by_sigma = spearman([found.anhc[s]["0.5"] for s in sigma], [area(c) for c in sigma.values()])
    by_xi = spearman([found.xi_anhc[x] for x in xi], [area(c) for c in xi.values()])
    ranks = {"by_sigma": by_sigma, "by_xi": by_xi}
    return Judgement(min(ranks.values()) >= least, ranks)


def satisfactory(rows: Sequence[Row]) -> Judgement:
    recall = [r.base.r0 for r in rows if isinstance(r, MCHRow)]
    mean = f"; mean R@H=0 of X over all cells is {np.mean(recall):.3f}" if recall else ""
    raise CannotJudge(f"“satisfactory” names no measure{mean}")
