"""Runs a script in another Python process, with the same mchindex as this one."""

import os
import subprocess
import sys
from pathlib import Path

import mchindex


def start_script(script: str, *arguments: str, folder: Path) -> "subprocess.Popen[str]":
    """Starts a script in a folder. `-P` keeps Python from importing what lies in that folder: the
    sources of mchindex may not be compiled."""
    homes = Path(mchindex.__file__).resolve().parents[1], Path(__file__).resolve().parents[1]
    command = [sys.executable, "-P", "-c", script, *arguments]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, homes))}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=pipe, stderr=pipe, text=True
    )


def run_script(script: str, *arguments: str, folder: Path) -> None:
    """Runs a script to its end, which must be a good one."""
    script_process = start_script(script, *arguments, folder=folder)
    _, errors = script_process.communicate()
    assert script_process.returncode == 0, errors
