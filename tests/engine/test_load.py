"""Loading a table without checking its content."""

import sys
from pathlib import Path

import numpy as np
import pytest

from helpers.oracle import assert_answer
from helpers.samples import clustered, oracle_of, queries_near, table_of
from helpers.script import run_script
from mchindex import BucketTable
from mchindex.errors import SnapshotDamagedError


@pytest.mark.parametrize("mmap", [False, True])
def test_a_sound_file_gives_the_same_answers(mmap: bool, tmp_path: Path) -> None:
    rows = clustered(64, 3000, seed=1)
    oracle = oracle_of(64, rows)
    table = table_of(64, rows)
    table.remove(rows.ids[:5])
    oracle.remove(set(rows.ids[:5].tolist()))
    table.save(tmp_path / "table")
    loaded = BucketTable.load(tmp_path / "table", mmap=mmap, verify=False)
    queries = queries_near(rows.codes, 6, seed=2)
    assert_answer(loaded.search(queries, 9), oracle.search(queries, 9))
    loaded.add(rows.ids[:5], rows.codes[:5])
    loaded.save(tmp_path / "table")
    assert len(BucketTable.load(tmp_path / "table")) == len(loaded)


@pytest.mark.parametrize("mmap", [False, True])
def test_only_the_content_goes_unchecked(mmap: bool, tmp_path: Path) -> None:
    path = tmp_path / "table"
    table_of(64, clustered(64, 300, seed=1)).save(path)
    sound = path.read_bytes()
    content = bytearray(sound)
    content[-200] ^= 1
    path.write_bytes(content)
    with pytest.raises(SnapshotDamagedError):
        BucketTable.load(path, mmap=mmap)
    BucketTable.load(path, mmap=mmap, verify=False)
    directory = bytearray(sound)
    directory[100] ^= 1
    for damaged in (bytes(directory), sound[:-64], sound + bytes(64)):
        path.write_bytes(damaged)
        with pytest.raises(SnapshotDamagedError):
            BucketTable.load(path, mmap=mmap, verify=False)


READS = """
import sys
from pathlib import Path

from mchindex import BucketTable


def mapped():
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssFile:"))


BucketTable.load(sys.argv[2], mmap=True, verify=False)
before = mapped()
table = BucketTable.load(sys.argv[1], mmap=True, verify=False)
few = mapped() - before
again = BucketTable.load(sys.argv[1], mmap=True)
many = mapped() - before - few
assert few < 2**20 < 4 * 2**20 < many, (few, many)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_an_unchecked_mapped_file_is_hardly_read(tmp_path: Path) -> None:
    n = 500_000
    table = BucketTable(64)
    table.add(np.arange(n), np.random.default_rng(1).integers(0, 256, (n, 8), np.uint8))
    table.save(tmp_path / "large")
    BucketTable(64).save(tmp_path / "empty")
    run_script(READS, str(tmp_path / "large"), str(tmp_path / "empty"), folder=tmp_path)
