"""How fast does `MCHIndex` store, open and search a million images given by their codes?

    python bench/index.py
    python bench/index.py --images 100000 --bits 32

Searches are compared with a BucketTable that holds the same codes, batch by batch in turn.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from common import (
    RESULTS,
    Cell,
    Codes,
    draw_codes,
    progress,
    record,
    rss,
    script,
    seconds,
    write_json,
)
from mchindex import BucketTable, MCHIndex

Row = dict[str, Any]


def summary(took: Mapping[str, Sequence[float]], batch: int) -> Row:
    """Queries per second, and the speed of the index as a multiple of the table's.

    `took` holds the seconds of each batch. The multiple is the median over pairs, each batch
    with the same batch, because the speed of the machine drifts.
    """
    row: Row = {f"queries_per_second, {name}": batch / median(all_) for name, all_ in took.items()}
    pairs = zip(took["table"], took["index"], strict=True)
    return row | {"index over table": median(t / i for t, i in pairs)}


def search(index: MCHIndex, codes: Codes, queries: Codes, args: argparse.Namespace) -> Row:
    """Searches the index and a table of the same codes in turn; both count as memory."""
    table = BucketTable(args.bits)
    table.add(np.arange(len(codes)), codes)
    contenders: dict[str, Callable[[Codes], object]] = {
        "table": lambda part: table.search(part, args.k, threads=args.threads),
        "index": lambda part: index.search_codes(part, args.k, threads=args.threads),
        "index, hits read": lambda part: [
            hits.ids for hits in index.search_codes(part, args.k, threads=args.threads)
        ],
    }
    took: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(args.rounds):
        for start in range(0, len(queries), args.batch):
            part = queries[start : start + args.batch]
            for name, ask in contenders.items():
                took[name].append(seconds(lambda ask=ask, part=part: ask(part)))  # type: ignore[misc]
    return summary(took, args.batch) | {"memory": rss()}


def run(kind: str, args: argparse.Namespace) -> Row:
    """Measures an index whose ids are of this kind, "integers" or "paths"."""
    codes, queries = draw_codes(Cell(args.images, args.bits), args.queries, args.seed)
    ids: Any = np.arange(len(codes))
    if kind == "paths":
        ids = [f"/home/someone/photos/2024/holiday/IMG_{i:07d}.jpg" for i in range(len(codes))]
    row: Row = {"images": len(codes), "bits": args.bits, "ids": kind}
    with tempfile.TemporaryDirectory(dir=args.folder) as place:
        path = Path(place, "index.mch")
        index = MCHIndex.open(path, bits=args.bits)
        row["add_per_second"] = len(codes) / seconds(lambda: index.add_codes(ids, codes))
        progress(f"add_codes: {row['add_per_second']:,.0f} images/s, durable")
        row["bytes_per_image"] = index.stats()["bytes"] / len(codes)
        index.close()
        opened: list[MCHIndex] = []
        row["open_with_snapshot"] = seconds(lambda: opened.append(MCHIndex.open(path)))
        opened.pop().close()
        for snapshot in path.glob("*.snapshot"):
            snapshot.unlink()
        row["open_without"] = seconds(lambda: opened.append(MCHIndex.open(path)))
        progress(f"open: {row['open_with_snapshot']:.3f} s, without: {row['open_without']:.2f} s")
        index = opened.pop()
        row |= search(index, codes, queries, args)
        progress(f"search_codes: {row['index over table']:.2f} times as fast as the table alone")
        index.close()
    return row


def main() -> None:
    p = script(__doc__)
    p.add_argument("--images", type=int, default=1_000_000, help="%(default)s")
    p.add_argument("--bits", type=int, default=64, help="%(default)s")
    p.add_argument("--ids", choices=("integers", "paths"), nargs="+", default=["integers", "paths"])
    p.add_argument("--queries", type=int, default=5_000, help="%(default)s")
    p.add_argument("--batch", type=int, default=100, help="queries per call (%(default)s)")
    p.add_argument("-k", type=int, default=10, help="%(default)s")
    p.add_argument("--threads", type=int, default=0, help="0: all cores (%(default)s)")
    p.add_argument("--rounds", type=int, default=3, help="%(default)s")
    p.add_argument("--seed", type=int, default=0, help="%(default)s")
    p.add_argument("--folder", type=Path, help="where to put the index, to choose the disk")
    p.add_argument("--json", type=Path, default=RESULTS / "index.json", help="%(default)s")
    args = p.parse_args()
    if args.queries % args.batch:
        p.error(f"--queries must be a multiple of --batch, {args.batch}, not {args.queries}")
    rows = [run(kind, args) for kind in args.ids]
    keys = ("images", "bits", "queries", "batch", "k", "threads", "rounds")
    settings = {k: getattr(args, k) for k in keys}
    write_json(args.json, record(settings, args.seed, rows))


if __name__ == "__main__":
    main()
