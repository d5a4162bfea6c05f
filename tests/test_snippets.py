"""The Python of the pages in docs/ runs as printed, and so do the commands, but for servers."""

import os
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

from helpers.script import run_script
from helpers.service import running
from mchindex import MCHIndex
from mchindex.cli import run
from mchindex.datasets.scenes import SceneSource

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
# Tests of their own run the Python of these pages.
ELSEWHERE = {
    "cluster.md": "cluster/test_docs.py",
    "extending.md": "models/test_extending.py",
    "learning.md": "test_learning_page.py",
}
INDEX = "from mchindex import MCHIndex\nindex = MCHIndex.open('photos.mch')\n"
CODES = (
    "import numpy as np\nrandom = np.random.default_rng(0)\n"
    "n, ids = 1000, np.arange(1000)\ncodes = random.integers(0, 256, (1000, 8), np.uint8)\n"
)
# What the snippets of a page assume.
BEFORE = {
    "application.md": "",
    "billion.md": CODES + "from mchindex import BucketTable\nqueries = codes[:3]\n",
    "duplicates.md": INDEX + "picture = 'dog.jpg'\n",
    "mchindex.md": CODES + "codes = np.hstack([codes, codes])\nimages = sorted(__import__('glob')"
    ".glob('*.jpg'))\n",
    "notebook.md": "",
    "serve.md": "",
    "table.md": CODES + "from mchindex import BucketTable\nfrom mchindex._core import FineTable\n"
    "radius, path, id, chunks = 3, 'a.table', 7, [(ids, codes)]\n"
    "keys, counts = ids, np.ones(n, np.int64)\n"
    "fine, queries = random.integers(0, 256, (n, 6, 32), np.uint8), random.normal(size=(2, 256))\n",
    "tutorial.md": "",
    "words.md": INDEX,
}  # fmt: skip
# Pages whose commands run here. A search may find nothing, and then exits with 1.
COMMANDS = ["duplicates.md", "mchindex.md", "operations.md", "photos.md", "tutorial.md", "words.md"]
MAY_FIND_NOTHING = {"search", "duplicates", "remove"}
SERVES, TRAINS = {"serve"}, {"train"}


def blocks(page: Path, kinds: tuple[str, ...]) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    return [text for kind, text in found if kind in kinds]


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that snippets name, and an index of its photos."""
    folder = tmp_path_factory.mktemp("pictures")
    drawn = SceneSource(60, seed=1, size=384)
    (folder / "photos").mkdir()
    (folder / "Pictures" / "2024").mkdir(parents=True)
    for i in range(30):
        drawn.image(i).resize((224, 224)).save(folder / "photos" / f"{i}.jpg")
    for i in range(30, 34):
        drawn.image(i).save(folder / "Pictures" / "2024" / f"{i}.jpg")
    names = ["dog", "beach", "crowd", "copy", "part", "like", "a", "b", "c"]
    for i, name in enumerate(names, 34):
        drawn.image(i).save(folder / f"{name}.jpg")
    for place in (folder, folder / "photos"):
        drawn.image(43).save(place / "cat.jpg")
    return folder


@pytest.fixture
def folder(pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(pictures, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("BROWSER", "true")
    return tmp_path


def fill(folder: Path) -> None:
    """An index of the photos, with so many codes that any region of the cat may be named."""
    photos, index = str(folder / "photos"), str(folder / "photos.mch")
    assert run(["add", photos, "--index", index, "--codes", "4", "--quiet"]) == 0
    with MCHIndex.open(index) as opened:
        opened.add(folder / "dog.jpg", ids=[17], progress=False)
        assert "top-left" in opened[str(folder / "photos" / "cat.jpg")].regions


def test_all_python_is_run_somewhere() -> None:
    pages = {page.name for page in DOCS.rglob("*.md") if blocks(page, ("python",))}
    assert pages == BEFORE.keys() | ELSEWHERE.keys()
    for page, test in ELSEWHERE.items():
        assert page in (ROOT / "tests" / test).read_text("utf-8")


@pytest.mark.parametrize("name", sorted(BEFORE))
def test_python_runs(name: str, folder: Path) -> None:
    script = BEFORE[name] + "\n".join(blocks(DOCS / name, ("python",)))
    if "index = MCHIndex.open('photos.mch')" in script:
        fill(folder)
    if name == "serve.md":
        fill(folder)
        (folder / "more pictures").mkdir()
        (folder / "c.jpg").rename(folder / "more pictures" / "c.jpg")
        with running(folder / "photos.mch") as service:
            run_script(script.replace("http://127.0.0.1:8000", service.url), folder=folder)
    else:
        run_script(script, folder=folder)


def calls(page: Path) -> list[list[str]]:
    """The commands of a page, in order, each up to a pipe."""
    found = []
    for line in "\n".join(blocks(page, ("", "sh"))).replace("\\\n", " ").splitlines():
        if not line.startswith(("mch ", "export ")):
            continue
        lexer = shlex.shlex(line, posix=True, punctuation_chars=";|")
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, ";"]:
            if word not in (";", "|"):
                words.append(os.path.expanduser(word))
            elif words:
                found += [words] if words[0] in ("mch", "export") else []
                words = []
    return found


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_run(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(folder)
    for program, *words in calls(DOCS / name):
        if program == "export":
            monkeypatch.setenv(*words[0].split("=", 1))
        elif words[0] not in SERVES | TRAINS:
            if "--move-to" in words:  # it asks, and here is no terminal
                words.append("--yes")
            code = run(words)
            assert code == 0 or (code == 1 and words[0] in MAY_FIND_NOTHING), words


@pytest.mark.slow
def test_the_commands_that_train_run(folder: Path) -> None:
    from mchindex.datasets.scenes import scenes

    labelled = folder / "labelled" / "images"
    labelled.mkdir(parents=True)
    data = scenes(120, queries=20, train=60)
    rows = ["file,split,labels"]
    for split in ("query", "train", "database"):
        for i in data.splits[split]:
            name = f"{i}.jpg"
            if not (labelled / name).exists():
                data.images.image(int(i)).save(labelled / name)
                names = np.flatnonzero(data.labels[i])
                rows.append(f"{name},{split},{'|'.join(data.classes[j] for j in names)}")
    (labelled.parent / "labels.csv").write_text("\n".join(rows) + "\n")
    for _, *words in calls(DOCS / "own-model.md"):
        assert run(words) == 0, words
