"""Progress of long-running work: how it is reported, and how it is displayed.

Long-running work calls a `Progress`, a function that takes a `Step`. `Display` shows the steps on
the terminal; `silent` ignores them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

PAUSE = 10.0  # seconds between two lines about a stage if there is no terminal
TITLE = 17  # width of the longest stage title
# The figures shown beside the bar, and their names there.
FIGURES = {
    "loss": "loss",
    "residue": "residue",
    "quantisation error": "error",
    "validation_reward": "reward",
    "kept": "kept",
    "precision": "precision",
}


@dataclass(frozen=True)
class Step:
    """How far one stage of long-running work has progressed.

    Attributes:
        stage: The name of the stage.
        done: How much of it is done.
        total: How much there is; None if it is not known yet.
        figures: A loss, a share of regions kept, and the like.
        unit: What `done` counts ("images"), if the speed is to be shown.
    """

    stage: str
    done: int
    total: int | None = None
    figures: Mapping[str, float] = field(default_factory=dict)
    unit: str = ""


Progress: TypeAlias = Callable[[Step], None]
S = TypeVar("S", bound=Step)


def silent(step: Step) -> None:
    """Ignores every step."""


def part_of(progress: Progress, part: int, parts: int) -> Progress:
    """Reports the steps of one of several equal parts as steps of the whole."""

    def report(step: Step) -> None:
        if step.total is not None:
            done, total = part * step.total + step.done, parts * step.total
            progress(replace(step, done=done, total=total))

    return report


@contextmanager
def reporting(progress: bool | Callable[[S], None] | None) -> Iterator[Callable[[S], None]]:
    """The function to call for a `progress=` argument.

    A function is used as it is. True shows a display, False nothing, and None a display if stderr
    is a terminal.
    """
    if callable(progress):
        yield progress
    elif progress or (progress is None and on_terminal()):
        with Display() as display:
            yield display
    else:
        yield silent


def on_terminal() -> bool:
    """Whether stderr is a terminal; it may also be closed."""
    return sys.stderr is not None and sys.stderr.isatty()


class Display:
    """Shows steps on stderr: as bars on a terminal, otherwise as lines.

    Without a terminal, a line is printed every ten seconds, and when a stage without a `Step.unit`
    finishes. A stage that is reported again after it has finished is shown as a new stage.
    """

    def __init__(self, quiet: bool = False, titles: Mapping[str, str] | None = None) -> None:
        """`titles` maps stages to the titles to show for them."""
        self._quiet, self._titles = quiet, dict(titles or {})
        self._bars: Bars | None = None
        self._task: TaskID | None = None
        self._begin()

    def _begin(self) -> None:
        self._stage: str | None = None
        self._began = self._printed = time.monotonic()
        if self._bars is not None:  # a sign of life before the first step
            self._task = self._bars.add_task(f"{'…':<{TITLE}}", total=None, figures="")

    def __enter__(self) -> Display:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            SpinnerColumn,
            TextColumn,
            TimeRemainingColumn,
        )

        console = Console(stderr=True, highlight=False, emoji=False)
        if console.is_terminal and not self._quiet:
            self._bars = Progress(
                SpinnerColumn(finished_text="[green]✓[/]"),
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TimeRemainingColumn(elapsed_when_finished=True),
                TextColumn("{task.fields[figures]}", style="dim", markup=False),
                console=console,
                speed_estimate_period=600,
            )
            self._bars.start()
            self._begin()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bars is not None:
            if self._stage is None and self._task is not None:
                self._bars.remove_task(self._task)
            self._bars.stop()

    def __call__(self, step: Step) -> None:
        if self._quiet:
            return
        if self._stage not in (None, step.stage):  # the previous stage ended before its last step
            self._begin()
        self._stage = step.stage
        title = self._titles.get(step.stage, step.stage)
        figures = [f"{name} {step.figures[k]:.4g}" for k, name in FIGURES.items()
                   if k in step.figures]  # fmt: skip
        over = step.total is not None and step.done >= step.total
        if self._bars is not None and self._task is not None:
            self._bars.update(
                self._task,
                description=f"{title:<{TITLE}}",
                total=step.total,
                completed=step.done,
                figures="  ".join([*self._speed(step), *figures]),
            )
        elif (over and not step.unit) or time.monotonic() - self._printed >= PAUSE:
            self._printed = time.monotonic()
            of = "" if step.total is None else f" of {step.total:,}"
            took = seconds(self._printed - self._began)
            line = ", ".join([f"{step.done:,}{of} in {took}", *self._speed(step), *figures])
            if sys.stderr is not None:  # print() would take stdout instead
                print(f"{title}: {line}", file=sys.stderr, flush=True)
        if over:
            self._begin()

    def _speed(self, step: Step) -> list[str]:
        spent = time.monotonic() - self._began
        return [per_second(step.done / spent, step.unit)] if step.unit and spent else []


def per_second(speed: float, unit: str) -> str:
    """120 images/s, 3.5 images/s."""
    return f"{speed:,.0f} {unit}/s" if speed >= 10 else f"{speed:.1f} {unit}/s"


def seconds(length: float) -> str:
    """3.2 s, 4 min 10 s, 2 h 5 min."""
    if length < 60:
        return f"{length:.1f} s"
    minutes, rest = divmod(round(length), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"
