"""How long an evaluation takes, and how much memory: as many images and queries as MS-COCO has.

python bench/evaluation.py                                # 120,000 images, 5,000 queries
python bench/evaluation.py --images 12000 --queries 200
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common import RESULTS, Cell, draw_codes, draw_images, progress, record, rss, write_json

CLASSES = 80
LABELS = 2.9  # an image, on average; the commonest class is in half of the images


def draw_labels(n: int, seed: int) -> NDArray[np.bool_]:
    """Zipf-like classes, at least one an image, drawn apart from the codes: this is about time."""
    rng = np.random.default_rng(seed)
    chance = 1.0 / np.arange(1, CLASSES + 1)
    chance = np.minimum(0.5, chance * LABELS / chance.sum())
    labels: NDArray[np.bool_] = rng.random((n, CLASSES), dtype=np.float32) < chance
    labels[np.arange(n), rng.integers(0, CLASSES, n)] |= ~labels.any(1)
    return labels


def peak() -> int:
    """The most bytes this process has had resident."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def run(cell: Cell, queries: int, threads: int, seed: int) -> dict[str, Any]:
    from mchindex.evaluation import Codes, evaluate

    progress(f"drawing {cell.n:,} codes of {cell.images:,} images")
    codes, wanted = draw_codes(cell, queries, seed)
    images = draw_images(cell, seed)
    labels = draw_labels(cell.images + queries, seed)
    database = Codes(codes, images, np.bincount(images))
    before, start, cpu = rss(), time.perf_counter(), time.process_time()
    result = evaluate(
        wanted, database, labels[cell.images :], labels[: cell.images], at=(1000,), threads=threads
    )
    seconds = time.perf_counter() - start
    row = {
        "seconds": seconds,
        "cpu_seconds": time.process_time() - cpu,  # what a busy machine does not change
        "ms_per_query": 1e3 * seconds / queries,
        "memory_before": before,
        "memory_peak": peak(),
        "map": result.map,
        "anhc": result.anhc,
    }
    settings = {
        "what": "evaluation", "images": cell.images, "queries": queries, "bits": cell.bits,
        "codes": cell.n, "classes": CLASSES, "data": cell.data, "threads": threads,
    }  # fmt: skip
    return record(settings, seed, [row])


def main() -> None:
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--images", type=int, default=120_000, help="%(default)s")
    p.add_argument("--queries", type=int, default=5_000, help="%(default)s")
    p.add_argument("--bits", type=int, default=64, help="%(default)s")
    p.add_argument("--codes-per-image", type=float, default=1.6, metavar="MEAN", help="1 to 6")
    p.add_argument("--data", choices=("clustered", "uniform"), default="clustered")
    p.add_argument("--threads", type=int, default=0, help="0: every core (%(default)s)")
    p.add_argument("--seed", type=int, default=0, help="%(default)s")
    p.add_argument("--json", type=Path, default=RESULTS / "evaluation.json", help="%(default)s")
    args = p.parse_args()
    cell = Cell(
        round(args.images * args.codes_per_image), args.bits, args.data, args.codes_per_image
    )
    content = run(cell, args.queries, args.threads, args.seed)
    row = content["rows"][0]
    print(
        f"{args.queries:,} queries, {cell.images:,} images, {cell.n:,} codes of {args.bits} bits: "
        f"{row['seconds']:.1f} s ({row['cpu_seconds']:.1f} s of CPU), "
        f"{row['ms_per_query']:.2f} ms a query, {row['memory_peak'] / 2**20:,.0f} MiB at most"
    )
    write_json(args.json, content)


if __name__ == "__main__":
    main()
