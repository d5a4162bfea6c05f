"""Every statement that the paper makes about its results, put to the test on ours.

A statement is quoted, its test is said in words with its tolerance, and the verdict is computed:
nothing here is written by hand but the questions. What cannot be judged says why.
"""
# ruff: noqa: RUF001 - the Greek letters are meant

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from cells import BUDGETS, LABELS, UNSUPERVISED
from paper_figures import BITS, PAPER

MUCH = 1.1  # "much better" recall: at least so many times
FEWER = 2.0  # "much more efficient": at least so many times fewer buckets at the same F1
GREATLY = 10.0  # "greatly reducing the number of hash buckets"
LARGE = 1.5  # "large distinctions": the largest F1 over the least
SAME_P = 0.005  # P@H=0 that may be lost where it "will not" be reduced
SAME_MAP = 0.001
STEADY = 0.05  # "not sensitive": F1 varies by at most this share of itself
GOOD = 0.02  # F1 that a chosen setting may lie below the best
CORRELATED = 0.7  # Spearman's rank correlation that counts as "more … with more"
SYMMETRIC = ("ksh", "hashnet", "dch", "mmhh")
REACHED = (1, 10, 100)  # buckets of MCH-X, whose F1 X is asked for

BY_CONSTRUCTION = "true by construction"
HOLDS, FAILS, UNKNOWN = "holds", "does not hold here", "cannot be judged"
Row = dict[str, Any]
Curve = Sequence[Sequence[float]]


@dataclass(frozen=True)
class Statement:
    """One sentence of the paper and what became of it."""

    where: str
    quote: str
    test: str  # what is asked, with its tolerance
    verdict: str
    evidence: str
    figure: str  # the section of the report that shows it
    fails: list[str] = field(default_factory=list)
    paper: str | None = None  # the same test on the paper's own figures, where it prints them
    constructed: bool = False  # true by construction: only a fault of ours could make it fail

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def named(row: Row) -> str:
    return f"{LABELS[row['method']]}-{row['bits']}"


def verdict(passed: int, of: int) -> str:
    if of == 0:
        return UNKNOWN
    if passed == of:
        return HOLDS
    return FAILS if passed == 0 else f"holds in {passed} of {of} cells"


def f1_at(curve: Curve, buckets: float) -> float | None:
    return next((float(f) for b, f in curve if b == buckets), None)


def buckets_for(curve: Curve, f1: float) -> float | None:
    """The number of buckets at which a curve first has as much, along the log axis between its
    points; None: it never has."""
    if curve[0][1] >= f1:
        return float(curve[0][0])
    for (b0, y0), (b1, y1) in pairwise(curve):
        if y1 >= f1:
            share = (f1 - y0) / (y1 - y0)
            return float(math.exp(math.log(b0) + share * (math.log(b1) - math.log(b0))))
    return None


def bucket_ratios(row: Row) -> dict[int, float | None]:
    """How many times MCH-X's buckets X needs for its F1, at each of REACHED; None: never has it."""
    out: dict[int, float | None] = {}
    for b in REACHED:
        f1 = f1_at(row["mch"]["f1_buckets"], b)
        if f1 is not None:
            needed = buckets_for(row["base"]["f1_buckets"], f1)
            out[b] = None if needed is None else needed / b
    return out


def at_least(ratios: Iterable[float | None], factor: float) -> bool:
    """Whether the geometric mean reaches a factor; what is never reached is left out, unless
    nothing is."""
    every = list(ratios)
    logs = [math.log(r) for r in every if r is not None]
    if not logs:
        return bool(every)
    return math.exp(sum(logs) / len(logs)) >= factor


def area(curve: Curve, most: float = 1e6) -> float:
    """Mean F1 over the points of a curve up to so many buckets, which lie evenly on a log axis."""
    return float(np.mean([f for b, f in curve if b <= most]))


def spread(curves: Sequence[Curve]) -> float:
    """By what share of itself F1 varies between curves, at the worst of BUDGETS."""
    worst = 0.0
    for b in BUDGETS:
        values = [v for c in curves if (v := f1_at(c, b)) is not None]
        if values and max(values) > 0:
            worst = max(worst, (max(values) - min(values)) / max(values))
    return worst


def spearman(x: Sequence[float], y: Sequence[float]) -> float:
    """Rank correlation, equal values sharing their mean rank; 0 where one side is constant."""

    def ranks(values: Sequence[float]) -> Any:
        v = np.asarray(values)
        return np.array([(v < a).sum() + ((v == a).sum() - 1) / 2 for a in v])

    a, b = ranks(x), ranks(y)
    if a.std() == 0 or b.std() == 0:
        return 0.0
    return float(np.corrcoef(a, b)[0, 1])


def geometric(values: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(np.maximum(values, 1e-9)))))


def in_paper(figure: str, test: Callable[[float, float], bool]) -> str:
    """The test on every cell that the paper prints, of all its data sets."""
    cells = [
        (f"{name} {LABELS[method]}-{bits}", test(x[i], m[i]))
        for name, figures in PAPER.items()
        for method, (x, m) in figures[figure].items()
        for i, bits in enumerate(BITS)
    ]
    failed = [name for name, ok in cells if not ok]
    text = f"{len(cells) - len(failed)} of {len(cells)} cells"
    return text + (f" (not: {', '.join(failed)})" if failed else "")


def statements(content: dict[str, Any]) -> list[Statement]:
    """All of them, in the paper's order."""
    rows: list[Row] = content["rows"]
    return [
        *_introduction(rows, content),
        *_accuracy(rows),
        *_efficiency(rows),
        *_visual(content),
        *_sensitivity(content),
        *_rest(rows),
    ]


def _each(
    where: str,
    quote: str,
    test: str,
    cells: Sequence[Row],
    ok: Callable[[Row], bool],
    evidence: str,
    figure: str,
    paper: str | None = None,
) -> Statement:
    fails = [named(r) for r in cells if not ok(r)]
    if not cells:
        evidence = "no cell of the kind was computed"
    found = verdict(len(cells) - len(fails), len(cells))
    return Statement(where, quote, test, found, evidence, figure, fails, paper)


def _unknown(where: str, quote: str, test: str, why: str, figure: str = "") -> Statement:
    return Statement(where, quote, test, UNKNOWN, why, figure)


def _pairs_of(rows: Sequence[Row]) -> list[Row]:
    return [r for r in rows if "mch" in r]


def _ratio_words(cells: Sequence[Row], name: str) -> str:
    if not cells:
        return ""
    ratios = [r["mch"][name] / max(r["base"][name], 1e-9) for r in cells]
    least, most = int(np.argmin(ratios)), int(np.argmax(ratios))
    return (
        f"{geometric(ratios):.2f} times, geometric mean; from {ratios[least]:.2f} "
        f"({named(cells[least])}) to {ratios[most]:.2f} ({named(cells[most])})"
    )


def _change_words(cells: Sequence[Row], name: str) -> str:
    if not cells:
        return ""
    both = [(r["base"][name], r["mch"][name]) for r in cells]
    change = [m - x for x, m in both if x is not None and m is not None]
    if not change:
        return "not defined"
    return f"{np.mean(change):+.4f} on the mean, from {min(change):+.4f} to {max(change):+.4f}"


def _buckets_words(cells: Sequence[Row]) -> str:
    parts = []
    for b in REACHED:
        found = [x for r in cells if (x := bucket_ratios(r)).keys() >= {b}]
        values = [v for x in found if (v := x[b]) is not None]
        never = len(found) - len(values)
        if values or never:
            text = f"{geometric(values):.3g} times" if values else "more"
            lacks = f" ({never} of {len(found)} never)" if never else ""
            parts.append(f"for the F1 of {b:,}: {text} as many{lacks}")
    return "buckets that X needs, geometric mean, " + "; ".join(parts) if parts else ""


def _introduction(rows: Sequence[Row], content: dict[str, Any]) -> list[Statement]:
    cells = _pairs_of(rows)
    pairs, time = content.get("pairs"), content.get("time")
    out = []
    quote = (
        "by using one hash code to represent one image, existing methods might fail to put similar "
        "image pairs to the buckets with a small Hamming distance to the query when the semantic "
        "information of images is complex"
    )
    test = (
        "under X, fewer similar pairs share a bucket if the image has 3 classes or more than if 1"
    )
    simple, rich = _simple_and_rich(pairs)
    if simple is None or rich is None:
        out.append(_unknown("abstract", quote, test, "no images of one and of several classes"))
    else:
        out.append(
            Statement(
                "abstract", quote, test, HOLDS if rich["at0"] < simple["at0"] else FAILS,
                f"{rich['at0']:.1%} of the similar pairs against {simple['at0']:.1%}", "pairs",
            )
        )  # fmt: skip

    def far(r: Row) -> bool:
        curve = r["base"]["f1_buckets"]
        needed = buckets_for(curve, 0.9 * max(f for _, f in curve))
        return needed is not None and needed >= 100

    needs = [
        buckets_for(r["base"]["f1_buckets"], 0.9 * max(f for _, f in r["base"]["f1_buckets"]))
        for r in cells
    ]
    out.append(
        _each(
            "abstract",
            "As a result, a large number of hash buckets need to be visited for retrieving similar "
            "images, based on the learned codes.",
            "X needs at least 100 buckets for 90 % of its best F1",
            cells, far,
            f"{np.median([n or 1 for n in needs]):,.0f} buckets, median of cells" if needs else "",
            "f1",
        )
    )  # fmt: skip

    def clear(r: Row) -> bool:
        gain, error = r["mch"]["f1_own"] - r["base"]["f1_own"], r["mch"].get("f1_own_gain_se") or 0
        return bool(gain > 2 * error and gain > 0)

    out.append(
        _each(
            "abstract, introduction, conclusion",
            "Experiments demonstrate that MCH can achieve a significant improvement in hash bucket "
            "search, compared with existing methods that learn only one hash code for each image.",
            "F1 of the own bucket rises by more than two standard errors over the seeds (by "
            "anything, where there is one seed)",
            cells, clear, _ratio_words(cells, "f1_own"), "f1",
        )
    )  # fmt: skip
    out.append(_exponential(rows))
    quote = (
        "By representing each image with multiple hash codes, MCH can keep the Hamming distance of "
        "similar image pairs small enough and enable efficient hash bucket search."
    )
    test = "MCH brings similar pairs nearer by a larger share of their distance than other pairs"
    if not pairs or not pairs["similar"] or not pairs["other"]:
        out.append(_unknown("introduction", quote, test, "the study of pairs is missing", "pairs"))
    else:
        less = {
            k: 1 - pairs[k]["distance_mch"] / max(pairs[k]["distance"], 1e-9)
            for k in ("similar", "other")
        }
        out.append(
            Statement(
                "introduction", quote, test,
                HOLDS if less["similar"] > less["other"] else FAILS,
                f"similar pairs {less['similar']:.1%} nearer, others {less['other']:.1%}; the mean "
                f"of similar ones is {pairs['similar']['distance']:.2f} bits with X, "
                f"{pairs['similar']['distance_mch']:.2f} with MCH-X", "pairs",
            )
        )  # fmt: skip
    controlled = [r for r in cells if "random_keep" in r]
    out.append(
        _each(
            "introduction",
            "an agent is trained in MCH to explore different regions of the image that can better "
            "preserve the pairwise similarity than the whole image",
            "F1 of the own bucket and mAP above those of X, and above those of regions kept at "
            "random, as many codes",
            controlled,
            lambda r: all(
                r["mch"][k] > r[way][k]
                for k in ("f1_own", "map") for way in ("base", "random_keep")
            ),
            _control_words(controlled), "controls",
        )
    )  # fmt: skip
    by_method: dict[str, list[float]] = {}
    for r in controlled:
        gain = r["mch"]["f1_own"] - r["random_keep"]["f1_own"]
        by_method.setdefault(r["method"], []).append(gain)
    means = {LABELS[m]: float(np.mean(v)) for m, v in by_method.items()}
    fails = [m for m, v in means.items() if v <= 0]
    out.append(
        Statement(
            "introduction, conclusion",
            "This decomposition simplifies the learning procedure and enables the easy integration "
            "of different kinds of base hashing models.",
            "F1 of the own bucket above that of regions kept at random, as many codes, on the mean "
            "over widths for every base method",
            verdict(len(means) - len(fails), len(means)).replace("cells", "methods"),
            ", ".join(f"{m} {v:+.4f}" for m, v in means.items())
            or "no cell of the kind was computed",
            "controls", fails,
        )
    )  # fmt: skip
    return out + _time(time)


def _simple_and_rich(pairs: Any) -> tuple[Any, Any]:
    """Similar pairs whose image has one class, and those whose has three or more."""
    if not pairs:
        return None, None
    rich = [pairs["by_classes"][g] for g in ("3", "4") if pairs["by_classes"].get(g)]
    if not rich:
        return pairs["by_classes"].get("1"), None
    total = sum(r["pairs"] for r in rich)
    names = ("at0", "at0_mch", "distance", "distance_mch")
    mean = {k: sum(r["pairs"] * r[k] for r in rich) / total for k in names}
    return pairs["by_classes"].get("1"), {"pairs": total} | mean


def _exponential(rows: Sequence[Row]) -> Statement:
    widths = sorted({r["bits"] for r in rows})
    growth = {q: [sum(math.comb(q, i) for i in range(r + 1)) for r in range(4)] for q in widths}
    fails = [f"{q} bits" for q, g in growth.items() if any(b < 4 * a for a, b in pairwise(g))]
    return Statement(
        "introduction, related work",
        "For hash bucket search, the search cost will increase exponentially if we enlarge the "
        "search Hamming radius.",
        "buckets within radius 0, 1, 2, 3: each step at least four times as many",
        verdict(len(widths) - len(fails), len(widths)).replace("cells", "widths"),
        "; ".join(f"{q} bits: {', '.join(f'{n:,}' for n in g)}" for q, g in growth.items())
        + f"; {BY_CONSTRUCTION}",
        "f1", fails, constructed=True,
    )  # fmt: skip


def _control_words(cells: Sequence[Row]) -> str:
    if not cells:
        return ""
    parts = []
    for way, name in (("base", "X"), ("random_keep", "random keeping")):
        f1, ap = (np.mean([r["mch"][k] - r[way][k] for r in cells]) for k in ("f1_own", "map"))
        parts.append(f"over {name}: F1 of the own bucket {f1:+.4f}, mAP {ap:+.4f}")
    return "; ".join(parts) + ", on the mean"


def _time(time: Any) -> list[Statement]:
    quote = (
        "In real applications, hash bucket search is typically more practical than Hamming ranking "
        "for fast search, especially for cases with a large-scale database."
    )
    test = (
        "looking into one bucket after the other takes less processor time than FAISS's flat "
        "index, at each K up to 1,000; not where probing turns into a scan"
    )
    out = []
    faiss = {_key(c): c["points"] for c in time["curves"] if c["engine"] == "faiss"} if time else {}
    if not time or not faiss:
        why = "the study of time is missing" if not time else "; ".join(time["missing"])
        out.append(_unknown("introduction", quote, test, why or "FAISS is missing", "time"))
    else:
        flat = [c for c in time["curves"] if c["engine"] == "faiss"]
        probe, auto = (
            {
                _key(c): _faster(c, faiss[_key(c)])
                for c in time["curves"]
                if c["engine"] == engine and _key(c) in faiss
            }
            for engine in ("probe", "auto")
        )
        asked = {_key(c): sum(p["k"] <= 1000 for p in c["points"]) for c in flat}
        left = {key: n - len(probe.get(key, [])) for key, n in asked.items()}
        fails = [
            _timed(c) for c in flat if left[_key(c)] or min(probe.get(_key(c), []), default=0) <= 1
        ]
        out.append(
            Statement(
                "introduction", quote, test, verdict(len(flat) - len(fails), len(flat)),
                f"{_times(probe.values())}; {sum(left.values())} of {sum(asked.values())} points "
                "are left out because probing turned into a scan; with the engine's own choice "
                f"(auto) {_times(auto.values())}", "time", fails,
            )
        )  # fmt: skip
    quote = "Given a hash code, it costs O(1) time to locate its corresponding hash bucket."
    test = "looking into the own bucket alone takes at most twice as long in 8 times the images"
    if not time or not time["own_bucket"]:
        out.append(_unknown("related work", quote, test, "the study of time is missing", "time"))
    else:
        by: dict[str, list[float]] = {}
        for o in sorted(time["own_bucket"], key=lambda o: o["images"]):
            by.setdefault(_timed(o), []).append(o["microseconds"])
        fails = [name for name, v in by.items() if v[-1] > 2 * v[0]]
        low, high = (geometric([v[i] for v in by.values()]) for i in (0, -1))
        out.append(
            Statement(
                "related work", quote, test, verdict(len(by) - len(fails), len(by)),
                f"{low:.2f} µs in an eighth of the images, {high:.2f} µs in all", "time", fails,
            )
        )  # fmt: skip
    return out


def _faster(curve: Row, flat: Sequence[Row]) -> list[float]:
    """How many times as fast as FAISS, at each K up to 1,000 that both have."""
    theirs = {p["k"]: p["microseconds"] for p in flat}
    shared = [p for p in curve["points"] if p["k"] in theirs and p["k"] <= 1000]
    return [theirs[p["k"]] / max(p["microseconds"], 1e-9) for p in shared]


def _times(ratios: Iterable[Sequence[float]]) -> str:
    """Cells count alike, however many points each has."""
    means = [geometric(r) for r in ratios if r]
    return f"{geometric(means):.2f} times as fast, geometric mean" if means else "no point"


def _timed(curve: Row) -> str:
    method, bits = curve["cell"].split("-")
    return f"{'MCH-' if curve['way'] == 'mch' else ''}{LABELS[method]}-{bits}"


def _key(curve: Row) -> tuple[str, str]:
    return curve["cell"], curve["way"]


def _accuracy(rows: Sequence[Row]) -> list[Statement]:
    cells = _pairs_of(rows)
    where = "accuracy"
    return [
        _each(
            where,
            "We can find that MCH achieves much better results than its base hashing model on all "
            "benchmark datasets with regard to different code lengths. (R@H=0)",
            f"R@H=0 of MCH-X at least {MUCH} times that of X",
            cells, lambda r: r["mch"]["r0"] >= MUCH * r["base"]["r0"],
            _ratio_words(cells, "r0"), "r0", in_paper("r0", lambda x, m: m >= MUCH * x),
        ),
        _each(
            where,
            "This verifies that MCH can make more similar data points fall into the Hamming ball "
            "within radius 0 to the query and enable more efficient retrieval of top-ranking data "
            "points.",
            "R@H=0 of MCH-X above X, and F1 of the own bucket too",
            cells,
            lambda r: all(r["mch"][k] > r["base"][k] for k in ("r0", "f1_own")),
            _change_words(cells, "f1_own") + " (F1)" if cells else "", "r0",
            in_paper("r0", lambda x, m: m > x) + ", R@H=0 alone",
        ),
        _each(
            where,
            "We can find that MCH can also improve the precision within Hamming radius 0, compared "
            "with its base hashing model.",
            "P@H=0 of MCH-X above X",
            cells, lambda r: r["mch"]["p0"] > r["base"]["p0"],
            _change_words(cells, "p0")
            + "; among the queries that find something "
            + _change_words(cells, "p0_nonempty") if cells else "", "p0",
            in_paper("p0", lambda x, m: m > x),
        ),
        _each(
            where,
            "This verifies that MCH will not reduce the accuracy of retrieving top-ranking data "
            "points.",
            f"P@H=0 of MCH-X not more than {SAME_P} below X",
            cells, lambda r: r["mch"]["p0"] >= r["base"]["p0"] - SAME_P,
            _change_words(cells, "p0"), "p0", in_paper("p0", lambda x, m: m >= x - SAME_P),
        ),
        _each(
            where,
            "The mAP results of all methods … show that MCH can achieve better accuracy than its "
            "base hashing model.",
            "mAP of MCH-X above X",
            cells, lambda r: r["mch"]["map"] > r["base"]["map"],
            _change_words(cells, "map"), "map", in_paper("map", lambda x, m: m > x),
        ),
        _each(
            where,
            "The improvement in mAP is to illustrate that our MCH will not reduce accuracy.",
            f"mAP of MCH-X not more than {SAME_MAP} below X",
            cells, lambda r: r["mch"]["map"] >= r["base"]["map"] - SAME_MAP,
            _change_words(cells, "map"), "map", in_paper("map", lambda x, m: m >= x - SAME_MAP),
        ),
    ]  # fmt: skip


def _efficiency(rows: Sequence[Row]) -> list[Statement]:
    cells = _pairs_of(rows)
    where = "accuracy (F1-bucket curves)"
    ksh = [r for r in cells if r["method"] == "ksh"]
    simple = {
        b: [r for r in rows if r["method"] in UNSUPERVISED and r["bits"] == b]
        for b in {r["bits"] for r in rows}
    }
    compared = [r for r in cells if simple[r["bits"]]]

    def beats(r: Row) -> bool:
        return all(
            area(r["base"]["f1_buckets"]) > area(o["base"]["f1_buckets"]) for o in simple[r["bits"]]
        )

    def areas(some: Sequence[Row]) -> str:
        if not some:
            return ""
        theirs = [max(area(o["base"]["f1_buckets"]) for o in simple[r["bits"]]) for r in some]
        ours = [area(r["base"]["f1_buckets"]) for r in some]
        return (
            f"mean F1 over 1 to 10⁶ buckets {np.mean(ours):.3f}, the best unsupervised method's "
            f"{np.mean(theirs):.3f}"
        )

    return [
        _each(
            where,
            "The results show that MCH can perform much more efficient hash bucket search than the "
            "base hashing model.",
            f"for MCH-X's F1 after 1, 10 and 100 buckets X needs at least {FEWER:g} times as many, "
            "geometric mean over those of the three that it ever has",
            cells, lambda r: at_least(bucket_ratios(r).values(), FEWER),
            _buckets_words(cells), "f1",
        ),
        _each(
            where,
            "The results show that MCH can perform much more efficient hash bucket search than the "
            "base hashing model. (a second test)",
            "F1 of MCH-X above X at 1, 10, 100 and 1,000 buckets",
            cells,
            lambda r: all(
                (f1_at(r["mch"]["f1_buckets"], b) or 0) > (f1_at(r["base"]["f1_buckets"], b) or 0)
                for b in BUDGETS
            ),
            _change_words(cells, "f1_own") + " in the own bucket" if cells else "", "f1",
        ),
        _each(
            where,
            "compared to KSH, the best shallow hashing method with deep features as input, MCH-KSH "
            "can obtain the same F1 score while greatly reducing the number of hash buckets that "
            "need to be visited",
            f"KSH needs at least {GREATLY:g} times MCH-KSH's buckets for its F1, mean as above",
            ksh, lambda r: at_least(bucket_ratios(r).values(), GREATLY),
            _buckets_words(ksh), "f1",
        ),
        _each(
            where,
            "KSH, the best shallow hashing method with deep features as input",
            "mean F1 over 1 to 10⁶ buckets of KSH above LSH, ITQ and PCA+rotation",
            [r for r in compared if r["method"] == "ksh"], beats,
            areas([r for r in compared if r["method"] == "ksh"]), "f1",
        ),
        _each(
            where,
            "Without modeling the pairwise similarity information, unsupervised shallow hashing "
            "methods are worse than supervised hashing methods.",
            "mean F1 over 1 to 10⁶ buckets of X above that of every unsupervised method",
            compared, beats, areas(compared), "f1",
        ),
        _asymmetric(rows, where),
        _distinct(rows, where),
        _unknown(
            where,
            "The reason is that different types of loss functions impose distinct penalties for "
            "similar point pairs (s_ij = 1).",
            "",
            "a cause, not a figure: the methods differ in more than their loss, so no run here "
            "can tell",
        ),
    ]  # fmt: skip


def _asymmetric(rows: Sequence[Row], where: str) -> Statement:
    quote = (
        "In most situations, ADSH achieves more efficient hash bucket search, compared with "
        "symmetric supervised hashing methods."
    )
    test = (
        "ADSH's F1 above that of a symmetric method in more than half of the cases (width, method, "
        "1, 10, 100 or 1,000 buckets)"
    )
    wins: dict[str, list[bool]] = {}
    for adsh in (r for r in rows if r["method"] == "adsh"):
        for r in rows:
            if r["bits"] != adsh["bits"] or r["method"] not in SYMMETRIC:
                continue
            for b in BUDGETS:
                ours = f1_at(adsh["base"]["f1_buckets"], b)
                theirs = f1_at(r["base"]["f1_buckets"], b)
                if ours is not None and theirs is not None:
                    wins.setdefault(LABELS[r["method"]], []).append(ours > theirs)
    total = [w for v in wins.values() for w in v]
    if not total:
        return _unknown(where, quote, test, "ADSH or all symmetric methods are missing", "f1")
    by = ", ".join(f"{m} {sum(v)} of {len(v)}" for m, v in wins.items())
    found = HOLDS if sum(total) > len(total) / 2 else FAILS
    fails = [m for m, v in wins.items() if sum(v) <= len(v) / 2]
    text = f"in {sum(total)} of {len(total)} cases: over {by}"
    return Statement(where, quote, test, found, text, "f1", fails)


def _distinct(rows: Sequence[Row], where: str) -> Statement:
    quote = (
        "Different symmetric supervised hashing methods have large distinctions in the efficiency "
        "of hash bucket search."
    )
    test = f"at each width the largest F1 of the own bucket is at least {LARGE} times the least"
    factors = {}
    for bits in sorted({r["bits"] for r in rows}):
        own = [r["base"]["f1_own"] for r in rows if r["bits"] == bits and r["method"] in SYMMETRIC]
        if len(own) > 1:
            factors[bits] = max(own) / max(min(own), 1e-9)
    if not factors:
        return _unknown(where, quote, test, "fewer than two symmetric methods", "f1")
    fails = [f"{b} bits" for b, f in factors.items() if f < LARGE]
    return Statement(
        where, quote, test,
        verdict(len(factors) - len(fails), len(factors)).replace("cells", "widths"),
        ", ".join(f"{f:.1f} times at {b} bits" for b, f in factors.items()), "f1", fails,
    )  # fmt: skip


def _visual(content: dict[str, Any]) -> list[Statement]:
    where, pairs = "visualization study", content.get("pairs")
    quotes = [
        "The results show that our MCH can better represent the data points with complex semantic "
        "information and enable more similar data points to fall into the Hamming ball within "
        "radius 0 to the query.",
        "There also exists an image in the database set describing both the airplane and the bird.",
        "Our MCH can enable it to appear in multiple hash buckets simultaneously.",
        "Hence, it can be retrieved in O(1) time by queries of different categories.",
    ]
    if not pairs:
        return [_unknown(where, q, "", "the study of pairs is missing", "visual") for q in quotes]
    out = []
    simple, rich = _simple_and_rich(pairs)
    test = (
        "the share of similar pairs in one bucket rises by a larger factor for images of 3 or more "
        "classes than for images of 1"
    )
    if simple is None or rich is None or not simple["at0"] or not rich["at0"]:
        out.append(_unknown(where, quotes[0], test, "no images of one and of several classes"))
    else:
        factors = [x["at0_mch"] / x["at0"] for x in (simple, rich)]
        out.append(
            Statement(
                where, quotes[0], test, HOLDS if factors[1] > factors[0] else FAILS,
                f"{rich['at0']:.2%} to {rich['at0_mch']:.2%} ({factors[1]:.3f} times) against "
                f"{simple['at0']:.2%} to {simple['at0_mch']:.2%} ({factors[0]:.3f} times)", "pairs",
            )
        )  # fmt: skip
    both = pairs["both"]
    if both is None:
        return out + [_unknown(where, q, "", "fewer than two classes", "pairs") for q in quotes[1:]]
    a, b = both["classes"]
    out.append(
        Statement(
            where, quotes[1], f"at least one image of the database has the classes {a} and {b}",
            HOLDS if both["images"] else FAILS, f"{both['images']:,} have both", "pairs",
        )
    )  # fmt: skip
    out.append(
        Statement(
            where, quotes[2], f"at least one of the images of {a} and {b} has two different codes",
            UNKNOWN if not both["images"] else HOLDS if both["several"] else FAILS,
            f"{both['several']:,} of {both['images']:,}; of all images "
            f"{pairs['several_codes']:.1%} stand in several buckets", "pairs",
        )
    )  # fmt: skip
    two, found = pairs["by_two"], both["found"]
    out.append(
        Statement(
            where, quotes[3],
            "more images than under X stand in the own buckets of two queries that have no class "
            "in common, both similar to the image, and some in two different buckets",
            HOLDS if two["mch"] > two["base"] and two["mch_buckets"] > 0 else FAILS,
            f"{two['base']:,} of {pairs['images']:,} images with X, {two['mch']:,} with MCH-X, "
            f"{two['mch_buckets']:,} of them in different buckets; of those of {a} and {b} "
            f"{found['base']:,} with X, {found['mch']:,} with MCH-X", "pairs",
        )
    )  # fmt: skip
    return out


def _sensitivity(content: dict[str, Any]) -> list[Statement]:
    where, found = "sensitivity", content.get("sensitivity")
    classes = list(found["classes"]) if found else []
    one = classes[0] if classes else "the first class"
    two = classes[1] if len(classes) > 1 else "the second class"
    quotes = {
        "all": "From Figure (a), we can see that MCH is not sensitive to σ in the range 0.3 ≤ σ ≤ "
        "0.5.",
        "one": "[queries that include the “Airplane” category:] We can see that MCH is not "
        "sensitive to σ in the range 0.4 ≤ σ ≤ 0.6.",
        "two": "[queries that include “Bird”:] We can find that the hyper-parameter sensitivity "
        "results are similar to those using all queries.",
        "xi": "From Figure (d), we can see that MCH is not sensitive to ξ in the range 0.1 ≤ σ "
        "[ξ is meant] ≤ 0.9.",
        "base": "when σ = 1.0, MCH-DCH will degenerate to its base hashing model DCH",
        "more": "We can find that a more efficient hash bucket search can be achieved with a "
        "larger average number of hash codes.",
    }
    if not found:
        why = "the study of sensitivity is missing"
        return [_unknown(where, q, "", why, "sensitivity") for q in quotes.values()]

    def steady(of: str, group: str, values: Sequence[str]) -> tuple[float, str] | None:
        curves = found[of].get(group)
        if curves is None:
            return None
        some = [curves[v] for v in values if v in curves]
        base, name = area(curves["1"]), "X" if of == "sigma" else "ξ = 1"
        wide = spread(some)
        best = max(area(c) for c in some)
        gain = f"{best / base - 1:+.1%} over {name}" if base else f"{best:.4f} over {name}'s 0"
        return wide, (f"F1 varies by {wide:.1%} of itself; the best is {gain}, mean over the curve")

    def judged(name: str, of: str, group: str, values: Sequence[str], who: str) -> Statement:
        sign = "σ" if of == "sigma" else "ξ"
        test = (
            f"F1 at 1, 10, 100 and 1,000 buckets of {who} varies by at most {STEADY:.0%} of itself "
            f"over {sign} = {', '.join(values)}"
        )
        result = steady(of, group, values)
        if result is None:
            return _unknown(
                where, quotes[name], test, f"none of {who} has a similar image", "sensitivity"
            )
        found_so = HOLDS if result[0] <= STEADY else FAILS
        return Statement(where, quotes[name], test, found_so, result[1], "sensitivity")

    of_one, of_two = f"the queries with “{one}”", f"the queries with “{two}”"
    out = [
        judged("all", "sigma", "all", ("0.3", "0.4", "0.5"), "all queries"),
        judged("one", "sigma", one, ("0.4", "0.5", "0.6"), of_one),
    ]
    every = [s for s in found["sigma"]["all"] if s != "1"]
    test = (
        f"over σ, the mean F1 of {of_two} goes with that of all queries: rank correlation at least "
        f"{CORRELATED}"
    )
    if two in found["sigma"]:
        rank = spearman(*([area(found["sigma"][g][s]) for s in every] for g in ("all", two)))
        text = f"rank correlation {rank:.2f} over σ = {', '.join(every)}"
        so = HOLDS if rank >= CORRELATED else FAILS
        out.append(Statement(where, quotes["two"], test, so, text, "sensitivity"))
    else:
        why = f"none of {of_two} has a similar image"
        out.append(_unknown(where, quotes["two"], test, why, "sensitivity"))
    out.append(judged("xi", "xi", "all", ("0.1", "0.3", "0.5", "0.7", "0.9"), "all queries"))
    out.append(_chosen(where, found))
    at_one = list(found["anhc"]["1"].values())
    out.append(
        Statement(
            where, quotes["base"], "exactly one code an image at σ = 1, whatever ξ",
            HOLDS if all(v == 1 for v in at_one) else FAILS,
            f"{min(at_one):.2f} to {max(at_one):.2f} codes an image; {BY_CONSTRUCTION}", "anhc",
            constructed=True,
        )
    )  # fmt: skip
    by_sigma = spearman(
        [found["anhc"][s]["0.5"] for s in found["sigma"]["all"]],
        [area(c) for c in found["sigma"]["all"].values()],
    )
    by_xi = spearman(
        [found["xi_anhc"][x] for x in found["xi"]["all"]],
        [area(c) for c in found["xi"]["all"].values()],
    )
    out.append(
        Statement(
            where, quotes["more"],
            f"mean F1 over the curve rises with codes an image: rank correlation at least "
            f"{CORRELATED}, over σ and over ξ",
            HOLDS if min(by_sigma, by_xi) >= CORRELATED else FAILS,
            f"rank correlation {by_sigma:.2f} over σ, {by_xi:.2f} over ξ", "sensitivity",
        )
    )  # fmt: skip
    return out


def _chosen(where: str, found: dict[str, Any]) -> Statement:
    """Whether the paper's sigma and xi are good ones here."""
    lacks, words = [], []
    for of, sign in (("sigma", "σ"), ("xi", "ξ")):
        areas = {v: area(c) for v, c in found[of]["all"].items()}
        best = max(areas, key=lambda v: areas[v])
        lacks.append(1 - areas["0.5"] / areas[best] if areas[best] else 0.0)
        words.append(f"best {sign} = {best}, 0.5 is {lacks[-1]:.1%} below it")
    return Statement(
        where,
        "We select the unique hyper-parameters of our MCH σ = 0.5, ξ = 0.5 based on results of a "
        "validation strategy.",
        f"mean F1 over the curve at 0.5 not more than {GOOD:.0%} below the best, of all queries",
        HOLDS if max(lacks) <= GOOD else FAILS, "; ".join(words), "sensitivity",
    )  # fmt: skip


def _rest(rows: Sequence[Row]) -> list[Statement]:
    own = [r["base"]["r0"] for r in _pairs_of(rows)]
    return [
        _unknown(
            "abstract",
            "existing hashing methods cannot achieve satisfactory retrieval performance for hash "
            "bucket search in complex scenarios, since they learn only one hash code for each "
            "image",
            "",
            "“satisfactory” names no measure"
            + (f"; R@H=0 of X is {np.mean(own):.3f} on the mean of all cells" if own else ""),
            "r0",
        ),
        _unknown(
            "abstract, conclusion",
            "To the best of our knowledge, this is the first work that proposes to learn multiple "
            "hash codes for each image in image retrieval.",
            "",
            "about the literature, not about a result",
        ),
    ]


def time_against_buckets(time: Any) -> list[dict[str, Any]]:
    """For each cell and way of searching: the F1 that MCH-X has at each K, how many times its
    buckets and its microseconds X needs for as much, over the K at which X gets there."""
    out = []
    curves = {(c["cell"], c["engine"], c["way"]): c["points"] for c in time["curves"]}
    for (cell, engine, way), points in curves.items():
        base = curves.get((cell, engine, "base"))
        if way != "mch" or base is None:
            continue
        found: dict[str, list[float]] = {"buckets": [], "microseconds": []}
        for p in points:
            ratio = {}
            for axis in found:
                line = [[max(q[axis], 1e-9), q["f1"]] for q in base]
                needed = buckets_for(line, p["f1"]) if p["f1"] > base[0]["f1"] else None
                if needed is not None:
                    ratio[axis] = needed / max(p[axis], 1e-9)
            if len(ratio) == 2:
                for axis, value in ratio.items():
                    found[axis].append(value)
        if found["buckets"]:
            out.append(
                {"cell": cell, "engine": engine, "points": len(found["buckets"])}
                | {axis: geometric(v) for axis, v in found.items()}
            )
    return out
