"""A saved table loads unchanged; a damaged, truncated or foreign file is refused."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.forgery import forge
from helpers.oracle import Oracle, assert_answer
from helpers.samples import STRATEGIES, WIDTHS, Rows, clustered, oracle_of, table_of, uniform
from helpers.script import run_script
from mchindex import BucketTable
from mchindex.errors import (
    NotASnapshotError,
    SnapshotDamagedError,
    SnapshotError,
    SnapshotVersionError,
)

MMAP = pytest.mark.parametrize("mmap", [False, True], ids=["read", "mmap"])
ROWS = clustered(64, 40, seed=1, images=12)


def assert_equals(table: BucketTable, oracle: Oracle, rows: Rows) -> None:
    assert table.bits == oracle.bits
    assert len(table) == len(oracle.images)
    assert (table.n_codes, table.n_buckets) == (oracle.n_codes, oracle.n_buckets)
    expected = oracle.search(rows.codes[:6], 9)
    for strategy in STRATEGIES:
        assert_answer(table.search(rows.codes[:6], 9, strategy=strategy), expected, strategy)


@MMAP
@pytest.mark.parametrize("bits", WIDTHS)
def test_round_trip(bits: int, mmap: bool, tmp_path: Path) -> None:
    rows = clustered(bits, 60, seed=bits)
    table, oracle = table_of(bits, rows), oracle_of(bits, rows)
    for step in range(3):
        path = tmp_path / f"{step}.mch"
        table.save(path)
        table = BucketTable.load(path, mmap=mmap)
        assert_equals(table, oracle, rows)
        # Then with removed images, then with the substring index.
        table.remove([0, 3])
        oracle.remove([0, 3])
        table.optimize(substring=True)


@MMAP
def test_empty_table(mmap: bool, tmp_path: Path) -> None:
    table = BucketTable(24)
    table.save(tmp_path / "empty.mch")
    loaded = BucketTable.load(tmp_path / "empty.mch", mmap=mmap)
    assert (loaded.bits, len(loaded), loaded.n_codes, loaded.n_buckets) == (24, 0, 0, 0)
    assert loaded.search(uniform(24, 1, 0), 2).counts.tolist() == [0]
    loaded.add([1], uniform(24, 1, 0))
    assert loaded.search(uniform(24, 1, 0), 2).ids.tolist() == [[1, -1]]


@MMAP
def test_removed_images_stay_removed(mmap: bool, tmp_path: Path) -> None:
    table, oracle = table_of(64, ROWS), oracle_of(64, ROWS)
    table.remove([1, 2, 3])
    oracle.remove([1, 2, 3])
    table.save(tmp_path / "t.mch")
    loaded = BucketTable.load(tmp_path / "t.mch", mmap=mmap)
    assert_equals(loaded, oracle, ROWS)
    loaded.optimize()
    assert_equals(loaded, oracle, ROWS)


@MMAP
def test_a_loaded_table_can_be_changed_and_saved_again(mmap: bool, tmp_path: Path) -> None:
    path = tmp_path / "t.mch"
    table, oracle = table_of(64, ROWS), oracle_of(64, ROWS)
    table.save(path)
    for turn in range(4):
        table = BucketTable.load(path, mmap=mmap)
        fresh = clustered(64, 30, seed=10 + turn, images=12)
        gone = [turn, 11 - turn]
        assert table.remove(gone) == oracle.remove(gone)
        table.add(*fresh)
        oracle.add(fresh.ids.tolist(), fresh.codes, fresh.regions.tolist())
        assert_equals(table, oracle, fresh)
        table.save(path)  # over the file it came from
        assert_equals(table, oracle, fresh)
        assert_equals(BucketTable.load(path, mmap=mmap), oracle, fresh)
    assert os.listdir(tmp_path) == ["t.mch"]


@MMAP
def test_many_segments(mmap: bool, tmp_path: Path) -> None:
    rows = clustered(64, 300, seed=2, centres=10)
    table, oracle = BucketTable(64), oracle_of(64, rows)
    for at in range(300):
        table.add(*rows.take(slice(at, at + 1)))
    table.save(tmp_path / "t.mch")
    assert_equals(BucketTable.load(tmp_path / "t.mch", mmap=mmap), oracle, rows)


def test_a_mapped_table_survives_the_replacement_of_its_file(tmp_path: Path) -> None:
    path = tmp_path / "t.mch"
    oracle = oracle_of(64, ROWS)
    table_of(64, ROWS).save(path)
    mapped = BucketTable.load(path, mmap=True)
    other = clustered(64, 3000, seed=3)
    table_of(64, other).save(path)
    assert_equals(mapped, oracle, ROWS)
    if sys.platform != "win32":  # Windows cannot delete an open file
        path.unlink()
        assert_equals(mapped, oracle, ROWS)
        mapped.save(path)
        assert_equals(BucketTable.load(path), oracle, ROWS)


@pytest.mark.parametrize("name", ["plain", "with space", "mit Umlaut ü", "画像"])
def test_paths(name: str, tmp_path: Path) -> None:
    table, oracle = table_of(64, ROWS), oracle_of(64, ROWS)
    path = tmp_path / name
    table.save(str(path))
    assert_equals(BucketTable.load(str(path)), oracle, ROWS)
    assert_equals(BucketTable.load(path, mmap=True), oracle, ROWS)


@MMAP
def test_missing_file(mmap: bool, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere\.mch"):
        BucketTable.load(tmp_path / "nowhere.mch", mmap=mmap)
    with pytest.raises(FileNotFoundError):
        BucketTable.load(tmp_path / "no" / "folder.mch", mmap=mmap)
    with pytest.raises((OSError, SnapshotError)):
        BucketTable.load(tmp_path, mmap=mmap)


@pytest.mark.parametrize("path", [None, 3, 1.5])
def test_a_path_must_be_a_path(path: object) -> None:
    with pytest.raises(TypeError):
        BucketTable.load(path)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        BucketTable(64).save(path)  # type: ignore[arg-type]


FOREIGN = {
    "empty": b"",
    "one byte": b"\0",
    "text": b"The quick brown fox jumps over the lazy dog.\n" * 200,
    "zeros": bytes(10_000),
    "ones": b"\xff" * 10_000,
    "png": b"\x89PNG\r\n\x1a\n" + bytes(5000),
    "zip": b"PK\3\4" + bytes(5000),
    "sqlite": b"SQLite format 3\0" + bytes(5000),
    "numpy": b"\x93NUMPY\1\0v\0" + bytes(5000),
}


@MMAP
@pytest.mark.parametrize("kind", FOREIGN)
def test_foreign_files(kind: str, mmap: bool, tmp_path: Path) -> None:
    path = tmp_path / "foreign"
    path.write_bytes(FOREIGN[kind])
    with pytest.raises(SnapshotError) as caught:
        BucketTable.load(path, mmap=mmap)
    if len(FOREIGN[kind]) > 64:
        assert caught.type is NotASnapshotError
    assert "foreign" in str(caught.value)  # the message names the file


def test_errors_share_a_base() -> None:
    for error in (NotASnapshotError, SnapshotVersionError, SnapshotDamagedError):
        assert issubclass(error, SnapshotError)


def small_snapshot(folder: Path, substring: bool) -> tuple[bytes, Oracle]:
    """A few images in more than one segment, some of them removed: every section has content."""
    table, oracle = table_of(16, TINY), oracle_of(16, TINY)
    if substring:
        table.optimize(substring=True)
    table.add([50, 50], uniform(16, 2, seed=5), [1, 2])
    oracle.add([50, 50], uniform(16, 2, seed=5), [1, 2])
    table.remove([0])
    oracle.remove([0])
    table.save(folder / "good.mch")
    return (folder / "good.mch").read_bytes(), oracle


TINY = clustered(16, 12, seed=4, images=5)


def verdict(path: Path, content: bytes, oracle: Oracle, mmap: bool) -> type[SnapshotError] | None:
    """The type of the error that refuses the content; None if it loads and answers as before."""
    # Not in place: that would pull a mapped file from under its table, and can be slow.
    path.unlink(missing_ok=True)
    path.write_bytes(content)
    try:
        table = BucketTable.load(path, mmap=mmap)
        assert_equals(table, oracle, TINY)
    except SnapshotError as error:
        return type(error)
    return None


@MMAP
@pytest.mark.parametrize("substring", [False, True], ids=["plain", "substring-index"])
def test_every_flipped_byte(substring: bool, mmap: bool, tmp_path: Path) -> None:
    good, oracle = small_snapshot(tmp_path, substring)
    path = tmp_path / "bad.mch"
    refused = 0
    verdicts = []
    for at in range(len(good)):
        for flip in (0xFF, 0x01):
            bad = bytearray(good)
            bad[at] ^= flip
            verdicts.append(verdict(path, bytes(bad), oracle, mmap))
        refused += verdicts[-1] is not None
    # Changed padding may be accepted, but most of the file is content.
    assert refused > 100
    assert verdicts[0] is NotASnapshotError
    assert SnapshotVersionError in verdicts[:64]
    assert SnapshotDamagedError in verdicts


@MMAP
def test_every_truncation(mmap: bool, tmp_path: Path) -> None:
    good, oracle = small_snapshot(tmp_path, substring=True)
    path = tmp_path / "cut.mch"
    verdicts = [verdict(path, good[:size], oracle, mmap) for size in range(len(good))]
    assert None not in verdicts
    assert verdicts[-1] is SnapshotDamagedError


@MMAP
def test_appended_bytes(mmap: bool, tmp_path: Path) -> None:
    good, oracle = small_snapshot(tmp_path, substring=False)
    for tail in (b"\0", b"x" * 5000, good):
        verdict(tmp_path / "long.mch", good + tail, oracle, mmap)


@settings(max_examples=150)
@given(data=st.data(), mmap=st.booleans())
def test_scrambled_files(
    data: st.DataObject, mmap: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Overwritten and copied stretches, including sizes of all ones."""
    folder = tmp_path_factory.mktemp("scrambled")
    good, oracle = small_snapshot(folder, substring=data.draw(st.booleans()))
    at = data.draw(st.integers(0, len(good) - 1), label="at")
    junk = st.one_of(
        st.binary(min_size=1, max_size=40),
        st.sampled_from([b"\xff" * 8, b"\xff" * 7 + b"\x7f", b"\0" * 8, b"\1" + b"\0" * 7]),
        st.builds(lambda start: good[start : start + 16], st.integers(0, len(good) - 1)),
    )
    piece = data.draw(junk, label="piece")
    verdict(folder / "bad.mch", good[:at] + piece + good[at + len(piece) :], oracle, mmap)


def test_swapped_files_are_not_confused(tmp_path: Path) -> None:
    """The first half of one good file, followed by the second half of another of equal length."""
    heads = []
    for seed in (1, 2):
        table = BucketTable(64)
        table.add(np.arange(50), uniform(64, 50, seed))
        table.save(tmp_path / "t.mch")
        heads.append((tmp_path / "t.mch").read_bytes())
    first, second = heads
    assert len(first) == len(second)
    mixed = first[: len(first) // 2] + second[len(first) // 2 :]
    (tmp_path / "mixed.mch").write_bytes(mixed)
    with pytest.raises(SnapshotDamagedError):
        BucketTable.load(tmp_path / "mixed.mch")


def test_a_save_into_a_missing_folder(tmp_path: Path) -> None:
    table = table_of(64, ROWS)
    with pytest.raises(FileNotFoundError):
        table.save(tmp_path / "no" / "folder" / "t.mch")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        table.save(tmp_path / "folder")
    assert os.listdir(tmp_path) == ["folder"]


# A limit on the size of files makes the write fail, as a full disk would.
FAILING_SAVE = """
import resource, sys
import numpy as np
from mchindex import BucketTable
table = BucketTable.load(sys.argv[1]) if sys.argv[2] == "loaded" else BucketTable(64)
table.add(np.arange(50_000), np.random.default_rng(0).integers(0, 256, (50_000, 8), np.uint8))
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    table.save(sys.argv[1])
except OSError:
    assert table.search(np.zeros(8, np.uint8), 1).counts[0] == 1
else:
    sys.exit("the save should have failed")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limit on file sizes")
@pytest.mark.parametrize("start", ["new", "loaded"])
def test_a_failed_save_leaves_the_old_file(start: str, tmp_path: Path) -> None:
    path = tmp_path / "t.mch"
    table_of(64, ROWS).save(path)
    old = path.read_bytes()
    run_script(FAILING_SAVE, str(path), start, folder=tmp_path)
    assert path.read_bytes() == old
    assert os.listdir(tmp_path) == ["t.mch"]  # and no half-written file next to it


def test_a_path_with_a_null_character_is_refused(tmp_path: Path) -> None:
    existing = tmp_path / "existing"
    existing.write_text("kept")
    with pytest.raises(ValueError, match="null"):
        BucketTable(64).save(f"{existing}\0b")
    assert existing.read_text() == "kept"


def test_a_pipe_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="pipe"):
        BucketTable.load(tmp_path / "pipe")


@pytest.mark.parametrize("bits", [32, 64, 256])
@pytest.mark.parametrize("mmap", [False, True])
def test_forged_files(bits: int, mmap: bool, tmp_path: Path) -> None:
    """With changed bytes and matching checksums, a file is refused or used without a crash."""
    table = table_of(bits, clustered(bits, 5000, seed=4))
    table.remove(np.arange(0, 40))
    path = tmp_path / "table"
    table.save(path)
    original, queries = path.read_bytes(), uniform(bits, 3, seed=5)
    rng = np.random.default_rng(6)
    survived = 0
    for _ in range(150):
        path.unlink()  # the last table may still be merging in the background, from the mapped file
        path.write_bytes(forge(original, rng))
        try:
            forged = BucketTable.load(path, mmap=mmap)
        except SnapshotError:
            continue
        survived += 1
        for strategy in STRATEGIES:
            forged.search(queries, 20, strategy=strategy)
        forged.search(queries, 5, allowed=np.arange(0, 3000, 3))
        forged.within(queries, bits // 3)
        forged.remove(np.arange(100, 2000))
        forged.add(np.arange(3), queries)
        assert forged.memory()["total"] > 0
        assert forged.n_buckets >= 0
        forged.optimize()
    assert survived, "no forged file was loaded: the test does not compute the checksums correctly"
