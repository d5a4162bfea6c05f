"""Pictures of the figures, as SVG or PNG by the path's suffix. A method `X` is drawn dashed and
`MCH-X` solid in the same colour. matplotlib is imported only when something is drawn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

PREFIX = "MCH-"
# Apart from one another for colour-blind eyes too, the strong ones first.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#8f4b9c", "#b8860b", "#3ba3d0", "#5b5b5b", "#c2477f")
MARKS = "os^Dv<>P"
DASHES = (0, (3.5, 2))
INK, GRID = "#222222", "#dddddd"
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
    "svg.hashsalt": "mchindex",  # the same figure gives the same file
}


def plot_f1_buckets(
    curves: Mapping[str, Sequence[Sequence[float]]],
    path: str | PathLike[str],
    title: str = "F1 against buckets visited",
) -> None:
    """A line a name through its points [buckets, F1, …], buckets on a log axis."""
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
    path: str | PathLike[str],
    title: str = "The agent's training",
) -> None:
    """Rewards and share of codes kept against the step.

    A row has `step` and any of `train_reward`, `validation_reward`, `kept` (0 … 1): what is not
    measured at every step may be left out of the other rows.
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
        low.set_yticks([0, 0.5, 1], ["0 %", "50 %", "100 %"])
        low.set_ylabel("codes kept")
        low.set_xlabel("step")
        low.margins(x=0.02)
        figure.align_ylabels()


def plot_cells(
    values: Mapping[str, Mapping[int, float]],
    path: str | PathLike[str],
    ylabel: str,
    title: str,
) -> None:
    """values[name][bits]: one panel a method, with `X` and `MCH-X`, on one scale, bits across."""
    _named(values, "values")
    methods = list(dict.fromkeys(map(_method, values)))
    widths = sorted({bits for cells in values.values() for bits in cells})
    place = {bits: i for i, bits in enumerate(widths)}  # evenly spaced, as lengths often double
    columns = min(4, len(methods))
    rows = -(-len(methods) // columns)
    with _figure(path, max(5.4, 0.6 + 2.1 * columns), 0.9 + 1.9 * rows) as figure:
        grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        for axis, method in zip(grid.flat, methods, strict=False):
            style = {"marker": _mark(method, values), "ms": 4.5}
            base, multiple = values.get(method, {}), values.get(PREFIX + method, {})
            for name, cells in ((method, base), (PREFIX + method, multiple)):
                points = [(place[bits], cells[bits]) for bits in sorted(cells)]
                if points:
                    axis.plot(*zip(*points, strict=True), **_line(name, values), **style)
            shared = sorted(base.keys() & multiple.keys())
            colour = _line(method, values)["color"]
            axis.fill_between(
                [place[bits] for bits in shared],
                [base[bits] for bits in shared],
                [multiple[bits] for bits in shared],
                color=colour, alpha=0.1, lw=0,
            )  # fmt: skip
            axis.set_title(method, loc="left", color=colour, fontweight="bold")
        for axis in grid.flat[len(methods) :]:
            axis.remove()
        # The lowest panel of a column carries the bits, also where the last row is not full.
        for axis in grid.flat[max(0, len(methods) - columns) : len(methods)]:
            axis.set_xticks(range(len(widths)), [str(bits) for bits in widths])
            axis.tick_params(labelbottom=True)
        grid[0, 0].margins(x=0.12, y=0.12)
        figure.supxlabel("bits", fontsize=9.5)
        figure.supylabel(ylabel, fontsize=9.5)
        figure.suptitle(title, x=0.01, ha="left", fontweight="bold", fontsize=11)
        if any(name.startswith(PREFIX) for name in values):
            from matplotlib.lines import Line2D

            keys = [
                Line2D([], [], color="#555555", ls="-", label="with MCH"),
                Line2D([], [], color="#555555", ls=DASHES, label="base"),
            ]
            figure.legend(handles=keys, loc="outside lower right", ncols=2, handlelength=2.6)


def _method(name: str) -> str:
    return name.removeprefix(PREFIX)


def _place(name: str, names: Mapping[str, Any]) -> int:
    return list(dict.fromkeys(map(_method, names))).index(_method(name))


def _mark(name: str, names: Mapping[str, Any]) -> str:
    return MARKS[_place(name, names) % len(MARKS)]


def _line(name: str, names: Mapping[str, Any]) -> dict[str, Any]:
    """The same colour for X and MCH-X; dashed only where there is an MCH line to tell it from."""
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
def _figure(path: str | PathLike[str], width: float, height: float) -> Iterator[Any]:
    """A figure of so many inches that is written to the path at the end."""
    target = Path(path)
    kind = target.suffix.lower().removeprefix(".")
    if kind not in ("svg", "png"):
        raise ValueError(f"a plot is written as .svg or .png, not {target.name!r}")
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure  # without pyplot: Agg, and no state of its own
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install matplotlib") from error

    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure
        target.parent.mkdir(parents=True, exist_ok=True)
        metadata = {"Date": None} if kind == "svg" else None  # or a file never comes out the same
        figure.savefig(target, format=kind, dpi=150, metadata=metadata)
