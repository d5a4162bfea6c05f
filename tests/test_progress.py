"""Progress of long-running work: how it is reported and displayed."""

import io
import time
from typing import Any

import pytest
from rich.console import Console

from mchindex import progress as progress_file
from mchindex.progress import Display, Step, part_of, per_second, reporting, seconds, silent


def test_bars_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(
        "rich.console.Console", lambda **_: Console(file=screen, force_terminal=True, width=100)
    )
    with Display(titles={"dch": "base dch"}) as display:
        display(Step("dch", 6, 10, {"loss": 0.25}))
        display(Step("dch", 10, 10, {"loss": 0.125}))
        display(Step("adding", 5, unit="images"))
    text = screen.getvalue()
    for word in ("base dch", "10/10", "loss 0.125", "adding", "images/s"):
        assert word in text


def test_lines_without_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    with Display() as display:
        for done in range(1, 4):
            clock[0] += 1
            display(Step("agent", done, 3, {"validation_reward": 0.5, "kept": 0.25}))
        clock[0] += progress_file.PAUSE
        display(Step("adding", 40, 80, unit="images"))
        display(Step("adding", 50, 80, unit="images"))  # too soon for another line
    out, error = capsys.readouterr()
    assert out == ""
    assert error.splitlines() == [
        "agent: 3 of 3 in 3.0 s, reward 0.5, kept 0.25",
        "adding: 40 of 80 in 10.0 s, 4.0 images/s",
    ]


def test_a_quiet_display_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with Display(quiet=True) as display:
        display(Step("agent", 3, 3))
    assert capsys.readouterr() == ("", "")


def test_progress_may_be_a_function_a_boolean_or_none() -> None:
    seen: list[Step] = []
    with reporting(seen.append) as report:
        report(Step("a", 1, 2))
    assert seen == [Step("a", 1, 2)]
    kinds: list[bool | None] = [False, None]  # stderr is not a terminal here
    for kind in kinds:
        with reporting(kind) as ignored:  # type: ignore[var-annotated]
            assert ignored is silent
    with reporting(True) as display:  # type: ignore[var-annotated]
        assert isinstance(display, Display)


def test_steps_of_parts_become_steps_of_the_whole() -> None:
    seen: list[Step] = []
    for part in range(2):
        report = part_of(seen.append, part, 2)
        for done in (1, 2):
            report(Step("evaluation", done, 2))
    assert [(s.done, s.total) for s in seen] == [(1, 4), (2, 4), (3, 4), (4, 4)]


@pytest.mark.parametrize(
    ("length", "words"), [(3.21, "3.2 s"), (250, "4 min 10 s"), (7500, "2 h 5 min")]
)
def test_durations_are_written_in_words(length: float, words: str) -> None:
    assert seconds(length) == words


def test_speeds_are_rounded() -> None:
    assert per_second(1234.5, "images") == "1,234 images/s"
    assert per_second(3.46, "images") == "3.5 images/s"


def test_a_closed_stderr(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr", None)
    shown: Any = reporting(None)
    with shown as report:
        assert report is silent
    with Display() as display:
        display(Step("agent", 3, 3))
    assert capsys.readouterr().out == ""


def test_titles_are_not_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(
        "rich.console.Console", lambda **_: Console(file=screen, force_terminal=True, width=100)
    )
    with Display(titles={"dch": "[bold]:cat:"}) as display:
        display(Step("dch", 6, 10))
    assert "[bold]:cat:" in screen.getvalue()
