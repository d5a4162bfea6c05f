"""The package of an earlier commit, built in its own folder, to be measured beside this one."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path

from common import progress

ROOT = Path(__file__).parents[1]


def commit_of(revision: str) -> str:
    """The full name of a commit. SystemExit if there is none of this name."""
    command = ["git", "-C", str(ROOT), "rev-parse", "--verify", "-q", f"{revision}^{{commit}}"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if found.returncode:
        raise SystemExit(f"no commit {revision} in {ROOT}: --against takes what git rev-parse does")
    return found.stdout.strip()


def build_at(commit: str, folder: Path) -> Path:
    """Builds the package of a commit; the folder to import it from. SystemExit if that fails."""
    progress(f"building the engine of {commit[:12]}")
    tree, site = folder / "tree", folder / "site"
    unpack(commit, tree)
    cmake = shutil.which("cmake") or str(Path(sys.executable).with_name("cmake"))
    pybind11 = _output([sys.executable, "-m", "pybind11", "--cmakedir"]).strip()
    _output([
        cmake, "-S", str(tree), "-B", str(folder / "build"), "-DCMAKE_BUILD_TYPE=Release",
        "-DSKBUILD_PROJECT_VERSION=0", f"-DPython_EXECUTABLE={sys.executable}",
        f"-Dpybind11_DIR={pybind11}",
    ])  # fmt: skip
    _output([cmake, "--build", str(folder / "build"), "--parallel"])
    shutil.copytree(tree / "mchindex", site / "mchindex")
    for library in (folder / "build").glob("_core*.so"):
        shutil.copy(library, site / "mchindex")
    return site


def unpack(commit: str, folder: Path) -> None:
    """The files of a commit."""
    command = ["git", "-C", str(ROOT), "archive", "--format=tar", commit]
    archive = subprocess.run(command, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=BytesIO(archive)) as tar:
        if hasattr(tarfile, "data_filter"):  # not in Debian 12's Python 3.11.2
            tar.extraction_filter = tarfile.data_filter
        tar.extractall(folder)  # noqa: S202  # our own files


def _output(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout
