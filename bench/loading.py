"""How soon does a saved table answer its first query?

python bench/loading.py                 # a table of 10M codes
python bench/loading.py --n 100000
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from common import (
    RESULTS,
    Cell,
    Codes,
    Ids,
    add_code_options,
    our_table,
    progress,
    record,
    script,
    seconds,
    verdict,
    write_json,
)

if TYPE_CHECKING:
    from mchindex import BucketTable

K = 10
FIRST_ANSWER = 0.1  # seconds, at most


class Loaded(TypedDict):
    substring: bool  # whether the file holds the substring index
    cached: bool  # whether the system had the file in memory
    file_bytes: int
    save_s: float
    load_s: float  # median, as is the next
    first_answer_s: float  # loading included
    worst_s: float
    meets: bool


def summary(
    substring: bool,
    cached: bool,
    file_bytes: int,
    save_s: float,
    load_s: Sequence[float],
    answer_s: Sequence[float],
) -> Loaded:
    """One row from the seconds of each repeat, until loaded and until answered."""
    first = median(answer_s)
    return {
        "substring": substring, "cached": cached, "file_bytes": file_bytes, "save_s": save_s,
        "load_s": median(load_s), "first_answer_s": first, "worst_s": max(answer_s),
        "meets": first <= FIRST_ANSWER,
    }  # fmt: skip


def _load_and_search(path: str, query: Codes, pipe: Any) -> None:
    from mchindex import BucketTable

    start = time.perf_counter()
    table = BucketTable.load(path, mmap=True)
    loaded = time.perf_counter() - start
    ids = table.search(query, K).ids
    pipe.send((loaded, time.perf_counter() - start, ids))


def first_answer(path: Path, query: Codes) -> tuple[float, float, Ids]:
    """Seconds until loaded and until answered, in a new process, without its imports; the ids."""
    spawn = multiprocessing.get_context("spawn")
    pipe, end = spawn.Pipe()
    process = spawn.Process(target=_load_and_search, args=(str(path), query, end))
    process.start()
    end.close()
    loaded, answered, ids = pipe.recv()
    process.join()
    return loaded, answered, ids


def drop_from_cache(path: Path) -> None:
    """Asks the system to forget the file, so that it is read from the disk again."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure(table: BucketTable, query: Codes, path: Path, repeats: int) -> list[Loaded]:
    """Saves to `path` and loads with mmap, without and with the substring index, cached and not."""
    rows = []
    for substring in (False, True):
        table.optimize(substring=substring)
        truth = table.search(query, K).ids
        saved = seconds(lambda: table.save(path))
        size = path.stat().st_size
        progress(f"saved {size:,} bytes in {saved:.2f} s")
        for cached in (True, False):
            load_s, answer_s = [], []
            for _ in range(repeats):
                if not cached:
                    drop_from_cache(path)
                loaded, answered, ids = first_answer(path, query)
                if not np.array_equal(ids, truth):
                    raise RuntimeError("the loaded table gives another answer than the saved one")
                load_s.append(loaded)
                answer_s.append(answered)
            rows.append(summary(substring, cached, size, saved, load_s, answer_s))
    return rows


def main() -> None:
    p = script(__doc__)
    p.add_argument("--n", type=int, default=10_000_000, help="codes (%(default)s)")
    add_code_options(p)
    p.add_argument("--repeats", type=int, default=5, help="%(default)s")
    p.add_argument("--json", type=Path, help="the JSON file (bench/results/loading-….json)")
    args = p.parse_args()
    cell = Cell(args.n, args.bits, args.data, args.codes_per_image)
    table, query = our_table(cell, 1, args.seed)
    with tempfile.TemporaryDirectory(prefix="mch-bench-") as folder:
        rows = measure(table, query, Path(folder) / "table.mch", args.repeats)
    for row in rows:
        print(
            f"{cell.name}, saved after optimize(substring={row['substring']}), file "
            f"{'cached' if row['cached'] else 'not cached'}: load {1e3 * row['load_s']:.1f} ms, "
            f"first answer after {1e3 * row['first_answer_s']:.1f} ms, worst "
            f"{1e3 * row['worst_s']:.1f} ({verdict(row['meets'])}: at most "
            f"{1e3 * FIRST_ANSWER:.0f})"
        )
    settings = asdict(cell) | {"what": "loading", "repeats": args.repeats}
    write_json(
        args.json or RESULTS / f"loading-{cell.name}.json", record(settings, args.seed, rows)
    )


if __name__ == "__main__":
    main()
