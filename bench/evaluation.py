"""How long does an evaluation of the size of MS-COCO take, and how much memory?

python bench/evaluation.py                                # 120,000 images, 5,000 queries
python bench/evaluation.py --images 12000 --queries 200
"""

from __future__ import annotations

import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common import (
    RESULTS,
    Cell,
    add_code_options,
    draw_codes,
    draw_images,
    progress,
    record,
    rss,
    script,
    write_json,
)

CLASSES = 80
LABELS = 2.9  # classes per image, roughly
MOST_COMMON = 0.5  # share of the images that may have a class, at most


def draw_labels(n: int, seed: int) -> NDArray[np.bool_]:
    """(n, CLASSES): at least one class per image, class i with a weight of 1/i.

    The labels do not depend on the codes, because only time is measured.
    """
    rng = np.random.default_rng(seed)
    chance = 1.0 / np.arange(1, CLASSES + 1)
    chance = np.minimum(MOST_COMMON, chance * LABELS / chance.sum())
    labels: NDArray[np.bool_] = rng.random((n, CLASSES), dtype=np.float32) < chance
    labels[np.arange(n), rng.integers(0, CLASSES, n)] |= ~labels.any(1)
    return labels


def peak() -> int:
    """The largest number of bytes that this process has had resident."""
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
        "cpu_seconds": time.process_time() - cpu,  # hardly changed by other work on the machine
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
    p = script(__doc__)
    p.add_argument("--images", type=int, default=120_000, help="%(default)s")
    p.add_argument("--queries", type=int, default=5_000, help="%(default)s")
    add_code_options(p)
    p.set_defaults(codes_per_image=1.6)
    p.add_argument("--threads", type=int, default=0, help="0: all cores (%(default)s)")
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
        f"{row['ms_per_query']:.2f} ms per query, {row['memory_peak'] / 2**20:,.0f} MiB at the peak"
    )
    write_json(args.json, content)


if __name__ == "__main__":
    main()
