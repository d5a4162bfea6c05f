"""How long does a call with one query take on a tiny table, compared with FAISS's?

python bench/calls.py                   # 100 codes, so that nearly all of the time is the call's
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypedDict

from common import RESULTS, Cell, Codes, draw, progress, record, script, seconds, write_json
from file_codes import ImageCodes
from verdicts import Target, check, doubted_spread, target_lines

RATIO = 1.3  # time of ours divided by FAISS's, at most
N, K, CALLS, WIDTHS = 100, 10, 20_000, (64, 256)


class Calls(TypedDict):
    bits: int
    ours_us: float  # microseconds per call, the least of the repeats
    faiss_us: float
    ratio: float
    ours_all: list[float]
    faiss_all: list[float]


def summary(bits: int, ours: Sequence[float], faiss: Sequence[float]) -> Calls:
    """`ours` and `faiss`: microseconds per call, one per repeat."""
    return {
        "bits": bits, "ours_us": min(ours), "faiss_us": min(faiss),
        "ratio": min(ours) / min(faiss), "ours_all": list(ours), "faiss_all": list(faiss),
    }  # fmt: skip


def our_call(data: ImageCodes) -> Callable[[Codes], object]:
    from mchindex import BucketTable

    table = BucketTable(bits=data.bits)
    table.add(data.images, data.codes)
    return lambda query: table.search(query, K, threads=1).ids


def faiss_call(data: ImageCodes) -> Callable[[Codes], object]:
    import faiss

    faiss.omp_set_num_threads(1)
    index = faiss.IndexBinaryFlat(data.bits)
    index.add(data.codes)
    return lambda query: index.search(query, K)[1]


def time_calls(call: Callable[[Codes], object], queries: Codes, calls: int) -> float:
    """Microseconds per call; a tenth as many calls come first, to warm up."""
    each = [queries[i : i + 1] for i in range(len(queries))]

    def run(count: int) -> None:
        for i in range(count):
            call(each[i % len(each)])

    run(calls // 10)
    return 1e6 * seconds(lambda: run(calls)) / calls


def _process(pipe: Connection, ours: bool, data: ImageCodes, calls: int, loops: int) -> None:
    call = (our_call if ours else faiss_call)(data)
    pipe.send([time_calls(call, data.queries, calls) for _ in range(loops)])


def in_process(ours: bool, data: ImageCodes, calls: int, loops: int) -> list[float]:
    """The same, `loops` times in a new process."""
    spawn = multiprocessing.get_context("spawn")
    pipe, end = spawn.Pipe()
    process = spawn.Process(target=_process, args=(end, ours, data, calls, loops))
    process.start()
    end.close()
    found: list[float] = pipe.recv()
    process.join()
    return found


def measure(bits: int, turns: int, calls: int, seed: int) -> Calls:
    """Ours and FAISS's in turn, each in new processes."""
    data = draw(Cell(N, bits), 1000, seed)
    took: dict[bool, list[float]] = {True: [], False: []}
    for turn in range(turns):
        for ours in (True, False) if turn % 2 else (False, True):
            took[ours] += in_process(ours, data, calls, 3)
    return summary(bits, took[True], took[False])


def targets(rows: Sequence[Calls]) -> list[Target]:
    return [
        check(f"{row['bits']} bits, time of a call ÷ FAISS's", row["ratio"], RATIO, False)
        for row in rows
    ]


def run(path: Path, seed: int = 0, turns: int = 3, calls: int = CALLS) -> list[str]:
    """Measures, prints and writes the record; returns one line per target."""
    rows = []
    for bits in WIDTHS:
        rows.append(row := measure(bits, turns, calls, seed))
        progress(f"calls, {bits} bits: {row['ours_us']:.2f} µs, FAISS {row['faiss_us']:.2f} µs")
    spreads = {
        f"{row['bits']} bits, {who}": all_
        for row in rows
        for who, all_ in (("ours", row["ours_all"]), ("FAISS", row["faiss_all"]))
    }
    found, doubts = targets(rows), doubted_spread(spreads)
    content: dict[str, Any] = record({"what": "calls", "n": N, "k": K, "calls": calls}, seed, rows)
    write_json(path, content | {"targets": found, "doubts": doubts})
    return [f"calls: {line}" for line in target_lines(found, bool(doubts))] + [
        f"calls: doubt: {text}" for text in doubts
    ]


def main() -> None:
    p = script(__doc__)
    p.add_argument("--turns", type=int, default=3, help="processes of each (%(default)s)")
    p.add_argument("--calls", type=int, default=CALLS, help="per measurement (%(default)s)")
    p.add_argument("--seed", type=int, default=0, help="%(default)s")
    p.add_argument("--json", type=Path, default=RESULTS / "calls.json", help="%(default)s")
    args = p.parse_args()
    print("\n".join(run(args.json, args.seed, args.turns, args.calls)))


if __name__ == "__main__":
    main()
