"""Indexes on disks that are full, small or read-only."""

import contextlib
import io
import math
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mchindex
import mchindex.index.table
from helpers.disks import disk, fill, read_only
from helpers.indexes import assert_as_fresh, content
from mchindex import MCHIndex
from mchindex.errors import StoreBusyError, StoreDamagedError, StoreError
from mchindex.index.export import export_index
from mchindex.index.importing import import_index
from mchindex.index.verify import verify

BITS = 64


def codes(count: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(0, 256, (count, BITS // 8), np.uint8)


def make(folder: Path, count: int = 300) -> dict[Any, Any]:
    """An index with metadata; returns what is in it."""
    with MCHIndex.open(folder, bits=BITS) as index:
        index.add_codes(range(count), codes(count), metadata=[{"n": i} for i in range(count)])
        return content(index)


def assert_readable(folder: Path, wanted: dict[Any, Any]) -> None:
    """Asserts that all that needs no writing works, and that writing says why it does not."""
    assert verify(folder).problems == []
    assert export_index(folder, io.BytesIO()).images == len(wanted)
    with MCHIndex.open(folder, create=False) as index:
        assert content(index) == wanted
        assert index.stats()["images"] == len(wanted)
        assert index.search_codes(codes(1)[0], 1).ids == [0]
        assert index.search_codes(codes(1)[0], 5, filter={"n": {"<": 3}}).ids
        index.refresh()
        assert_as_fresh(index)


def assert_read_only(folder: Path, words: str = "read-only") -> None:
    with MCHIndex.open(folder) as index:
        before = list(index)
        for write in (
            lambda: index.add_codes([1], codes(1)),
            lambda: index.remove([1]),
            lambda: index.set_metadata(1, {}),
            lambda: index.prune(),
        ):
            with pytest.raises(StoreError, match=words):
                write()
        assert list(index) == before


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    with disk(tmp_path / "disk", 20) as place:
        yield place


def without_memory_of_readers(source: Path, target: Path) -> None:
    """Copies an index that is open, as a crash would leave it: with a log, but without -shm."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*-shm"))


def test_an_index_on_a_read_only_disk_can_be_read(small: Path, tmp_path: Path) -> None:
    wanted = make(small / "i")
    files = sorted(os.listdir(small / "i"))
    with read_only(small):
        assert_readable(small / "i", wanted)
        assert_read_only(small / "i")
        with MCHIndex.open(small / "i") as index:
            index.backup(tmp_path / "copy")
        assert verify(tmp_path / "copy").problems == []
        assert sorted(os.listdir(small / "i")) == files
    with MCHIndex.open(small / "i") as index:
        index.add_codes([1000], codes(1))


def test_a_read_only_index_with_a_log_is_read_with_the_log(small: Path) -> None:
    make(small / "live", 3)
    with MCHIndex.open(small / "live") as index:
        index.add_codes([3, 4], codes(2, 1), metadata=[{"n": 3}, {"n": 4}])
        wanted = content(index)
        without_memory_of_readers(small / "live", small / "i")
    assert (small / "i" / "index.sqlite-wal").stat().st_size
    with read_only(small):
        assert_readable(small / "i", wanted)
        assert_read_only(small / "i")
    assert (small / "i" / "index.sqlite-wal").stat().st_size
    with MCHIndex.open(small / "i") as index:
        assert content(index) == wanted


def test_an_index_on_a_full_disk_can_be_read(small: Path, tmp_path: Path) -> None:
    wanted = make(small / "i")
    fill(small)
    assert_readable(small / "i", wanted)
    assert_read_only(small / "i", "disk is full")
    with open(tmp_path / "export", "wb") as out:
        export_index(small / "i", out)
    assert import_index(tmp_path / "export", tmp_path / "copy").added == len(wanted)


def test_a_backup_to_a_full_disk_names_the_copy(small: Path, tmp_path: Path) -> None:
    make(tmp_path / "i", 3)
    fill(small)
    with MCHIndex.open(tmp_path / "i") as index:
        with pytest.raises(StoreError, match=f"{small / 'copy'}: the disk is full"):
            index.backup(small / "copy")
        index.backup(tmp_path / "copy")


def test_an_index_can_be_written_again_once_the_disk_has_room(small: Path) -> None:
    make(small / "i", 10)
    filler = fill(small)
    with MCHIndex.open(small / "i") as index:
        with pytest.raises(StoreError, match="disk is full"):
            index.remove([3])
        filler.unlink()
        assert index.remove([3]) == 1
        assert 3 not in index
        with MCHIndex.open(small / "i") as other:
            other.remove([4])
        assert len(index) == 8
        assert_as_fresh(index)


def test_a_reader_notices_what_others_write_once_the_disk_has_room(small: Path) -> None:
    make(small / "i", 10)
    filler = fill(small)
    with MCHIndex.open(small / "i") as index:
        assert len(index) == 10
        filler.unlink()
        with MCHIndex.open(small / "i") as other:
            other.remove([4])
            other.add_codes([20, 21], codes(2, 1))
        assert len(index) == 11
        assert 4 not in index
        assert_as_fresh(index)


def fill_with_images(folder: Path, metadata: str) -> list[int]:
    """Adds images until the disk is full; returns those that were stored."""
    stored: list[int] = []
    with MCHIndex.open(folder, bits=BITS) as index:

        def add(seed: int) -> None:
            ids = range(len(stored), len(stored) + 300)
            index.add_codes(ids, codes(300, seed), metadata=[{"text": metadata}] * 300)
            stored.extend(ids)

        with pytest.raises(StoreError, match="full"):
            list(map(add, range(10_000)))
        assert list(index) == stored
    return stored


@pytest.mark.parametrize("length", [200, 2000])
def test_an_index_that_filled_its_disk_can_shrink_and_grow_again(small: Path, length: int) -> None:
    folder = small / "i"
    stored = fill_with_images(folder, "x" * length)
    # Most of the disk is in use, and what is in use is mostly the store.
    assert (folder / "index.sqlite").stat().st_size > 10 << 20
    assert verify(folder).problems == []
    with MCHIndex.open(folder) as index:
        middle = len(stored) // 2
        assert index.remove(stored[:middle]) == middle
        assert index.ids() == stored[middle:]
        size = (folder / "index.sqlite").stat().st_size
        more = range(10**6, 10**6 + 600)
        index.add_codes(more, codes(600, 7), metadata=[{"text": "y" * length}] * 600)
        assert_as_fresh(index)
    assert (folder / "index.sqlite").stat().st_size <= size  # the pages were used again
    assert verify(folder).problems == []


def test_images_can_be_removed_from_an_index_on_a_disk_without_a_free_byte(small: Path) -> None:
    """The snapshot can be made again, so its room is used."""
    with MCHIndex.open(small / "i", bits=BITS) as index:
        index.add_codes(range(20_000), codes(20_000))
    assert list((small / "i").glob("table-*"))
    fill(small)
    with MCHIndex.open(small / "i") as index:
        assert index.remove(range(0, 20_000, 2)) == 10_000
        assert len(index) == 10_000
        assert_as_fresh(index)
    assert verify(small / "i").problems == []


def test_the_log_is_bounded_on_a_small_disk(small: Path) -> None:
    with MCHIndex.open(small / "i", bits=BITS) as index:
        for seed in range(12):
            ids = range(seed * 5000, seed * 5000 + 5000)
            index.add_codes(ids, codes(5000, seed), metadata=[{"text": "x" * 50}] * 5000)
            assert (small / "i" / "index.sqlite-wal").stat().st_size < 6 << 20


def test_the_lock_file_needs_no_room(small: Path) -> None:
    make(small / "i", 3)
    (small / "i" / "writer.lock").unlink()
    with MCHIndex.open(small / "i") as index:
        index.add_codes([3], codes(1))
        (small / "i" / "writer.lock").unlink()
        fill(small)
        with contextlib.suppress(StoreError):
            index.remove([3])
        assert len(index) in (3, 4)


UNPRIVILEGED = """
import os, sys
import numpy as np
import mchindex.index.export, mchindex.index.verify
from mchindex import MCHIndex, StoreError
os.setgroups([]); os.setgid(65534); os.setuid(65534)
folder = sys.argv[1]
with MCHIndex.open(folder, create=False) as index:
    print(len(index), index.search_codes(np.zeros(8, np.uint8), 3).ids)
    try:
        index.remove([1])
    except StoreError as error:
        print(str(error).replace(folder, ""))
with open(os.devnull, "wb") as out:
    print(mchindex.index.export.export_index(folder, out).images)
print(mchindex.index.verify.verify(folder, model=False).problems)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("in_use", [False, True])
@pytest.mark.parametrize("folder_mode", [0o555, 0o777])
def test_another_user_can_read_an_index(in_use: bool, folder_mode: int) -> None:
    with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as stack:
        folder = Path(place) / "i"
        with MCHIndex.open(folder, bits=BITS) as index:
            index.add_codes([1, 2, 3], np.zeros((3, 8), np.uint8))
        if in_use:
            stack.enter_context(MCHIndex.open(folder)).add_codes([4], np.ones((1, 8), np.uint8))
        os.chmod(place, 0o755)
        os.chmod(folder, folder_mode)
        for file in folder.iterdir():
            os.chmod(file, stat.S_IRUSR | stat.S_IRGRP | stat.S_IROTH)
        home = str(Path(mchindex.__file__).resolve().parents[1])
        done = subprocess.run(
            [sys.executable, "-c", UNPRIVILEGED, str(folder)],
            capture_output=True, text=True, cwd=place, env=os.environ | {"PYTHONPATH": home},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found, error, exported, problems = done.stdout.splitlines()
        count = 4 if in_use else 3
        assert found == f"{count} [1, 2, 3]"
        assert "read-only" in error
        assert (exported, problems) == (str(count), "[]")


def test_an_index_whose_folder_cannot_be_written_is_opened_to_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a read-only disk, where none can be mounted."""
    wanted = make(tmp_path / "i")

    def refuse(file: Path) -> Any:
        raise refusal

    try:
        import sqlite3

        sqlite3.connect(tmp_path / "missing" / "file")
    except sqlite3.OperationalError as error:
        refusal = error
    monkeypatch.setattr("mchindex.storage.connection.to_write", refuse)
    assert_readable(tmp_path / "i", wanted)
    assert_read_only(tmp_path / "i")


@pytest.mark.parametrize("name", ["file:x?mode=memory", "a?b#c%41 d", "ä%", "file:///etc/x"])
def test_the_path_of_an_index_is_only_a_path(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with MCHIndex.open(name, bits=BITS) as index:
        index.add_codes([1], codes(1))
    with MCHIndex.open(Path(name), create=False) as index:
        assert list(index) == [1]
        index.backup("copy")
    assert (tmp_path / name / "index.sqlite").is_file()
    assert verify(name).problems == []
    with MCHIndex.open("copy", create=False) as index:
        assert list(index) == [1]


def test_a_path_that_is_not_text_in_utf_8(tmp_path: Path) -> None:
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe")
    with MCHIndex.open(folder, bits=BITS) as index:
        index.add_codes([1], codes(1))
    with MCHIndex.open(folder, create=False) as index:
        assert list(index) == [1]


@pytest.mark.parametrize("name", ["index.sqlite", "index.sqlite-wal", "index.sqlite-shm"])
def test_a_named_pipe_in_an_index_blocks_nothing(tmp_path: Path, name: str) -> None:
    make(tmp_path / "i", 3)
    (tmp_path / "i" / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / "i" / name)
    with pytest.raises(StoreError):
        MCHIndex.open(tmp_path / "i", bits=BITS)


def test_a_named_pipe_in_place_of_a_snapshot_is_not_read(tmp_path: Path) -> None:
    with MCHIndex.open(tmp_path / "i", bits=BITS) as index:
        index.add_codes(range(6000), codes(6000))
    (snapshot,) = (tmp_path / "i").glob("table-*")
    snapshot.unlink()
    os.mkfifo(snapshot)
    with MCHIndex.open(tmp_path / "i") as index:
        assert len(index) == 6000
    assert "cannot be used" in verify(tmp_path / "i").problems[0]


def test_a_lock_file_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    make(tmp_path / "i", 3)
    (tmp_path / "letter").write_text("Dear")
    (tmp_path / "i" / "writer.lock").unlink()
    (tmp_path / "i" / "writer.lock").symlink_to(tmp_path / "letter")
    with MCHIndex.open(tmp_path / "i") as index, pytest.raises(StoreError, match=r"writer\.lock"):
        index.remove([1])
    assert (tmp_path / "letter").read_text() == "Dear"


def test_a_lock_file_that_was_deleted_locks_no_one_out(tmp_path: Path) -> None:
    make(tmp_path / "i", 3)
    with MCHIndex.open(tmp_path / "i") as one, MCHIndex.open(tmp_path / "i") as other:
        with one._store.writer():
            (tmp_path / "i" / "writer.lock").unlink()
            with other._store.writer():  # no worse than without a lock file
                pass
        with one._store.writer(), pytest.raises(StoreBusyError):
            other.remove([1])


@pytest.mark.parametrize("wait", ["x", math.nan, -1, -math.inf, None, [1], True, b"1"])
def test_a_wait_that_is_no_time_is_refused(tmp_path: Path, wait: Any) -> None:
    said = "wait must be a number of seconds"
    with pytest.raises(ValueError, match=said):
        MCHIndex.open(tmp_path / "i", bits=BITS, wait=wait)
    with pytest.raises(ValueError, match=said):
        MCHIndex(bits=BITS, wait=wait)
    assert not (tmp_path / "i").exists()
    make(tmp_path / "i", 3)
    with pytest.raises(ValueError, match=said):
        verify(tmp_path / "i", wait=wait)
    with MCHIndex.open(tmp_path / "i") as index:
        index.wait = wait
        with pytest.raises(ValueError, match=said):
            index.remove([1])


@pytest.mark.parametrize("wait", [math.inf, 1e300, 10**18, np.float32(2), np.int64(3)])
def test_any_time_can_be_waited_for(tmp_path: Path, wait: Any) -> None:
    with MCHIndex.open(tmp_path / "i", bits=BITS, wait=wait) as index:
        index.add_codes([1], codes(1))
    assert verify(tmp_path / "i", wait=wait).problems == []


def test_a_snapshot_that_shrinks_while_it_is_used(tmp_path: Path) -> None:
    """Reading a mapped file past its end would end the process."""
    with MCHIndex.open(tmp_path / "i", bits=BITS) as index:
        index.add_codes(range(20_000), codes(20_000))
    (snapshot,) = (tmp_path / "i").glob("table-*")
    with MCHIndex.open(tmp_path / "i") as index:
        os.truncate(snapshot, 0)
        assert index.search_codes(codes(1)[0], 1).ids == [0]
        assert_as_fresh(index)


def test_the_name_of_a_snapshot_cannot_lead_out_of_the_index(tmp_path: Path) -> None:
    with MCHIndex.open(tmp_path / "i", bits=BITS) as index:
        index.add_codes(range(20_000), codes(20_000))
        facts = index._store.get("snapshot")
        with index._store.writer():
            index._store.set(snapshot=facts | {"file": "../letter"})
    (tmp_path / "letter").write_text("Dear")
    with pytest.raises(StoreDamagedError, match="snapshot"):
        MCHIndex.open(tmp_path / "i")
    assert any("'snapshot'" in problem for problem in verify(tmp_path / "i").problems)
