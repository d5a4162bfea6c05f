"""The tests of the paper's statements. statements.toml holds the quotes, and each test in words.

A test takes the record and returns a `Judgement`, or raises `CannotJudge` with the reason.
"""
# ruff: noqa: RUF001 - the Greek letters are meant

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np

from paper.figures import LABELS, UNSUPERVISED, every_pair
from paper.records import Advantage, Curve, MCHRow, PairGroup, Pairs, Record, Row, Sensitivity
from paper.records import Statement, TimeCurve, Timing

# Tolerances, as the words of the tests name them.
MUCH = 1.1  # "much better" recall
FEWER = 2.0  # "much more efficient": times fewer buckets at the same F1
GREATLY = 10.0  # "greatly reducing the number of hash buckets"
LARGE = 1.5  # "large distinctions"
SAME_P = 0.005  # P@H=0 that may be lost where it "will not" be reduced
SAME_MAP = 0.001
STEADY = 0.05  # "not sensitive"
GOOD = 0.02  # F1 of a chosen setting below the best
CORRELATED = 0.7  # Spearman's rank correlation
WORDS = {name: value for name, value in globals().items() if isinstance(value, float)}

BUDGETS = (1, 10, 100, 1000)
REACHED = (1, 10, 100)  # buckets after which F1 of MCH-X is compared with X
SYMMETRIC = ("ksh", "hashnet", "dch", "mmhh")
MOST = 1e6  # buckets up to which mean F1 over a curve is taken
HOLDS, FAILS, UNKNOWN = "holds", "does not hold here", "cannot be judged"


class CannotJudge(Exception):  # noqa: N818 - an outcome rather than an error
    """The record lacks what the test needs. The message says what."""


@dataclass
class Judgement:
    verdict: str
    evidence: str
    fails: list[str] = field(default_factory=list)
    paper: str | None = None


Test = Callable[[Record], Judgement]
Words = Callable[[Sequence[MCHRow], str], str]
TESTS: dict[str, Test] = {}


def test(judge: Test) -> Test:
    TESTS[judge.__name__] = judge
    return judge


def statements(record: Record) -> list[Statement]:
    """All of them, in the paper's order."""
    entries = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
    classes = list(record.sensitivity.classes) if record.sensitivity else []
    one, two = (*classes, "the first class", "the second class")[:2]
    words = {**WORDS, "one": one, "two": two}
    out = []
    for name, entry in entries.items():
        try:
            if "why" in entry:
                raise CannotJudge(entry["why"])
            found = TESTS[name](record)
        except CannotJudge as reason:
            found = Judgement(UNKNOWN, str(reason))
        said = entry.get("test", "").format(**words)
        out.append(
            Statement(
                entry["where"], entry["quote"], said, found.verdict, found.evidence,
                entry.get("figure", ""), found.fails, found.paper, "constructed" in entry,
            )
        )  # fmt: skip
    return out


# Arithmetic


def f1_at(curve: Curve, buckets: float) -> float | None:
    return next((float(f) for b, f in curve if b == buckets), None)


def buckets_for(curve: Curve, f1: float) -> float | None:
    """The number of buckets at which a curve first reaches an F1, None if it never does.

    Between its points the curve is taken to be straight on a log axis.
    """
    if curve[0][1] >= f1:
        return float(curve[0][0])
    for (b0, y0), (b1, y1) in pairwise(curve):
        if y1 >= f1:
            share = (f1 - y0) / (y1 - y0)
            return float(math.exp(math.log(b0) + share * (math.log(b1) - math.log(b0))))
    return None


def bucket_ratios(row: MCHRow) -> dict[int, float | None]:
    """How many times MCH-X's buckets X needs for the same F1, by MCH-X's; None: X never has it."""
    out: dict[int, float | None] = {}
    for b in REACHED:
        f1 = f1_at(row.mch.f1_buckets, b)
        if f1 is not None:
            needed = buckets_for(row.base.f1_buckets, f1)
            out[b] = None if needed is None else needed / b
    return out


def at_least(ratios: Iterable[float | None], factor: float) -> bool:
    """Whether the geometric mean reaches a factor. None counts only if there is nothing else."""
    every = list(ratios)
    logs = [math.log(r) for r in every if r is not None]
    return math.exp(sum(logs) / len(logs)) >= factor if logs else bool(every)


def area(curve: Curve) -> float:
    """Mean F1 over the points of a curve, which are evenly spaced on a log axis."""
    return float(np.mean([f for b, f in curve if b <= MOST]))


def spread(curves: Sequence[Curve]) -> float:
    """The largest relative difference in F1 between curves, over BUDGETS."""
    worst = 0.0
    for b in BUDGETS:
        values = [v for c in curves if (v := f1_at(c, b)) is not None]
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


# How tests are judged


def named(row: Row) -> str:
    return f"{LABELS[row.method]}-{row.bits}"


def judged(holds: bool, evidence: str, fails: Iterable[str] = ()) -> Judgement:
    return Judgement(HOLDS if holds else FAILS, evidence, list(fails))


def counted(
    passed: Mapping[str, bool], evidence: str, noun: str = "cells", paper: str | None = None
) -> Judgement:
    """Judges by how many of these pass; there is at least one."""
    fails = [name for name, ok in passed.items() if not ok]
    number = len(passed) - len(fails)
    part = f"holds in {number} of {len(passed)} {noun}" if number else FAILS
    return Judgement(part if fails else HOLDS, evidence, fails, paper)


def computed(record: Record, method: str | None = None) -> list[MCHRow]:
    """The rows with MCH, of one method or of all; there is at least one."""
    cells = [r for r in record.compared if method in (None, r.method)]
    if not cells:
        raise CannotJudge("no such cell was computed")
    return cells


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
        values = [v for v in found if v is not None]
        if found:
            never = len(found) - len(values)
            text = f"{geometric(values):.3g} times as many" if values else "more"
            parts.append(f"{text} for its F1 after {b:,}"
                         + (f" ({never} of {len(found)} cells never reach it)" if never else ""))  # fmt: skip
    return f"buckets that X needs compared with MCH-X, geometric mean: {'; '.join(parts)}"


# Abstract and introduction


def pairs_of(record: Record) -> Pairs:
    if record.pairs is None:
        raise CannotJudge("the study of pairs is missing")
    return record.pairs


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


@test
def complex(record: Record) -> Judgement:
    simple, rich = simple_and_complex(pairs_of(record))
    return judged(rich.at0 < simple.at0, f"{rich.at0:.1%} of the pairs against {simple.at0:.1%}")


@test
def many_buckets(record: Record) -> Judgement:
    needs = {
        named(r): buckets_for(r.base.f1_buckets, 0.9 * max(f for _, f in r.base.f1_buckets)) or 1
        for r in computed(record)
    }
    median = np.median(list(needs.values()))
    return counted({name: n >= 100 for name, n in needs.items()}, f"median: {median:,.0f} buckets")


@test
def significant(record: Record) -> Judgement:
    cells = computed(record)
    gains = {named(r): (r.mch.f1_own - r.base.f1_own, r.mch.f1_own_gain_se or 0) for r in cells}
    passed = {name: gain > max(2 * error, 0) for name, (gain, error) in gains.items()}
    return counted(passed, ratio_words(cells, "f1_own"))


@test
def exponential(record: Record) -> Judgement:
    widths = sorted({r.bits for r in record.rows})
    growth = {q: [sum(math.comb(q, i) for i in range(r + 1)) for r in range(4)] for q in widths}
    passed = {f"{q} bits": all(b >= 4 * a for a, b in pairwise(g)) for q, g in growth.items()}
    text = "; ".join(f"{q} bits: {', '.join(f'{n:,}' for n in g)}" for q, g in growth.items())
    return counted(passed, f"{text}; true by construction", "widths")


@test
def nearer(record: Record) -> Judgement:
    similar, other = pairs_of(record).similar, pairs_of(record).other
    if similar is None or other is None:
        raise CannotJudge("all pairs are similar, or none is")
    less, others = (1 - g.distance_mch / max(g.distance, 1e-9) for g in (similar, other))
    return judged(
        less > others,
        f"similar pairs are {less:.1%} nearer, others {others:.1%}; similar pairs are "
        f"{similar.distance:.2f} bits apart with X and {similar.distance_mch:.2f} with MCH-X, "
        "on average",
    )


@test
def regions(record: Record) -> Judgement:
    cells, passed, parts = computed(record), {}, []
    for r in cells:
        better = (getattr(r.mch, k) > max(getattr(r.base, k), getattr(r.random_keep, k))
                  for k in ("f1_own", "map"))  # fmt: skip
        passed[named(r)] = all(better)
    for way, name in (("base", "X"), ("random_keep", "random regions")):
        others = [(r.mch, getattr(r, way)) for r in cells]
        f1, ap = (np.mean([getattr(m, k) - getattr(o, k) for m, o in others])
                  for k in ("f1_own", "map"))  # fmt: skip
        parts.append(f"compared with {name}: F1 {f1:+.4f}, mAP {ap:+.4f}")
    return counted(passed, f"{'; '.join(parts)}, on average")


@test
def integration(record: Record) -> Judgement:
    gains: dict[str, list[float]] = {}
    for r in computed(record):
        gains.setdefault(LABELS[r.method], []).append(r.mch.f1_own - r.random_keep.f1_own)
    means = {method: float(np.mean(values)) for method, values in gains.items()}
    text = ", ".join(f"{m} {v:+.4f}" for m, v in means.items())
    return counted({m: v > 0 for m, v in means.items()}, text, "methods")


# Search time


def timing_of(record: Record) -> Timing:
    if record.time is None:
        raise CannotJudge("the study of search time is missing")
    return record.time


def timed_name(cell: str, way: str) -> str:
    method, bits = cell.split("-")
    return f"{'MCH-' if way == 'mch' else ''}{LABELS[method]}-{bits}"


@test
def practical(record: Record) -> Judgement:
    time = timing_of(record)
    by_engine: dict[str, dict[str, TimeCurve]] = {"faiss": {}, "probe": {}, "auto": {}}
    for c in time.curves:
        by_engine[c.engine][timed_name(c.cell, c.way)] = c
    flat = by_engine["faiss"]
    if not flat:
        raise CannotJudge("; ".join(time.missing) or "FAISS was not timed")

    def faster(engine: str, name: str) -> list[float]:
        """How many times as fast as FAISS, at each K up to 1,000 that both have."""
        theirs = {p.k: p.microseconds for p in flat[name].points if p.k <= 1000}
        curve = by_engine[engine].get(name)
        shared = [p for p in curve.points if p.k in theirs] if curve else []
        return [theirs[p.k] / max(p.microseconds, 1e-9) for p in shared]

    def times(engine: str) -> str:
        means = [geometric(ratios) for name in flat if (ratios := faster(engine, name))]
        return f"{geometric(means):.2f} times as fast, geometric mean" if means else "no point"

    asked = {name: sum(p.k <= 1000 for p in c.points) for name, c in flat.items()}
    left = {name: n - len(faster("probe", name)) for name, n in asked.items()}
    passed = {n: not left[n] and min(faster("probe", n), default=0) > 1 for n in flat}
    return counted(
        passed,
        f"{times('probe')}; {sum(left.values())} of {sum(asked.values())} points are left out "
        "because probing turned into a scan; with the engine's own choice (auto) "
        f"{times('auto')}",
    )


@test
def constant_time(record: Record) -> Judgement:
    by: dict[str, list[float]] = {}
    for one in sorted(timing_of(record).own_bucket, key=lambda o: o.images):
        by.setdefault(timed_name(one.cell, one.way), []).append(one.microseconds)
    if not by:
        raise CannotJudge("nothing was timed")
    low, high = (geometric([v[i] for v in by.values()]) for i in (0, -1))
    text = f"{low:.2f} µs with an eighth of the images, {high:.2f} µs with all"
    return counted({name: v[-1] <= 2 * v[0] for name, v in by.items()}, text)


def advantages(time: Timing) -> list[Advantage]:
    """For each F1 that MCH-X has at some K: how many times its buckets and its time X needs to
    reach it, as geometric means over the K at which X does."""
    out = []
    curves = {(c.cell, c.engine, c.way): c.points for c in time.curves}
    for (cell, engine, way), points in curves.items():
        base = curves.get((cell, engine, "base"))
        if way != "mch" or base is None:
            continue
        found = []
        for p in points:
            needed = [
                buckets_for([(max(getattr(q, axis), 1e-9), q.f1) for q in base], p.f1)
                for axis in ("buckets", "microseconds")
                if p.f1 > base[0].f1
            ]
            if needed and needed[0] is not None and needed[1] is not None:
                found.append((needed[0] / max(p.buckets, 1e-9),
                              needed[1] / max(p.microseconds, 1e-9)))  # fmt: skip
        if found:
            buckets, micro = (geometric(values) for values in zip(*found, strict=True))
            out.append(Advantage(cell, engine, len(found), buckets, micro))
    return out


# Accuracy: each test is made on our figures of X and MCH-X and on those that the paper prints.


def compare(figure: str, ok: Callable[[float, float], bool], words: Words | None = None) -> Test:
    def judge(record: Record) -> Judgement:
        cells = computed(record)
        passed = {named(r): ok(getattr(r.base, figure), getattr(r.mch, figure)) for r in cells}
        text = words(cells, figure) if words else change_words(cells, figure)
        return counted(passed, text, paper=in_paper(figure, ok))

    return judge


def precision_words(cells: Sequence[MCHRow], figure: str) -> str:
    answered = change_words(cells, "p0_nonempty")
    return f"{change_words(cells, figure)}; over the queries that find something {answered}"


TESTS["recall"] = compare("r0", lambda x, m: m >= MUCH * x, ratio_words)
TESTS["precision"] = compare("p0", lambda x, m: m > x, precision_words)
TESTS["precision_kept"] = compare("p0", lambda x, m: m >= x - SAME_P)
TESTS["mean_precision"] = compare("map", lambda x, m: m > x)
TESTS["mean_precision_kept"] = compare("map", lambda x, m: m >= x - SAME_MAP)


@test
def more_found(record: Record) -> Judgement:
    cells = computed(record)
    passed = {named(r): r.mch.r0 > r.base.r0 and r.mch.f1_own > r.base.f1_own for r in cells}
    paper = f"{in_paper('r0', lambda x, m: m > x)}, R@H=0 alone"
    return counted(passed, f"F1 {change_words(cells, 'f1_own')}", paper=paper)


# F1-bucket curves


def fewer_buckets(factor: float, method: str | None = None) -> Test:
    def judge(record: Record) -> Judgement:
        cells = computed(record, method)
        passed = {named(r): at_least(bucket_ratios(r).values(), factor) for r in cells}
        return counted(passed, bucket_words(cells))

    return judge


def above_unsupervised(method: str | None = None) -> Test:
    def judge(record: Record) -> Judgement:
        best: dict[int, float] = {}
        for r in record.rows:
            if r.method in UNSUPERVISED:
                best[r.bits] = max(best.get(r.bits, 0.0), area(r.base.f1_buckets))
        cells = [r for r in computed(record, method) if r.bits in best]
        if not cells:
            raise CannotJudge("no unsupervised method was computed")
        areas = {named(r): (area(r.base.f1_buckets), best[r.bits]) for r in cells}
        ours, theirs = np.mean(list(areas.values()), axis=0)
        text = f"mean F1 {ours:.3f}, against {theirs:.3f} of the best unsupervised method"
        return counted({name: mine > other for name, (mine, other) in areas.items()}, text)

    return judge


TESTS["efficient"] = fewer_buckets(FEWER)
TESTS["efficient_ksh"] = fewer_buckets(GREATLY, "ksh")
TESTS["best_shallow"] = above_unsupervised("ksh")
TESTS["supervised"] = above_unsupervised()


@test
def efficient_everywhere(record: Record) -> Judgement:
    cells = computed(record)
    passed = {
        named(r): all(
            (f1_at(r.mch.f1_buckets, b) or 0) > (f1_at(r.base.f1_buckets, b) or 0) for b in BUDGETS
        )
        for r in cells
    }
    return counted(passed, f"{change_words(cells, 'f1_own')}, after one bucket")


@test
def asymmetric(record: Record) -> Judgement:
    adsh = {r.bits: r.base.f1_buckets for r in record.rows if r.method == "adsh"}
    wins: dict[str, list[bool]] = {}
    for r in record.rows:
        if r.method in SYMMETRIC and r.bits in adsh:
            for b in BUDGETS:
                ours, other = f1_at(adsh[r.bits], b), f1_at(r.base.f1_buckets, b)
                if ours is not None and other is not None:
                    wins.setdefault(LABELS[r.method], []).append(ours > other)
    total = [win for each_ in wins.values() for win in each_]
    if not total:
        raise CannotJudge("ADSH or all symmetric methods are missing")
    by = ", ".join(f"{m} {sum(v)} of {len(v)}" for m, v in wins.items())
    return judged(
        sum(total) > len(total) / 2,
        f"in {sum(total)} of {len(total)} cases: {by}",
        (m for m, v in wins.items() if sum(v) <= len(v) / 2),
    )


@test
def distinct(record: Record) -> Judgement:
    factors = {}
    for bits in sorted({r.bits for r in record.rows}):
        f1 = [r.base.f1_own for r in record.rows if r.bits == bits and r.method in SYMMETRIC]
        if len(f1) > 1:
            factors[f"{bits} bits"] = max(f1) / max(min(f1), 1e-9)
    if not factors:
        raise CannotJudge("fewer than two symmetric methods were computed")
    text = ", ".join(f"{f:.1f} times at {width}" for width, f in factors.items())
    return counted({width: f >= LARGE for width, f in factors.items()}, text, "widths")


# Visualization study


@test
def complex_gain(record: Record) -> Judgement:
    simple, rich = simple_and_complex(pairs_of(record))
    if not simple.at0 or not rich.at0:
        raise CannotJudge("no similar pairs share a bucket under X")
    low, high = simple.at0_mch / simple.at0, rich.at0_mch / rich.at0
    return judged(
        high > low,
        f"{rich.at0:.2%} to {rich.at0_mch:.2%} ({high:.3f} times) against {simple.at0:.2%} to "
        f"{simple.at0_mch:.2%} ({low:.3f} times)",
    )


@test
def both_classes(record: Record) -> Judgement:
    both = pairs_of(record).both
    if both is None:
        raise CannotJudge("the data has fewer than two classes")
    return judged(both.images > 0, f"images that show both: {both.images:,}")


@test
def several_buckets(record: Record) -> Judgement:
    pairs, both = pairs_of(record), pairs_of(record).both
    if both is None or not both.images:
        raise CannotJudge("no image shows both classes")
    share = f"{pairs.several_codes:.1%} of all images are in several buckets"
    return judged(both.several > 0, f"{both.several:,} of {both.images:,}; {share}")


@test
def two_categories(record: Record) -> Judgement:
    pairs, both = pairs_of(record), pairs_of(record).both
    two = pairs.by_two
    text = (
        f"{two['base']:,} of {pairs.images:,} images with X, {two['mch']:,} with MCH-X, "
        f"{two['mch_buckets']:,} of them in different buckets"
    )
    if both is not None:
        text += (
            f"; of the images that show {' and '.join(both.classes)}, {both.found['base']:,} with "
            f"X and {both.found['mch']:,} with MCH-X"
        )
    return judged(two["mch"] > two["base"] and two["mch_buckets"] > 0, text)


# Sensitivity


def sensitivity_of(record: Record) -> Sensitivity:
    if record.sensitivity is None:
        raise CannotJudge("the study of sensitivity is missing")
    return record.sensitivity


def curves_of(found: Sensitivity, of: str, group: int | None) -> dict[str, Curve]:
    """By sigma or xi: the curves of all queries, or of those of the first or second class."""
    name = "all" if group is None else [*found.classes, "", ""][group]
    curves: dict[str, dict[str, Curve]] = getattr(found, of)
    if name not in curves:
        raise CannotJudge(f"none of the queries with “{name}” has a similar image")
    return curves[name]


def steady(of: str, group: int | None, values: Sequence[str], base: str) -> Test:
    def judge(record: Record) -> Judgement:
        curves = curves_of(sensitivity_of(record), of, group)
        some = [curves[v] for v in values if v in curves]
        wide, best, start = spread(some), max(area(c) for c in some), area(curves["1"])
        gain = f"{best / start - 1:+.1%} against {base}" if start else f"{best:.4f}, {base} has 0"
        return judged(wide <= STEADY, f"F1 varies by {wide:.1%}; the best mean F1 is {gain}")

    return judge


TESTS["steady_sigma"] = steady("sigma", None, ("0.3", "0.4", "0.5"), "X")
TESTS["steady_sigma_one"] = steady("sigma", 0, ("0.4", "0.5", "0.6"), "X")
TESTS["steady_xi"] = steady("xi", None, ("0.1", "0.3", "0.5", "0.7", "0.9"), "ξ = 1")


@test
def alike_sigma_two(record: Record) -> Judgement:
    every, some = (curves_of(sensitivity_of(record), "sigma", group) for group in (None, 1))
    values = [sigma for sigma in every if sigma != "1"]
    rank = spearman(*([area(curves[s]) for s in values] for curves in (every, some)))
    text = f"rank correlation {rank:.2f} over σ = {', '.join(values)}"
    return judged(rank >= CORRELATED, text)


@test
def chosen(record: Record) -> Judgement:
    lacks, words = [], []
    found = sensitivity_of(record)
    for curves, sign in ((found.sigma, "σ"), (found.xi, "ξ")):
        areas = {v: area(c) for v, c in curves["all"].items()}
        best = max(areas, key=areas.__getitem__)
        lacks.append(1 - areas["0.5"] / areas[best] if areas[best] else 0.0)
        words.append(f"the best {sign} is {best}, and 0.5 is {lacks[-1]:.1%} below it")
    return judged(max(lacks) <= GOOD, "; ".join(words))


@test
def degenerate(record: Record) -> Judgement:
    values = list(sensitivity_of(record).anhc["1"].values())
    text = f"{min(values):.2f} to {max(values):.2f} codes per image; true by construction"
    return judged(all(v == 1 for v in values), text)


@test
def more_codes(record: Record) -> Judgement:
    found = sensitivity_of(record)
    sigma, xi = found.sigma["all"], found.xi["all"]
    ranks = (
        spearman([found.anhc[s]["0.5"] for s in sigma], [area(c) for c in sigma.values()]),
        spearman([found.xi_anhc[x] for x in xi], [area(c) for c in xi.values()]),
    )
    text = "rank correlation {:.2f} over σ, {:.2f} over ξ".format(*ranks)
    return judged(min(ranks) >= CORRELATED, text)


@test
def satisfactory(record: Record) -> Judgement:
    recall = [r.base.r0 for r in record.compared]
    mean = f"; mean R@H=0 of X over all cells is {np.mean(recall):.3f}" if recall else ""
    raise CannotJudge(f"“satisfactory” names no measure{mean}")
