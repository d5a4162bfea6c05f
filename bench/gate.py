"""The gate of `search.py --gate`: on no kind of codes may `auto` be slower than a plain scan.

Every kind of codes, width and K is measured with all queries in one call and with one query per
call. A cell fails if `auto` is slower than FAISS's IndexBinaryFlat, takes more than 1.25 times as
long as the best forced strategy, or misses an answer. Times are the least of several repeats, in
random order; all of our strategies answer the same queries. Cells that fail are measured again
before they count as failed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from common import Cell, draw, engine, progress, record, write_json
from contenders import OURS, PEERS, Contender, FailedError, Run, Worker
from kinds import KINDS
from measurements import queries_within
from race import save
from recall import Judge
from verdicts import AUTO, FORCED, SPREAD, STEADY

WIDTHS = (32, 64, 128, 256)
CONTENDERS: dict[str, type[Contender]] = {
    "auto": OURS["auto"],
    "flat": PEERS["flat"],
    **{key: OURS[key] for key in FORCED},
}
JUDGED = 8  # queries whose answers are checked
FEWEST = 16  # queries that Flat gets in one call, so that they share what it reads
HOPELESS = 5.0  # a forced strategy that takes this many times as long as `auto` is left out


@dataclass(frozen=True)
class GateSettings:
    k: tuple[int, ...] = (10, 100, 1000)
    threads: int = 1
    seed: int = 0
    queries: int = 4000
    repeats: int = 5
    again: int = 2  # how often a failing cell is measured again
    budget: float = 0.1  # seconds per measurement
    limit: float = 1.0  # seconds after which a forced strategy is stopped and left out


class GateRow(TypedDict):
    cell: str
    data: str
    bits: int
    codes: int
    images: int
    k: int
    batch: str  # "whole" or "single"
    queries: int  # per measurement of ours
    us: dict[str, float]  # contender -> microseconds per query, the least of the repeats
    cpu_us: dict[str, float]  # the same by processor time, which waiting does not count in
    left_out: dict[str, str]  # contender -> why it was not measured
    to_flat: float | None  # time of Flat divided by that of auto
    best: str | None  # the fastest forced strategy
    auto_to_best: float | None  # time of auto divided by that of the fastest forced strategy
    recall: float | None  # of auto
    meets: bool
    doubts: list[str]


@dataclass
class Lane:
    """The measurements of one contender at one K and batch."""

    key: str
    k: int
    single: bool
    count: int = 0  # queries per measurement
    seconds: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)  # of the processor
    note: str = ""  # why it is left out

    @property
    def us(self) -> float | None:
        """Microseconds per query, the least of the repeats."""
        return 1e6 * min(self.seconds) / self.count if self.seconds and not self.note else None

    @property
    def cpu_us(self) -> float:
        return 1e6 * min(self.busy) / self.count


def row_of(cell: Cell, lanes: Sequence[Lane], recall: float | None, threads: int) -> GateRow:
    """What the lanes of one K and batch show. That of auto comes first."""
    auto = lanes[0]
    us = {lane.key: lane.us for lane in lanes if lane.us is not None}
    best = min((key for key in FORCED if key in us), key=us.__getitem__, default=None)
    to_flat = us["flat"] / us["auto"] if "auto" in us else None
    to_best = us["auto"] / us[best] if best and "auto" in us else None
    compared = [lane for lane in lanes if lane.key in ("auto", "flat", best) and lane.key in us]
    return {
        "cell": cell.name, "data": cell.kind, "bits": cell.bits, "codes": cell.n,
        "images": cell.images, "k": auto.k, "batch": "single" if auto.single else "whole",
        "queries": auto.count, "us": us,
        "cpu_us": {lane.key: lane.cpu_us for lane in lanes if lane.key in us},
        "left_out": {lane.key: lane.note for lane in lanes if lane.note},
        "to_flat": to_flat, "best": best, "auto_to_best": to_best, "recall": recall,
        "meets": (
            to_flat is not None and to_flat >= 1 and (to_best or 0) <= AUTO and recall == 1
        ),
        "doubts": [text for lane in compared for text in doubts(lane, threads)],
    }  # fmt: skip


def doubts(lane: Lane, threads: int) -> list[str]:
    """Signs that other work on the machine disturbed a lane."""
    out = []
    spread = max(lane.seconds) / min(lane.seconds)
    if spread > SPREAD:
        out.append(f"the repeats of {lane.key} differ by a factor of {spread:.1f}")
    share = sum(lane.busy) / sum(lane.seconds)
    if threads == 1 and share < STEADY:
        out.append(f"{lane.key} had the processor for {share:.0%} of its time")
    return out


class Ground:
    """One data set: its workers, and the lanes of every K and batch."""

    def __init__(self, cell: Cell, settings: GateSettings, folder: Path) -> None:
        self.cell, self.settings = cell, settings
        self.data = draw(cell, settings.queries, settings.seed)
        save(self.data, folder)
        run = Run(
            str(folder), settings.threads, most_codes=int(self.data.sizes.max())
        )  # fmt: skip
        self.workers = {key: Worker(kind, cell.bits, run) for key, kind in CONTENDERS.items()}
        self.recall: dict[tuple[int, bool], float] = {}
        self.places = [
            (k, single) for k in settings.k if k <= cell.images for single in (False, True)
        ]
        self.lanes = [Lane(key, *place) for place in self.places for key in CONTENDERS]
        self.rng = np.random.default_rng(settings.seed)

    def at(self, place: tuple[int, bool]) -> list[Lane]:
        return [lane for lane in self.lanes if (lane.k, lane.single) == place]

    def build(self) -> None:
        for key, worker in self.workers.items():
            try:
                worker.ask("build")
            except FailedError as error:
                if key == "flat":
                    raise SystemExit(f"the baseline, faiss Flat, is needed: {error}") from None
                self.leave_out(self.lanes[0], key, str(error))

    def leave_out(self, at: Lane, key: str, why: str) -> None:
        """Leaves out a contender from this K on, in both batches."""
        for lane in self.lanes:
            if lane.key == key and lane.k >= at.k and not lane.note:
                lane.note = why

    def time(self, lane: Lane, count: int, limit: float | None = None) -> tuple[float, float]:
        wall, busy = self.workers[lane.key].ask(
            "time", lane.k, 0, 0, count, lane.single, limit=limit
        )
        return wall, busy

    def grow(self, lane: Lane, fewest: int = 1) -> None:
        """Finds how many queries fit the budget; its times do not count."""
        most, budget = len(self.data.queries), self.settings.budget
        count, (seconds, _) = 1, self.time(lane, 1)
        while count < most and seconds < 0.3 * budget:
            count = min(most, count * 8)
            seconds, _ = self.time(lane, count)
        lane.count = max(min(most, fewest), queries_within(budget, seconds, count, most))

    def follow(self, lane: Lane, auto: Lane) -> None:
        """Gives a forced strategy the queries of auto, unless it is far slower."""
        count, limit = 1, self.settings.limit
        self.time(lane, 1, limit)
        while True:
            spent, _ = self.time(lane, count, limit)
            if spent > HOPELESS * (own := self.time(auto, count)[0]) and spent > 0.001:
                lane.note = f"takes {spent / own:.0f} times as long as auto"
                return
            if count == auto.count:
                lane.count = count
                return
            count = min(auto.count, count * 8)

    def warm_up(self) -> None:
        exact = self.workers["flat"].ask("ids", max(k for k, _ in self.places), 0, 0, JUDGED, False)
        judge = Judge(self.data.codes, self.data.images, self.data.queries, exact)
        for place in self.places:
            auto, flat, *forced = self.at(place)
            self.grow(flat, 1 if flat.single else FEWEST)
            if auto.note:
                continue
            self.grow(auto)
            self.workers["auto"].ask("settle")
            ids = self.workers["auto"].ask("ids", auto.k, 0, 0, JUDGED, auto.single)
            self.recall[place] = judge.recall(ids, auto.k)
            for lane in forced:
                self.try_forced(lane, auto)
        for worker in self.workers.values():
            if worker.alive:
                worker.ask("settle")

    def try_forced(self, lane: Lane, auto: Lane) -> None:
        if lane.note:
            return
        try:
            self.follow(lane, auto)
        except FailedError as error:
            self.leave_out(lane, lane.key, str(error))
            if any(other.key == lane.key and not other.note for other in self.lanes):
                self.workers[lane.key].start()
                self.workers[lane.key].ask("build")

    def measure(self, lanes: Sequence[Lane]) -> None:
        able = [lane for lane in lanes if lane.count and not lane.note]
        for _ in range(self.settings.repeats):
            for index in self.rng.permutation(len(able)):
                wall, busy = self.time(able[index], able[index].count)
                able[index].seconds.append(wall)
                able[index].busy.append(busy)

    def rows(self) -> list[GateRow]:
        threads = self.settings.threads
        return [
            row_of(self.cell, self.at(place), self.recall.get(place), threads)
            for place in self.places
        ]

    def run(self) -> list[GateRow]:
        self.build()
        self.warm_up()
        self.measure(self.lanes)
        for _ in range(self.settings.again):
            failing = [
                lane
                for place, row in zip(self.places, self.rows(), strict=True)
                for lane in ([] if row["meets"] else self.at(place))
            ]
            self.measure(failing)
        return self.rows()

    def stop(self) -> None:
        for worker in self.workers.values():
            if worker.alive:
                worker.stop()


HEAD = (
    f"{'codes':30}{'K':>5} {'batch':7}{'auto µs':>10}{'Flat µs':>10}{'x Flat':>9}  "
    f"{'best forced':12}{'µs':>10}{'auto ÷ it':>10}"
)


def line(row: GateRow) -> str:
    """A row of the table."""

    def number(value: float | None) -> str:
        return "-" if value is None else f"{value:,.1f}" if value >= 10 else f"{value:.2f}"

    us, best = row["us"], row["best"]
    marks = ("" if row["meets"] else "  FAILS") + ("  ?" if row["doubts"] else "")
    return (
        f"{row['cell']:30}{row['k']:>5} {row['batch']:7}{number(us.get('auto')):>10}"
        f"{number(us.get('flat')):>10}{number(row['to_flat']):>9}  {best or '-':12}"
        f"{number(us[best] if best else None):>10}{number(row['auto_to_best']):>10}{marks}"
    )


def grounds(n: int) -> list[Cell]:
    """Every kind of codes at every width."""
    return [Cell(n, bits, kind) for kind in KINDS for bits in WIDTHS]


def run_gate(cells: Iterable[Cell], settings: GateSettings, path: Path) -> bool:
    """Measures all cells, prints the table and writes the record; whether every cell passes."""
    before, rows = engine(), list[GateRow]()
    print(HEAD)
    for cell in cells:
        progress(f"{cell.name}: {cell.n:,} codes of {cell.images:,} images")
        with tempfile.TemporaryDirectory(prefix="mch-gate-") as folder:
            ground = Ground(cell, settings, Path(folder))
            try:
                found = ground.run()
            finally:
                ground.stop()
        print("\n".join(line(row) for row in found), flush=True)
        rows += found
    content: dict[str, Any] = record(asdict(settings), settings.seed, rows)
    rebuilt = ["the engine was rebuilt during the run"] if content["engine"] != before else []
    failed = [row for row in rows if not row["meets"]]
    content |= {"engine": before, "failed": len(failed), "doubts": rebuilt}
    print("\n".join(summary(rows) + [f"doubt: {text}" for text in rebuilt]))
    write_json(path, content)
    return not failed


def summary(rows: Sequence[GateRow]) -> list[str]:
    """The worst figures, then every cell that fails and why, then every doubt."""
    out = []
    slowest = min((r for r in rows if r["to_flat"]), key=lambda r: r["to_flat"] or 0, default=None)
    if slowest:
        out.append(f"least x Flat: {slowest['to_flat']:.2f} ({name(slowest)})")
    behind = [r for r in rows if r["auto_to_best"]]
    if behind:
        worst = max(behind, key=lambda r: r["auto_to_best"] or 0)
        out.append(f"largest auto ÷ best forced: {worst['auto_to_best']:.2f} ({name(worst)})")
    for row in rows:
        out += [f"FAILS  {name(row)}: {why}" for why in failures(row)]
    for row in rows:
        out += [f"doubt: {name(row)}: {'; '.join(row['doubts'])}"] if row["doubts"] else []
    failed = sum(not row["meets"] for row in rows)
    return [*out, f"{len(rows) - failed} of {len(rows)} cells pass"]


def name(row: GateRow) -> str:
    one = ", one query per call" if row["batch"] == "single" else ""
    return f"{row['cell']}, K={row['k']}{one}"


def by_processor(row: GateRow, one: str, other: str) -> str:
    """The ratio of two contenders by processor time, in brackets, if that can be divided by."""
    times = row["cpu_us"]
    return f" ({times[one] / times[other]:.2f} by processor time)" if times[other] else ""


def failures(row: GateRow) -> list[str]:
    """Why a cell fails; empty if it passes."""
    out = []
    if row["to_flat"] is None:
        out.append(f"auto was not measured: {row['left_out'].get('auto', 'no answer')}")
    elif row["to_flat"] < 1:
        cpu = by_processor(row, "flat", "auto")
        out.append(f"{row['to_flat']:.2f} times as fast as Flat{cpu}")
    if row["best"] and row["auto_to_best"] and row["auto_to_best"] > AUTO:
        cpu = by_processor(row, "auto", row["best"])
        out.append(f"auto takes {row['auto_to_best']:.2f} times as long as {row['best']}{cpu}")
    if row["recall"] is not None and row["recall"] < 1:
        out.append(f"recall {row['recall']:.4f}")
    return out
