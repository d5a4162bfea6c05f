"""A script run by another Python, with the same mchindex as this one."""

import os
import subprocess
import sys
from pathlib import Path

import mchindex


def run_script(script: str, *arguments: str, folder: Path) -> None:
    """Run it in a folder (of the sources, it would import those, which are not compiled)."""
    home = str(Path(mchindex.__file__).resolve().parents[1])
    environment = os.environ | {"PYTHONPATH": home}
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
