"""Search speed, recall, memory and build rate of mchindex beside FAISS and usearch.

    python bench/search.py                                   # clustered 64-bit, 1M codes
    python bench/search.py --n 100000 --bits 128 --data uniform --k 10,100
    python bench/search.py --suite                           # every cell that has a target
    python bench/search.py --scaling                         # two threads against one
    python bench/search.py --load                            # a file's first answer, 10M codes

README.md, beside this file, says how to read what it prints.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

import own
import plot
import report
from common import (
    RESULTS,
    Cell,
    Codes,
    Ids,
    draw_codes,
    draw_images,
    engine,
    progress,
    record,
    write_json,
)
from contenders import OURS, PEERS, Contender, FailedError, Run, Worker

SUITE = (
    Cell(),
    Cell(bits=32),
    Cell(data="uniform"),
    Cell(n=10_000_000),
    Cell(codes_per_image=1.6),
    Cell(bits=128),
    Cell(bits=256),
)
JUDGED = 1000  # recall is measured on at most this many queries


@dataclass(frozen=True)
class Settings:
    """How a cell is measured."""

    k: tuple[int, ...] = (10, 100, 1000)
    threads: int = 1
    queries: int = 10_000  # asked in one call; fewer of them where a contender is slow
    repeats: int = 5
    seed: int = 0
    peers: tuple[str, ...] = tuple(PEERS)
    budget: float = 1.5  # seconds a measurement should take at most
    search_limit: float = 60.0  # seconds after which a search is stopped
    build_limit: float = 900.0  # seconds a graph may take to build
    lists: int = 1024  # of the inverted file


@dataclass
class Line:
    """One contender with one setting at one K: a point of the picture."""

    key: str
    kind: type[Contender]
    setting: int
    k: int
    count: int = 0  # queries a measurement
    recall: float | None = None
    seconds: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)  # CPU seconds
    note: str = ""

    def __str__(self) -> str:
        return f"{self.kind.label(self.setting)}, K={self.k}"


class Judge:
    """Tie-aware recall, from the ids alone: no contender's own distances are taken on trust."""

    def __init__(self, codes: Codes, images: Ids, queries: Codes) -> None:
        self.codes, self.queries = codes, queries
        self.sizes = np.bincount(images)  # images are 0, 1, 2, … in order
        self.first = np.cumsum(self.sizes) - self.sizes
        self.far = codes.shape[1] * 8 + 1

    def distances(self, ids: Ids) -> NDArray[np.int32]:
        """(q, k): each image's distance at its nearest code; `far` for -1 and for repeats."""
        out = np.full(ids.shape, self.far, dtype=np.int32)
        for i, row in enumerate(ids):
            known, at = np.unique(row, return_index=True)
            known, at = known[known >= 0], at[known >= 0]
            for j in range(int(self.sizes.max())):
                has = self.sizes[known] > j
                codes = self.codes[self.first[known[has]] + j]
                apart = np.bitwise_count(codes ^ self.queries[i]).sum(axis=1, dtype=np.int32)
                out[i, at[has]] = np.minimum(out[i, at[has]], apart)
        return out

    def set_truth(self, ids: Ids) -> None:
        """`ids`: an exact search's answer for the first queries, at the largest K."""
        self.truth = np.sort(self.distances(ids), axis=1)

    def recall(self, ids: Ids, k: int) -> float:
        """The share of the K nearest found, any image as near as the K-th being as good."""
        bound = self.truth[: len(ids), :k]
        hits = self.distances(ids) <= bound[:, -1:]
        return float(hits.sum() / bound.size)


class Race:
    """One cell: builds the contenders, warms them up, measures them in shuffled turns."""

    def __init__(self, cell: Cell, settings: Settings, folder: Path) -> None:
        self.cell, self.settings = cell, settings
        progress(f"{cell.name}: drawing {cell.n:,} codes of {cell.images:,} images")
        codes, queries = draw_codes(cell, settings.queries, settings.seed)
        images = draw_images(cell, settings.seed)
        for name, array in (("codes", codes), ("images", images), ("queries", queries)):
            np.save(folder / f"{name}.npy", array)
        self.judge = Judge(codes, images, queries)
        several = cell.codes_per_image > 1
        self.run = Run(str(folder), settings.threads, settings.build_limit, settings.lists, several)
        self.kinds = OURS | {key: PEERS[key] for key in settings.peers}
        self.workers: dict[str, Worker] = {}
        self.builds: dict[str, dict[str, Any]] = {}
        self.lines = [
            Line(key, kind, setting, k)
            for key, kind in self.kinds.items()
            for setting in kind.settings
            for k in settings.k
        ]

    def build(self) -> None:
        for key, kind in self.kinds.items():
            worker = self.workers[key] = Worker(kind, self.cell.bits, self.run)
            try:
                self.builds[key] = worker.ask("build")
                progress(f"built {kind.title}: {self.builds[key]['build_s']:.2f} s")
            except FailedError as error:
                progress(f"{kind.title}: {error}")
                for line in self.lines:
                    if line.key == key:
                        line.note = str(error)
                worker.stop()

    def set_truth(self) -> None:
        progress("truth: an exact search by faiss Flat")
        count = min(JUDGED, self.settings.queries)
        flat = self.workers["flat"]
        if "flat" not in self.builds:
            raise SystemExit("the baseline, faiss Flat, is needed: pip install faiss-cpu")
        self.judge.set_truth(flat.ask("ids", max(self.settings.k), 0, 0, count))

    def time(self, line: Line, at: int, count: int) -> tuple[float, float]:
        """Seconds on the wall and of the processor."""
        ask, limit = self.workers[line.key].ask, self.settings.search_limit
        wall, busy = ask("time", line.k, line.setting, at, count, limit=limit)
        return wall, busy

    def warm_up(self, line: Line) -> None:
        """Untimed: finds how many queries fit the budget, and the recall."""
        count, (seconds, _) = 1, self.time(line, 0, 1)
        while count < self.settings.queries and seconds < 0.2 * self.settings.budget:
            count = min(self.settings.queries, count * 8)
            seconds, _ = self.time(line, 0, count)
        fit = round(self.settings.budget / seconds * count)
        line.count = max(1, min(self.settings.queries, fit))
        judged = min(line.count, JUDGED)
        ask, limit = self.workers[line.key].ask, self.settings.search_limit
        ids = ask("ids", line.k, line.setting, 0, judged, limit=limit)
        line.recall = self.judge.recall(ids, line.k)
        progress(f"warmed up {line}: {line.count:,} queries, recall {line.recall:.4f}")

    def fail(self, line: Line, error: FailedError) -> None:
        """Leaves out `line` and the same at larger K; brings a stopped worker back."""
        progress(f"{line}: {error}")
        for other in self.lines:
            same = other.key == line.key and other.setting == line.setting
            if same and other.k >= line.k and not other.note:
                other.note = str(error) if other is line else f"left out: K={line.k} {error}"
        worker = self.workers[line.key]
        if not worker.alive:
            worker.start()
            self.builds[line.key]["before"] = worker.ask("build")["before"]

    def measure(self) -> None:
        for line in sorted(self.lines, key=lambda x: x.k):
            if not line.note:
                try:
                    self.warm_up(line)
                except FailedError as error:
                    self.fail(line, error)
        rng = np.random.default_rng(self.settings.seed)
        for repeat in range(self.settings.repeats):
            at = repeat * self.settings.queries // self.settings.repeats
            turns = [line for line in self.lines if not line.note]
            for turn, index in enumerate(rng.permutation(len(turns))):
                line = turns[index]
                if line.note:
                    continue
                try:
                    wall, busy = self.time(line, at, line.count)
                except FailedError as error:
                    self.fail(line, error)
                    continue
                line.seconds.append(wall)
                line.busy.append(busy)
                qps = line.count / wall
                step = f"repeat {repeat + 1}/{self.settings.repeats}, {turn + 1}/{len(turns)}"
                progress(f"{step}: {line}: {qps:,.0f} QPS")

    def finish(self) -> None:
        """Memory after all searches, and the end of the workers."""
        for key, build in self.builds.items():
            if self.workers[key].alive:
                build["searched"] = self.workers[key].ask("memory", build["before"])
        self.stop()

    def stop(self) -> None:
        for worker in self.workers.values():
            if worker.alive:
                worker.stop()

    def rows(self) -> list[dict[str, Any]]:
        rates = {
            (line.key, line.setting, line.k): [line.count / s for s in line.seconds]
            for line in self.lines
        }
        flat = {k: median(rates["flat", 0, k]) for k in self.settings.k}
        return [
            {
                "contender": line.key,
                "label": line.kind.label(line.setting),
                "title": line.kind.title,
                "knob": line.kind.knob,
                "setting": line.setting,
                "ours": line.kind.ours,
                "batch": "single" if line.key == "auto" and line.setting else "whole",
                "k": line.k,
                "queries": line.count,
                "qps": median(rate) if rate and not line.note else None,
                "qps_all": [round(x, 1) for x in rate],
                "cpu_qps": median(line.count / b for b in line.busy) if rate else None,
                "cpu_share": sum(line.busy) / sum(line.seconds) if rate else None,
                "to_flat": median(rate) / flat[line.k] if rate and not line.note else None,
                "recall": line.recall,
                "note": line.note,
                **self.build_figures(line.key),
            }
            for line in self.lines
            for rate in [rates[line.key, line.setting, line.k]]
        ]

    def build_figures(self, key: str) -> dict[str, Any]:
        build = self.builds.get(key)
        if build is None:
            return {}

        def a_code(memory: dict[str, int | None]) -> dict[str, float | None]:
            return {x: None if b is None else b / self.cell.n for x, b in memory.items()}

        return {
            "build_codes_per_s": self.cell.n / build["build_s"],
            "optimize_s": build["optimize_s"],
            "bytes_a_code": {
                when: a_code(build[when])
                for when in ("built", "optimized", "searched")
                if when in build
            },
        }


def run_cell(cell: Cell, settings: Settings, out: Path, json: Path | None) -> list[str]:
    """Measures a cell, prints and writes its results; returns the lines about the targets."""
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
    rows = race.rows()
    asked = asdict(settings) | {"cell": cell.name, "images": cell.images} | asdict(cell)
    content = record(asked, settings.seed, rows)
    checks = report.targets(cell, settings.threads, rows)
    doubts = report.doubts(rows, settings.threads)
    if content["engine"] != before:
        doubts.append("the engine was rebuilt during the run")
    content |= {"engine": before, "targets": checks, "doubts": doubts}  # loaded at the start
    print(report.table(content))
    write_json(json or out / f"{cell.name}-{settings.threads}t.json", content)
    plot.draw(content, out / f"{cell.name}-{settings.threads}t.png")
    return [f"{cell.name}: {line}" for line in report.target_lines(checks, bool(doubts))]


def whole_numbers(text: str) -> tuple[int, ...]:
    return tuple(sorted({int(part) for part in text.split(",")}))


def names(text: str) -> tuple[str, ...]:
    wanted = tuple(PEERS) if text == "all" else tuple(text.split(","))
    if unknown := set(wanted) - set(PEERS):
        raise argparse.ArgumentTypeError(
            f"no peer {', '.join(unknown)}; there are {', '.join(PEERS)}"
        )
    return tuple(key for key in PEERS if key == "flat" or key in wanted)


def parser() -> argparse.ArgumentParser:
    default = Settings()
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument(
        "--n", type=int, help="codes (1M; with --load 10M; with --suite, in place of 1M)"
    )
    p.add_argument("--bits", type=int, default=64, help="a multiple of 8, 8 to 256 (%(default)s)")
    p.add_argument("--data", choices=("clustered", "uniform"), default="clustered")
    p.add_argument(
        "--codes-per-image", type=float, default=1.0, metavar="MEAN",
        help="above 1, an image has 1 to 6 codes, this many on average: 1.6 (%(default)s)",
    )  # fmt: skip
    p.add_argument(
        "--k", type=whole_numbers, default=default.k, help="such as 10,100,1000 (the default)"
    )
    p.add_argument("--threads", type=int, default=default.threads, help="for all alike (1)")
    p.add_argument(
        "--queries", type=int, default=default.queries,
        help="in one call; slow contenders get fewer, and the JSON says how many (%(default)s)",
    )  # fmt: skip
    p.add_argument("--repeats", type=int, default=default.repeats, help="%(default)s")
    p.add_argument("--seed", type=int, default=default.seed, help="%(default)s")
    p.add_argument(
        "--peers", type=names, default=default.peers,
        help=f"all, or some of {','.join(PEERS)}; flat, the baseline, always runs (all)",
    )  # fmt: skip
    p.add_argument("--lists", type=int, default=default.lists, help="of IVF (%(default)s)")
    p.add_argument(
        "--budget", type=float, default=default.budget, metavar="S",
        help="seconds a measurement takes at most, by asking fewer queries (%(default)s)",
    )  # fmt: skip
    p.add_argument(
        "--build-limit", type=float, default=default.build_limit, metavar="S",
        help="a graph that takes longer to build is left out, and named (%(default)s)",
    )  # fmt: skip
    p.add_argument(
        "--search-limit", type=float, default=default.search_limit, metavar="S",
        help="a search that takes longer is stopped, and named (%(default)s)",
    )  # fmt: skip
    p.add_argument("--out", type=Path, default=RESULTS, help="folder of JSON and picture")
    p.add_argument("--json", type=Path, help="the JSON file, in place of one named after the cell")
    what = p.add_mutually_exclusive_group()
    what.add_argument("--suite", action="store_true", help="all cells that have targets")
    what.add_argument("--scaling", action="store_true", help="two threads against one, ours")
    what.add_argument("--load", action="store_true", help="time of a file's first answer, ours")
    return p


def suite(n: int | None) -> Iterable[Cell]:
    for cell in SUITE:
        yield cell if n is None else replace(cell, n=n * cell.n // 1_000_000)


def main() -> None:
    args = parser().parse_args()
    if args.json and args.suite:
        parser().error("--json names one file and --suite writes several: use --out")
    if args.bits % 8 or not 8 <= args.bits <= 256:
        parser().error(f"--bits is a multiple of 8 from 8 to 256, not {args.bits}")
    n = args.n or (10_000_000 if args.load else 1_000_000)
    cell = Cell(n, args.bits, args.data, args.codes_per_image)
    if max(args.k) > cell.images and not args.suite:
        parser().error(f"--k up to {max(args.k)} needs as many images; there are {cell.images}")
    if args.scaling or args.load:
        what = "scaling" if args.scaling else "load"
        ask = own.scaling if args.scaling else own.load
        content = ask(cell, args.k, args.repeats, args.seed)
        write_json(args.json or args.out / f"{what}-{cell.name}.json", content)
        return
    fields = Settings.__dataclass_fields__
    settings = Settings(**{key: value for key, value in vars(args).items() if key in fields})
    lines: list[str] = []
    for each in suite(args.n) if args.suite else (cell,):
        lines += run_cell(each, settings, args.out, args.json)
    print("\nTargets")
    print("\n".join(lines) or "none is set for this cell, this K or this number of threads")


if __name__ == "__main__":
    main()
