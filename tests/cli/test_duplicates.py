"""`mch duplicates` and `mch search --like`: output, questions, exit codes."""

import json
from pathlib import Path
from typing import Any

import pytest

from helpers.fine_models import fine_model, write_copies
from helpers.html import check_alone
from mchindex import MCHIndex
from mchindex.cli import duplicates as command
from mchindex.cli import run
from mchindex.index.page import hits_page

Capture = pytest.CaptureFixture[str]
GONE = ["0-saved.jpg", "0-small.png", "1-saved.jpg", "1-small.png"]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with photos, copies of two of them, and an index of all."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MCH_INDEX", raising=False)
    write_copies(tmp_path / "photos", 6)
    with MCHIndex.open(tmp_path / "photos.mch", fine_model(128, 300)) as index:
        index.add(tmp_path / "photos")
    return tmp_path


def left(home: Path) -> list[str]:
    return sorted(file.name for file in (home / "photos").iterdir())


def answering(monkeypatch: pytest.MonkeyPatch, answer: bool) -> list[str]:
    """Pretends that there is a terminal, at which each question is answered; returns these."""
    asked: list[str] = []

    def confirm(text: str, **options: Any) -> bool:
        asked.append(text)
        return answer

    monkeypatch.setattr(command, "_can_ask", lambda: True)
    monkeypatch.setattr("typer.confirm", confirm)
    return asked


def test_groups_are_listed_and_no_file_is_touched(home: Path, capsys: Capture) -> None:
    before = left(home)
    assert run(["duplicates"]) == 0
    out = capsys.readouterr().out
    assert "2 groups among 10 images: 4 images besides those to keep" in out
    assert out.count("keep ") >= 2
    assert left(home) == before


def test_json(home: Path, capsys: Capture) -> None:
    assert run(["duplicates", "--json", "--level", "similar"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["level"] == "similar"
    assert len(found["groups"]) == 2
    assert Path(found["groups"][0]["keeper"]["path"]).name in ("0.png", "1.png")


def test_without_duplicates_the_exit_code_is_1(home: Path, capsys: Capture) -> None:
    assert run(["duplicates", "--filter", "album=none"]) == 1
    assert "no duplicates among 0 images" in capsys.readouterr().out


def test_the_page_shows_the_groups_and_escapes_names(home: Path, capsys: Capture) -> None:
    (home / "photos" / "0-saved.jpg").rename(home / "photos" / "<b>0.jpg")
    with MCHIndex.open(home / "photos.mch") as index:
        index.prune()
        index.add(home / "photos")
    assert run(["duplicates", "--out", "page/groups.html"]) == 0
    page = (home / "page" / "groups.html").read_text("utf-8")
    assert page.count("<figure") == 6
    assert page.count('class="keeper"') == 2
    assert page.count("data:image/jpeg;base64,") == 6
    assert "&lt;b&gt;0.jpg" in page
    assert "<b>0.jpg" not in page
    check_alone(page)
    style = hits_page([]).split("<style>")[1].split(".region")[0]
    assert page.split("<style>")[1].startswith(style)  # all pages look alike
    assert run(["duplicates", "--out", "groups.png"]) == 2
    assert "must end in .html" in capsys.readouterr().err


def test_files_are_moved_only_after_a_question(
    home: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = left(home)
    asked = answering(monkeypatch, False)
    assert run(["duplicates", "--move-to", "aside"]) == 0
    assert asked == [f"Move 4 files to {home / 'aside'} and keep 2?"]
    assert left(home) == before
    answering(monkeypatch, True)
    assert run(["duplicates", "--move-to", "aside"]) == 0
    assert sorted(file.name for file in (home / "aside").iterdir()) == GONE
    assert left(home) == sorted(set(before) - set(GONE))
    assert "4 files moved, 0 failed" in capsys.readouterr().out
    assert run(["duplicates"]) == 1


def test_files_are_deleted_only_after_a_question(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = left(home)
    asked = answering(monkeypatch, False)
    assert run(["duplicates", "--delete"]) == 0
    assert asked == ["Delete 4 files and keep 2?"]
    assert left(home) == before
    assert run(["duplicates", "--delete", "--yes"]) == 0
    assert left(home) == sorted(set(before) - set(GONE))
    assert len(asked) == 1


def test_without_a_terminal_yes_is_needed(
    home: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_can_ask", lambda: False)
    before = left(home)
    for option in (["--delete"], ["--move-to", "aside"]):
        assert run(["duplicates", *option]) == 2
        assert "add --yes" in capsys.readouterr().err
    assert left(home) == before
    assert not (home / "aside").exists()
    assert run(["duplicates", "--delete", "--yes", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["deleted"]) == 4


def test_files_that_stay_are_named(home: Path, capsys: Capture) -> None:
    with (home / "photos" / "0-saved.jpg").open("ab") as file:
        file.write(b"more")
    assert run(["duplicates", "--delete", "--yes"]) == 1
    out, error = capsys.readouterr()
    assert "3 files deleted, 1 failed" in out
    assert "0-saved.jpg has changed since it was added" in error


def test_move_and_delete_contradict_each_other(home: Path, capsys: Capture) -> None:
    assert run(["duplicates", "--delete", "--move-to", "aside", "--yes"]) == 2
    assert "contradict each other" in capsys.readouterr().err


# mch search --like


def test_search_by_several_pictures(home: Path, capsys: Capture) -> None:
    query = ["search", "--like", "photos/0.png", "--like", "photos/1.png", "--json"]
    assert run(query) == 0
    found = json.loads(capsys.readouterr().out)
    names = [Path(hit["path"]).name for hit in found["hits"]]
    assert found["like"] == ["photos/0.png", "photos/1.png"]
    assert {"0.png", "1.png"}.isdisjoint(names)
    assert set(names[:4]) == set(GONE)
    assert run([*query, "--unlike", "photos/1-saved.jpg"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {Path(hit["path"]).name for hit in found["hits"][:2]} == {"0-saved.jpg", "0-small.png"}
    assert run(["search", "--like", "photos/0.png", "--out", "hits.png"]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--unlike", "photos/0.png", "photos/1.png"], "--unlike needs --like"),
        (["--like", "photos/0.png", "photos/1.png"], "or --like IMAGE"),
        (["--like", "photos/0.png", "--region", "0,0,5,5"], "--region is a part"),
        (["--like", "photos/none.png"], "none.png"),
    ],
)
def test_wrong_combinations_are_refused(
    arguments: list[str], message: str, home: Path, capsys: Capture
) -> None:
    assert run(["search", *arguments]) == 2
    assert message in capsys.readouterr().err
