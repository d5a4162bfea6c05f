"""Prints results: tables and lines for people, JSON for programs.

File names, ids and metadata may come from strangers. What is printed of them has no control
characters, and rich takes none of it for markup or for the name of an emoji.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mchindex.progress import seconds

if TYPE_CHECKING:
    from mchindex.cli.copies import Found
    from mchindex.evaluation import Evaluation

NAMES = {
    "base": "base",
    "mch": "MCH",
    "random_keep": "random keeping",
    "keep_all": "all regions",
}
# Of the first ten images: what a person sees.
TOP_TEN = {"nDCG@10": "ndcg10", "P@10": "p10"}
BUCKETS = (1, 10, 100, 1000)
PLAIN_WIDTH = 100  # of tables written to a file or a pipe
LONG_WIDTH = 10_000  # of tables with paths, which must not be wrapped

DEEPEST = 200  # levels of nesting that are printed as JSON, at most

# Control characters (C0, DEL, C1), line and paragraph separators, characters that change the
# direction of text, and halves of surrogate pairs, which stand for bytes that are not UTF-8.
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufff9-\ufffb]"
)


def clean(text: object) -> str:
    """Text that can be printed anywhere: characters that are not safe become \\x1b, \\u202e …

    A byte of a file name that is not UTF-8, such as FF, becomes \\udcff.
    """
    return _UNSAFE.sub(_escaped, str(text))


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def line(*parts: str | tuple[str, str]) -> Text:
    """A line of texts, each plain or with a style, and none of them markup."""
    pairs = [(part, "") if isinstance(part, str) else part for part in parts]
    return Text.assemble(*((clean(text), style) for text, style in pairs))


def echo(text: str) -> None:
    """Prints a line on stdout."""
    typer.echo(clean(text))


def print_json(value: Any) -> None:
    """Prints a value as one line of JSON: UTF-8, or ASCII if stdout has another encoding.

    Text can be recovered exactly: what is not safe to print is written as \\u001b, and a byte of a
    file name that is not UTF-8 as \\udcff, which `os.fsencode` turns back into the byte. A number
    that is not finite becomes null.
    """
    ascii_only = getattr(sys.stdout, "encoding", None) not in ("utf-8", "UTF-8")
    try:
        text = json.dumps(value, ensure_ascii=ascii_only, allow_nan=False)
    except (ValueError, RecursionError):
        text = json.dumps(_finite(value), ensure_ascii=ascii_only)
    typer.echo(_UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text))


def _finite(value: Any, level: int = 0) -> Any:
    """A value without numbers that JSON does not have, and without what is nested too deeply."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, (dict, list, tuple)) and level == DEEPEST:
        return None
    if isinstance(value, dict):
        return {key: _finite(item, level + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item, level + 1) for item in value]
    return value


def output(width: int = PLAIN_WIDTH) -> Console:
    """A console on stdout, as wide as the terminal, or `width` if there is none."""
    console = Console(highlight=False, emoji=False)
    return console if console.is_terminal else Console(highlight=False, emoji=False, width=width)


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


def without_fine(count: int) -> str:
    """What it means that images have no fine codes, and what gives them some."""
    have = "has" if count == 1 else "have"
    return (
        f"{number(count, 'image')} {have} no fine codes, so hits are ordered by codes alone. "
        "Run mch add --again with their folders: copies, parts and pictures that look alike will "
        "then come first."
    )


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
        **TOP_TEN,
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
        **TOP_TEN,
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


def copies_table(count: int, found: Mapping[str, Found]) -> Table:
    """One row per kind of edit: how often the original of an edited copy was found."""
    table = _table(f"{count:,} images, edited", "original first", "in the first ten")
    for edit, own in found.items():
        table.add_row(line(edit), f"{own.first:.1%}", f"{own.ten:.1%}")
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
        table.add_row(line(name), f"{own['queries']:,}", *cells)
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
    """Names and values in two columns, none of them markup."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(line(name), line(value))
    return table


def _colour(change: float) -> str:
    return "green" if change > 0 else "red" if change < 0 else "dim"
