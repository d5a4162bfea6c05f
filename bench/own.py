"""Two questions about our table alone: do threads help, and how soon does a file answer?"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from common import Cell, Codes, draw_codes, draw_images, progress, record

SCALING = 1.8  # two threads against one, at least
BATCH = 1000
FIRST_ANSWER = 0.1  # seconds, at most


def verdict(meets: bool) -> str:
    return "meets" if meets else "FALLS SHORT"


def build(cell: Cell, queries: int, seed: int) -> tuple[Any, Codes]:
    from mchindex import BucketTable

    codes, asked = draw_codes(cell, queries, seed)
    table = BucketTable(bits=cell.bits)
    progress(f"adding {cell.n:,} codes")
    table.add(draw_images(cell, seed), codes)
    return table, asked


def scaling(cell: Cell, k: tuple[int, ...], repeats: int, seed: int) -> dict[str, Any]:
    """Batches of 1,000 queries in one process, one and two threads in turn."""
    table, queries = build(cell, BATCH, seed)
    table.optimize(substring=True)
    rows = []
    for each in k:
        took: dict[int, list[float]] = {1: [], 2: []}
        for turn in range(4 * repeats + 1):
            for threads in (1, 2) if turn % 2 else (2, 1):
                start = time.perf_counter()
                table.search(queries, each, threads=threads)
                if turn:  # the first turn warms up
                    took[threads].append(time.perf_counter() - start)
        one, two = median(took[1]), median(took[2])
        meets = one / two >= SCALING
        rows.append({"k": each, "one_s": one, "two_s": two, "speedup": one / two, "meets": meets})
        print(
            f"{cell.name} K={each}: one thread {BATCH / one:,.0f} QPS, two {BATCH / two:,.0f}, "
            f"{one / two:.2f} times ({verdict(meets)}: at least {SCALING})"
        )
    return record(asdict(cell) | {"what": "scaling", "batch": BATCH}, seed, rows)


def _first_answer(path: str, query: Codes, pipe: Any) -> None:
    from mchindex import BucketTable

    start = time.perf_counter()
    table = BucketTable.load(path, mmap=True)
    loaded = time.perf_counter() - start
    ids = table.search(query, 10).ids
    pipe.send((loaded, time.perf_counter() - start, ids))


def first_answer(path: str, query: Codes) -> tuple[float, float, Any]:
    """Seconds until loaded and until answered, in a fresh process (its imports not counted)."""
    spawn = multiprocessing.get_context("spawn")
    pipe, end = spawn.Pipe()
    process = spawn.Process(target=_first_answer, args=(path, query, end))
    process.start()
    end.close()
    loaded, answered, ids = pipe.recv()
    process.join()
    return loaded, answered, ids


def forget(path: Path) -> None:
    """Asks the system to drop the file from its cache, so that it is read from the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def load(cell: Cell, k: tuple[int, ...], repeats: int, seed: int) -> dict[str, Any]:
    """save, then load(mmap=True) and one query (K = 10), each time in a fresh process."""
    table, queries = build(cell, 1, seed)
    rows = []
    with tempfile.TemporaryDirectory(prefix="mch-bench-") as folder:
        path = Path(folder) / "table.mch"
        for substring in (False, True):
            table.optimize(substring=substring)
            truth = table.search(queries, 10).ids
            start = time.perf_counter()
            table.save(path)
            saved = time.perf_counter() - start
            progress(f"saved {path.stat().st_size:,} bytes in {saved:.2f} s")
            for cached in (True, False):
                took = []
                for _ in range(repeats):
                    if not cached:
                        forget(path)
                    took.append(first_answer(str(path), queries))
                    if not np.array_equal(took[-1][2], truth):
                        raise RuntimeError("the loaded table answers otherwise than the saved one")
                answered = median(t[1] for t in took)
                row: dict[str, Any] = {
                    "substring": substring,
                    "cached": cached,
                    "file_bytes": path.stat().st_size,
                    "save_s": saved,
                    "load_s": median(t[0] for t in took),
                    "first_answer_s": answered,
                    "worst_s": max(t[1] for t in took),
                    "meets": answered <= FIRST_ANSWER,
                }
                rows.append(row)
                print(
                    f"{cell.name}, saved after optimize(substring={substring}), file "
                    f"{'cached' if cached else 'not cached'}: load {1e3 * row['load_s']:.1f} ms, "
                    f"first answer after {1e3 * answered:.1f} ms, worst {1e3 * row['worst_s']:.1f} "
                    f"({verdict(row['meets'])}: at most {1e3 * FIRST_ANSWER:.0f})"
                )
    return record(asdict(cell) | {"what": "load", "repeats": repeats}, seed, rows)
