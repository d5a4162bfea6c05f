"""Makes the file system fail on purpose, without privileges.

`preloaded` runs a program with faults.c loaded before the C library. Within that program, `Faults`
says which calls on files in its folder fail, when, and how: with ENOSPC, EIO or EROFS, or with a
signal. `on_small_disk` runs a program on a small file system of its own, where that is allowed.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType

import pytest

import mchindex

TESTS = Path(__file__).parents[1]
READ, WRITE, SYNC, RESIZE, OPEN, NAME = (1 << i for i in range(6))
CHANGES = WRITE | SYNC | RESIZE | OPEN | NAME
FOREVER = -1


class _Control(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_int32)
        for name in ("calls", "error", "signal", "after", "times", "seen", "struck")
    ]


class Faults:
    """The faults of this process, which `preloaded` started."""

    def __init__(self) -> None:
        with open(os.environ["FAULTS_CONTROL"], "r+b") as file:
            self._control = _Control.from_buffer(mmap.mmap(file.fileno(), 0))

    @contextlib.contextmanager
    def during(
        self, calls: int, *, error: int = 0, signal: int = 0, after: int = 0, times: int = FOREVER
    ) -> Iterator[None]:
        """Within it, calls of these kinds fail with `error` or cause a signal, after some."""
        control = self._control
        control.error, control.signal, control.after, control.times = error, signal, after, times
        control.seen = control.struck = 0
        control.calls = calls
        try:
            yield
        finally:
            control.calls = 0

    @property
    def struck(self) -> int:
        """How many calls failed since the last `during` began."""
        return int(self._control.struck)


@cache
def _library(folder: Path) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("there is no C compiler to build the library that makes calls fail")
    built = folder / "faults.so"
    source = str(Path(__file__).with_name("faults.c"))
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", source, "-o", built, "-ldl"], check=True)
    return built


def preloaded(folder: Path, workspace: Path) -> dict[str, str]:
    """The environment in which calls on files in `folder` can fail."""
    control = workspace / "faults.control"
    control.write_bytes(bytes(ctypes.sizeof(_Control)))
    return {
        "LD_PRELOAD": str(_library(workspace)),
        "FAULTS_CONTROL": str(control),
        "FAULTS_FOLDER": os.path.realpath(folder),
    }


def run_module(
    module: str,
    *arguments: object,
    environment: Mapping[str, str] = MappingProxyType({}),
    prefix: Sequence[str] = (),
) -> str:
    """Runs a module of the tests in another process; returns what it printed.

    Fails with what it wrote to stderr if it fails or is killed.
    """
    home = Path(mchindex.__file__).resolve().parents[1]
    path = os.pathsep.join(map(str, (home, TESTS)))
    done = subprocess.run(
        [*prefix, sys.executable, "-m", module, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **environment},
        cwd=TESTS,  # not that of the sources, which may not be compiled
        capture_output=True, text=True, errors="replace",
    )  # fmt: skip
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def on_small_disk(folder: Path, size: str) -> list[str]:
    """The start of a command that runs a program with a small tmpfs mounted on `folder`.

    The mount is seen by that program only and ends with it. Empty if mounting is not allowed.
    """
    script = f'mount -t tmpfs -o size={size} none "$0" && exec "$@"'
    for options in ("-m", "-rm"):  # as root, or as root of a user namespace
        prefix = ["unshare", options, "sh", "-c", script, str(folder)]
        with contextlib.suppress(OSError):
            if subprocess.run([*prefix, "true"], capture_output=True).returncode == 0:
                return prefix
    return []
