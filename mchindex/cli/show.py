"""What a person sees: progress on stderr, results on stdout."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskID,
    TextColumn,
)
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from mchindex.evaluation import Evaluation

# The figures of a stage that are worth a place beside its bar.
FIGURES = {
    "loss": "loss",
    "residue": "residue",
    "quantisation error": "error",
    "validation_reward": "reward",
    "kept": "kept",
}
NAMES = {
    "base": "base",
    "mch": "MCH",
    "random_keep": "random keeping",
    "keep_all": "all regions",
}
BUCKETS = (1, 10, 100, 1000)
TITLE = 17  # signs of the longest stage's title
PLAIN_WIDTH = 100  # of tables that go to a file or a pipe
LONG_WIDTH = 10_000  # of those with paths, which no program wants folded


def output(width: int = PLAIN_WIDTH) -> Console:
    """Stdout, for results; as wide as the terminal, elsewhere of that width."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=width)


def listing(first: str, *others: str) -> Table:
    """A table of names, whose last column may be long: a path."""
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


class _Stage:
    """A stage under way: when it began, and the steps by which its speed is judged."""

    def __init__(self, began: float) -> None:
        self.began = began
        self.first: tuple[float, int] | None = None  # time and steps done of the first report
        self.last = (began, 0)

    def step(self, done: int) -> None:
        self.last = (time.monotonic(), done)
        self.first = self.first or self.last

    def left(self, total: int) -> float | None:
        """Seconds left, from the speed of all steps so far; None before the first."""
        if self.first is None or not self.last[1]:
            return None
        # A stage that was taken up again does not begin at 0: the first report says where.
        start = self.first if self.last[1] > self.first[1] else (self.began, 0)
        pace = (self.last[0] - start[0]) / (self.last[1] - start[1])
        return max(0.0, self.last[0] + pace * (total - self.last[1]) - time.monotonic())


class _Count(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text("" if task.total is None else f"{int(task.completed)}/{int(task.total)}")


class _Time(ProgressColumn):
    """Time left; of a finished stage the time it took."""

    max_refresh = 0.5

    def render(self, task: Task) -> Text:
        stage: _Stage = task.fields["stage"]
        if task.finished:
            return Text(seconds(stage.last[0] - stage.began), style="green")
        left = None if task.total is None else stage.left(int(task.total))
        if left is None:
            return Text(seconds(time.monotonic() - stage.began), style="dim")
        return Text(f"{seconds(left, exact=False)} left", style="cyan")


class Stages:
    """How far a command is: bars on a terminal, elsewhere a line for each finished stage.

    An instance is a `Progress` of mchindex: it is called with stage, steps done, steps in all and
    figures. A stage that is named again after its end is a new one.
    """

    def __init__(self, quiet: bool = False, titles: Mapping[str, str] | None = None) -> None:
        self.quiet, self.titles = quiet, dict(titles or {})
        self.console = Console(stderr=True, highlight=False)
        self.bars: Progress | None = None
        self.task: TaskID | None = None
        self.name: str | None = None  # of the stage under way; None: of the next nothing is known
        self.stage = _Stage(time.monotonic())

    def __enter__(self) -> Stages:
        if self.console.is_terminal and not self.quiet:
            self.bars = Progress(
                SpinnerColumn(finished_text="[green]✓[/]"),
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                _Count(),
                _Time(),
                TextColumn("[dim]{task.fields[figures]}[/]"),
                console=self.console,
            )
            self.bars.start()
            self._begin()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.bars is not None:
            if self.name is None and self.task is not None:
                self.bars.remove_task(self.task)
            self.bars.stop()

    def __call__(self, stage: str, done: int, total: int, figures: Mapping[str, float]) -> None:
        if self.quiet:
            return
        if self.name not in (None, stage):  # the stage before did not run to its end
            self._begin()
        self.name = stage
        self.stage.step(done)
        title = self.titles.get(stage, stage)
        shown = "  ".join(f"{FIGURES[k]} {figures[k]:.4g}" for k in FIGURES if k in figures)
        if self.bars is not None and self.task is not None:
            self.bars.update(
                self.task,
                description=f"{title:<{TITLE}}",
                total=total,
                completed=done,
                figures=shown,
            )
        elif done >= total:
            took = seconds(self.stage.last[0] - self.stage.began)
            more = f", {shown.replace('  ', ', ')}" if shown else ""
            print(f"{title}: {done} of {total} in {took}{more}", file=sys.stderr, flush=True)
        if done >= total:
            self._begin()

    def _begin(self) -> None:
        """A new stage, which shows a sign of life before it has made a step."""
        self.name, self.stage = None, _Stage(time.monotonic())
        if self.bars is not None:
            self.task = self.bars.add_task(
                f"{'…':<{TITLE}}", total=None, figures="", stage=self.stage
            )


def seconds(length: float, exact: bool = True) -> str:
    """3.2 s, 4 min 10 s, 2 h 5 min; not exact: whole seconds."""
    if length < 60:
        return f"{length:.1f} s" if exact else f"{length:.0f} s"
    minutes, rest = divmod(round(length), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def times(stages: Mapping[str, float]) -> str:
    return ", ".join(f"{stage} {seconds(length)}" for stage, length in stages.items())


def skipped_images(skipped: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {reason}" for reason, count in skipped.items()) or "none"


def within(radius: int) -> str:
    return "H=0" if radius == 0 else f"H≤{radius}"


def gain_table(base: Evaluation, mch: Evaluation | None) -> Table:
    """A line a figure: the base method, MCH on top of it, and the difference."""
    table = _table("", "base", *(() if mch is None else ("MCH", "change")))
    reach = within(base.radius)
    rows = {
        "mAP": "map",
        f"R@{reach}": "r0",
        f"P@{reach}": "p0",
        "F1 of the own bucket": "f1_own",
        "codes an image (ANHC)": "anhc",
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
    """A line a figure, a column for each way of keeping."""
    table = _table("", *(NAMES[way] for way in results))
    reach = within(next(iter(results.values())).radius)
    rows = {
        "mAP": "map",
        "  ties in any order": "map_tie_aware",
        f"R@{reach}": "r0",
        f"P@{reach}": "p0",
        "  where something is found": "p0_nonempty",
        "queries that find nothing": "empty",
        "codes an image (ANHC)": "anhc",
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
    """A line a class, over the queries that hold it: the base method and MCH side by side."""
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
    """Names to the left, figures to the right; the column of MCH stands out."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(first, overflow="fold")
    for head in others:
        bold = "bold" if head.endswith("MCH") else None
        table.add_column(head, justify="right", no_wrap=True, style=bold)
    return table


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def facts(rows: Mapping[str, str]) -> Table:
    """Names and values, one below the other."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def _colour(change: float) -> str:
    return "green" if change > 0 else "red" if change < 0 else "dim"
