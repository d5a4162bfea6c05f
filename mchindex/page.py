"""What a demo found, as one HTML page: pictures and plot within it, no scripts, no network.

Elements are made by `tag`, which escapes all text that is not an element itself.
"""

from __future__ import annotations

import base64
import html
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from mchindex.errors import ImageError
from mchindex.images import read_picture
from mchindex.index.grid import FRAME

if TYPE_CHECKING:
    from mchindex.demo import Found, PhotosDemo, Reach, ScenesDemo, Shown

SIDE = 200  # pixels of a picture on the page, at most
VOID = frozenset({"br", "img", "meta"})
WHAT = (
    "An image often shows several things, and one hash code cannot lie near all of them. "
    "Multiple Code Hashing (MCH) stores it under several: a code for the whole image, and one for "
    "each region that a policy, learnt by reinforcement, finds worth keeping. A query is still one "
    "code, and finds the image in the bucket of whichever of its codes lies nearest."
)
STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1c1c1e; --faint: #62626a; --line: #dcdce0;
  --card: #f6f6f7; --mch: #0072b2; --base: #c04e00; --good: #177245; --bad: #b3261e;
  --frame: @FRAME@; }
@media (prefers-color-scheme: dark) { :root { --paper: #151518; --ink: #ececee; --faint: #a2a2ab;
  --line: #3a3a40; --card: #1f1f23; --mch: #58b4ea; --base: #f0955a; --good: #6fd09c;
  --bad: #ff8f85; } }
@media print { :root { color-scheme: light; --paper: #fff; --ink: #000; --faint: #444;
  --line: #ccc; --card: #fff; --mch: #0072b2; --base: #c04e00; --good: #177245; --bad: #b3261e; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .4rem; }
h2 { font-size: 1.25rem; margin: 2.6rem 0 .6rem; }
p { margin: .5rem 0; max-width: 46rem; }
.faint, figcaption { color: var(--faint); }
table { border-collapse: collapse; margin: .8rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem 1.1rem .35rem 0; text-align: right; border-bottom: 1px solid var(--line); }
th { font-weight: 600; color: var(--faint); }
th:first-child, td:first-child { text-align: left; }
.wide { overflow-x: auto; }
.better { color: var(--good); } .worse { color: var(--bad); }
code, pre { font: .9em/1.5 ui-monospace, "DejaVu Sans Mono", monospace; }
pre { background: var(--card); border: 1px solid var(--line); border-radius: 6px;
  padding: .8rem 1rem; overflow-x: auto; white-space: pre-wrap; overflow-wrap: anywhere; }
svg { display: block; width: 100%; min-width: 30rem; max-width: 46rem; height: auto;
  font-size: 12px; }
svg text { fill: var(--faint); } svg .grid { stroke: var(--line); }
svg .mch { stroke: var(--mch); } svg .base { stroke: var(--base); stroke-dasharray: 6 4; }
svg text.mch { fill: var(--mch); stroke: none; font-weight: 600; }
svg text.base { fill: var(--base); stroke: none; font-weight: 600; }
svg .reach { stroke: var(--faint); stroke-dasharray: 1 4; stroke-linecap: round; }
svg path, svg line { fill: none; stroke-width: 1; } svg path { stroke-width: 2.2; }
.row { display: grid; grid-template-columns: 1.25fr repeat(@HITS@, 1fr); gap: .9rem;
  padding: 1rem 0; border-top: 1px solid var(--line); break-inside: avoid; }
figure { margin: 0; min-width: 0; font-size: .78rem; line-height: 1.4; }
figcaption { margin-top: .35rem; overflow-wrap: anywhere; }
figcaption b { color: var(--ink); }
.query { padding-right: .9rem; border-right: 1px solid var(--line); }
.cell { aspect-ratio: 1; display: flex; align-items: center; justify-content: center;
  background: var(--card); }
.pic { position: relative; line-height: 0; }
.pic img { width: 100%; height: auto; }
.box { position: absolute; border: 3px solid var(--frame); outline: 1px solid #0009; }
.region { color: var(--ink); border-bottom: 2px solid var(--frame); }
@media (max-width: 46rem) { .row { grid-template-columns: repeat(3, 1fr); }
  .query { grid-column: 1 / -1; max-width: 12rem; border: 0; } }
@media print { main { padding: 0; max-width: none; } h2 { break-after: avoid; }
  svg { min-width: 0; } svg, table, pre { break-inside: avoid; } body { font-size: 12px; } }
"""


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def tag(name: str, /, *inside: str, **attributes: object) -> Markup:
    """An element; in the names of attributes `class_` is class and `text_anchor` text-anchor."""
    given = "".join(
        f' {_attribute(key)}="{html.escape(str(value))}"' for key, value in attributes.items()
    )
    if name in VOID:
        return Markup(f"<{name}{given}>")
    return Markup(f"<{name}{given}>{joined(inside)}</{name}>")


def joined(parts: Iterable[str]) -> Markup:
    return Markup("".join(p if isinstance(p, Markup) else html.escape(p) for p in parts))


def _attribute(key: str) -> str:
    return "viewBox" if key == "view_box" else key.rstrip("_").replace("_", "-")


def document(title: str, *inside: str, hits: int = 6) -> str:
    style = STYLE.replace("@FRAME@", FRAME).replace("@HITS@", str(max(1, hits)))
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", title),
        tag("style", Markup(style)),
    )
    body = tag("body", tag("main", *inside))
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Markup:
    """Without heads, names and values."""
    first = [tag("tr", *(tag("th", head) for head in heads))] if heads else []
    rest = (tag("tr", *(tag("td", cell) for cell in row)) for row in rows)
    return tag("div", tag("table", *first, *rest), class_="wide")


def plot(curves: Mapping[str, Sequence[Sequence[float]]], reaches: Sequence[Reach] = ()) -> Markup:
    """F1 by buckets, which go along a log axis. The curves' names are classes of the style."""
    width, height, left, right, top, bottom = 736, 330, 44, 16, 14, 42
    points = [point for curve in curves.values() for point in curve]
    decades = max(1, math.ceil(math.log10(max(x for x, _ in points)) - 1e-9))
    high = max(0.1, math.ceil(max(y for _, y in points) * 10 + 0.2) / 10)

    def across(x: float) -> float:
        return left + (width - left - right) * math.log10(x) / decades

    def down(y: float) -> float:
        return height - bottom - (height - top - bottom) * y / high

    parts = []
    for tenth in range(0, round(high * 10) + 1, 1 if high <= 0.5 else 2):
        y = down(tenth / 10)
        parts.append(_line(left, y, width - right, y, "grid"))
        parts.append(_text(left - 8, y + 4, f"{tenth / 10:.1f}", "end"))
    for power in range(0, decades + 1, 1 if decades <= 10 else 2):
        x = across(10.0**power)
        parts.append(_line(x, height - bottom, x, height - bottom + 5, "grid"))
        parts.append(_text(x, height - bottom + 19, power_of_ten(power), "middle"))
    parts.append(_text((left + width - right) / 2, height - 5, "buckets visited", "middle"))
    parts.append(_text(left + 6, top + 8, "F1, mean over the queries", "start"))
    for reach in reaches:
        if reach.base is not None and reach.base > reach.buckets:
            y = down(reach.f1)
            parts.append(_line(across(reach.buckets), y, across(reach.base), y, "reach"))
    for place, (name, curve) in enumerate(curves.items()):
        path = " ".join(f"{across(x):.1f},{down(y):.1f}" for x, y in curve)
        parts.append(tag("path", d=f"M{path}", class_=name))
        where = width - right - 150, height - bottom - 18 - 20 * (len(curves) - 1 - place)
        parts.append(_line(where[0], where[1] - 4, where[0] + 34, where[1] - 4, name))
        parts.append(_text(where[0] + 42, where[1], LABELS.get(name, name), "start", name))
    label = "F1 by buckets visited: " + "; ".join(
        f"{LABELS.get(name, name)} {curve[0][1]:.3f} after the first, "
        f"at most {max(y for _, y in curve):.3f}"
        for name, curve in curves.items()
    )
    box = f"0 0 {width} {height}"
    return tag("div", tag("svg", *parts, view_box=box, role="img", aria_label=label), class_="wide")


LABELS = {"base": "base, one code", "mch": "MCH"}
_RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def power_of_ten(power: int) -> str:
    return f"{10**power:,}" if power < 5 else "10" + str(power).translate(_RAISED)


def _line(x0: float, y0: float, x1: float, y1: float, kind: str) -> Markup:
    ends = {"x1": x0, "y1": y0, "x2": x1, "y2": y1}
    return tag("line", **{name: f"{value:.1f}" for name, value in ends.items()}, class_=kind)


def _text(x: float, y: float, text: str, anchor: str, kind: str = "") -> Markup:
    more = {"class_": kind} if kind else {}
    return tag("text", text, x=f"{x:.1f}", y=f"{y:.1f}", text_anchor=anchor, **more)


def thumbnail(path: str, side: int = SIDE) -> tuple[bytes, tuple[int, int]]:
    """A picture in at most so many pixels a side, as a JPEG, and its size there."""
    image = read_picture(path, side).image
    image.thumbnail((side, side), Image.Resampling.LANCZOS)
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=86, subsampling=0, optimize=True)
    return stream.getvalue(), image.size


def picture(path: str | None, alt: str, box: Sequence[float] | None = None) -> Markup:
    """A square with the picture in it; `box` is a part to frame, in shares of the sides."""
    try:
        if path is None:
            raise ImageError("no file")
        data, (width, height) = thumbnail(path)
    except ImageError:
        return tag("div", tag("span", "the file is gone", class_="faint"), class_="cell")
    source = "data:image/jpeg;base64," + base64.b64encode(data).decode()
    parts = [tag("img", src=source, alt=alt, width=width, height=height)]
    if box is not None:
        x0, y0, x1, y1 = (100 * share for share in box)
        where = f"left:{x0:.2f}%;top:{y0:.2f}%;width:{x1 - x0:.2f}%;height:{y1 - y0:.2f}%"
        parts.append(tag("span", class_="box", style=where))
    wide = f"width:{100 * min(1, width / height):.2f}%"
    return tag("div", tag("div", *parts, class_="pic", style=wide), class_="cell")


def rows_of(shown: Sequence[Shown]) -> Markup:
    """A row a query: itself, then what it found."""
    return joined(
        tag("div", _query(query), *(_found(found) for found in query.hits), class_="row")
        for query in shown
    )


def _query(query: Shown) -> Markup:
    facts = [tag("b", "query "), query.name]
    if query.classes is not None:
        facts += [tag("br"), ", ".join(query.classes)]
    facts += [tag("br"), f"{counted(query.buckets, 'bucket')}, radius {query.radius}"]
    caption = tag("figcaption", *facts)
    return tag("figure", picture(query.path, f"query {query.name}"), caption, class_="query")


def _found(found: Found) -> Markup:
    hit = found.hit
    through = tag("span", hit.region, class_="region") if found.by_region else hit.region
    facts = [tag("b", f"{hit.distance}"), " by ", through]
    if found.whole is not None and found.by_region:
        facts.append(f" (whole: {found.whole})")
    facts.append(tag("br"))
    if found.shared is None:
        facts.append(Path(str(hit.id)).name)
    elif found.shared:
        facts.append(tag("span", "✓ " + ", ".join(found.shared), class_="better"))
    else:
        facts.append(tag("span", "✗ shares no class", class_="worse"))
    box = found.box if found.by_region else None
    alt = f"hit {Path(str(hit.id)).name}, found by {hit.region}"
    return tag("figure", picture(hit.path, alt, box), tag("figcaption", *facts))


def counted(number: int, what: str) -> str:
    """1 bucket, 2,300 buckets, 2.9 · 10¹⁴ buckets."""
    if number >= 10**7:
        digits, power = f"{number:.1e}".split("e")
        return f"{digits} · 10{str(int(power)).translate(_RAISED)} {what}s"
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def _change(before: float, after: float, judged: bool) -> Markup:
    kind = "" if not judged or after == before else "better" if after > before else "worse"
    return tag("span", f"{after - before:+.4f}", class_=kind or "faint")


def scenes_page(demo: ScenesDemo) -> str:
    base, mch = demo.base, demo.mch
    figures = [
        (
            title,
            f"{getattr(base, name):.4f}",
            tag("b", f"{getattr(mch, name):.4f}"),
            _change(getattr(base, name), getattr(mch, name), name != "anhc"),
        )
        for title, name in demo.FIGURES.items()
    ]
    reaches = [(counted(r.buckets, "bucket"), f"{r.f1:.4f}", r.words()) for r in demo.reaches]
    return document(
        "mchindex: one code an image, and several",
        tag("h1", "One code an image, and several"),
        tag("p", demo.about, class_="faint"),
        tag("p", WHAT),
        tag("h2", "What was measured"),
        tag("p", demo.verdict()),
        table(("", "base: one code", "MCH", "change"), figures),
        tag(
            "p",
            "R and P are recall and precision of the images in the query's own bucket (H=0), "
            "mAP is over the whole ranking, ANHC the mean number of different codes an image. "
            "Relevant is what shares a class with the query.",
            class_="faint",
        ),
        tag("h2", "Buckets to reach the same F1"),
        table(("MCH visits", "and has F1", "the base has as much after"), reaches),
        tag(
            "p",
            f"F1 is of all images in the buckets visited, empty buckets counted, measured at "
            f"{demo.a_decade} numbers of buckets a decade.",
            class_="faint",
        ),
        plot({"base": demo.curves["base"], "mch": demo.curves["mch"]}, demo.reaches),
        tag("h2", "Queries and what they found"),
        tag("p", demo.rule),
        tag(
            "p",
            "Below a hit: its Hamming distance from the query, and the region whose code was "
            "nearest, framed; 0 means the same bucket. In brackets is the distance of the same "
            "image's code as a whole, which is all that the base has; of equal distances, the "
            "bucket that is visited first counts.",
            class_="faint",
        ),
        rows_of(demo.shown),
        _next(demo.commands),
        hits=demo.hits,
    )


def photos_page(demo: PhotosDemo) -> str:
    return document(
        f"mchindex: {demo.folder.name}",
        tag("h1", "Your pictures, found by their parts"),
        tag("p", demo.about, class_="faint"),
        tag("p", WHAT),
        tag("h2", "The index"),
        table((), demo.figures().items()),
        tag("h2", "Queries and what they found"),
        tag("p", demo.rule),
        tag(
            "p",
            "Below a hit: its Hamming distance from the query, and the region whose code was "
            "nearest, framed; in brackets the distance of the same picture's code as a whole (of "
            "equal distances, the bucket that is visited first counts). "
            "There are no labels here, so nothing says which hits are right: judge by eye.",
            class_="faint",
        ),
        rows_of(demo.shown),
        _next(demo.commands),
        hits=demo.hits,
    )


def _next(commands: Sequence[str]) -> Markup:
    return joined([tag("h2", "Try next"), tag("pre", "\n".join(commands))])


__all__ = ["Markup", "photos_page", "plot", "scenes_page", "tag", "thumbnail"]
