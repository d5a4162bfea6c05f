"""The pages in docs/: their links lead somewhere, and their commands and options exist."""

import re
import shlex
from pathlib import Path

import pytest
import typer

from mchindex.cli import make_app

ROOT = Path(__file__).parents[1]
PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "bench" / "README.md"]
LINKS = [
    (page, link)
    for page in PAGES
    for link in re.findall(r"\]\((?!http)([^)]+)\)", page.read_text("utf-8"))
]
BLOCKS = [
    text
    for page in PAGES
    for kind, text in re.findall(
        r"^```(\w*)\n(.*?)^```$", page.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    if kind in ("", "sh")
]


def commands() -> set[str]:
    """Every call of `mch` in the blocks: up to a comment, a semicolon or a pipe."""
    found = set()
    for line in "\n".join(BLOCKS).replace("\\\n", " ").splitlines():
        if not line.startswith("mch "):
            continue
        lexer = shlex.shlex(line, posix=True, punctuation_chars=";|")
        lexer.whitespace_split = True
        calls = " ".join(map(shlex.quote, lexer)).replace("'|'", "';'").split("';'")
        found |= {call.strip() for call in calls if call.strip().startswith("mch ")}
    return found


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}


@pytest.mark.parametrize(("page", "link"), LINKS, ids=lambda x: getattr(x, "name", x))
def test_links_lead_to_files_and_titles(page: Path, link: str) -> None:
    path, _, title = link.partition("#")
    target = (page.parent / path) if path else page
    assert target.exists()
    assert not title or title in anchors(target)


def test_there_are_commands() -> None:
    names = {command.split()[1] for command in commands()}
    assert {"add", "search", "duplicates", "train", "verify", "backup"} <= names


@pytest.mark.parametrize("command", sorted(commands()))
def test_commands_and_options_exist(command: str) -> None:
    _, name, *words = shlex.split(command)
    group = typer.main.get_command(make_app())
    known = group.commands[name]  # type: ignore[attr-defined]
    while hasattr(known, "commands"):  # mch cluster add
        known = known.commands[words.pop(0)]
    options = {option for parameter in known.params for option in parameter.opts}
    assert {word for word in words if word.startswith("-")} <= options
