"""Builds a table of very many 64-bit codes, larger than memory if need be, and searches it.

python bench/billion.py --n 1_000_000_000 --folder DIR   # about 32 GB of disk while it builds
python bench/billion.py --n 10_000_000                   # seconds, in the temporary folder

Measures: time, disk and memory of the build; the first answer of a table that is not in memory;
exact 10-NN queries, one after the other on one thread; FAISS's IndexBinaryFlat. Flat is
measured on at most --flat codes and extrapolated linearly. Some answers are compared with a scan of
all codes, drawn once more. Writes bench/results/billion.json.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common import RESULTS, Cell, Codes, progress, record, script, write_json
from kinds import PER_CENTRE

Words = NDArray[np.uint64]
CHUNK = 1 << 22  # codes drawn at a time
K = 10


class Source:
    """Codes that can be drawn again, chunk by chunk."""

    def __init__(self, n: int, data: str, seed: int) -> None:
        self.n, self.data, self.seed = n, data, seed
        if data == "clustered":  # as in common.draw_codes
            self.centres = self._rng(1 << 40).integers(
                0, 1 << 64, max(1, n // PER_CENTRE), np.uint64
            )
            weights = np.cumsum(1.0 / np.arange(1, len(self.centres) + 1))
            self.weights = weights / weights[-1]

    def _rng(self, chunk: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, chunk])

    def _draw(self, chunk: int, n: int) -> Words:
        rng = self._rng(chunk)
        words = rng.integers(0, 1 << 64, n, np.uint64)
        if self.data == "uniform":
            return words
        for _ in range(4):  # each bit differs from its centre with probability 1 / 32
            words &= rng.integers(0, 1 << 64, n, np.uint64)
        words ^= self.centres[np.searchsorted(self.weights, rng.random(n))]
        return words

    def chunks(self) -> Iterator[tuple[int, Words]]:
        """The first id and the codes, as big-endian numbers, of each chunk."""
        for chunk, at in enumerate(range(0, self.n, CHUNK)):
            yield at, self._draw(chunk, min(CHUNK, self.n - at))

    def queries(self, n: int) -> Words:
        """Drawn in the same way, but not stored."""
        return self._draw((1 << 40) + 1, n)


def packed(words: Words) -> Codes:
    """As np.packbits packs codes."""
    return words.astype(">u8").view(np.uint8).reshape(-1, 8)


# ---------------------------------------------------------------------------------------- processes


def _memory(field: str) -> int:
    """A field of /proc/self/status, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(x.split()[1]) * 1024 for x in lines if x.startswith(field + ":"))


class Peak:
    """The most memory that this process allocated, without mapped files, while the block ran."""

    def __enter__(self) -> Peak:
        self.bytes, self._over = 0, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._over.wait(0.02):
            self.bytes = max(self.bytes, _memory("RssAnon"))

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def _on_disk(folder: Path) -> int:
    try:
        return sum(x.stat().st_blocks * 512 for x in folder.iterdir())
    except FileNotFoundError:  # the folder, or a file that was there a moment ago
        return 0


def build(source: Source, path: Path, memory: int) -> dict[str, Any]:
    from mchindex import BucketTable

    folder, most, drawing = path.with_name(path.name + ".building"), 0, 0.0

    def chunks() -> Iterator[tuple[NDArray[np.int64], Codes]]:
        nonlocal drawing
        since = time.perf_counter()
        for at, words in source.chunks():
            ids = np.arange(at, at + len(words), dtype=np.int64)
            codes = packed(words)
            drawing += time.perf_counter() - since
            yield ids, codes
            since = time.perf_counter()

    began = dict[str, float]()
    seconds = dict[str, float]()
    said = 0.0

    def note(step: str, done: int, total: int | None) -> None:
        nonlocal most, said
        now = time.perf_counter()
        most = max(most, _on_disk(folder))
        seconds[step] = now - began.setdefault(step, now)
        if now - said > 10 or done == total:
            said = now
            progress(f"  {step}: {done:,} of {total or source.n:,}")

    start = time.perf_counter()
    with Peak() as peak:
        BucketTable.build(path, chunks(), memory=memory, progress=note)
    total = time.perf_counter() - start
    return {
        "step": "build",
        "seconds": total,
        "seconds_drawing": drawing,
        "seconds_by_step": seconds,
        "codes_per_s": source.n / total,
        "file_bytes": path.stat().st_size,
        "bytes_a_code": path.stat().st_size / source.n,
        "folder_bytes": most,
        "peak_allocated": peak.bytes,
        "peak_resident": _memory("VmHWM"),
    }


def forget(path: Path) -> None:
    """Asks the system to drop the file from its page cache."""
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_through(path: Path) -> None:
    with open(path, "rb", buffering=0) as file:
        while file.read(1 << 24):
            pass


def search(path: Path, asked: Words, warm: Words, mmap: bool) -> dict[str, Any]:
    from mchindex import BucketTable

    codes = packed(asked)
    forget(path)
    start = time.perf_counter()
    table = BucketTable.load(path, mmap=mmap, verify=False)
    opened = time.perf_counter() - start
    table.search(codes[:1], K, threads=1)
    first = time.perf_counter() - start
    read_through(path)
    table.search(packed(warm), K)
    times, ids, distances = [], [], []
    for i in range(len(codes)):
        start = time.perf_counter()
        answer = table.search(codes[i : i + 1], K, threads=1)
        times.append(time.perf_counter() - start)
        ids.append(answer.ids[0].tolist())
        distances.append(answer.distances[0].tolist())
    start = time.perf_counter()
    table.search(codes, K)
    batch = time.perf_counter() - start
    return {
        "step": "search",
        "mmap": mmap,
        "queries": len(codes),
        "open_ms": opened * 1e3,
        "first_answer_s": first,
        "median_ms": float(np.median(times)) * 1e3,
        "mean_ms": float(np.mean(times)) * 1e3,
        "p99_ms": float(np.quantile(times, 0.99)) * 1e3,
        "batch_ms_a_query": batch / len(codes) * 1e3,
        "resident": _memory("VmRSS"),
        "kth_distance": float(np.mean([d[-1] for d in distances])),
        "bytes_by_kind": table.memory(),
        "ids": ids,
        "distances": distances,
    }


def flat(source: Source, most: int, asked: Words) -> dict[str, Any]:
    import faiss  # type: ignore[import-untyped,unused-ignore]

    faiss.omp_set_num_threads(1)
    index = faiss.IndexBinaryFlat(64)
    for _, words in source.chunks():
        index.add(packed(words)[: most - index.ntotal])
        if index.ntotal == most:
            break
    times = []
    for query in packed(asked):
        start = time.perf_counter()
        index.search(query[None], K)
        times.append(time.perf_counter() - start)
    median = float(np.median(times))
    return {
        "step": "flat",
        "codes": index.ntotal,
        "median_ms": median * 1e3,
        "extrapolated_ms": median * 1e3 * source.n / index.ntotal,
    }


def check(source: Source, asked: Words, ids: list[list[int]], distances: list[list[int]]) -> int:
    """Compares answers with a scan of all codes; returns how many are the same, order included."""
    found = [np.zeros((0, 3), np.uint64) for _ in asked]  # distance, complement of the mask, id
    for at, words in source.chunks():
        for i, query in enumerate(asked):
            masks = words ^ query
            near = np.bitwise_count(masks)
            bound = found[i][-1, 0] if len(found[i]) == K else 64
            rows = np.flatnonzero(near <= bound)
            fresh = np.stack(
                [near[rows].astype(np.uint64), ~masks[rows], (rows + at).astype(np.uint64)], 1
            )
            both = np.concatenate([found[i], fresh])
            found[i] = both[np.lexsort((both[:, 2], both[:, 1], both[:, 0]))[:K]]
    return sum(
        rows[:, 2].tolist() == ids[i] and rows[:, 0].tolist() == distances[i]
        for i, rows in enumerate(found)
    )


def in_a_process(work: Callable[..., Any], *arguments: Any) -> Any:
    """Runs a step in a process of its own, so that its memory can be measured."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(work, arguments)


def options() -> argparse.Namespace:
    parser = script(__doc__)
    add = parser.add_argument
    add("--n", type=int, default=10_000_000, help="codes (%(default)s)")
    add("--data", choices=("uniform", "clustered"), default="uniform", help="%(default)s")
    add("--queries", type=int, default=200, help="%(default)s")
    add("--check", type=int, default=5, help="answers to compare with a scan (%(default)s)")
    add("--flat", type=int, default=50_000_000, help="codes to measure FAISS on (%(default)s)")
    add("--memory", type=float, default=1.0, help="GB that the build may use (%(default)s)")
    add("--folder", type=Path, help="where to build (the system's temporary folder)")
    add("--keep", action="store_true", help="do not delete the table")
    add("--seed", type=int, default=0, help="%(default)s")
    add("--out", type=Path, default=RESULTS / "billion.json", help="%(default)s")
    return parser.parse_args()


def main() -> None:
    o = options()
    source = Source(o.n, o.data, o.seed)
    asked, warm = np.split(source.queries(2 * o.queries), 2)
    rows: list[dict[str, Any]] = []

    def step(text: str, work: Callable[..., Any], *arguments: Any) -> Any:
        progress(text)
        return in_a_process(work, *arguments)

    if o.folder:
        o.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=o.folder, prefix="mchindex-") as folder:
        path = (
            o.folder if o.keep and o.folder else Path(folder)
        ) / f"{Cell(o.n, 64, o.data).name}.mch"
        rows.append(step(f"building {path.name}", build, source, path, int(o.memory * 2**30)))
        rows.append(step("searching", search, path, asked, warm, True))
    ids, distances = rows[-1].pop("ids"), rows[-1].pop("distances")
    rows.append(step("scanning with FAISS", flat, source, min(o.flat, o.n), asked[:20]))
    rows[1]["to_flat"] = rows[2]["extrapolated_ms"] / rows[1]["median_ms"]
    n = min(o.check, o.queries)
    same = step(f"checking {n} answers", check, source, asked[:n], ids[:n], distances[:n])
    rows.append({"step": "check", "answers": n, "same": same})
    settings = {
        "n": o.n,
        "bits": 64,
        "data": o.data,
        "k": K,
        "queries": o.queries,
        "memory_gb": o.memory,
    }
    write_json(o.out, record(settings, o.seed, rows))
    for row in rows:
        print(row)
    if same < n:
        sys.exit(f"only {same} of {n} answers are exact")


if __name__ == "__main__":
    main()
