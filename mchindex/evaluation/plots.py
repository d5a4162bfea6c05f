"""Plots of the figures, as SVG or PNG files. A method `X` is drawn dashed and `MCH-X` solid in the
same colour. matplotlib is imported only when something is drawn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import IO, Any, TypeAlias

PREFIX = "MCH-"
# Distinct for colour-blind readers too, the strongest first.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#8f4b9c", "#b8860b", "#3ba3d0", "#5b5b5b", "#c2477f")
MARKS = "os^Dv<>P"
DASHES = (0, (3.5, 2))
INK, GRID, GREY, BLACK = "#222222", "#dddddd", "#9a9a9a", "#000000"
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.edgecolor": "#888888",
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": "#555555",
    "ytick.color": "#555555",
    "text.color": INK,
    "legend.frameon": False,
    "lines.linewidth": 1.7,
    "lines.solid_capstyle": "round",
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "mchindex",  # the same figure gives the same file
}
Target: TypeAlias = str | PathLike[str] | IO[bytes]  # a .svg or .png file, or a stream for SVG


def plot_f1_buckets(
    curves: Mapping[str, Sequence[Sequence[float]]],
    path: Target,
    title: str = "F1 against buckets visited",
) -> None:
    """Draws one line per name through its points [buckets, F1, …], buckets on a log axis."""
    _named(curves, "curves")
    with _figure(path, 6.4, 4.2) as figure:
        axis = figure.subplots()
        for name, points in curves.items():
            xs, ys = [point[0] for point in points], [point[1] for point in points]
            axis.plot(xs, ys, label=name, **_line(name, curves))
        axis.set_xscale("log")
        axis.set_ylim(bottom=0)
        axis.set_xlabel("buckets visited")
        axis.set_ylabel("F1, mean over the queries")
        axis.set_title(title, loc="left", fontweight="bold")
        figure.legend(loc="outside right upper", handlelength=2.6)


def plot_learning_curve(
    rows: Sequence[Mapping[str, float]],
    path: Target,
    title: str = "Training of the agent",
) -> None:
    """Draws rewards and the share of codes kept against the step.

    A row has `step` and any of `train_reward`, `validation_reward` and `kept` (0 … 1). Rows without
    a measurement leave it out.
    """
    if not any("step" in row for row in rows):
        raise ValueError("rows must hold at least one measurement with its 'step'")
    lines = (("train_reward", "training", COLOURS[0], 0.9, ""),
             ("validation_reward", "validation", COLOURS[1], 1.9, "o"))  # fmt: skip
    with _figure(path, 6.4, 4.6) as figure:
        top, low = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": (3, 2)})
        for key, label, colour, width, mark in lines:
            if points := [(row["step"], row[key]) for row in rows if key in row]:
                top.plot(*zip(*points, strict=True), mark + "-", label=label, color=colour,
                         lw=width, ms=4)  # fmt: skip
        if kept := [(row["step"], row["kept"]) for row in rows if "kept" in row]:
            steps, shares = zip(*kept, strict=True)
            low.plot(steps, shares, color=COLOURS[2])
            low.fill_between(steps, shares, color=COLOURS[2], alpha=0.12, lw=0)
        top.set_ylabel("mean reward")
        top.set_title(title, loc="left", fontweight="bold")
        if top.lines:
            top.legend(loc="lower right")
        low.set_ylim(0, 1)
        low.set_yticks([0, 0.5, 1], ["0%", "50%", "100%"])
        low.set_ylabel("codes kept")
        low.set_xlabel("step")
        low.margins(x=0.02)
        figure.align_ylabels()


@dataclass(frozen=True)
class Line:
    """A line of a panel through points (x, y, …)."""

    name: str  # in the legend
    points: Sequence[Sequence[float]]
    colour: str = COLOURS[0]
    dashed: bool = False
    mark: str = ""  # for lines of a few points


def plot_panels(
    panels: Mapping[str, Sequence[Line]],
    path: Target,
    xlabel: str,
    ylabel: str,
    title: str = "",
    *,
    columns: int = 3,
    ticks: Sequence[float] = (),
    log: bool = False,
    from_zero: bool = False,
    shared: bool = True,
) -> None:
    """Draws one panel per title, on one scale if `shared`, with one legend below them.

    `ticks` are the marks of the x axis, which is logarithmic if `log` is set; `from_zero` starts
    the y axis at 0. A name whose lines have several colours is black in the legend.
    """
    _named(panels, "panels")
    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    width = max(4.2, 2.5 * columns)
    with _figure(path, width, 0.8 + 1.9 * rows) as figure:
        grid = figure.subplots(rows, columns, sharex=shared, sharey=shared, squeeze=False)
        legend: dict[str, Line] = {}
        for place, (name, lines) in enumerate(panels.items()):
            axis = grid.flat[place]
            for line in lines:
                xs, ys = [p[0] for p in line.points], [p[1] for p in line.points]
                axis.plot(xs, ys, clip_on=False, **_style(line))
                if legend.setdefault(line.name, line).colour != line.colour:
                    legend[line.name] = replace(legend[line.name], colour=BLACK)
            axis.set_title(name, loc="left", fontweight="bold")
            axis.grid(True, clip_on=False)
            if log:
                axis.set_xscale("log")
                axis.minorticks_off()
            if ticks:
                axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
            axis.tick_params(labelbottom=True)
            if place + columns >= len(panels):
                axis.set_xlabel(xlabel)
            if place % columns == 0:
                axis.set_ylabel(ylabel)
        if from_zero:  # once all lines are drawn: it ends the automatic scale
            for axis in grid.flat:
                axis.set_ylim(bottom=0)
        for axis in grid.flat[len(panels) :]:
            axis.remove()
        if title:
            figure.suptitle(title, x=0.01, ha="left", fontweight="bold", fontsize=11)
        from matplotlib.lines import Line2D

        keys = [Line2D([], [], label=line.name, **_style(line)) for line in legend.values()]
        across = min(len(keys), int(width / (0.55 + 0.08 * max(map(len, legend)))))
        figure.legend(handles=keys, loc="outside lower center", ncols=across, handlelength=2.6)


def plot_cells(
    values: Mapping[str, Mapping[int, float]],
    path: Target,
    ylabel: str,
    title: str = "",
    reference: Mapping[str, Mapping[int, float]] | None = None,
) -> None:
    """Draws values[name][bits]: one panel per method, with `X` and `MCH-X` on one scale.

    `reference` holds a paper's figures in the same shape, which are drawn in grey.
    """
    _named(values, "values")
    panels: dict[str, list[Line]] = {}
    for name in dict.fromkeys(map(_method, values)):
        colour, mark = _line(name, values)["color"], MARKS[_place(name, values) % len(MARKS)]
        panels[name] = [
            Line(label + more, points, shade, not prefix, sign)
            for cells, more, shade, sign in (
                (reference or {}, " (paper)", GREY, ""), (values, "", colour, mark)
            )
            for prefix, label in (("", "X"), (PREFIX, "MCH-X"))
            if (points := sorted(cells.get(prefix + name, {}).items()))
        ]  # fmt: skip
    widths = sorted({bits for cells in values.values() for bits in cells})
    plot_panels(panels, path, "bits", ylabel, title, ticks=widths, from_zero=True)


def _style(line: Line) -> dict[str, Any]:
    dashes = DASHES if line.dashed else "-"
    return {"color": line.colour, "linestyle": dashes, "marker": line.mark, "ms": 4}


def _method(name: str) -> str:
    return name.removeprefix(PREFIX)


def _place(name: str, names: Mapping[str, Any]) -> int:
    return list(dict.fromkeys(map(_method, names))).index(_method(name))


def _line(name: str, names: Mapping[str, Any]) -> dict[str, Any]:
    """One colour for X and MCH-X; X is dashed only if some MCH line is drawn beside it."""
    dashed = not name.startswith(PREFIX) and any(n.startswith(PREFIX) for n in names)
    return {
        "color": COLOURS[_place(name, names) % len(COLOURS)],
        "linestyle": DASHES if dashed else "-",
    }


def _named(values: Mapping[str, Any], what: str) -> None:
    empty = [name for name, points in values.items() if not points]
    if empty or not values:
        raise ValueError(f"{what} must have points for every name, but {empty or 'it'} is empty")


@contextmanager
def _figure(target: Target, width: float, height: float) -> Iterator[Any]:
    """A figure of this size in inches, which is written when the block ends."""
    kind = "svg"
    if isinstance(target, str | PathLike):
        path = Path(target)
        kind = path.suffix.lower().removeprefix(".")
        if kind not in ("svg", "png"):
            raise ValueError(f"a plot is written as .svg or .png, not {path.name!r}")
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure  # no pyplot, which keeps global state
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install matplotlib") from error

    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure
        if isinstance(target, str | PathLike):
            Path(target).parent.mkdir(parents=True, exist_ok=True)
        metadata = {"Date": None} if kind == "svg" else None  # a date would change the file
        figure.savefig(target, format=kind, dpi=150, metadata=metadata)
