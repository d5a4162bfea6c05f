"""Kills of shards, replicas, encoders, nodes and drivers while images are added and searched."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("kills", [5, pytest.param(50, marks=pytest.mark.slow)])
def test_nothing_reported_is_lost(kills: int, tmp_path: Path) -> None:
    """In a process of its own: it starts a Ray of its own."""
    pytest.importorskip("ray")
    script = Path(__file__).parents[2] / "bench" / "cluster_kills.py"
    done = subprocess.run(
        [sys.executable, script, "--kills", str(kills), "--out", tmp_path / "record.json"],
        capture_output=True, text=True, timeout=60 + 20 * kills,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    (found,) = json.loads((tmp_path / "record.json").read_text())["rows"]
    assert found["kills"] == kills
    assert found["reported"] > 4 * kills  # how many more depends on what else the machine does
    assert found["searches"] > kills
