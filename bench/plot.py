"""The picture of a search run: queries per second against recall, one panel per K.

python bench/plot.py FILE.json          # draws FILE.png again
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

from measurements import TimedRow
from verdicts import is_timed

TICKS = (0.0, 0.5, 0.9, 0.98, 0.999, 1.0)
EXACT = 4.0  # a recall of 0.9999 or more is drawn here
PANEL, LEGEND = 4.6, 2.2  # inches
OURS = "#c1121f"
OUR_MARKS = {"auto": "*", "probe": "o", "substring": "s", "scan": "D", "before": "p"}
MARKS = "Xov^sDP<>"


def across(recall: float) -> float:
    """The horizontal position of a recall; each unit to the right is ten times fewer misses."""
    return min(EXACT, -math.log10(max(1 - recall, 10**-EXACT)))


def draw_peers(axis: Any, rows: list[TimedRow], titles: list[str], colours: Any) -> None:
    """One line per peer, through its settings, each labelled with its value."""
    for i, title in enumerate(titles):
        points = [r for r in rows if r["title"] == title]
        places = [(across(r["recall"]), r["qps"]) for r in points]
        xs, ys = [x for x, _ in places], [y for _, y in places]
        colour = colours(i)
        axis.plot(xs, ys, MARKS[i % len(MARKS)] + "-", color=colour, lw=1, ms=6)
        for r, place in zip(points, places, strict=True):
            if r["knob"]:
                axis.annotate(
                    f"{r['setting']}", place, (-4, 5), textcoords="offset points",
                    ha="right", fontsize=7, color=colour,
                )  # fmt: skip


def draw_ours(axis: Any, rows: list[TimedRow]) -> None:
    for r in rows:
        place, auto = (across(r["recall"]), r["qps"]), r["contender"] == "auto"
        axis.plot(
            *place, OUR_MARKS[r["contender"]], color=OURS, mfc=OURS if auto else "none",
            ms=18 if auto else 9, zorder=6 if auto else 5,
        )  # fmt: skip
        if auto:
            axis.annotate(
                f"ours\n{r['qps']:,.0f}", place, (11, 0), textcoords="offset points",
                va="center", color=OURS, fontsize=9, fontweight="bold",
            )  # fmt: skip


def draw(content: dict[str, Any], path: Path) -> None:
    """Draws the record of a run to a PNG file."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.lines import Line2D

    from mchindex.files import replacing  # here: the peers' processes do without our package

    s = content["settings"]
    rows = [r for r in content["rows"] if is_timed(r) and r["batch"] == "whole"]
    steps = sorted({r["k"] for r in rows})
    peers = {r["title"]: r["knob"] for r in rows if not r["ours"]}
    colours = plt.get_cmap("Dark2")
    width = PANEL * len(steps) + LEGEND
    figure, axes = plt.subplots(1, len(steps), figsize=(width, 5.2), sharey=True, squeeze=False)
    for axis, k in zip(axes[0], steps, strict=True):
        here = [r for r in rows if r["k"] == k]
        draw_peers(axis, here, list(peers), colours)
        draw_ours(axis, [r for r in here if r["ours"]])
        axis.set_yscale("log")
        axis.set_xlim(-0.25, EXACT + 1.1)
        axis.set_xticks([across(t) for t in TICKS], [f"{t:g}" for t in TICKS])
        axis.axvline(across(0.98), color="0.5", lw=0.8, ls=":")
        axis.grid(alpha=0.25)
        axis.set_title(f"K = {k}")
        axis.set_xlabel("recall (ties count)")
    axes[0][0].set_ylabel("queries per second")
    handles = [
        Line2D([], [], marker=mark, ls="", color=OURS, mfc=OURS if key == "auto" else "none",
               ms=13 if key == "auto" else 8, label=f"ours {key}")
        for key, mark in OUR_MARKS.items() if any(r["contender"] == key for r in rows)
    ] + [
        Line2D([], [], marker=MARKS[i % len(MARKS)], color=colours(i), lw=1,
               label=f"{title} ({knob})" if knob else title)
        for i, (title, knob) in enumerate(peers.items())
    ]  # fmt: skip
    figure.legend(handles=handles, loc="center right", fontsize=9, frameon=False)
    figure.suptitle(
        f"{s['n']:,} {s['data'].removeprefix('codes:')} codes of {s['bits']} bits, "
        f"{s['images']:,} images, "
        f"{s['threads']} thread{'s' if s['threads'] > 1 else ''}"
    )
    figure.tight_layout(rect=(0, 0, 1 - LEGEND / width, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as stream:
        figure.savefig(stream, format="png", dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        draw(json.loads(Path(name).read_text()), Path(name).with_suffix(".png"))
