"""The report's plots, drawn from a record: SVG to put into a page."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any

from mchindex.evaluation import plots
from mchindex.evaluation.plots import BLACK, COLOURS, Line
from paper.figures import LABELS, SUPERVISED, UNSUPERVISED, theirs
from paper.records import Curve, MCHRow, Record

ENGINES = {"probe": "probe", "auto": "auto", "faiss": "FAISS flat"}


def inline(draw: Callable[..., None], *given: Any, **options: Any) -> str:
    """What `draw` draws as an <svg> element for a page that must not refer to anything outside."""
    stream = io.BytesIO()
    draw(given[0], stream, *given[1:], **options)
    text = stream.getvalue().decode()
    text = text[text.index("<svg") :].replace("xlink:href", "href")
    text = re.sub(r"<(metadata|style).*?</\1>", "", text, flags=re.DOTALL)
    # Group ids would repeat from plot to plot; those of markers are hashes of what they draw.
    text = re.sub(r' xmlns(:xlink)?="[^"]*"|(?<=<g) id="[^"]*"|(?<=\d\.\d{2})\d+', "", text)
    return re.sub(r"\s*\n\s*", " ", text).strip()


def f1_file(record: Record, path: Any, bits: int = 32) -> bool:
    """Writes F1 by buckets of all methods at one width; False if that width was not computed."""
    curves: dict[str, Curve] = {}
    for row in record.compared:
        if row.bits == bits:
            curves[LABELS[row.method]] = row.base.f1_buckets
            curves[f"MCH-{LABELS[row.method]}"] = row.mch.f1_buckets
    if curves:
        plots.plot_f1_buckets(curves, path, f"F1 by buckets visited, {bits} bits")
    return bool(curves)


def by_width(record: Record, figure: str, label: str) -> str:
    """X and MCH-X by code width, and the paper's in grey; empty without such cells."""
    ours: dict[str, dict[int, float]] = {}
    paper: dict[str, dict[int, float]] = {}
    for row in record.compared:
        found = theirs(record.settings.paper, figure, row.method, row.bits) or (None, None)
        for prefix, way, value in zip(("", "MCH-"), (row.base, row.mch), found, strict=True):
            name = prefix + LABELS[row.method]
            ours.setdefault(name, {})[row.bits] = getattr(way, figure)
            if value is not None:
                paper.setdefault(name, {})[row.bits] = value
    return inline(plots.plot_cells, ours, label, reference=paper) if ours else ""


def f1_by_buckets(record: Record, bits: int) -> str:
    panels: dict[str, list[Line]] = {}
    colours = dict(zip((*SUPERVISED, *UNSUPERVISED), COLOURS, strict=True))
    for row in sorted(record.rows, key=lambda row: row.method in UNSUPERVISED):
        if row.bits == bits:
            colour, curve = colours[row.method], _without_end(row.base.f1_buckets)
            if isinstance(row, MCHRow):
                mch = Line("MCH-X", _without_end(row.mch.f1_buckets), colour)
                panels[LABELS[row.method]] = [Line("X", curve, colour, dashed=True), mch]
            else:
                line = Line(LABELS[row.method], curve, colour)
                panels.setdefault("unsupervised", []).append(line)
    return inline(plots.plot_panels, panels, "buckets visited", "F1", log=True, from_zero=True)


def _without_end(curve: Curve) -> Curve:
    """The curve without its flat end, where everything has been found."""
    end = max((i for i, (_, f1) in enumerate(curve) if abs(f1 - curve[-1][1]) > 1e-9), default=0)
    return curve[: end + 2]


def sensitivity(groups: dict[str, dict[str, Curve]], sign: str, base: str) -> str:
    """One panel per group of queries, one line per value of sigma or xi."""
    panels = {}
    for group, curves in groups.items():
        values = [v for v in curves if v != "1"]
        lines = [Line(f"{sign} = {v}", curves[v], COLOURS[i]) for i, v in enumerate(values)]
        if "1" in curves:
            lines.append(Line(base, curves["1"], BLACK, dashed=True))
        panels["all queries" if group == "all" else f"queries with “{group}”"] = lines
    return inline(plots.plot_panels, panels, "buckets visited", "F1", log=True, shared=False)


def f1_by_time(record: Record) -> str:
    panels: dict[str, list[Line]] = {}
    colours = dict(zip(ENGINES, (COLOURS[0], COLOURS[1], COLOURS[6]), strict=True))
    for c in record.time.curves if record.time else ():
        name = f"{'MCH-X' if c.way == 'mch' else 'X'}, {ENGINES[c.engine]}"
        points = [(p.microseconds, p.f1) for p in c.points]
        line = Line(name, points, colours[c.engine], c.way == "base", "o")
        panels.setdefault(cell_title(c.cell), []).append(line)
    if not panels:
        return ""
    labels = ("microseconds per query", "F1")
    return inline(plots.plot_panels, panels, *labels, columns=2, log=True, from_zero=True)


def cell_title(cell: str) -> str:
    method, bits = cell.split("-")
    return f"{LABELS[method]}, {bits} bits"
