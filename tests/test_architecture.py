"""docs/architecture.md names files that exist, and no package file is missing from its tree."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text("utf-8")
TREE = PAGE.split("## The tree")[1].split("```")[1]
LISTED_WHOLE = (
    "storage",
    "inference",
    "index",
    "server",
    "client",
    "training",
    "demo",
)  # packages whose files the tree names


def named_files() -> list[str]:
    words = re.findall(r"`((?:mchindex|cpp|tests|bench|docs)/[\w./-]+)`", PAGE)
    return sorted({word for word in words if "NAME" not in word})


def package_lines() -> dict[str, str]:
    """The lines of the tree, by package."""
    lines: dict[str, str] = {}
    package = ""
    for line in TREE.split("\nmchindex/\n")[1].split("\n\n")[0].splitlines():
        if found := re.match(r"  (\w+)/ +(.*)", line):
            package = found[1]
            lines[package] = found[2]
        elif package:
            lines[package] += f" {line.strip()}"
    return lines


@pytest.mark.parametrize("name", named_files())
def test_every_file_that_the_page_names_exists(name: str) -> None:
    assert (ROOT / name).exists()


@pytest.mark.parametrize("package", package_lines())
def test_the_tree_names_the_files_of_each_package(package: str) -> None:
    folder = ROOT / "mchindex" / package
    named = set(re.findall(r"\b(\w+\.py)\b", package_lines()[package]))
    assert {name for name in named if not (folder / name).exists()} == set()
    if package in LISTED_WHOLE:
        there = {file.name for file in folder.glob("*.py")} - {"__init__.py"}
        assert there - named == set()
