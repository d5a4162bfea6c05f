"""Charts as SVG text: panels with points or lines, readable in light and in dark.

An image in a page follows the reader's own choice of colours, so the chart brings its background.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, TOP, BOTTOM, LEFT, GAP = 860, 78, 62, 46, 18  # pixels
STYLE = """
  text { font: 12px system-ui, sans-serif } .title { font-size: 16px; font-weight: 600 }
  .name, text.ours { font-weight: 600 }
  .back { fill: #ffffff } .ink { fill: #1f2328 } .soft { fill: #59636e } .line { stroke: #d1d9e0 }
  .ours { fill: #b5400a } .peer { fill: #59636e }
  path.ours, path.peer { fill: none }
  path.ours { stroke: #b5400a } path.peer { stroke: #59636e }
  @media (prefers-color-scheme: dark) {
    .back { fill: #0d1117 } .ink { fill: #f0f6fc } .soft { fill: #9aa4af } .line { stroke: #3d444d }
    circle.ours, text.ours { fill: #ff9e64 } circle.peer, text.peer { fill: #9aa4af }
    path.ours { stroke: #ff9e64 } path.peer { stroke: #9aa4af }
  }
"""


@dataclass(frozen=True)
class Point:
    """A mark with its name beside it."""

    x: float
    y: float
    name: str
    ours: bool = False
    side: str = "right"  # where its name stands: right, left, above or below


@dataclass(frozen=True)
class Line:
    """A line through points."""

    points: Sequence[tuple[float, float]]
    ours: bool = False


@dataclass(frozen=True)
class Panel:
    """Axes with what is drawn in them. The x axis is logarithmic."""

    title: str
    x_ticks: Sequence[float]
    y_ticks: Sequence[float]
    x_name: str
    points: Sequence[Point] = ()
    lines: Sequence[Line] = ()


def short(value: float) -> str:
    """1,000,000 as 1M, 5,120 as 5,120, 0.25 as .25."""
    if value >= 1e6 and value % 1e6 == 0:
        return f"{value / 1e6:.0f}M"
    if value >= 1e4 and value % 1e3 == 0:
        return f"{value / 1e3:.0f}k"
    return f"{value:,g}".removeprefix("0") or "0"


def chart(title: str, about: str, panels: Sequence[Panel], height: int = 400) -> str:
    """A picture of panels side by side. `about` is a line below the title."""
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{escape(title)}">',
        f"<style>{STYLE}</style>",
        f'<rect class="back" width="{WIDTH}" height="{height}" rx="8"/>',
        f'<text class="ink title" x="20" y="30">{escape(title)}</text>',
        f'<text class="soft" x="20" y="50">{escape(about)}</text>',
    ]
    wide = (WIDTH - 20 - len(panels) * LEFT - (len(panels) - 1) * GAP) / len(panels)
    for number, panel in enumerate(panels):
        left = LEFT + number * (wide + LEFT + GAP)
        out += _panel(panel, left, wide, height)
    return "\n".join([*out, "</svg>", ""])


def _panel(panel: Panel, left: float, wide: float, height: int) -> list[str]:
    top, bottom = TOP + 18, height - BOTTOM
    low, high = math.log10(panel.x_ticks[0]), math.log10(panel.x_ticks[-1])

    def across(value: float) -> float:
        return left + (math.log10(value) - low) / (high - low) * wide

    def down(value: float) -> float:
        least, most = panel.y_ticks[0], panel.y_ticks[-1]
        return bottom - (value - least) / (most - least) * (bottom - top)

    out = [f'<text class="ink name" x="{left:.1f}" y="{TOP}">{escape(panel.title)}</text>']
    for tick in panel.y_ticks:
        y = down(tick)
        ends = f'x1="{left:.1f}" x2="{left + wide:.1f}" y1="{y:.1f}" y2="{y:.1f}"'
        out.append(f'<line class="line" {ends}/>')
        out.append(_text(left - 8, y + 4, short(tick), "soft", "end"))
    out += [_text(across(tick), bottom + 18, short(tick), "soft") for tick in panel.x_ticks]
    out.append(_text(left + wide / 2, bottom + 40, panel.x_name, "soft"))
    for line in panel.lines:
        steps = " L".join(f"{across(x):.1f},{down(y):.1f}" for x, y in line.points)
        dashes = "" if line.ours else ' stroke-dasharray="5 4"'
        out.append(f'<path class="{_kind(line.ours)}" stroke-width="2.2"{dashes} d="M{steps}"/>')
    for point in panel.points:
        x, y, kind = across(point.x), down(point.y), _kind(point.ours)
        out.append(
            f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="{6 if point.ours else 4.5}"/>'
        )
        dx, dy, anchor = {
            "right": (10, 4, "start"), "left": (-10, 4, "end"),
            "above": (0, -11, "middle"), "below": (0, 20, "middle"),
        }[point.side]  # fmt: skip
        out.append(_text(x + dx, y + dy, point.name, kind, anchor))
    return out


def _kind(ours: bool) -> str:
    return "ours" if ours else "peer"


def _text(x: float, y: float, text: str, kind: str, anchor: str = "middle") -> str:
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
    )
