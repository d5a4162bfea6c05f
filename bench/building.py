"""How fast is a table built with all cores, and how much memory does that take at its peak?

python bench/building.py                # 1M and 10M clustered 64-bit codes
python bench/building.py --n 100000
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any, TypedDict

import numpy as np

from common import (
    RESULTS,
    Cell,
    draw,
    progress,
    record,
    rss,
    script,
    seconds,
    whole_numbers,
    write_json,
)
from race import save
from verdicts import Target, check, doubted_spread, target_lines

RATES = {1_000_000: 8e6, 10_000_000: 5e6}  # codes per second, at least
PEAK = 45  # bytes per code beside the caller's arrays, at most


class Built(TypedDict):
    n: int
    bits: int
    codes_per_s: float  # median
    peak_bytes_per_code: float  # the largest, beside the caller's arrays
    table_bytes_per_code: float  # what memory() reports
    codes_per_s_all: list[float]
    cores: int


def peak_rss() -> int:
    """The largest number of resident bytes that this process has had."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def forget_peak() -> None:
    """Makes the present size of this process its peak (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")


def _build(pipe: Connection, bits: int, folder: str) -> None:
    from mchindex import BucketTable

    codes, images = (np.load(Path(folder) / f"{name}.npy") for name in ("codes", "images"))
    table = BucketTable(bits=bits)
    before = rss()
    forget_peak()
    spent = seconds(lambda: table.add(images, codes))
    pipe.send((spent, peak_rss() - before, table.memory()["total"]))


def build_once(bits: int, folder: Path) -> tuple[float, int, int]:
    """Seconds, bytes at the peak and bytes of the table, in a new process."""
    spawn = multiprocessing.get_context("spawn")
    pipe, end = spawn.Pipe()
    process = spawn.Process(target=_build, args=(end, bits, str(folder)))
    process.start()
    end.close()
    found: tuple[float, int, int] = pipe.recv()
    process.join()
    return found


def summary(cell: Cell, builds: Sequence[tuple[float, int, int]]) -> Built:
    rates = [cell.n / spent for spent, _, _ in builds]
    return {
        "n": cell.n, "bits": cell.bits, "codes_per_s": median(rates),
        "peak_bytes_per_code": max(peak for _, peak, _ in builds) / cell.n,
        "table_bytes_per_code": max(size for _, _, size in builds) / cell.n,
        "codes_per_s_all": rates, "cores": len(os.sched_getaffinity(0)),
    }  # fmt: skip


def measure(cell: Cell, repeats: int, seed: int) -> Built:
    with tempfile.TemporaryDirectory(prefix="mch-bench-") as folder:
        progress(f"drawing {cell.n:,} codes")
        save(draw(cell, 1, seed), Path(folder))
        row = summary(cell, [build_once(cell.bits, Path(folder)) for _ in range(repeats)])
    progress(
        f"built {cell.name}: {row['codes_per_s'] / 1e6:.1f} million codes per second, "
        f"{row['peak_bytes_per_code']:.1f} bytes per code at the peak"
    )
    return row


def targets(rows: Sequence[Built]) -> list[Target]:
    out = []
    for row in rows:
        n = f"{row['n']:,} codes"
        if row["n"] in RATES:
            out.append(check(f"{n}, built per second", row["codes_per_s"], RATES[row["n"]], True))
        if row["n"] >= min(RATES):  # below that, what a process needs anyway counts for too much
            peak = row["peak_bytes_per_code"]
            out.append(check(f"{n}, peak bytes per code", peak, PEAK, False, timed=False))
    return out


def run(path: Path, sizes: Sequence[int], repeats: int = 5, seed: int = 0) -> list[str]:
    """Measures, prints and writes the record; returns one line per target."""
    rows = [measure(Cell(n), repeats, seed) for n in sizes]
    found = targets(rows)
    doubts = doubted_spread({f"{row['n']:,} codes": row["codes_per_s_all"] for row in rows})
    content: dict[str, Any] = record({"what": "building", "repeats": repeats}, seed, rows)
    write_json(path, content | {"targets": found, "doubts": doubts})
    return [f"building: {line}" for line in target_lines(found, bool(doubts))] + [
        f"building: doubt: {text}" for text in doubts
    ]


def main() -> None:
    p = script(__doc__)
    p.add_argument("--n", type=whole_numbers, default=tuple(RATES), help="such as 1000000,10000000")
    p.add_argument("--repeats", type=int, default=5, help="%(default)s")
    p.add_argument("--seed", type=int, default=0, help="%(default)s")
    p.add_argument("--json", type=Path, default=RESULTS / "building.json", help="%(default)s")
    args = p.parse_args()
    print("\n".join(run(args.json, args.n, args.repeats, args.seed)))


if __name__ == "__main__":
    main()
