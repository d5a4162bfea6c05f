"""A progress bar for long work of the API, on stderr."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text


class _Speed(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.0f} images/s")


class Bar:
    """Images done, of how many, images a second, time left."""

    def __init__(self, what: str, total: int | None) -> None:
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            _Speed(),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=Console(stderr=True, highlight=False),
            speed_estimate_period=60,
        )
        self._task = self._bars.add_task(what, total=total)

    def __enter__(self) -> Bar:
        self._bars.start()
        return self

    def at(self, done: int) -> None:
        self._bars.update(self._task, completed=done)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bars.stop()
