"""Prints results for people: tables and lines on stdout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mchindex.progress import seconds

if TYPE_CHECKING:
    from mchindex.evaluation import Evaluation

NAMES = {
    "base": "base",
    "mch": "MCH",
    "random_keep": "random keeping",
    "keep_all": "all regions",
}
BUCKETS = (1, 10, 100, 1000)
PLAIN_WIDTH = 100  # of tables written to a file or a pipe
LONG_WIDTH = 10_000  # of tables with paths, which must not be wrapped


def output(width: int = PLAIN_WIDTH) -> Console:
    """A console on stdout, as wide as the terminal, or `width` if there is none."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=width)


def listing(first: str, *others: str) -> Table:
    """A table of names whose last column may be long, such as a path."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for head in (first, *others[:-1]):
        table.add_column(head, no_wrap=True)
    table.add_column(others[-1], overflow="fold")
    return table


def size(count: int) -> str:
    """512 bytes, 1.5 MB."""
    if count < 1000:
        return f"{count} bytes"
    value, unit = count / 1000, "kB"
    for larger in ("MB", "GB", "TB"):
        if value < 999.95:
            break
        value, unit = value / 1000, larger
    return f"{value:.1f} {unit}"


def number(count: int, one: str, more: str | None = None) -> str:
    """1 image, 2,000 images."""
    return f"{count:,} {one if count == 1 else more or one + 's'}"


def times(stages: Mapping[str, float]) -> str:
    return ", ".join(f"{stage} {seconds(length)}" for stage, length in stages.items())


def skipped_images(skipped: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {reason}" for reason, count in skipped.items()) or "none"


def within(radius: int) -> str:
    return "H=0" if radius == 0 else f"H≤{radius}"


def gain_table(base: Evaluation, mch: Evaluation | None) -> Table:
    """One row per figure: the base method, MCH on top of it, and the difference."""
    table = _table("", "base", *(() if mch is None else ("MCH", "change")))
    reach = within(base.radius)
    rows = {
        "mAP": "map",
        f"R@{reach}": "r0",
        f"P@{reach}": "p0",
        "F1 within the query's bucket (H=0)": "f1_own",
        "codes per image (ANHC)": "anhc",
    }
    for title, name in rows.items():
        before = getattr(base, name)
        cells = [f"{before:.4f}"]
        if mch is not None:
            after = getattr(mch, name)
            change = f"{after - before:+.4f}"
            if name != "anhc":
                change = f"[{_colour(after - before)}]{change}[/]"
            cells += [f"{after:.4f}", change]
        table.add_row(title, *cells)
    return table


def ways_table(results: Mapping[str, Evaluation]) -> Table:
    """One row per figure, one column per way of keeping regions."""
    table = _table("", *(NAMES[way] for way in results))
    reach = within(next(iter(results.values())).radius)
    rows = {
        "mAP": "map",
        "  ties in any order": "map_tie_aware",
        f"R@{reach}": "r0",
        f"P@{reach}": "p0",
        "  where something is found": "p0_nonempty",
        "queries that find nothing": "empty",
        "codes per image (ANHC)": "anhc",
    }
    for title, name in rows.items():
        table.add_row(title, *(_figure(getattr(e, name)) for e in results.values()))
    table.add_section()
    reached = [{int(count): f1 for count, f1 in e.f1_buckets} for e in results.values()]
    for count in BUCKETS:
        title = "F1 after 1 bucket" if count == 1 else f"F1 after {count:,} buckets"
        table.add_row(title, *(_figure(f1.get(count)) for f1 in reached))
    return table


def classes_table(results: Mapping[str, Evaluation]) -> Table:
    """One row per class, over the queries that have it: the base method and MCH side by side."""
    ways = [way for way in ("base", "mch") if way in results]
    reach = within(results["base"].radius)
    figures = {"mAP": "map", f"R@{reach}": "r0", f"P@{reach}": "p0"}
    heads = [f"{title}\n{NAMES[way]}" for title in figures for way in ways]
    table = _table("class", "queries", *heads)
    for name, own in results["base"].per_class.items():
        cells = [_figure(results[way].per_class[name][key]) for key in figures.values()
                 for way in ways]  # fmt: skip
        table.add_row(escape(name), f"{own['queries']:,}", *cells)
    return table


def _table(first: str, *others: str) -> Table:
    """Names on the left, figures on the right; the MCH column is bold."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(first, overflow="fold")
    for head in others:
        bold = "bold" if head.endswith("MCH") else None
        table.add_column(head, justify="right", no_wrap=True, style=bold)
    return table


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def facts(rows: Mapping[str, str]) -> Table:
    """Names and values in two columns."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def _colour(change: float) -> str:
    return "green" if change > 0 else "red" if change < 0 else "dim"
