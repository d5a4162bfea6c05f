"""The five commands of docs/cluster.md, as printed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import ray_nodes
from helpers.browsing import draw_pictures

PAGE = Path(__file__).parents[2] / "docs" / "cluster.md"


@pytest.fixture
def own_ray() -> Iterator[dict[str, str]]:
    """The environment of a Ray with ports and folders of its own, which ends with the test."""
    pytest.importorskip("ray")
    folder = tempfile.mkdtemp(prefix="mch-")  # the paths of its sockets must be short
    shutil.copy(ray_nodes.__file__, folder)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    unset = ("RAY_AUTH_TOKEN", "RAY_ADDRESS")
    kept = {name: value for name, value in os.environ.items() if name not in unset}
    yield {
        **kept, **ray_nodes.PATIENT, "HOME": folder, "RAY_TMPDIR": folder, "RAY_AUTH_MODE": "token",
        "PATH": path, "PYTHONPATH": folder, "RAY_START_HOOK": "ray_nodes.choose_ports",
    }  # fmt: skip
    ray_nodes.end_processes(folder)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="processes are found in /proc")
def test_five_commands_lead_to_a_search(own_ray: dict[str, str], tmp_path: Path) -> None:
    found = re.search(r"```sh\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert found is not None
    install, *commands = found[1].splitlines()
    assert install == "pip install 'mchindex[cluster]'"  # what runs these tests has done it
    assert len(commands) == 4
    draw_pictures(tmp_path / "photos", 40)
    wanted = sorted((tmp_path / "photos").rglob("*.jpg"))[3]
    shutil.copy(wanted, tmp_path / "dog.jpg")
    for command in commands:
        done = subprocess.run(
            ["bash", "-ec", command],
            cwd=tmp_path, env=own_ray, capture_output=True, text=True, timeout=600,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    first = next(line for line in done.stdout.splitlines() if ".jpg" in line)
    assert wanted.name in first, done.stdout
