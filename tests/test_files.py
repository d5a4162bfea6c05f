"""Only regular files are read, and files are replaced completely or not at all."""

import contextlib
import os
from pathlib import Path

import pytest

from mchindex.files import open_file, read_file, replacing, write_file


def test_a_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_file(path, "grün\n")
    assert path.read_bytes() == "grün\n".encode()
    write_file(path, b"\xff")
    assert path.read_bytes() == b"\xff"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failure_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_file(path, "old")
    with contextlib.suppress(RuntimeError), replacing(path) as stream:
        stream.write(b"new")
        raise RuntimeError
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_appears_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    with replacing(path) as stream:
        stream.write(b"new")
        assert not path.exists()
    assert path.read_text() == "new"


def test_permissions_follow_the_umask(tmp_path: Path) -> None:
    write_file(tmp_path / "ours", "")
    (tmp_path / "plain").write_text("")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_regular_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"12345")
    with open_file(path) as stream:
        assert stream.read() == b"12345"
    assert read_file(str(path)) == read_file(path, 5) == b"12345"
    with pytest.raises(OSError, match="larger than the 4 bytes allowed"):
        read_file(path, 4)


def test_pipes_folders_and_devices_are_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        open_file(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        open_file("/dev/zero")
    with pytest.raises(IsADirectoryError):
        open_file(tmp_path)
    with pytest.raises(FileNotFoundError):
        open_file(tmp_path / "missing")
