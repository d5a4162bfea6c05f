"""Search time at growing K on codes that a cell left behind: our table and FAISS, a thread each.

Every engine is timed in a process of its own, by the processor's time, which other work on the
machine does not lengthen as it does the time on the clock.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common import progress
from contenders import OURS, PEERS, FailedError, Run, Worker
from mchindex import BucketTable
from mchindex.evaluation.curves import default_ks
from mchindex.models.hashing import Packed
from mchindex.models.region_codes import Encoded
from mchindex.training.measure import Coded, kept_by
from paper_studies import Flags, alike

TIMED = 500  # queries at most
REPEATS = 5
ENOUGH = 3.0  # seconds after which a slow search is not repeated any more
LARGEST_K = 5000
PROBED = 0.95  # a point of `probe` counts if so many of its queries were answered by probing alone


def timing(cell: str, coded: Coded, xi: float, limit: float = 60.0) -> dict[str, Any]:
    """F1 and microseconds of a query at growing K: our table by probing, by itself, and FAISS."""
    out: dict[str, Any] = {"curves": [], "own_bucket": [], "missing": []}
    n = len(coded.queries)
    rows = np.unique(np.linspace(0, n - 1, min(TIMED, n)).astype(int))
    wanted = alike(coded.query_labels[rows], coded.labels)
    rows, wanted = rows[wanted.any(1)], wanted[wanted.any(1)]
    if not len(rows):
        out["missing"].append(f"{cell}: no query has a similar image, so that nothing is timed.")
        return out
    for way in ("base", "mch"):
        chosen = coded.database.chosen(kept_by(way, coded.database, xi))
        queries = coded.queries[rows]
        out["own_bucket"] += _own_buckets(cell, way, chosen, queries)
        lines, lacks = _race(queries, wanted, chosen.codes, chosen.images, limit)
        out["curves"] += [{"cell": cell, "way": way, **line} for line in lines]
        out["missing"] += [text for text in lacks if text not in out["missing"]]
        progress(f"time: {cell} {way}")
    return out


def merged(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The cells' figures as one."""
    out: dict[str, Any] = {
        name: [x for part in parts for x in part[name]] for name in ("curves", "own_bucket")
    }
    out["missing"] = sorted({text for part in parts for text in part["missing"]})
    return out | {"queries": TIMED, "largest_k": LARGEST_K}


def _own_buckets(cell: str, way: str, chosen: Encoded, queries: Packed) -> list[dict[str, Any]]:
    """Microseconds to look into the own bucket alone, at two sizes of the database."""
    out = []
    images = int(chosen.images.max()) + 1
    for share in (8, 1):
        which = chosen.images % share == 0
        table = BucketTable(bits=8 * queries.shape[1])
        table.add(chosen.images[which], chosen.codes[which])
        table.optimize()
        seconds = []
        for _ in range(2 * REPEATS + 1):
            start = time.process_time()
            table.search(queries, 1, max_radius=0, strategy="probe", threads=1)
            seconds.append(time.process_time() - start)
        micro = 1e6 * median(seconds[1:]) / len(queries)
        out.append({"cell": cell, "way": way, "images": images // share, "microseconds": micro})
    return out


def _race(
    queries: Packed, wanted: Flags, codes: Packed, images: NDArray[np.int64], limit: float
) -> tuple[list[dict[str, Any]], list[str]]:
    """A line an engine: points of K, F1, mean buckets, microseconds."""
    bits = 8 * queries.shape[1]
    ks = default_ks(min(LARGEST_K, wanted.shape[1]), 12)
    table = BucketTable(bits=bits)
    table.add(images, codes)
    probing = 8.0 * table.n_buckets + 4096  # beyond, the engine's `probe` becomes a scan
    answers = {k: table.search(queries, k, threads=1) for k in ks}
    engines: dict[str, tuple[Any, ...]] = {
        "probe": (OURS["probe"],),
        "auto": (OURS["auto"],),
        "faiss": (PEERS["flat"], PEERS["flat-count"]),  # the faster of its two ways
    }
    lines, lacks = [], []
    with tempfile.TemporaryDirectory() as folder:
        for name, array in (("codes", codes), ("images", images), ("queries", queries)):
            np.save(Path(folder) / f"{name}.npy", array)
        run = Run(folder, 1, limit, 1, len(codes) > len(np.unique(images)))
        for engine, kinds in engines.items():
            points: dict[int, dict[str, Any]] = {}
            for kind in kinds:
                worker = Worker(kind, bits, run)
                try:
                    worker.ask("build", limit=limit)
                    for k in ks:
                        _point(worker, points, k, queries, wanted, limit)
                except FailedError as error:
                    absent = "No module named" in str(error)
                    lacks.append(
                        f"{kind.module} is not installed, so that its line is missing."
                        if absent
                        else f"{kind.title}: {error}"
                    )
                finally:
                    if worker.alive:
                        worker.stop()
            for k, point in points.items():
                point["buckets"] = float(answers[k].buckets.astype(float).mean())
                pure = [math.comb(bits, int(r)) <= probing for r in answers[k].radius]
                point["probed"] = float(np.mean(pure))
            left = [p for p in points.values() if engine != "probe" or p["probed"] >= PROBED]
            if left:
                lines.append({"engine": engine, "points": left, "left_out": len(ks) - len(left)})
    return lines, lacks


def _point(
    worker: Worker,
    points: dict[int, dict[str, Any]],
    k: int,
    queries: Packed,
    wanted: Flags,
    limit: float,
) -> None:
    ids = worker.ask("ids", k, 0, 0, len(queries), limit=limit)  # warms up as well
    spent: list[float] = []  # of the processor
    while len(spent) < REPEATS and sum(spent) < ENOUGH:
        spent.append(worker.ask("time", k, 0, 0, len(queries), limit=limit)[1])
    micro = 1e6 * median(spent) / len(queries)
    if k not in points or micro < points[k]["microseconds"]:
        points[k] = {"k": k, "f1": _f1_of(ids, wanted), "microseconds": micro}


def _f1_of(ids: NDArray[np.int64], wanted: Flags) -> float:
    hits = (np.take_along_axis(wanted, np.maximum(ids, 0), 1) & (ids >= 0)).sum(1)
    return float((2 * hits / ((ids >= 0).sum(1) + wanted.sum(1))).mean())
