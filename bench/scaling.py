"""How much faster is our table with two threads than with one?

python bench/scaling.py                 # a table of 1M codes
python bench/scaling.py --n 100000 --k 10,100
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, TypedDict

from common import (
    RESULTS,
    Cell,
    Codes,
    add_code_options,
    our_table,
    record,
    script,
    seconds,
    verdict,
    whole_numbers,
    write_json,
)

if TYPE_CHECKING:
    from mchindex import BucketTable

SPEEDUP = 1.8  # at least
BATCH = 1000  # queries per call


class SpeedUp(TypedDict):
    k: int
    one_s: float  # seconds per batch with one thread, median
    two_s: float  # with two
    speedup: float
    meets: bool


def speed_up(k: int, one: Sequence[float], two: Sequence[float]) -> SpeedUp:
    """Compares the seconds of the same batch with one and with two threads."""
    ratio = median(one) / median(two)
    return {
        "k": k, "one_s": median(one), "two_s": median(two),
        "speedup": ratio, "meets": ratio >= SPEEDUP,
    }  # fmt: skip


def measure(table: BucketTable, queries: Codes, k: int, turns: int) -> SpeedUp:
    """One and two threads in alternating order, in one process; a first turn warms up."""
    took: dict[int, list[float]] = {1: [], 2: []}
    for turn in range(turns + 1):
        for threads in (1, 2) if turn % 2 else (2, 1):
            spent = seconds(lambda n=threads: table.search(queries, k, threads=n))  # type: ignore[misc]
            if turn:
                took[threads].append(spent)
    return speed_up(k, took[1], took[2])


def main() -> None:
    p = script(__doc__)
    p.add_argument("--n", type=int, default=1_000_000, help="codes (%(default)s)")
    add_code_options(p)
    p.add_argument("--k", type=whole_numbers, default="10,100,1000", help="%(default)s")
    p.add_argument("--turns", type=int, default=20, help="per number of threads (%(default)s)")
    p.add_argument("--json", type=Path, help="the JSON file (bench/results/scaling-….json)")
    args = p.parse_args()
    cell = Cell(args.n, args.bits, args.data, args.codes_per_image)
    table, queries = our_table(cell, BATCH, args.seed)
    table.optimize(substring=True)
    rows = [measure(table, queries, k, args.turns) for k in args.k]
    for row in rows:
        print(
            f"{cell.name} K={row['k']}: one thread {BATCH / row['one_s']:,.0f} QPS, two "
            f"{BATCH / row['two_s']:,.0f}, {row['speedup']:.2f} times as fast "
            f"({verdict(row['meets'])}: at least {SPEEDUP})"
        )
    content = record(asdict(cell) | {"what": "scaling", "batch": BATCH}, args.seed, rows)
    write_json(args.json or RESULTS / f"scaling-{cell.name}.json", content)


if __name__ == "__main__":
    main()
