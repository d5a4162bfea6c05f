"""F1 by buckets visited, drawn by matplotlib as SVG that goes into an HTML page."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

from mchindex.demo.buckets import BucketsNeeded, Curve

LABELS = {"base": "base, one code per image", "mch": "MCH, several codes per image"}
# The colours that matplotlib draws with, and the variables of the page's style that replace them:
# the plot then follows the page into dark mode and print.
PAPER, INK, LINE, BASE, MCH = "#ffffff", "#62626a", "#dcdce0", "#c04e00", "#0072b2"
VARIABLES = {PAPER: "--paper", INK: "--faint", LINE: "--line", BASE: "--base", MCH: "--mch"}
RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "mchindex",  # the same curves give the same file
    "axes.edgecolor": LINE,
    "axes.labelcolor": INK,
    "grid.color": LINE,
    "grid.linewidth": 0.7,
    "xtick.color": LINE,
    "ytick.color": LINE,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.facecolor": PAPER,
    "legend.edgecolor": PAPER,
    "legend.framealpha": None,
    "legend.fancybox": False,
    "lines.linewidth": 1.7,
}


def f1_plot(curves: Mapping[str, Curve], needed: Sequence[BucketsNeeded] = ()) -> str | None:
    """An `<svg>` element for a page that defines the variables of `VARIABLES`.

    `curves` has "base" and "mch". A dotted line joins the curves wherever the base method needs
    more buckets for the F1 of MCH. None if matplotlib is not installed.
    """
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        return None
    points = [point for curve in curves.values() for point in curve]
    decades = max(1, math.ceil(math.log10(max(x for x, _ in points)) - 1e-9))
    top = max(0.1, math.ceil(max(y for _, y in points) * 10 + 0.2) / 10)
    # Nothing is clipped: a clip path would be a url() in the page.
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.4, 3.4), layout="constrained")
        figure.patch.set_visible(False)
        axis = figure.subplots()
        axis.patch.set_visible(False)
        axis.set_xscale("log")
        axis.set_xlim(1, 10**decades)
        axis.set_ylim(0, top)
        every = 1 if decades <= 10 else 2
        powers = range(0, decades + 1, every)
        axis.set_xticks([10.0**power for power in powers], list(map(_power_of_ten, powers)))
        axis.minorticks_off()
        axis.spines[["left", "top", "right"]].set_visible(False)
        axis.tick_params(axis="y", length=0)
        axis.grid(axis="y", clip_on=False)
        axis.set_axisbelow(True)
        axis.set_xlabel("buckets visited")
        axis.set_ylabel("F1, mean over the queries")
        for one in needed:
            if one.base is not None and one.base > one.buckets:
                ends, gid = [one.buckets, one.base], f"needed-{one.buckets}"
                axis.plot(ends, [one.f1] * 2, color=INK, ls=":", lw=1, gid=gid, clip_on=False)
        for name, colour, dashes in (("base", BASE, (0, (3.5, 2))), ("mch", MCH, "-")):
            x, y = zip(*curves[name], strict=True)
            axis.plot(x, y, color=colour, ls=dashes, label=LABELS[name], gid=name, clip_on=False)
        axis.legend(loc="lower right", labelcolor="linecolor", handlelength=2.6)
        stream = io.StringIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(stream, format="svg", metadata=nothing)
        width, height = (72 * inches for inches in figure.get_size_inches())
    # Within HTML, neither the XML declaration nor the namespaces are needed.
    _, _, inside = stream.getvalue().partition("<svg")[2].partition(">")
    svg = f'<svg viewBox="0 0 {width:g} {height:g}">{inside.rstrip()}'
    for colour, variable in VARIABLES.items():
        svg = svg.replace(colour, f"var({variable})")
    return svg


def description(curves: Mapping[str, Curve]) -> str:
    """The plot in words, for readers who do not see it."""
    return "F1 by buckets visited. " + "; ".join(
        f"{LABELS[name]}: {curve[0][1]:.3f} after the first bucket, "
        f"at most {max(y for _, y in curve):.3f}"
        for name, curve in curves.items()
    )


def _power_of_ten(power: int) -> str:
    """1, 10, 100, 1,000, 10,000, 10⁵ …"""
    return f"{10**power:,}" if power < 5 else "10" + str(power).translate(RAISED)
