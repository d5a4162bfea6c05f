"""Times the contenders of `answers.py` in turn, and judges what they answer."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from answer_data import Images, Queries
from answer_measures import TOP, Labels, agreement, quality
from answer_peers import Modes, write_runs
from common import Codes, progress
from contenders import Build, FailedError, Worker
from measurements import Point, queries_within

Row = dict[str, Any]
EXHAUSTIVE = Modes.MODES.index(("exhaustive", 1))


def race(
    folder: Path, images: Images, queries: Queries, labels: Labels, cells: Codes,
    args: argparse.Namespace,
) -> list[Row]:  # fmt: skip
    """One row per contender and setting: quality, agreement of ours with the exhaustive ranking,
    bytes per image, and queries per second."""
    runs = write_runs(folder, images, queries, cells, args.threads, args.build_limit)
    points: list[Point] = []
    workers: dict[str, Worker] = {}
    builds: dict[str, Build] = {}
    answers = {}
    try:
        for key, (kind, width, run) in runs.items():
            mine = [Point(key, kind, setting, TOP) for setting in kind.settings]
            points += mine
            workers[key] = Worker(kind, width, run)
            try:
                builds[key] = workers[key].ask("build")
                progress(f"built {kind.title}: {builds[key].build_s:.0f} s")
                for point in mine:
                    answers[str(point)] = _warm_up(workers[key], point, len(queries), args.budget)
            except FailedError as error:
                progress(f"{kind.title}: {error}")
                workers[key].stop()
                for point in mine:
                    point.note = str(error)
        _measure([p for p in points if not p.note], workers, len(queries), args)
    finally:
        for worker in workers.values():
            if worker.alive:
                worker.stop()
    truth = answers[str(next(p for p in points if p.key == "ours" and p.setting == EXHAUSTIVE))]
    rows = []
    for point in points:
        row: Row = {
            "label": point.kind.label(point.setting),
            "contender": point.key,
            "ours": point.kind.ours,
            "note": point.note,
        }
        if not point.note:
            build, given = builds[point.key], answers[str(point)]
            row |= {
                **asdict(quality(given, labels, images.labels)),
                "agreement": agreement(given, truth) if point.kind.ours else None,
                "bytes_per_image": _bytes(build) / len(images),
                "build_s": build.build_s,
                "queries": point.count,
                "qps": median(point.rates),
                "qps_all": [round(x, 1) for x in point.rates],
                "cpu_qps": median(point.count / b for b in point.busy),
                "cpu_share": sum(point.busy) / sum(point.seconds),
            }
        rows.append(row)
    return rows


def _bytes(build: Build) -> int:
    """What the index says that it takes, when it is ready to search."""
    counted = build.optimized.counted
    return build.optimized.rss if counted is None else counted


def _warm_up(worker: Worker, point: Point, queries: int, budget: float) -> Any:
    """The answers to all queries; finds how many of them fit the budget."""
    found = worker.ask("ids", TOP, point.setting, 0, queries, False)
    few = min(queries, 16)
    seconds, _ = worker.ask("time", TOP, point.setting, 0, few, False)
    point.count = queries_within(budget, seconds, few, queries)
    return found


def _measure(
    points: list[Point], workers: dict[str, Worker], queries: int, args: argparse.Namespace
) -> None:
    rng = np.random.default_rng(args.seed)
    for repeat in range(args.repeats):
        start = repeat * queries // args.repeats
        for index in rng.permutation(len(points)):
            point = points[index]
            ask = workers[point.key].ask
            wall, busy = ask("time", TOP, point.setting, start, point.count, False)
            point.seconds.append(wall)
            point.busy.append(busy)
            progress(f"repeat {repeat + 1}/{args.repeats}: {point}: {point.rates[-1]:,.0f} QPS")
