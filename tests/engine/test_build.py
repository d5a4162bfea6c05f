"""BucketTable.build: the table that add() makes, from chunks, by steps that can be resumed."""

import os
import signal
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from helpers.disks import disk, fill
from helpers.oracle import Oracle, assert_answer, assert_ranked
from helpers.samples import STRATEGIES, Rows, clustered, oracle_of, queries_near, table_of, uniform
from helpers.script import start_script
from mchindex import BucketTable
from mchindex.errors import SnapshotDamagedError

Layout = Literal["auto", "wide", "plain"]
LAYOUTS = pytest.mark.parametrize("layout", ["wide", "plain"])


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory, if there is one: syncing many files takes long on a busy disk."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)


SMALL = 2**20  # bytes of memory: makes builds of some ten thousand rows spill, split and take notes


def chunks(rows: Rows, size: int, regions: bool = True) -> Iterator[Any]:
    for at in range(0, len(rows.ids), size):
        part = rows.take(slice(at, at + size))
        yield part if regions else part[:2]


def built(
    path: Path, rows: Rows, layout: Layout = "wide", bits: int = 64, size: int = 50, **more: Any
) -> BucketTable:
    BucketTable.build(path, chunks(rows, size), bits, layout=layout, **more)
    assert not folder_of(path).exists()
    return BucketTable.load(path, mmap=True)


def folder_of(path: Path) -> Path:
    return path.with_name(path.name + ".building")


def assert_equals(table: BucketTable, oracle: Oracle, queries: NDArray[np.uint8]) -> None:
    assert (len(table), table.n_codes) == (len(oracle.images), oracle.n_codes)
    assert table.n_buckets == oracle.n_buckets
    assert all(i in table for i in oracle.images)
    for k in (1, 7, len(oracle.images) + 1):
        expected = oracle.search(queries, k)
        for strategy in STRATEGIES:
            assert_answer(table.search(queries, k, strategy=strategy), expected, (strategy, k))
    assert_answer(table.within(queries, 9), oracle.within(queries, 9))
    assert_answer(table.search(queries, 5, max_radius=3), oracle.search(queries, 5, 3))
    some = list(oracle.images)[::3]
    assert_answer(
        table.search(queries, 4, allowed=some), oracle.search(queries, 4, None, None, some)
    )


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(1, 150),
    images=st.integers(1, 60),
    seed=st.integers(0, 2**32),
    flips=st.sampled_from([0.0, 0.5, 3.0, 20.0]),
    size=st.integers(1, 80),
    order=st.sampled_from(["any", "ascending"]),
    regions=st.booleans(),
    layout=st.sampled_from(["wide", "plain", "auto"]),
)
def test_equals_the_oracle(
    n: int,
    images: int,
    seed: int,
    flips: float,
    size: int,
    order: str,
    regions: bool,
    layout: Layout,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    rows = clustered(64, n, seed, images=images, flips=flips)
    rows = Rows(rows.ids * 1_000_003 - 2**40, rows.codes, rows.regions * regions)
    if order == "ascending":
        rows = Rows(np.sort(rows.ids), rows.codes, rows.regions)
    path = tmp_path_factory.mktemp("build") / "table"
    BucketTable.build(path, chunks(rows, size, regions), layout=layout)
    table = BucketTable.load(path, mmap=bool(seed % 2), verify=bool(seed % 3))
    assert_equals(table, oracle_of(64, rows), queries_near(rows.codes, 4, seed))


@pytest.mark.parametrize("bits", [8, 32, 40, 128, 256])
def test_other_widths(bits: int, tmp_path: Path) -> None:
    rows = clustered(bits, 90, seed=bits)
    table = built(tmp_path / "table", rows, "auto", bits)
    assert_equals(table, oracle_of(bits, rows), rows.codes[:4])


@LAYOUTS
@pytest.mark.parametrize("order", ["ascending", "any"])
@pytest.mark.parametrize("spread", ["uniform", "one byte", "equal"])
def test_more_rows_than_memory(layout: Layout, order: str, spread: str, tmp_path: Path) -> None:
    """Codes that share their first bytes are split by the later ones; equal codes by image."""
    n = 60_000
    rng = np.random.default_rng(3)
    codes = uniform(64, n, seed=4)
    if spread == "one byte":
        codes[:, :5] = 7
    if spread == "equal":
        codes[:] = 7
    rows = Rows(2 * rng.integers(0, n // 2, n) - n // 2, codes, rng.integers(0, 3, n))
    if order == "ascending":
        rows = Rows(np.sort(rows.ids), *rows[1:])
    table = built(tmp_path / "table", rows, layout, size=7000, memory=SMALL)
    queries = np.concatenate([codes[:3], uniform(64, 2, seed=5)])
    same = table_of(64, rows)
    assert (len(table), table.n_codes, table.n_buckets) == (len(same), same.n_codes, same.n_buckets)
    for strategy in ("auto", "scan"):
        assert_ranked(table.search(queries, 20, strategy=strategy), rows, queries)


def test_one_pair_more_often_than_memory_holds(tmp_path: Path) -> None:
    n = 40_000
    rows = Rows(np.full(n, 5), np.full((n, 8), 9, np.uint8), np.arange(n)[::-1] % 200 + 3)
    table = built(tmp_path / "table", rows, size=10_000, memory=SMALL)
    assert (len(table), table.n_codes, table.n_buckets) == (1, 1, 1)
    assert table.search(rows.codes[:1], 1).regions.tolist() == [[3]]


def test_clusters_larger_than_a_word_of_cells(tmp_path: Path) -> None:
    """Cells with thousands of codes: all agree in one half, or nearly so."""
    rng = np.random.default_rng(1)
    n = 6000
    codes = uniform(64, n, seed=1)
    codes[: n // 2, :4] = [1, 2, 3, 4]
    codes[n // 2 :, 4:] = [5, 6, 7, 8]
    codes[::7, 3] ^= 1
    codes[::5, 7] ^= 3
    rows = Rows(rng.integers(0, 4000, n), codes, np.zeros(n, np.int64))
    table = built(tmp_path / "table", rows, size=1000)
    queries = np.concatenate([queries_near(codes, 8, seed=2), [[1, 2, 3, 4, 5, 6, 7, 8]]]).astype(
        np.uint8
    )
    for k in (1, 10, 300):
        assert_ranked(table.search(queries, k), rows, queries)
    same = table_of(64, rows)
    for radius in (4, 12, 20):
        got, want = table.within(queries, radius), same.within(queries, radius)
        np.testing.assert_array_equal(got.ids, want.ids)
        np.testing.assert_array_equal(got.distances, want.distances)


@LAYOUTS
def test_changes_after_loading(layout: Layout, tmp_path: Path) -> None:
    rows, more = clustered(64, 200, seed=1, images=70), clustered(64, 120, seed=2, images=90)
    table, oracle = built(tmp_path / "table", rows, layout), oracle_of(64, rows)
    queries = queries_near(rows.codes, 5, seed=3)
    for step in range(3):
        part = more.take(slice(40 * step, 40 * step + 40))
        table.add(*part)
        oracle.add(part.ids.tolist(), part.codes, part.regions.tolist())
        gone = [step, 10 + step, 60 + step, 1000]
        assert table.remove(gone) == oracle.remove(gone)
        assert_equals(table, oracle, queries)
        if step == 1:
            table.optimize(substring=True)
            assert_equals(table, oracle, queries)
        table.save(tmp_path / "again")
        table = BucketTable.load(tmp_path / "again", mmap=step == 0)
        assert_equals(table, oracle, queries)
    everything = list(oracle.images)
    assert table.remove(everything) == len(everything)
    assert (len(table), table.n_codes) == (0, 0)


def test_bytes_per_code(tmp_path: Path) -> None:
    """Beside bitmaps: two halves, two bytes where windows are short, the entry, the id."""
    n = 50_000
    rows = Rows(np.arange(n) - n - 7, uniform(64, n, seed=1), np.zeros(n, np.int64))
    table = built(tmp_path / "table", rows, size=5000)
    memory = table.memory()
    assert memory["codes"] == n * 10
    assert memory["entries"] == n * 2
    assert memory["ids"] == 8  # consecutive
    assert all(i in table for i in (-n - 7, -100, -8))
    assert not any(i in table for i in (-n - 8, -7, 2**63 - 1, -(2**63)))
    assert_ranked(table.search(rows.codes[:3], 5), rows, rows.codes[:3])
    memory = built(tmp_path / "gaps", Rows(rows.ids * 2, *rows[1:]), size=5000).memory()
    assert n < memory["ids"] < n * 1.2
    assert memory["buckets"] == memory["substring"] == 0


# ----------------------------------------------------------------------------------------- resuming

KILLED = """
import os, signal, sys
import numpy as np
from mchindex import BucketTable

path, file, layout, step, at = sys.argv[1:]
data = np.load(file)

def progress(name, done, total):
    if name == step and done >= int(at):
        os.kill(os.getpid(), signal.SIGKILL)

n = len(data["ids"])
columns = [data[name] for name in ("ids", "codes", "regions")]
chunks = (tuple(column[i:i + 5000] for column in columns) for i in range(0, n, 5000))
BucketTable.build(path, chunks, layout=layout, memory=2**20, progress=progress)
"""


@pytest.fixture(scope="module")
def many() -> Rows:
    rng = np.random.default_rng(8)
    n = 60_000
    return Rows(rng.integers(0, n, n), uniform(64, n, seed=9), rng.integers(0, 3, n))


@pytest.mark.parametrize(
    ("layout", "step", "at"),
    [
        ("wide", "rows", 20_000),
        ("wide", "rows", 60_000),
        ("wide", "ids", 100),
        ("wide", "codes", 3),
        ("wide", "codes", 150),
        ("wide", "codes", 256),
        ("wide", "halves", 130),
        ("wide", "halves", 256),
        ("wide", "table", 0),
        ("plain", "rows", 45_000),
        ("plain", "distribute", 200),
        ("plain", "parts", 2),
        ("plain", "table", 0),
    ],
)
def test_killed_and_resumed(layout: Layout, step: str, at: int, many: Rows, tmp_path: Path) -> None:
    path, file = tmp_path / "table", tmp_path / "rows.npz"
    path.write_bytes(b"what was there before")
    np.savez(file, **many._asdict())
    process = start_script(KILLED, str(path), str(file), layout, step, str(at), folder=tmp_path)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL, errors
    assert path.read_bytes() == b"what was there before"
    assert folder_of(path).is_dir()

    seen: list[tuple[str, int, int | None]] = []
    table = built(
        path, many, layout, size=5000, memory=SMALL, progress=lambda *x: seen.append(x)
    )  # fmt: skip
    queries = many.codes[:5]
    assert_ranked(table.search(queries, 10), many, queries)
    assert table.n_codes == table_of(64, many).n_codes
    if at in (150, 130):  # it did not start again
        assert seen[next(i for i, (name, *_) in enumerate(seen) if name == step)][1] > 1


def interrupted(path: Path, rows: Rows, after: int) -> None:
    """A build that stops after this many rows."""

    def stop(step: str, done: int, total: int | None) -> None:
        if done >= after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        BucketTable.build(path, chunks(rows, 5000), layout="wide", memory=SMALL, progress=stop)
    assert folder_of(path).is_dir()


def test_other_chunks_are_refused(many: Rows, tmp_path: Path) -> None:
    path = tmp_path / "table"
    interrupted(path, many, 55_000)
    changed = Rows(many.ids, many.codes.copy(), many.regions)
    changed.codes[7, 3] ^= 1
    for rows, size in ((changed, 5000), (many, 4000), (many.take(slice(0, 20_000)), 5000)):
        with pytest.raises(ValueError, match="resume=False"):
            BucketTable.build(path, chunks(rows, size), layout="wide", memory=SMALL)
    with pytest.raises(ValueError, match=r"was started with bits=64.* resume=False"):
        BucketTable.build(path, chunks(many, 5000), 64, layout="plain", memory=SMALL)
    table = built(path, changed, size=5000, memory=SMALL, resume=False)
    assert_ranked(table.search(changed.codes[:3], 5), changed, changed.codes[:3])


def test_damaged_notes_are_refused(many: Rows, tmp_path: Path) -> None:
    path = tmp_path / "table"
    interrupted(path, many, 30_000)
    notes = folder_of(path) / "manifest"
    notes.write_bytes(notes.read_bytes()[:-1] + b"\xff")
    with pytest.raises(ValueError, match=r"is damaged; delete the folder or pass resume=False"):
        built(path, many, size=5000, memory=SMALL)
    built(path, many, size=5000, memory=SMALL, resume=False)


def test_a_folder_of_others_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "table"
    folder_of(path).mkdir()
    (folder_of(path) / "holiday.jpg").write_bytes(b"x")
    rows = clustered(64, 10, seed=1)
    for resume in (True, False):
        with pytest.raises(ValueError, match="is in the way"):
            BucketTable.build(path, chunks(rows, 5), resume=resume)
    assert (folder_of(path) / "holiday.jpg").read_bytes() == b"x"


def test_two_builds_of_one_file(tmp_path: Path) -> None:
    path = tmp_path / "table"
    rows = clustered(64, 20, seed=1)

    def nested() -> Iterator[Rows]:
        yield rows
        with pytest.raises(ValueError, match="another process is building"):
            BucketTable.build(path, [rows])

    BucketTable.build(path, nested())
    assert len(BucketTable.load(path)) == len(set(rows.ids.tolist()))


def test_full_disk(many: Rows, tmp_path: Path) -> None:
    with disk(tmp_path / "disk", 24) as small:
        path = small / "table"
        path.write_bytes(b"what was there before")
        (small / "reserve").write_bytes(bytes(20 << 20))
        filler = fill(small)
        filler.unlink()
        with pytest.raises(OSError, match="No space left"):
            BucketTable.build(path, chunks(many, 5000), layout="wide", memory=SMALL)
        assert path.read_bytes() == b"what was there before"
        (small / "reserve").unlink()
        table = built(path, many, size=5000, memory=SMALL)
        assert_ranked(table.search(many.codes[:3], 5), many, many.codes[:3])


# ----------------------------------------------------------------------------------- damage, errors


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "table"
    built(path, clustered(64, 300, seed=1))
    data = path.read_bytes()
    rng = np.random.default_rng(2)
    for at in rng.integers(200, len(data), 25):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1 << int(rng.integers(8))]) + data[at + 1 :])
        for mmap in (False, True):
            with pytest.raises(SnapshotDamagedError):
                BucketTable.load(path, mmap=mmap, verify=True)
    path.write_bytes(data[:-64])
    with pytest.raises(SnapshotDamagedError):
        BucketTable.load(path, verify=False)


@pytest.mark.parametrize("layout", ["wide", "plain"])
def test_an_unverified_table_answers_alike(layout: Layout, tmp_path: Path) -> None:
    rows = clustered(64, 100, seed=1)
    built(tmp_path / "table", rows, layout)
    for mmap in (False, True):
        table = BucketTable.load(tmp_path / "table", mmap=mmap, verify=False)
        assert_equals(table, oracle_of(64, rows), rows.codes[:3])


CODES = np.zeros((3, 8), np.uint8)


@pytest.mark.parametrize(
    ("content", "options", "error", "message"),
    [
        ([], {}, ValueError, "chunks has no rows"),
        ([([], CODES[:0])], {}, ValueError, "chunks has no rows"),
        (5, {}, TypeError, "not iterable"),
        (
            [5],
            {},
            TypeError,
            r"each chunk must be \(ids, codes\) or \(ids, codes, regions\), not int",
        ),
        ([([1],)], {}, ValueError, "each chunk must be .*, not 1 things"),
        ([([1, 2], CODES)], {}, ValueError, "ids must be one per code"),
        ([([1, -1, 2], CODES)], {}, ValueError, "an id must not be -1"),
        ([([1, 2, 3], CODES, [0, 256, 1])], {}, ValueError, "regions must be from 0 to 255"),
        ([([1, 2, 3], CODES[:, :7])], {}, ValueError, "codes has shape"),
        ([([1, 2, 3], CODES)], {"bits": 20}, ValueError, "bits must be a multiple of 8"),
        ([([1, 2, 3], CODES)], {"layout": "long"}, ValueError, 'layout must be "auto"'),
        ([([1, 2, 3], CODES)], {"bits": 32, "layout": "wide"}, ValueError, "64 bits only, not 32"),
        ([([1, 2, 3], CODES)], {"memory": 100}, ValueError, "memory must be at least 1048576"),
        ([([1, 2, 3], CODES)], {"progress": 7}, TypeError, "progress must be a function"),
    ],
)
def test_wrong_arguments(
    content: Any, options: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        BucketTable.build(tmp_path / "table", content, **options)
    assert not list(tmp_path.iterdir())


def test_paths_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        BucketTable.build(tmp_path / "none" / "table", [([1, 2, 3], CODES)])
    with pytest.raises(IsADirectoryError):
        BucketTable.build(tmp_path, [([1, 2, 3], CODES)])


def test_an_error_of_the_iterator_comes_through(tmp_path: Path) -> None:
    def broken() -> Iterator[Any]:
        yield [1, 2, 3], CODES
        raise RuntimeError("the source is gone")

    with pytest.raises(RuntimeError, match="the source is gone"):
        BucketTable.build(tmp_path / "table", broken())
    assert not (tmp_path / "table").exists()


def test_progress_goes_forwards(many: Rows, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    built(
        tmp_path / "table", many, size=20_000, progress=lambda *x: seen.append(x)
    )  # fmt: skip
    assert list(dict.fromkeys(name for name, _, _ in seen)) == [
        "rows",
        "ids",
        "codes",
        "halves",
        "table",
    ]
    assert [x for x in seen if x[0] == "rows"] == [
        ("rows", n, None) for n in (20_000, 40_000, 60_000)
    ]
    for one, two in pairwise(seen):
        assert one[0] != two[0] or one[1] < two[1]
    assert all(done <= total for _, done, total in seen if total is not None)
