"""Checks the spelling of the pages, the docstrings and the help texts.

codespell knows common misspellings, in all files. hunspell, if it is installed (Debian: apt-get
install hunspell hunspell-en-gb), knows British English; tests/words.txt has the terms that it does
not know. `--write` adds to that file what is unknown: read the difference.
"""

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
TERMS = ROOT / "tests" / "words.txt"
NAME = re.compile(r"[a-z][A-Z]|^[A-Z]+s?$|[^\x00-\x7f]")
CHECKED = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md"]


def prose(text: str) -> str:
    """Text without blocks of code, code, links and HTML."""
    text = re.sub(r"^ *```.*?^ *```$", " ", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(
        r"`[^`]*`|\]\([^)]*\)|<[^>]+>|https?://\S+|\$\S+|[\w.-]+[/_@=][\w./_@=-]+", " ", text
    )
    return re.sub(r"\b\w*\d\w*\b|(?<!\w)-+\w[\w-]*", " ", text)


def texts() -> Iterator[tuple[str, str]]:
    """The name and the prose of every page, and of every module's docstrings."""
    pages = [ROOT / name for name in CHECKED]
    pages += [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "bench" / "README.md"]
    for page in pages:
        yield str(page.relative_to(ROOT)), prose(page.read_text("utf-8"))
    for folder in ("mchindex", "examples"):
        for module in sorted((ROOT / folder).rglob("*.py")):
            yield str(module.relative_to(ROOT)), prose(docstrings(module.read_text("utf-8")))


def docstrings(source: str) -> str:
    nodes = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = [ast.get_docstring(n) for n in ast.walk(ast.parse(source)) if isinstance(n, nodes)]
    return "\n".join(filter(None, found))


def unknown(text: str) -> set[str]:
    """The words that hunspell does not know. Names of classes and acronyms are none."""
    words = subprocess.run(
        ["hunspell", "-d", "en_GB", "-i", "utf-8", "-l"],
        input=text, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    return {word.removesuffix("'s") for word in words if not NAME.search(word)}


def main() -> int:
    spelt = subprocess.run(
        [
            sys.executable,
            "-m",
            "codespell_lib",
            "--quiet-level",
            "3",
            "--ignore-words-list",
            "nd",
            *codespell_files(),
        ],
        check=False,
    )
    if spelt.returncode:
        return 1
    if shutil.which("hunspell") is None:
        print("no hunspell here: only common misspellings are found")
        return 0
    known = set(TERMS.read_text("utf-8").split()) if TERMS.exists() else set()
    wrong = {}
    for name, text in texts():
        if found := unknown(text) - known:
            wrong[name] = found
    if "--write" in sys.argv:
        known |= set().union(*wrong.values())
        TERMS.write_text("\n".join(sorted(known, key=lambda w: (w.lower(), w))) + "\n", "utf-8")
        return 0
    for name, words in wrong.items():
        print(f"{name}: {', '.join(sorted(words))}")
    return bool(wrong)


def codespell_files() -> list[str]:
    kinds = ("md", "py", "pyi", "cpp", "h", "html", "yml", "toml", "cff")
    listed = subprocess.run(
        ["git", "ls-files", "-z", *(f"*.{kind}" for kind in kinds)],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split("\0")  # fmt: skip
    made = ("tests/", "docs/paper/")  # tests misspell on purpose
    return [str(ROOT / name) for name in listed if name and not name.startswith(made)]


if __name__ == "__main__":
    sys.exit(main())
