"""Runs a script in another Python process, with the same mchindex as this one."""

import os
import subprocess
import sys
from pathlib import Path

import mchindex


def run_script(script: str, *arguments: str, folder: Path) -> None:
    """Runs a script in a folder, which must not be that of the sources: Python would import the
    sources, which may not be compiled."""
    home = str(Path(mchindex.__file__).resolve().parents[1])
    environment = os.environ | {"PYTHONPATH": home}
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
