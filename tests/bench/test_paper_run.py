"""The paper's experiments as one command, from nothing, killed on the way, and again."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

PAPER = Path(__file__).parents[2] / "bench" / "paper"
STEPS = ["labels for crops", "more regions", "labels for crops and more regions"]


def command(folder: Path) -> list[str]:
    words = "--data scenes:300 --methods itq hashnet dch --bits 32 --seeds 1 --part 40"
    places = ["--cache", str(folder / "cache"), "--out", str(folder / "report")]
    return [sys.executable, str(PAPER), *words.split(), *places]


def run(folder: Path) -> tuple[dict[str, Any], str]:
    done = subprocess.run(command(folder), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    content: dict[str, Any] = json.loads((folder / "report" / "paper.json").read_text())
    return content, done.stdout + done.stderr


@pytest.mark.slow
def test_the_whole_run_resumes_where_it_was_killed(tmp_path: Path) -> None:
    for marker in ("itq-32-0.json", "labels-crops/*.json"):
        with (tmp_path / "log").open("w") as log:
            process = subprocess.Popen(command(tmp_path), stdout=log, stderr=log)
            while process.poll() is None and not list((tmp_path / "cache").rglob(marker)):
                time.sleep(0.1)
            process.kill()
            process.wait()
        assert not (tmp_path / "report").exists(), (tmp_path / "log").read_text()
    content, said = run(tmp_path)
    assert "cells: already computed" in said
    assert [step["name"] for step in content["beyond"]["steps"]] == STEPS
    for step in content["beyond"]["steps"]:
        assert [(c["method"], c["bits"]) for c in step["cells"]] == [("dch", 32), ("hashnet", 32)]
        # So few images leave few numbers of codes to choose from: where it is off, nothing is won.
        assert step["anhc_off"] <= 0.05 or not step["kept"]
        assert all(0 <= c["step"]["f1_own"] <= 1 for c in step["cells"])
    assert len(content["beyond"]["unsupervised"]["cells"]) == 3
    assert content["settings"]["cells"] == content["settings"]["cells_wanted"] == 3
    assert (tmp_path / "report" / "paper.html").read_text().count("<img") > 10

    again, said = run(tmp_path)
    assert "started" not in said
    assert again["beyond"] == content["beyond"]
    assert again["seconds"] == content["seconds"]
