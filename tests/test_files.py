"""Files are replaced completely or not at all."""

import contextlib
from pathlib import Path

from mchindex.files import replacing, write_file


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
