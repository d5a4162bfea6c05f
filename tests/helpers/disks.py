"""Small and read-only disks, where the system lets a test mount them."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


def mount(*arguments: str) -> None:
    """Mounts a file system, or skips the test."""
    try:
        done = subprocess.run(["mount", *arguments], capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if done.returncode:
        pytest.skip(f"file systems cannot be mounted: {done.stderr.strip()}")


@contextlib.contextmanager
def disk(folder: Path, megabytes: int) -> Iterator[Path]:
    """A disk in memory of this size, mounted in a new folder."""
    folder.mkdir()
    mount("-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder))
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@contextlib.contextmanager
def read_only(disk: Path) -> Iterator[None]:
    """Makes a mounted disk read-only for a while."""
    mount("-o", "remount,ro", str(disk))
    try:
        yield
    finally:
        mount("-o", "remount,rw", str(disk))


def fill(disk: Path) -> Path:
    """Fills a disk to the last byte with one file."""
    file = disk / "filler"
    with contextlib.suppress(OSError), open(file, "wb", buffering=0) as stream:
        while stream.write(bytes(1 << 16)) == 1 << 16:
            pass
    with contextlib.suppress(OSError), open(file, "ab", buffering=0) as stream:
        while stream.write(bytes(512)):
            pass
    assert os.statvfs(disk).f_bfree == 0
    return file
