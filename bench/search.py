"""How fast, exact and large is mchindex, compared with FAISS and usearch?

    python bench/search.py                                   # clustered 64-bit, 1M codes
    python bench/search.py --n 100000 --bits 128 --data uniform --k 10,100
    python bench/search.py --suite                           # every cell that has a target

bench/README.md explains the output.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

import plot
import verdicts
from common import (
    RESULTS,
    Cell,
    add_code_options,
    draw_codes,
    draw_images,
    engine,
    progress,
    record,
    script,
    whole_numbers,
    write_json,
)
from contenders import OURS, PEERS, Build, FailedError, Run, Worker
from measurements import Point, queries_within, to_rows
from recall import Judge
from table import table

JUDGED = 1000  # recall is measured on at most this many queries


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


class Race:
    """One cell: builds the contenders, warms them up, measures them in random order."""

    def __init__(self, cell: Cell, settings: Settings, folder: Path) -> None:
        self.cell, self.settings = cell, settings
        progress(f"{cell.name}: drawing {cell.n:,} codes of {cell.images:,} images")
        self.codes, self.queries = draw_codes(cell, settings.queries, settings.seed)
        self.images = draw_images(cell, settings.seed)
        for name in ("codes", "images", "queries"):
            np.save(folder / f"{name}.npy", getattr(self, name))
        several = cell.codes_per_image > 1
        self.run = Run(str(folder), settings.threads, settings.build_limit, settings.lists, several)
        self.kinds = OURS | {key: PEERS[key] for key in settings.peers}
        self.workers: dict[str, Worker] = {}
        self.builds: dict[str, Build] = {}
        self.points = [
            Point(key, kind, setting, k)
            for key, kind in self.kinds.items()
            for setting in kind.settings
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
        count = min(JUDGED, self.settings.queries)
        exact = self.workers["flat"].ask("ids", max(self.settings.k), 0, 0, count)
        self.judge = Judge(self.codes, self.images, self.queries, exact)

    def time(self, point: Point, start: int, count: int) -> tuple[float, float]:
        """Seconds by the clock and of the processor for `count` queries from number `start`."""
        ask, limit = self.workers[point.key].ask, self.settings.search_limit
        wall, busy = ask("time", point.k, point.setting, start, count, limit=limit)
        return wall, busy

    def warm_up(self, point: Point) -> None:
        """Finds how many queries fit the budget, and the recall; its times do not count."""
        most, budget = self.settings.queries, self.settings.budget
        count, (seconds, _) = 1, self.time(point, 0, 1)
        while count < most and seconds < 0.2 * budget:
            count = min(most, count * 8)
            seconds, _ = self.time(point, 0, count)
        point.count = queries_within(budget, seconds, count, most)
        judged = min(point.count, JUDGED)
        ask, limit = self.workers[point.key].ask, self.settings.search_limit
        ids = ask("ids", point.k, point.setting, 0, judged, limit=limit)
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
            same = other.key == point.key and other.setting == point.setting
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
        rng = np.random.default_rng(self.settings.seed)
        for repeat in range(self.settings.repeats):
            start = repeat * self.settings.queries // self.settings.repeats
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


def run_cell(cell: Cell, settings: Settings, out: Path, json: Path | None) -> list[str]:
    """Measures a cell, prints and writes the results; returns one line per target."""
    before = engine()
    with tempfile.TemporaryDirectory(prefix="mch-bench-") as folder:
        race = Race(cell, settings, Path(folder))
        try:
            race.build()
            race.set_truth()
            race.measure()
            race.finish()
        finally:
            race.stop()
    rows = to_rows(race.points, race.builds, cell.n)
    asked = asdict(settings) | {"cell": cell.name, "images": cell.images} | asdict(cell)
    content = record(asked, settings.seed, rows)
    targets = verdicts.targets(cell, settings.threads, rows)
    doubts = verdicts.doubts(rows, settings.threads)
    if content["engine"] != before:
        doubts.append("the engine was rebuilt during the run")
    # The workers loaded the engine at the start.
    content |= {"engine": before, "targets": targets, "doubts": doubts}
    print(table(content))
    write_json(json or out / f"{cell.name}-{settings.threads}t.json", content)
    plot.draw(content, out / f"{cell.name}-{settings.threads}t.png")
    return [f"{cell.name}: {line}" for line in verdicts.target_lines(targets, bool(doubts))]


def peers(text: str) -> tuple[str, ...]:
    wanted = tuple(PEERS) if text == "all" else tuple(text.split(","))
    if unknown := set(wanted) - set(PEERS):
        raise argparse.ArgumentTypeError(
            f"no peer {', '.join(sorted(unknown))}; there are {', '.join(PEERS)}"
        )
    return tuple(key for key in PEERS if key == "flat" or key in wanted)


def parser() -> argparse.ArgumentParser:
    default = Settings()
    p = script(__doc__)
    p.add_argument("--n", type=int, help="codes; with --suite, instead of 1M (1000000)")
    add_code_options(p)
    p.add_argument(
        "--k", type=whole_numbers, default=default.k, help="such as 10,100,1000 (the default)"
    )
    p.add_argument(
        "--threads", type=int, default=default.threads, help="of each contender (%(default)s)"
    )
    p.add_argument(
        "--queries", type=int, default=default.queries,
        help="per call; a slow contender gets fewer, and the JSON says how many (%(default)s)",
    )  # fmt: skip
    p.add_argument("--repeats", type=int, default=default.repeats, help="%(default)s")
    p.add_argument(
        "--peers", type=peers, default=default.peers,
        help=f"all, or some of {','.join(PEERS)}; flat, the baseline, always runs (all)",
    )  # fmt: skip
    p.add_argument("--lists", type=int, default=default.lists, help="of faiss IVF (%(default)s)")
    p.add_argument(
        "--budget", type=float, default=default.budget, metavar="S",
        help="seconds per measurement; contenders that need more get fewer queries (%(default)s)",
    )  # fmt: skip
    p.add_argument(
        "--build-limit", type=float, default=default.build_limit, metavar="S",
        help="leave out a graph that takes longer to build, and say so (%(default)s)",
    )  # fmt: skip
    p.add_argument(
        "--search-limit", type=float, default=default.search_limit, metavar="S",
        help="stop a search that takes longer, and say so (%(default)s)",
    )  # fmt: skip
    p.add_argument("--out", type=Path, default=RESULTS, help="folder of the JSON and the picture")
    p.add_argument("--json", type=Path, help="the JSON file, instead of one named after the cell")
    p.add_argument("--suite", action="store_true", help="measure every cell that has targets")
    return p


def suite(n: int | None) -> Iterable[Cell]:
    """Every cell that has targets; with `n`, scaled as if `n` stood for a million codes."""
    for cell in verdicts.RATIOS:
        yield cell if n is None else replace(cell, n=n * cell.n // 1_000_000)


def main() -> None:
    p = parser()
    args = p.parse_args()
    if args.json and args.suite:
        p.error("--json names one file, but --suite writes several: use --out")
    one = Cell(args.n or 1_000_000, args.bits, args.data, args.codes_per_image)
    cells = list(suite(args.n)) if args.suite else [one]
    if max(args.k) > (fewest := min(cell.images for cell in cells)):
        p.error(f"--k goes up to {max(args.k)}, but there are only {fewest} images")
    fields = Settings.__dataclass_fields__
    settings = Settings(**{key: value for key, value in vars(args).items() if key in fields})
    lines: list[str] = []
    for cell in cells:
        lines += run_cell(cell, settings, args.out, args.json)
    print("\nTargets")
    print("\n".join(lines) or "none for this cell, this K and this number of threads")


if __name__ == "__main__":
    main()
