"""A million images by codes: how fast they are stored, opened and searched through MCHIndex.

    python bench/index.py
    python bench/index.py --images 100000 --bits 32

The bare table is the peer: the same codes in a BucketTable, searched in the same batches, in turn.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from common import RESULTS, Cell, draw_codes, progress, record, rss, write_json
from mchindex import BucketTable, MCHIndex


def timed(work: Any) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def run(args: argparse.Namespace) -> dict[str, Any]:
    cell = Cell(args.images, args.bits)
    codes, queries = draw_codes(cell, args.queries, args.seed)
    ids: Any = np.arange(len(codes))
    if args.ids == "paths":
        ids = [f"/home/someone/photos/2024/holiday/IMG_{i:07d}.jpg" for i in range(len(codes))]
    row: dict[str, Any] = {"images": len(codes), "bits": args.bits, "ids": args.ids}
    with tempfile.TemporaryDirectory(dir=args.folder) as place:
        path = Path(place, "index.mch")
        index = MCHIndex.open(path, bits=args.bits)
        row["add_per_second"] = len(codes) / timed(lambda: index.add_codes(ids, codes))
        progress(f"add_codes: {row['add_per_second']:,.0f} images/s, durable")
        row["bytes_per_image"] = index.stats()["bytes"] / len(codes)
        index.close()
        held: list[MCHIndex] = []
        row["open_with_snapshot"] = timed(lambda: held.append(MCHIndex.open(path)))
        held.pop().close()
        for snapshot in path.glob("*.snapshot"):
            snapshot.unlink()
        row["open_without"] = timed(lambda: held.append(MCHIndex.open(path)))
        progress(f"open: {row['open_with_snapshot']:.3f} s, without: {row['open_without']:.2f} s")
        index = held.pop()
        table = BucketTable(args.bits)
        table.add(np.arange(len(codes)), codes)
        contenders = {
            "table": lambda part: table.search(part, args.k, threads=args.threads),
            "index": lambda part: index.search_codes(part, args.k, threads=args.threads),
            "index, hits read": lambda part: [
                hits.ids for hits in index.search_codes(part, args.k, threads=args.threads)
            ],
        }
        seconds: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(args.rounds):
            for start in range(0, len(queries), args.batch):
                part = queries[start : start + args.batch]
                for name, search in contenders.items():
                    seconds[name].append(timed(lambda s=search, p=part: s(p)))
        for name, times in seconds.items():
            row[f"queries_per_second, {name}"] = args.batch / median(times)
        # Paired, because the machine's speed drifts: each batch against the same batch.
        row["index over table"] = median(
            t / i for t, i in zip(seconds["table"], seconds["index"], strict=True)
        )
        progress(f"search_codes: {row['index over table']:.2f} of the bare table's speed")
        row["memory"] = rss()
        index.close()
    return row


def main() -> None:
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--images", type=int, default=1_000_000, help="%(default)s")
    p.add_argument("--bits", type=int, default=64, help="%(default)s")
    p.add_argument("--ids", choices=("integers", "paths"), nargs="+", default=["integers", "paths"])
    p.add_argument("--queries", type=int, default=5_000, help="%(default)s")
    p.add_argument("--batch", type=int, default=100, help="%(default)s")
    p.add_argument("-k", type=int, default=10, help="%(default)s")
    p.add_argument("--threads", type=int, default=0, help="0: all cores")
    p.add_argument("--rounds", type=int, default=3, help="%(default)s")
    p.add_argument("--seed", type=int, default=0, help="%(default)s")
    p.add_argument("--folder", type=Path, help="where the index is built, on the disk to measure")
    p.add_argument("--json", type=Path, default=RESULTS / "index.json", help="%(default)s")
    args = p.parse_args()
    rows = []
    for kind in args.ids:
        rows.append(run(argparse.Namespace(**vars(args) | {"ids": kind})))
    keys = ("images", "bits", "queries", "batch", "k", "threads", "rounds")
    settings = {k: getattr(args, k) for k in keys}
    write_json(args.json, record(settings, args.seed, rows))


if __name__ == "__main__":
    main()
