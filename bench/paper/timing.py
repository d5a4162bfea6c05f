"""Search time at growing K on a cell's codes: our table and FAISS, one thread each.

Every engine runs in a process of its own. Processor time is measured, since other work on the
machine affects it less than elapsed time.
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

from common import progress
from contenders import OURS, PEERS, FailedError, Run, Worker
from mchindex import BucketTable
from mchindex.evaluation.curves import default_ks
from mchindex.inference.region_codes import Encoded, Packed
from mchindex.models import MCHModel
from mchindex.training.measure import Coded, kept_by
from paper.records import BucketTime, TimeCurve, TimePoint, Timing
from paper.runs import Data
from paper.studies import Flags, similar

QUERIES = 500  # timed at most
REPEATS = 5
LIMIT = 60.0  # seconds that an engine may take for one answer
ENOUGH = 3.0  # seconds after which a slow search is not repeated
LARGEST_K = 5000
PROBED = 0.95  # share of queries that probing alone must answer for a point of `probe` to count


def timing(_: Data, model: MCHModel, coded: Coded) -> Timing:
    """F1 and microseconds per query at growing K, for probing, for `auto` and for FAISS."""
    out, cell = Timing(), f"{model.method.name}-{model.bits}"
    n = len(coded.queries)
    rows = np.unique(np.linspace(0, n - 1, min(QUERIES, n)).astype(int))
    wanted = similar(coded.query_labels[rows], coded.labels)
    rows, wanted = rows[wanted.any(1)], wanted[wanted.any(1)]
    if not len(rows):
        out.missing.append(f"{cell}: nothing is timed, because no query has a similar image.")
        return out
    queries = coded.queries[rows]
    for way in ("base", "mch"):
        chosen = coded.database.chosen(kept_by(way, coded.database, model.xi))
        _bucket_times(out, cell, way, queries, chosen)
        _race(out, cell, way, queries, wanted, chosen)
        progress(f"time: {cell} {way}")
    return out


def merged(parts: Sequence[Timing]) -> Timing:
    """The cells' times as one."""
    curves = [c for part in parts for c in part.curves]
    buckets = [b for part in parts for b in part.own_bucket]
    missing = sorted({text for part in parts for text in part.missing})
    return Timing(curves, buckets, missing, QUERIES, LARGEST_K)


def _bucket_times(out: Timing, cell: str, way: str, queries: Packed, chosen: Encoded) -> None:
    """Adds the time to look into the query's bucket alone, at two sizes of the database."""
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
        out.own_bucket.append(BucketTime(cell, way, images // share, micro))


def _race(
    out: Timing, cell: str, way: str, queries: Packed, wanted: Flags, chosen: Encoded
) -> None:
    """Adds one curve per engine, or why it is missing."""
    bits = 8 * queries.shape[1]
    ks = default_ks(min(LARGEST_K, wanted.shape[1]), 12)
    table = BucketTable(bits=bits)
    table.add(chosen.images, chosen.codes)
    probing = 8.0 * table.n_buckets + 4096  # with more buckets the engine's `probe` scans instead
    answers = {k: table.search(queries, k, threads=1) for k in ks}
    engines: dict[str, tuple[Any, ...]] = {
        "probe": (OURS["probe"],),
        "auto": (OURS["auto"],),
        "faiss": (PEERS["flat"], PEERS["flat-count"]),  # the faster of its two ways
    }
    with tempfile.TemporaryDirectory() as folder:
        arrays = (("codes", chosen.codes), ("images", chosen.images), ("queries", queries))
        for name, array in arrays:
            np.save(Path(folder) / f"{name}.npy", array)
        run = Run(folder, 1, LIMIT, 1, len(chosen) > len(np.unique(chosen.images)))
        for engine, kinds in engines.items():
            points: dict[int, TimePoint] = {}
            for kind in kinds:
                worker = Worker(kind, bits, run)
                try:
                    worker.ask("build", limit=LIMIT)
                    for k in ks:
                        _measure(worker, points, k, wanted)
                except FailedError as error:
                    out.missing.append(f"{kind.title} is missing: {error}.")
                finally:
                    worker.stop()
            for k, point in points.items():
                point.buckets = float(answers[k].buckets.astype(float).mean())
                pure = [math.comb(bits, int(r)) <= probing for r in answers[k].radius]
                point.probed = float(np.mean(pure))
            left = [p for p in points.values() if engine != "probe" or p.probed >= PROBED]
            if left:
                out.curves.append(TimeCurve(cell, way, engine, left, len(ks) - len(left)))


def _measure(worker: Worker, points: dict[int, TimePoint], k: int, wanted: Flags) -> None:
    """Times one K, and keeps the point if it is the fastest at that K."""
    number = len(wanted)
    ids = worker.ask("ids", k, 0, 0, number, limit=LIMIT)  # also warms up
    spent: list[float] = []  # processor time
    while len(spent) < REPEATS and sum(spent) < ENOUGH:
        spent.append(worker.ask("time", k, 0, 0, number, limit=LIMIT)[1])
    micro = 1e6 * median(spent) / number
    if k not in points or micro < points[k].microseconds:
        hits = (np.take_along_axis(wanted, np.maximum(ids, 0), 1) & (ids >= 0)).sum(1)
        f1 = 2 * hits / ((ids >= 0).sum(1) + wanted.sum(1))
        points[k] = TimePoint(k, float(f1.mean()), micro)
