"""A race of one cell: every contender in its own process, measured in random order."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from common import Cell, draw, progress
from contenders import BEFORE, OURS, PEERS, Build, FailedError, Run, Worker
from file_codes import ImageCodes
from measurements import Point, queries_within
from recall import Judge

JUDGED = 1000  # recall is measured on at most this many queries
SINGLE = ("auto", "before", "flat")  # measured with one query per call too


@dataclass(frozen=True)
class Settings:
    """How a cell is measured."""

    k: tuple[int, ...] = (10, 100, 1000)
    threads: int = 1
    queries: int = 10_000  # per call; a slow contender gets fewer
    repeats: int = 5
    seed: int = 0
    peers: tuple[str, ...] = tuple(PEERS)
    budget: float = 1.5  # seconds that one measurement may take
    search_limit: float = 60.0  # seconds after which a search is stopped
    build_limit: float = 900.0  # seconds a graph may take to build
    lists: int = 1024  # of faiss IVF
    against: str = ""  # an earlier commit that is measured too


def save(data: ImageCodes, folder: Path) -> None:
    """Writes what workers read, one file per array."""
    for field in fields(data):
        array = getattr(data, field.name)
        if array is not None:
            np.save(folder / f"{field.name}.npy", array)


class Race:
    """One cell: builds the contenders, warms them up, measures them in random order."""

    def __init__(self, cell: Cell, settings: Settings, folder: Path, site: str = "") -> None:
        """`site` holds the package of the earlier commit, if one is measured."""
        self.cell, self.settings = cell, settings
        progress(f"{cell.name}: {cell.n:,} codes of {cell.images:,} images")
        self.data = draw(cell, settings.queries, settings.seed)
        save(self.data, folder)
        self.asked = len(self.data.queries)
        self.run = Run(
            str(folder), settings.threads, settings.build_limit, settings.lists,
            int(self.data.sizes.max()), site,
        )  # fmt: skip
        self.kinds = OURS | (BEFORE if site else {}) | {key: PEERS[key] for key in settings.peers}
        self.workers: dict[str, Worker] = {}
        self.builds: dict[str, Build] = {}
        self.points = [
            Point(key, kind, setting, k, single)
            for key, kind in self.kinds.items()
            for setting in kind.settings
            for single in ((False, True) if key in SINGLE else (False,))
            for k in settings.k
        ]

    def build(self) -> None:
        for key, kind in self.kinds.items():
            worker = self.workers[key] = Worker(kind, self.cell.bits, self.run)
            try:
                self.builds[key] = worker.ask("build")
                progress(f"built {kind.title}: {self.builds[key].build_s:.2f} s")
            except FailedError as error:
                progress(f"{kind.title}: {error}")
                for point in self.points:
                    if point.key == key:
                        point.note = str(error)
                worker.stop()

    def set_truth(self) -> None:
        if "flat" not in self.builds:
            raise SystemExit("the baseline, faiss Flat, is needed: pip install faiss-cpu")
        progress("truth: an exact search by faiss Flat")
        count = min(JUDGED, self.asked)
        exact = self.workers["flat"].ask("ids", max(self.settings.k), 0, 0, count, False)
        self.judge = Judge(self.data.codes, self.data.images, self.data.queries, exact)

    def time(self, point: Point, start: int, count: int) -> tuple[float, float]:
        """Seconds by the clock and of the processor for `count` queries from number `start`."""
        ask, limit = self.workers[point.key].ask, self.settings.search_limit
        wall, busy = ask("time", point.k, point.setting, start, count, point.single, limit=limit)
        return wall, busy

    def warm_up(self, point: Point) -> None:
        """Finds how many queries fit the budget, and the recall; its times do not count."""
        most, budget = self.asked, self.settings.budget
        count, (seconds, _) = 1, self.time(point, 0, 1)
        while count < most and seconds < 0.2 * budget:
            count = min(most, count * 8)
            seconds, _ = self.time(point, 0, count)
        point.count = queries_within(budget, seconds, count, most)
        judged = min(point.count, JUDGED)
        ask, limit = self.workers[point.key].ask, self.settings.search_limit
        ids = ask("ids", point.k, point.setting, 0, judged, point.single, limit=limit)
        point.recall = self.judge.recall(ids, point.k)
        progress(f"warmed up {point}: {point.count:,} queries, recall {point.recall:.4f}")

    def fail(self, point: Point, error: FailedError) -> None:
        """Leaves out `point` and the same contender and setting at larger K.

        If the worker's process has ended, starts and builds it again for the other points.
        """
        progress(f"{point}: {error}")
        if point.key == "flat":
            raise SystemExit(f"the baseline, faiss Flat, failed at K={point.k}: {error}")
        for other in self.points:
            same = (other.key, other.setting, other.single) == (
                point.key, point.setting, point.single
            )  # fmt: skip
            if same and other.k >= point.k and not other.note:
                other.note = str(error) if other is point else f"left out: K={point.k} {error}"
        worker = self.workers[point.key]
        if not worker.alive:
            worker.start()
            self.builds[point.key].before = worker.ask("build").before

    def measure(self) -> None:
        for point in sorted(self.points, key=lambda p: p.k):
            if not point.note:
                try:
                    self.warm_up(point)
                except FailedError as error:
                    self.fail(point, error)
        for worker in self.workers.values():
            if worker.alive:
                worker.ask("settle")
        rng = np.random.default_rng(self.settings.seed)
        for repeat in range(self.settings.repeats):
            start = repeat * self.asked // self.settings.repeats
            turns = [point for point in self.points if not point.note]
            for turn, index in enumerate(rng.permutation(len(turns))):
                point = turns[index]
                if point.note:
                    continue
                try:
                    wall, busy = self.time(point, start, point.count)
                except FailedError as error:
                    self.fail(point, error)
                    continue
                point.seconds.append(wall)
                point.busy.append(busy)
                step = f"repeat {repeat + 1}/{self.settings.repeats}, {turn + 1}/{len(turns)}"
                progress(f"{step}: {point}: {point.rates[-1]:,.0f} QPS")

    def finish(self) -> None:
        """Measures the memory after all searches and ends the workers."""
        for key, build in self.builds.items():
            if self.workers[key].alive:
                build.searched = self.workers[key].ask("memory", build.before)
        self.stop()

    def stop(self) -> None:
        for worker in self.workers.values():
            if worker.alive:
                worker.stop()
