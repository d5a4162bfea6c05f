"""The checks of the documentation site find what they are for."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "docs" / "hooks"))

pytest.importorskip("mkdocs")
checks = pytest.importorskip("checks")
commands = pytest.importorskip("commands")

PAGE = """<html><head><link href="{load}"></head><body><h1 id="top">A</h1><a href="{link}">b</a>"""


@pytest.mark.parametrize(
    ("load", "link", "problem"),
    [
        ("style.css", "b.html#top", ""),
        ("style.css", "https://example.org", ""),
        ("style.css", "#top", ""),
        ("style.css", "c.html", "c.html leads nowhere"),
        ("style.css", "b.html#bottom", "b.html#bottom leads nowhere"),
        ("https://example.org/style.css", "b.html", "loads https://example.org/style.css"),
        ("//example.org/style.css", "b.html", "loads //example.org/style.css"),
        ("gone.css", "b.html", "gone.css leads nowhere"),
    ],
)
def test_a_wrong_link_is_found(tmp_path: Path, load: str, link: str, problem: str) -> None:
    (tmp_path / "a.html").write_text(PAGE.format(load=load, link=link))
    (tmp_path / "b.html").write_text(PAGE.format(load="style.css", link="a.html"))
    (tmp_path / "style.css").write_text("a { color: red }")
    found = checks.find_problems(tmp_path)
    assert len(found) == bool(problem)
    assert problem in "".join(found)


def test_a_sheet_that_loads_from_elsewhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "style.css").write_text('@import "https://example.org/font.css";')
    assert checks.find_problems(tmp_path) == ["style.css loads https://example.org/font.css"]


def test_every_command_is_in_the_reference() -> None:
    text = commands.reference()
    assert {"mch add", "mch search", "mch serve"} <= set(re.findall(r"^## (.+)$", text, re.M))
    assert "### mch cluster add" in text
    assert "--rank <best|code|fine>" in text.replace("\\", "")
    assert "[/]" not in text


def test_every_page_is_in_the_navigation() -> None:
    listed = set(re.findall(r": ([\w/.-]+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.M))
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}
    assert pages <= listed
