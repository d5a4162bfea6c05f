"""Large segments are built by several threads, in parts, and with little memory."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from helpers.samples import Rows, clustered, queries_near, uniform
from helpers.script import run_script
from mchindex import BucketTable

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")

ADD_ON = """
import os, sys
import numpy as np
from mchindex import BucketTable
empty, rows, cores, out = sys.argv[1:]
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(cores)])
table = BucketTable.load(empty)
for part in np.array_split(np.arange(len(np.load(rows)["ids"])), 2):
    table.add(*(np.load(rows)[name][part] for name in ("ids", "codes", "regions")))
table.optimize()
table.save(out)
"""

PEAK = """
import sys
from pathlib import Path
import numpy as np
from helpers.memory import peak
from mchindex import BucketTable
rows = np.load(sys.argv[1])
ids, codes = rows["ids"], rows["codes"]
table = BucketTable(64)
Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far
before = peak()
table.add(ids, codes)
assert peak() - before <= 45 * len(ids), (peak() - before) / len(ids)
"""


def save(path: Path, rows: Rows) -> str:
    np.savez(path, ids=rows.ids, codes=rows.codes, regions=rows.regions)
    return str(path)


@LINUX
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two cores")
@pytest.mark.parametrize("bits", [16, 64, 136])
def test_the_number_of_threads_does_not_change_a_table(tmp_path: Path, bits: int) -> None:
    empty, files = str(tmp_path / "empty"), [tmp_path / "1", tmp_path / "2"]
    BucketTable(bits).save(empty)  # both tables take its seed
    few, many = clustered(bits, 100_000, seed=bits, centres=300), uniform(bits, 50_000, seed=1)
    ids = np.concatenate([few.ids, np.arange(len(many)) + 10**6])
    regions = np.concatenate([few.regions, np.zeros(len(many), np.int64)])
    both = Rows(ids, np.concatenate([few.codes, many]), regions)
    rows = save(tmp_path / "rows.npz", both)
    for cores, file in enumerate(files, start=1):
        run_script(ADD_ON, empty, rows, str(cores), str(file), folder=tmp_path)
    assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.parametrize("centres", [5, 2000])
@pytest.mark.parametrize("images", [30_000, 10**12])
def test_a_large_segment_holds_every_row(centres: int, images: int) -> None:
    rows = clustered(64, 100_000, seed=centres, images=images, centres=centres)
    table = BucketTable(64)
    table.add(rows.ids, rows.codes, rows.regions)
    assert len(table) == len(np.unique(rows.ids))
    together = np.column_stack([rows.ids, rows.codes])
    assert table.n_codes == len(np.unique(together, axis=0))
    assert table.n_buckets == len(np.unique(rows.codes, axis=0))
    radius = 6
    queries = queries_near(rows.codes, 4, seed=1)
    found = table.within(queries, radius)
    for i, query in enumerate(queries):
        distance = np.bitwise_count(rows.codes ^ query).sum(axis=1, dtype=np.int64)
        least: dict[int, int] = {}
        for image, d in zip(rows.ids.tolist(), distance.tolist(), strict=True):
            if d <= radius:
                least[image] = min(d, least.get(image, d))
        part = slice(found.lims[i], found.lims[i + 1])
        hits = zip(found.ids[part].tolist(), found.distances[part].tolist(), strict=True)
        assert sorted(hits) == sorted(least.items())


@LINUX
def test_building_takes_little_memory(tmp_path: Path) -> None:
    n = 400_000
    codes = clustered(64, n, seed=0, centres=2000).codes
    rows = save(tmp_path / "rows.npz", Rows(np.arange(n), codes, np.zeros(n, np.int64)))
    run_script(PEAK, rows, folder=tmp_path)
