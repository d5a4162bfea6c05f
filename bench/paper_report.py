"""The paper's experiments as one HTML file for screen and paper, and as a Markdown summary.

Both are made from the record alone (paper.json, and the pictures of the visual study): every number
in them is computed.
"""
# ruff: noqa: RUF001 - the Greek letters are meant

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from beyond import MORE_STEPS
from cells import LABELS, UNSUPERVISED
from mchindex.evaluation.plots import COLOURS
from mchindex.page import Markup, joined, tag
from paper_figures import ALL, ANHC, ANHC_XI, CLASS_QUERIES, NAMES, PROTOCOL, theirs
from paper_plots import Axis, Line, Panel, panels
from paper_statements import FAILS, HOLDS, REACHED, UNKNOWN, bucket_ratios

Content = dict[str, Any]
TITLE = "Multiple Code Hashing: the paper's experiments, repeated"
CURVE_BITS = (16, 32, 64)
GREY, BLACK = "#9a9a9a", "#000000"
ENGINES = {"probe": "probe", "auto": "auto", "faiss": "FAISS flat"}
TITLES = {"r0": "R@H=0", "p0": "P@H=0", "map": "mAP", "f1_own": "F1 of the own bucket"}
SECTIONS = {
    "summary": "What came out",
    "protocol": "Protocol",
    "statements": "The paper's statements",
    "map": "mAP",
    "r0": "Recall within radius 0",
    "p0": "Precision within radius 0",
    "f1": "F1 by buckets visited",
    "controls": "Keeping at random, and keeping all",
    "sensitivity": "Sensitivity to σ and ξ",
    "anhc": "Codes an image",
    "time": "F1 by time",
    "pairs": "Pairs, and images in several buckets",
    "visual": "Visual study",
    "beyond": "Beyond the paper",
    "time-taken": "How long it took",
}
STYLE = """
@page { size: A4; margin: 16mm 14mm 18mm; }
* { box-sizing: border-box; }
body { margin: 0; background: #fff; color: #000; font: 15px/1.5 "Helvetica Neue", Arial,
  "DejaVu Sans", sans-serif; }
main { max-width: 54rem; margin: 0 auto; padding: 2rem 1.2rem 4rem; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0 0 .3rem; }
h2 { font-size: 1.25rem; margin: 2.4rem 0 .5rem; border-bottom: 1.5px solid #000;
  padding-bottom: .15rem; break-after: avoid; }
h3 { font-size: 1rem; margin: 1.3rem 0 .3rem; break-after: avoid; }
p, li { margin: .4rem 0; max-width: 48rem; orphans: 3; widows: 3; }
a { color: #004f86; }
.small, figcaption { font-size: .84em; color: #333; }
table { border-collapse: collapse; margin: .6rem 0; font-size: .84em; line-height: 1.35;
  font-variant-numeric: tabular-nums; }
thead { display: table-header-group; }
th, td { padding: .22rem .7rem .22rem 0; text-align: right; border-bottom: 1px solid #ccc;
  vertical-align: top; }
th { border-bottom: 1px solid #000; font-weight: 600; }
th:first-child, td:first-child, .text th, .text td { text-align: left; }
tr, table:not(.text) { break-inside: avoid; }
table:not(.text) td:first-child { white-space: nowrap; }
p:has(+ table), p:has(+ svg) { break-after: avoid; }
tr.over td { border-top: 1px solid #000; }
.paper { color: #555; font-size: .9em; white-space: nowrap; }
.sd { color: #555; font-size: .88em; }
.verdict { font-weight: 700; white-space: nowrap; }
.yes { color: #0b5e34; } .part { color: #7a5200; } .no { color: #9c1c13; } .open { color: #444; }
q { quotes: "“" "”"; }
svg { display: block; width: 100%; height: auto; margin: .5rem 0; break-inside: avoid; }
svg text { font: 9px "Helvetica Neue", Arial, "DejaVu Sans", sans-serif; fill: #000; }
svg text.t { font-size: 10px; font-weight: 700; } svg text.l { fill: #333; }
svg path { fill: none; stroke-width: 1.5; stroke-linejoin: round; }
svg path.g { stroke: #d5d5d5; stroke-width: .6; }
svg path.d { stroke-width: 4.5; stroke-linecap: round; }
.row { display: grid; grid-template-columns: 1.2fr repeat(5, 1fr); gap: .5rem; margin: .8rem 0;
  padding-top: .6rem; border-top: 1px solid #ccc; break-inside: avoid; }
.query { grid-row: span 2; }
figure { margin: 0; } figcaption { font-size: .7rem; line-height: 1.3; }
.pic { position: relative; line-height: 0; border: 3px solid transparent; }
.pic.red { border-color: #e00000; }
.pic img { width: 100%; height: auto; }
.box { position: absolute; border: 2px solid #ff8c1a; outline: 1px solid #0009; }
nav { columns: 2; font-size: .9em; } nav a { display: block; }
@media print { body { font-size: 10pt; } main { max-width: none; padding: 0; }
  a { color: #000; text-decoration: none; } nav { display: none; }
  .page { break-before: page; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; } }
"""


def without_pictures(content: Content) -> Content:
    """For the record: pictures are the report's alone."""
    if not content.get("visual"):
        return content
    visual = dict(content["visual"])
    visual["rows"] = [
        {k: v for k, v in row.items() if k != "picture"}
        | {"images": [{k: v for k, v in i.items() if k != "picture"} for i in row["images"]]}
        for row in visual["rows"]
    ]
    return content | {"visual": visual}


def html(content: Content) -> str:
    makers: dict[str, Callable[[Content], Sequence[str]]] = {
        "summary": _summary,
        "protocol": _protocol,
        "statements": _statements,
        "map": _map,
        "r0": lambda c: _by_width(c, "r0"),
        "p0": lambda c: _by_width(c, "p0"),
        "f1": _f1,
        "controls": _controls,
        "sensitivity": _sensitivity,
        "anhc": _anhc,
        "time": _time,
        "pairs": _pairs,
        "visual": _visual,
        "beyond": beyond,
        "time-taken": _seconds,
    }
    parts: list[str] = [tag("h1", TITLE), tag("p", _about(content), class_="small")]
    parts.append(tag("nav", *(tag("a", name, href=f"#{key}") for key, name in SECTIONS.items())))
    for key, name in SECTIONS.items():
        page = "page" if key in ("statements", "map", "f1", "sensitivity", "time", "visual") else ""
        more = {"class_": page} if page else {}
        parts.append(tag("section", tag("h2", name), *makers[key](content), id=key, **more))
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", f"{TITLE} ({content['settings']['data']})"),
        tag("style", Markup(STYLE)),
    )
    page_ = tag("html", head, tag("body", tag("main", *parts)), lang="en")
    return f"<!doctype html>\n{page_}\n"


def _p(*text: str, small: bool = False) -> Markup:
    return tag("p", *text, class_="small") if small else tag("p", *text)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], kind: str = "") -> Markup:
    first = tag("thead", tag("tr", *(tag("th", h) for h in heads)))
    rest = tag("tbody", *(tag("tr", *(tag("td", c) for c in row)) for row in rows))
    return tag("table", first, rest, **({"class_": kind} if kind else {}))


def _about(content: Content) -> str:
    machine, commit = content["machine"], content["commit"]
    changed = ", with changes" if content["dirty"] else ""
    return (
        f"Data: {content['settings']['data']}. {content['date'][:10]}; mchindex at commit "
        f"{(commit or 'unknown')[:10]}{changed}; {machine['cpu']}, {machine['cores']} cores."
    )


def _cells(content: Content) -> list[Any]:
    return [r for r in content["rows"] if "mch" in r]


def _counts(content: Content) -> str:
    found = Counter(s["verdict"] for s in content["statements"])
    some = sum(n for v, n in found.items() if v not in (HOLDS, FAILS, UNKNOWN))
    sure = sum(s["verdict"] == HOLDS and s["constructed"] for s in content["statements"])
    return (
        f"Of {len(content['statements'])} tests of the paper's statements {found[HOLDS]} hold (of "
        f"which {sure} by construction), {some} hold in part of the cells, {found[FAILS]} do not "
        f"hold here, and {found[UNKNOWN]} cannot be judged."
    )


def _took(content: Content) -> str:
    seconds, cores = content["seconds"], content["machine"]["cores"]
    extra = sum(seconds.get(name, 0.0) for name in MORE_STEPS)
    asked = f", {_lasting(extra)} of them for the steps of --more-steps" if extra else ""
    return f"Computed in {_lasting(sum(seconds.values()))} on {cores} cores{asked}."


def _lasting(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"


def _summary(content: Content) -> list[str]:
    cells = _cells(content)
    parts: list[str] = [_p(_counts(content))]
    if cells:
        rows = []
        for name, title in TITLES.items():
            x, m = ([r[w][name] for r in cells] for w in ("base", "mch"))
            up = sum(b > a for a, b in zip(x, m, strict=True))
            rows.append(
                (title, f"{_mean(x):.4f}", f"{_mean(m):.4f}", f"{_mean(m) - _mean(x):+.4f}",
                 f"{up} of {len(cells)}")
            )  # fmt: skip
        anhc = _mean([r["mch"]["anhc"] for r in cells])
        rows.append(("codes an image", "1.00", f"{anhc:.2f}", "", ""))
        parts.append(_p("Means over all base methods X and widths, and the cells with a gain:"))
        parts.append(_table(("", "X", "MCH-X", "change", "higher in"), rows))
    if content.get("time") and content["time"]["against"]:
        parts.append(
            _p("Is “fewer buckets” “less time”? ", time_verdict(content["time"]["against"]))
        )
    if content.get("beyond"):
        kept = [s["name"] for s in content["beyond"].get("steps", []) if s["kept"]]
        parts.append(_p(f"Steps beyond the paper that are kept: {', '.join(kept) or 'none'}."))
    lacks = content["settings"]["cells_wanted"] - content["settings"]["cells"]
    if lacks:
        parts.append(_p(f"{lacks} of the cells asked for are not there yet."))
    return [*parts, _p(_took(content))]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _protocol(content: Content) -> list[str]:
    settings, data = content["settings"], content["data"]
    sizes = ""
    if "query" in data:
        sizes = (
            f"{data['query']:,} queries, {data['database']:,} images in the database, "
            f"{data['train']:,} of them for training; {len(data['classes'])} classes, "
            f"{data['classes_an_image']:.1f} an image. "
        )
    ours = (
        f"{sizes}Network: {settings['backbone']}, at {settings['size']} px; the whole image "
        f"and five regions ({settings['regions']}, σ = {settings['sigma']:g}), ξ = "
        f"{settings['xi']:g}; {settings['crops']} random crops an image for training; "
        f"{_seeds(settings['seeds'])}. Two images are similar if they share a class."
    )
    parts: list[str] = [_p(tag("b", "Ours. "), ours)]
    paper = settings["paper"]
    if paper in PROTOCOL:
        parts.append(_p(tag("b", f"The paper's ({NAMES[paper]}). "), f"{PROTOCOL[paper]}. {ALL}."))
        parts.append(
            _p(
                "The differences that matter: another network, which is not fine-tuned; other and, "
                "by the numbers above, fewer or more images as queries, database and training set; "
                f"{settings['seeds']} seeds instead of five. The paper's figures stand beside ours "
                "for orientation: what can be compared is the "
                "step from X to MCH-X, not the level."
            )
        )
    else:
        parts.append(_p("The data is none of the paper's three, so its figures are not shown."))
    parts.append(
        _p(
            "mAP is over the whole ranking, ties in database order. A query that finds nothing "
            "within radius 0 counts 0 in P@H=0. F1 by buckets is the mean F1 of all images in the "
            "first so many buckets of Algorithm 1, empty ones counted; the paper plots means of "
            "both at each K. An image's equal codes count once.",
            small=True,
        )
    )
    return parts


def _seeds(number: int) -> str:
    return "one seed" if number == 1 else f"mean of {number} seeds, ± their standard deviation"


def _sentence(content: Content) -> str:
    return f"{_seeds(content['settings']['seeds']).capitalize()}."


def _kind(verdict: str) -> str:
    return {HOLDS: "yes", FAILS: "no", UNKNOWN: "open"}.get(verdict, "part")


def _statements(content: Content) -> list[str]:
    rows = []
    for s in content["statements"]:
        quote = [tag("q", s["quote"])]
        if s["test"]:
            quote += [tag("br"), tag("span", f"Test: {s['test']}.", class_="small")]
        shown: list[str] = [s["evidence"]]
        if s["fails"]:
            shown += [tag("br"), tag("span", f"Not in: {', '.join(s['fails'])}.", class_="small")]
        if s["paper"]:
            text = f"The paper's own figures: {s['paper']}."
            shown += [tag("br"), tag("span", text, class_="small")]
        if s["figure"]:
            see = tag("a", f"→ {SECTIONS[s['figure']]}", href=f"#{s['figure']}")
            shown += [tag("br"), tag("span", see, class_="small")]
        mark = tag("span", s["verdict"], class_=f"verdict {_kind(s['verdict'])}")
        rows.append((s["where"], joined(quote), mark, joined(shown)))
    return [
        _p(
            _counts(content),
            " Each verdict is computed from the figures below it, by the test that stands with it. "
            "Where the paper prints its numbers, the same test is made on them, over its three "
            "data sets.",
        ),
        _table(("where", "statement and test", "verdict", "what shows it"), rows, "text"),
    ]


def _pm(figures: Any, name: str, seeds: int) -> list[str]:
    value = [f"{figures[name]:.4f}"]
    if seeds > 1:
        value.append(tag("span", f" ±{figures[f'{name}_std']:.4f}", class_="sd"))
    return value


def _map(content: Content) -> list[str]:
    paper = content["settings"]["paper"]
    widths = sorted({r["bits"] for r in content["rows"]})
    lines: list[list[str]] = []
    for method in LABELS:
        for way in ("base", "mch"):
            cells: list[str] = []
            for bits in widths:
                row = next(
                    (r for r in content["rows"] if (r["method"], r["bits"]) == (method, bits)), None
                )
                if row is None or way not in row:
                    cells.append("")
                    continue
                text = _pm(row[way], "map", row["seeds"])
                if way == "mch" and row["mch"]["map"] > row["base"]["map"]:
                    text[0] = tag("b", text[0])
                there = theirs(paper, "map", method, bits)
                value = there[way == "mch"] if there else None
                if value is not None:
                    text += [tag("br"), tag("span", f"paper {value:.4f}", class_="paper")]
                cells.append(joined(text))
            if any(cells):
                name = LABELS[method] if way == "base" else f"MCH-{LABELS[method]}"
                lines.append([name, *cells])
    heads = ["", *(f"{b} bits" for b in widths)]
    return [
        _p("In bold where MCH-X is above X. ", _sentence(content)),
        _table(heads, lines),
    ]


def _colour(method: str) -> str:
    order = [m for m in LABELS if m not in UNSUPERVISED] + list(UNSUPERVISED)
    return COLOURS[order.index(method) % len(COLOURS)]


def _by_width(content: Content, name: str) -> list[str]:
    paper = content["settings"]["paper"]
    cells = _cells(content)
    widths = sorted({r["bits"] for r in cells})
    groups, lines = [], []
    for method in dict.fromkeys(r["method"] for r in cells):
        mine = sorted((r for r in cells if r["method"] == method), key=lambda r: r["bits"])
        their = [(r["bits"], t) for r in mine if (t := theirs(paper, name, method, r["bits"]))]
        colour = _colour(method)
        drawn = []
        if their:
            drawn += [
                Line("X, paper", [(b, t[0]) for b, t in their], GREY, dashed=True),
                Line("MCH-X, paper", [(b, t[1]) for b, t in their if t[1] is not None], GREY),
            ]
        drawn += [
            Line("X", [(r["bits"], r["base"][name]) for r in mine], colour, True, True),
            Line("MCH-X", [(r["bits"], r["mch"][name]) for r in mine], colour, marks=True),
        ]
        groups.append(Panel(LABELS[method], drawn))
        for way, label in (("base", LABELS[method]), ("mch", f"MCH-{LABELS[method]}")):
            texts: list[str] = []
            for bits in widths:
                row = next((r for r in mine if r["bits"] == bits), None)
                if row is None:
                    texts.append("")
                    continue
                text = _pm(row[way], name, row["seeds"])
                there = theirs(paper, name, method, bits)
                value = there[way == "mch"] if there else None
                if value is not None:
                    text += [tag("br"), tag("span", f"paper {value:.4f}", class_="paper")]
                texts.append(joined(text))
            lines.append([label, *texts])
    return [
        panels(groups, Axis("bits", ticks=widths), Axis(TITLES[name], from_zero=True)),
        _table(["", *(f"{b} bits" for b in widths)], lines),
    ]


def _f1(content: Content) -> list[str]:
    parts: list[str] = []
    rows = content["rows"]
    widths = [b for b in CURVE_BITS if any(r["bits"] == b for r in rows)]
    for bits in widths or sorted({r["bits"] for r in rows}):
        groups, simple = [], []
        for r in (r for r in rows if r["bits"] == bits):
            colour = _colour(r["method"])
            if r["method"] in UNSUPERVISED:
                curve = _trim(r["base"]["f1_buckets"])
                simple.append(Line(LABELS[r["method"]], curve, colour))
            elif "mch" in r:
                lines = [
                    Line("X", _trim(r["base"]["f1_buckets"]), colour, dashed=True),
                    Line("MCH-X", _trim(r["mch"]["f1_buckets"]), colour),
                ]
                groups.append(Panel(LABELS[r["method"]], lines))
        if simple:
            groups.append(Panel("unsupervised", simple))
        parts.append(tag("h3", f"{bits} bits"))
        axis = Axis("buckets visited", log=True)
        parts.append(panels(groups, axis, Axis("F1", from_zero=True), label=f"F1, {bits} bits"))
    needed = []
    for r in _cells(content):
        found = bucket_ratios(r)
        cells = [f"{LABELS[r['method']]}-{r['bits']}"]
        for b in REACHED:
            f1 = next((f for x, f in r["mch"]["f1_buckets"] if x == b), None)
            ratio = found.get(b)
            if f1 is None:
                cells += ["", ""]
            else:
                cells += [f"{f1:.3f}", "never" if ratio is None else f"{ratio:.3g}"]
        needed.append(cells)
    heads = [""]
    for b in REACHED:
        heads += [f"F1 after {b:,}", "× buckets of X"]
    parts += [
        tag("h3", "Buckets at the same F1"),
        _p(
            "F1 of MCH-X after so many buckets, and how many times as many X needs for it (along "
            "the log axis between the points that are measured)."
        ),
        _table(heads, needed),
    ]
    return parts


def _trim(curve: Sequence[Sequence[float]]) -> list[Sequence[float]]:
    """Without the flat end, where everything has been found."""
    last = curve[-1][1]
    end = next((i for i in range(len(curve) - 1, -1, -1) if abs(curve[i][1] - last) > 1e-9), 0)
    return list(curve[: end + 2])


def _controls(content: Content) -> list[str]:
    ways = (("base", "X"), ("random_keep", "random"), ("mch", "MCH-X"), ("keep_all", "all"))
    lines = []
    for r in _cells(content):
        if "random_keep" not in r:
            continue
        line: list[str] = [f"{LABELS[r['method']]}-{r['bits']}"]
        for name in ("f1_own", "map"):
            best = max(r[w][name] for w, _ in ways)
            for way, _ in ways:
                text = f"{r[way][name]:.4f}"
                line.append(tag("b", text) if r[way][name] == best else text)
        line += [f"{r['mch']['anhc']:.2f}", f"{r['keep_all']['anhc']:.2f}"]
        lines.append(line)
    heads = [
        "",
        *(f"F1 {n}" for _, n in ways),
        *(f"mAP {n}" for _, n in ways),
        "codes",
        "codes all",
    ]
    return [
        _p(
            "F1 of the own bucket and mAP when each image keeps only its whole code (X), regions "
            "at random with as many codes as MCH-X, what the policy keeps, or all six. The best is "
            "bold."
        ),
        _table(heads, lines),
    ]


def _missing(content: Content, name: str) -> list[str] | None:
    return None if content.get(name) else [_p("Not computed.")]


def _study(content: Content) -> str:
    method, bits = content["study"]
    return f"{LABELS[method]} with {bits} bits, seed 0"


def _sensitivity(content: Content) -> list[str]:
    if (none := _missing(content, "sensitivity")) is not None:
        return none
    found = content["sensitivity"]
    groups: dict[str, list[Panel]] = {}
    for of, sign in (("sigma", "σ"), ("xi", "ξ")):
        for group, curves in found[of].items():
            names = [v for v in curves if v != "1"]
            lines = [
                Line(f"{sign} = {v}", curves[v], COLOURS[i % len(COLOURS)])
                for i, v in enumerate(names)
            ]
            base = "X (σ = 1)" if of == "sigma" else "ξ = 1"
            if "1" in curves:
                lines.append(Line(base, curves["1"], BLACK, dashed=True))
            title = "all queries" if group == "all" else f"queries with “{group}”"
            groups.setdefault(of, []).append(Panel(title, lines))
    counts = "; ".join(
        f"“{name}”: {n:,} queries"
        + (f" (the paper: {CLASS_QUERIES[name]})" if _is(content, "coco", name) else "")
        for name, n in found["classes"].items()
    )
    x, y = Axis("buckets visited", log=True), Axis("F1")
    return [
        _p(
            f"MCH-{_study(content)}. The policy is the one that was trained at σ = "
            f"{content['settings']['sigma']:g}. Other σ need new crops, so that study is on "
            f"{found['part']:,} of the {found['database']:,} images of the database, evenly "
            f"spaced; ξ = {content['settings']['xi']:g}. The study of ξ is on all of them. Two "
            f"classes, {found['rule']}: {counts}."
        ),
        tag("h3", "By σ"),
        panels(groups["sigma"], x, y, shared=False, label="F1 by buckets for each sigma"),
        tag("h3", "By ξ"),
        panels(groups["xi"], x, y, shared=False, label="F1 by buckets for each xi"),
    ]


def _is(content: Content, paper: str, name: str) -> bool:
    return content["settings"]["paper"] == paper and name in CLASS_QUERIES


def _anhc(content: Content) -> list[str]:
    if (none := _missing(content, "sensitivity")) is not None:
        return none
    found = content["sensitivity"]
    coco = content["settings"]["paper"] == "coco" and content["study"] == ["dch", 32]
    lines = []
    for sigma, by_xi in found["anhc"].items():
        line: list[str] = [f"σ = {sigma}"]
        for xi, value in by_xi.items():
            text: list[str] = [f"{value:.2f}"]
            if coco and float(sigma) in ANHC:
                there = ANHC[float(sigma)][ANHC_XI.index(float(xi))]
                text.append(tag("span", f" ({there:.2f})", class_="paper"))
            line.append(joined(text))
        lines.append(line)
    heads = ["", *(f"ξ = {xi}" for xi in next(iter(found["anhc"].values())))]
    brackets = " In brackets the paper's." if coco else ""
    return [
        _p(
            f"MCH-{_study(content)}: different codes an image, mean over {found['part']:,} images."
            + brackets
        ),
        _table(heads, lines),
    ]


def _time(content: Content) -> list[str]:
    if (none := _missing(content, "time")) is not None:
        return none
    found = content["time"]
    colours = dict(zip(ENGINES, (COLOURS[0], COLOURS[1], COLOURS[6]), strict=True))
    groups: dict[str, list[Line]] = {}
    for c in found["curves"]:
        name = f"{'MCH-X' if c['way'] == 'mch' else 'X'}, {ENGINES[c['engine']]}"
        points = [(p["microseconds"], p["f1"]) for p in c["points"]]
        line = Line(name, points, colours[c["engine"]], c["way"] == "base", True)
        groups.setdefault(c["cell"], []).append(line)
    left = sum(c["left_out"] for c in found["curves"] if c["engine"] == "probe")
    notes = [
        f"At most {found['queries']:,} queries in one call, one thread, the processor's time; each "
        f"engine in a process of its own; K from 1 to {found['largest_k']:,}, or all images. "
        "“Probe” looks into one bucket after the other, “auto” chooses by query, and FAISS's flat "
        "index is the Hamming ranking, in the faster of its two ways; of several codes an image it "
        "fetches six times as many rows and drops repeats."
    ]
    if left:
        notes.append(
            f"{left} points of “probe” are left out: more than 5 % of their queries need so many "
            "buckets that the engine scans instead."
        )
    notes += found["missing"]
    panels_ = [Panel(_cell_title(cell), lines) for cell, lines in groups.items()]
    x, y = Axis("microseconds a query", log=True), Axis("F1", from_zero=True)
    parts: list[str] = [
        *(_p(n) for n in notes),
        panels(panels_, x, y, columns=2, label="F1 by time"),
    ]
    if found["against"]:
        parts += [
            tag("h3", "Is “fewer buckets” “less time”?"),
            _p(time_verdict(found["against"])),
            _table(
                ("", "search", "× buckets of X", "× time of X", "points"),
                [
                    (_cell_title(a["cell"]), ENGINES[a["engine"]],
                     "" if a["engine"] == "faiss" else f"{a['buckets']:.3g}",
                     f"{a['microseconds']:.2f}", str(a["points"]))
                    for a in found["against"]
                ],
            ),
            _p(
                "For the F1 that MCH-X has at each K: how many times its buckets and its time X "
                "needs for as much; geometric means over the K at which X gets there. Above 1 "
                "MCH-X needs less.",
                small=True,
            ),
        ]  # fmt: skip
    return parts


def time_verdict(against: Sequence[Any]) -> str:
    """Whether fewer buckets are less time, in words."""
    parts = []
    for engine, name in ENGINES.items():
        mine = [a for a in against if a["engine"] == engine]
        fewer = [a for a in mine if a["buckets"] > 1]
        less = [a for a in fewer if a["microseconds"] > 1]
        if mine and engine == "faiss":  # it visits no buckets: a code more is a row more
            less = [a for a in mine if a["microseconds"] > 1]
            parts.append(f"with {name} it needs less time in {len(less)} of {len(mine)} cells")
        elif mine:
            parts.append(
                f"with {name} MCH-X needs fewer buckets in {len(fewer)} of {len(mine)} cells, and "
                f"less time in {len(less)} of these"
            )
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _cell_title(cell: str) -> str:
    method, bits = cell.split("-")
    return f"{LABELS[method]}, {bits} bits"


def _pairs(content: Content) -> list[str]:
    if (none := _missing(content, "pairs")) is not None:
        return none
    found = content["pairs"]
    rows = [(f"similar, image of {g}{'+' if g == '4' else ''} classes", v) for g, v in
            found["by_classes"].items() if v]  # fmt: skip
    rows += [(name, found[key]) for name, key in (("all similar", "similar"), ("others", "other"))
             if found[key]]  # fmt: skip
    lines = [
        (name, f"{v['pairs']:,}", f"{v['distance']:.2f}", f"{v['distance_mch']:.2f}",
         f"{v['at0']:.2%}", f"{v['at0_mch']:.2%}")
        for name, v in rows
    ]  # fmt: skip
    two = found["by_two"]
    return [
        _p(
            f"{_study(content)}. Pairs of a query and a database image: mean distance in bits, and "
            "the share that stands in one bucket."
        ),
        _table(("pairs", "number", "bits, X", "bits, MCH-X", "at 0, X", "at 0, MCH-X"), lines),
        _p(
            f"{found['several_codes']:.1%} of the images have several codes. In the own buckets of "
            f"two queries that have no class in common, both similar to it, stand {two['base']:,} "
            f"images with X and {two['mch']:,} with MCH-X, {two['mch_buckets']:,} of them in "
            "different buckets."
        ),
    ]


def _visual(content: Content) -> list[str]:
    if (none := _missing(content, "visual")) is not None:
        return none
    found = content["visual"]
    about = found.get("about") or _study(content)
    parts: list[str] = [
        _p(
            f"{about}. {found['rule']} Under an image stand its Hamming distance from the query "
            "under X and under MCH-X and, framed, the region by which MCH-X is nearer. Red: images "
            "that two of the queries, which have no class in common, find in their own buckets."
        )
    ]
    for row in found["rows"]:
        caption = tag(
            "figcaption",
            tag("b", "query: "),
            ", ".join(row["classes"]),
            tag("br"),
            f"{row['moved']:,} of {row['similar']:,} similar images are brought to 0",
        )
        figures = [tag("figure", _picture(row["picture"], row["classes"]), caption, class_="query")]
        for i in row["images"]:
            through = f", {i['region']}" if i["mch"] < i["base"] else ""
            text = tag(
                "figcaption",
                tag("b", f"X {i['base']} · MCH-X {i['mch']}"),
                through,
                tag("br"),
                ", ".join(i["classes"]),
            )
            box = i["box"] if i["mch"] < i["base"] else None
            figures.append(tag("figure", _picture(i["picture"], i["classes"], box, i["red"]), text))
        parts.append(tag("div", *figures, class_="row"))
    return parts


def _picture(
    picture: Any, classes: Sequence[str], box: Sequence[float] | None = None, red: bool = False
) -> Markup:
    source = f"data:image/jpeg;base64,{picture['jpeg']}"
    size = {"width": picture["width"], "height": picture["height"]}
    parts = [tag("img", src=source, alt=", ".join(classes) or "of no class", **size)]
    if box is not None:
        x0, y0, x1, y1 = (100 * share for share in box)
        where = f"left:{x0:.1f}%;top:{y0:.1f}%;width:{x1 - x0:.1f}%;height:{y1 - y0:.1f}%"
        parts.append(tag("span", class_="box", style=where))
    return tag("div", *parts, class_="pic red" if red else "pic")


def beyond(content: Content) -> list[str]:
    """Steps beyond the paper: {"steps": [{"name", "what", "cells": [{"method", "bits", "seeds",
    "mch": {"f1_own", "map", "r0", "p0", "anhc"}, "step": {the same}}], "f1_ratio",
    "f1_mean_ratio", "map_change", "anhc_change", "anhc_off", "kept"}], "unsupervised": {"cells":
    [{"name", "bits", "map", "r0", "p0", "anhc"}], "statement"}}."""
    if (none := _missing(content, "beyond")) is not None:
        return none
    found = content["beyond"]
    parts: list[str] = []
    figures = ("f1_own", "map", "r0", "p0", "anhc")
    titles = ("F1 own", "mAP", "R@H=0", "P@H=0", "codes")
    steps = found.get("steps", [])
    if steps:
        parts.append(
            _table(
                ("step", "F1 of the own bucket", "mean of the cells' ratios", "mAP",
                 "codes an image", "off by at most", ""),
                [
                    (s["name"], f"× {s['f1_ratio']:.3f}", f"× {s['f1_mean_ratio']:.3f}",
                     f"{s['map_change']:+.4f}", f"{s['anhc_change']:+.3f}",
                     f"{s['anhc_off']:.3f}", _kept(s["kept"]))
                    for s in steps
                ],
            )
        )  # fmt: skip
    for step in steps:
        lines = []
        for c in step["cells"]:
            pairs_ = [f"{c['mch'][f]:.3f} → {c['step'][f]:.3f}" for f in figures]
            lines.append((f"{_label(c['method'])}-{c['bits']}", *pairs_))
        if step["cells"]:
            both = [
                f"{_mean([c['mch'][f] for c in step['cells']]):.3f} → "
                f"{_mean([c['step'][f] for c in step['cells']]):.3f}"
                for f in figures
            ]
            lines.append(("mean", *both))
        parts += [
            tag("h3", step["name"], " ", _kept(step["kept"])),
            _p(step["what"]),
            _table(("MCH → step", *titles), lines),
        ]
    bare = found.get("unsupervised")
    if bare:
        lines = [
            (c["name"], str(c["bits"]), *(f"{c[f]:.4f}" for f in ("map", "r0", "p0")),
             f"{c['anhc']:.2f}")
            for c in bare["cells"]
        ]  # fmt: skip
        heads = ("", "bits", "mAP", "R@H=0", "P@H=0", "codes")
        parts += [tag("h3", "Without labels"), _p(str(bare["statement"])), _table(heads, lines)]
    return parts


def _label(method: str) -> str:
    return LABELS.get(method, method)


def _kept(kept: bool) -> Markup:
    kind = "verdict yes" if kept else "verdict no"
    return tag("span", "kept" if kept else "not kept", class_=kind)


def _seconds(content: Content) -> list[str]:
    lines = [(name, f"{s / 60:.1f}") for name, s in content["seconds"].items()]
    return [
        _p(
            _took(content),
            " Added up over interrupted runs; features and cells that were there already from "
            "earlier runs of other benchmarks cost nothing, but cells count with the time that "
            "they took.",
        ),
        _table(("stage", "minutes"), lines),
    ]


# Markdown


def markdown(content: Content) -> str:
    """A summary: the means, the statements, and where the rest is."""
    paper = content["settings"]["paper"]
    lines = [f"# {TITLE}", "", _about(content), "", _counts(content), _took(content)]
    lines += [
        "The figures are in [paper.html](paper.html), all numbers in [paper.json](paper.json)."
    ]
    lines += ["", "## X → MCH-X", "", _sentence(content)]
    if paper in NAMES:
        lines += ["In brackets the paper's figures, by another protocol (see the report)."]
    lines += ["", "| X | bits | mAP | R@H=0 | P@H=0 | F1 of the own bucket | codes an image |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for r in content["rows"]:
        cells = []
        for name in ("map", "r0", "p0", "f1_own"):
            there = theirs(paper, name, r["method"], r["bits"])
            if "mch" not in r:
                text = f"{r['base'][name]:.4f}" + (f" ({there[0]:.4f})" if there else "")
            else:
                text = f"{r['base'][name]:.4f} → {r['mch'][name]:.4f}"
                text += f" ({there[0]:.4f} → {there[1]:.4f})" if there else ""
            cells.append(text)
        codes = f"{r['mch']['anhc']:.2f}" if "mch" in r else "1.00"
        lines.append(f"| {LABELS[r['method']]} | {r['bits']} | {' | '.join(cells)} | {codes} |")
    lines += ["", "## The paper's statements", ""]
    lines += ["| statement | test | verdict | what shows it |", "|---|---|---|---|"]
    for s in content["statements"]:
        shown = s["evidence"] + (f"; not in {', '.join(s['fails'])}" if s["fails"] else "")
        if s["paper"]:
            shown += f". The paper's own figures: {s['paper']}"
        cells = [f"“{s['quote']}” ({s['where']})", s["test"], f"**{s['verdict']}**", shown]
        lines.append(f"| {' | '.join(c.replace('|', '/') for c in cells)} |")
    if content.get("time") and content["time"]["against"]:
        lines += ["", "## Time", "", time_verdict(content["time"]["against"])]
    if content.get("beyond"):
        lines += ["", "## Beyond the paper", ""]
        for step in content["beyond"].get("steps", []):
            lines.append(
                f"- **{step['name']}** ({'kept' if step['kept'] else 'not kept'}): F1 of the own "
                f"bucket × {step['f1_ratio']:.3f} (mean of the cells' ratios "
                f"{step['f1_mean_ratio']:.2f}), mAP {step['map_change']:+.4f}, codes an image "
                f"{step['anhc_change']:+.3f}. {step['what']}"
            )
        if bare := content["beyond"].get("unsupervised"):
            lines.append(f"- **without labels**: {bare['statement']}")
    return "\n".join(lines) + "\n"
