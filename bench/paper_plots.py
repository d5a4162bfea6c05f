"""Line plots as inline SVG for print: small multiples, black text, no script and no style outside.

X is dashed and MCH-X solid in one colour; numbers are rounded, so that a report stays small.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from mchindex.evaluation.plots import COLOURS
from mchindex.page import Markup, power_of_ten, tag

WIDTH, HEIGHT = 236, 178  # of a panel, in units of the view
LEFT, RIGHT, TOP, BOTTOM = 34, 8, 20, 30
Points = Sequence[Sequence[float]]


@dataclass(frozen=True)
class Line:
    """A line of a panel, through points (x, y, …)."""

    name: str
    points: Points
    colour: str = COLOURS[0]
    dashed: bool = False
    marks: bool = False  # for lines of a few points


@dataclass(frozen=True)
class Panel:
    title: str
    lines: Sequence[Line] = field(default_factory=list)


@dataclass(frozen=True)
class Axis:
    label: str
    log: bool = False
    ticks: Sequence[float] = ()  # own ones; else chosen
    from_zero: bool = False

    def limits(self, values: Sequence[float]) -> tuple[float, float]:
        low, high = min(values), max(values)
        if self.ticks:
            low, high = min(low, *self.ticks), max(high, *self.ticks)
        if self.log:
            first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
            return first, max(last, first + 1)
        if self.from_zero:
            low = min(low, 0.0)
        gap = (high - low) * 0.06 or abs(high) * 0.05 or 1.0
        return (low if self.from_zero and low == 0 else low - gap), high + gap

    def marks(self, low: float, high: float) -> list[tuple[float, str]]:
        if self.ticks:
            return [(t, f"{t:g}") for t in self.ticks]
        if self.log:
            every = max(1, math.ceil((high - low) / 5))
            whole = range(int(low), int(high) + 1, every)
            return [(10.0**p, _decade(p)) for p in whole]
        step = _nice((high - low) / 4)
        at = math.ceil(low / step - 1e-9)
        digits = max(0, -math.floor(math.log10(step) + 1e-9))
        out: list[tuple[float, str]] = []
        while at * step <= high + 1e-12:
            out.append((at * step, f"{at * step:.{digits}f}"))
            at += 1
        return out

    def place(self, value: float) -> float:
        return math.log10(value) if self.log else value


def panels(
    groups: Sequence[Panel],
    x: Axis,
    y: Axis,
    columns: int = 3,
    label: str = "",
    shared: bool = True,
) -> Markup:
    """Panels in a grid, by default on one scale, with one legend below."""
    filled = [p for p in groups if any(line.points for line in p.lines)]
    if not filled:
        return tag("p", "Nothing to draw: no cell of the kind was computed.")
    everything = [pt for p in filled for line in p.lines for pt in line.points]
    columns = min(columns, len(filled))
    rows = -(-len(filled) // columns)
    keys: dict[str, Line] = {}
    for line in (line for p in filled for line in p.lines if line.points):
        one = keys.setdefault(line.name, line)
        if one.colour != line.colour:  # a name that stands for several colours
            keys[line.name] = replace(one, colour="#000000")
    parts = []
    for number, panel in enumerate(filled):
        points = everything if shared else [q for line in panel.lines for q in line.points]
        at = number % columns * WIDTH, number // columns * HEIGHT
        parts.append(_panel(panel, points, x, y, at))
    total = columns * WIDTH
    legend, down = _legend(list(keys.values()), total, rows * HEIGHT + 10)
    parts.append(legend)
    box = f"0 0 {total} {down + 6}"
    return tag(
        "svg", *parts, view_box=box, role="img", aria_label=label or x.label,
        style=f"max-width:{max(total, 330) * 1.05:.0f}px",
    )  # fmt: skip


def _panel(panel: Panel, points: Points, x: Axis, y: Axis, at: tuple[float, float]) -> Markup:
    x0, x1 = x.limits([p[0] for p in points])
    y0, y1 = y.limits([p[1] for p in points])

    def across(value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (x.place(value) - x0) / (x1 - x0)

    def down(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (y.place(value) - y0) / (y1 - y0)

    parts = [_text(LEFT, 13, panel.title, "start", "t")]
    grid = []
    for value, text in y.marks(y0, y1):
        grid.append(f"M{LEFT} {down(value):.1f}H{WIDTH - RIGHT}")
        parts.append(_text(LEFT - 4, down(value) + 3, text, "end"))
    for value, text in x.marks(x0, x1):
        grid.append(f"M{across(value):.1f} {HEIGHT - BOTTOM}v3")
        parts.append(_text(across(value), HEIGHT - BOTTOM + 12, text, "middle"))
    parts.insert(0, tag("path", d="".join(grid), class_="g"))
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(_text(middle, HEIGHT - 6, x.label, "middle", "l"))
    parts.append(_text(WIDTH - RIGHT, 13, y.label, "end", "l"))
    for line in panel.lines:
        if not line.points:
            continue
        where = [(across(p[0]), down(p[1])) for p in line.points]
        d = "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in where)
        dash = {"stroke_dasharray": "4 2.5"} if line.dashed else {}
        parts.append(tag("path", tag("title", line.name), d=d, stroke=line.colour, **dash))
        if line.marks:
            dots = "".join(f"M{a:.1f} {b:.1f}h0" for a, b in where)
            parts.append(tag("path", d=dots, stroke=line.colour, class_="d"))
    return tag("g", *parts, transform=f"translate({at[0]},{at[1]})")


def _legend(lines: Sequence[Line], width: float, top: float) -> tuple[Markup, float]:
    parts, x, y = [], float(LEFT), top
    for line in lines:
        wide = 30 + 5.4 * len(line.name) + 10
        if x + wide > width and x > LEFT:
            x, y = float(LEFT), y + 14
        dash = {"stroke_dasharray": "4 2.5"} if line.dashed else {}
        parts.append(tag("path", d=f"M{x:.0f} {y:.0f}h22", stroke=line.colour, **dash))
        parts.append(_text(x + 27, y + 3, line.name, "start"))
        x += wide
    return tag("g", *parts), y


def _text(x: float, y: float, text: str, anchor: str, kind: str = "") -> Markup:
    more = {"class_": kind} if kind else {}
    return tag("text", text, x=f"{x:.1f}", y=f"{y:.1f}", text_anchor=anchor, **more)


def _decade(power: int) -> str:
    return power_of_ten(power) if power >= 0 else f"{10.0**power:g}"


def _nice(step: float) -> float:
    """The next of 1, 2, 5 · 10^n."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(d * power for d in (1, 2, 5, 10) if d * power >= step * 0.999)
