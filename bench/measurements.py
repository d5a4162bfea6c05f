"""What a search run measures, and the rows of its JSON record that follow from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TypedDict

from contenders import Build, Contender, Memory


class BytesPerCode(TypedDict):
    rss: float  # growth of the process
    counted: float | None  # what the index itself reports


class BuildFigures(TypedDict, total=False):
    """Absent from the rows of a contender that could not be built."""

    build_codes_per_s: float
    optimize_s: float | None  # ours only
    bytes_a_code: dict[str, BytesPerCode]  # once "built", "optimized" and "searched"


class Compared(TypedDict, total=False):
    """Absent from the rows of a run without --against."""

    to_before: float | None  # qps divided by that of the earlier commit, same K and batch


class _Named(BuildFigures, Compared):
    contender: str
    label: str
    title: str
    knob: str
    setting: int
    ours: bool
    batch: str  # "whole": all queries in one call; "single": one query per call
    k: int
    queries: int  # per measurement
    qps_all: list[float]  # queries per second of each repeat
    note: str  # why there is no figure


class Row(_Named):
    """One contender with one setting at one K; None where it could not be measured."""

    qps: float | None  # queries per second, median of the repeats
    cpu_qps: float | None  # the same by processor time
    cpu_share: float | None  # processor time divided by time
    to_flat: float | None  # qps divided by that of faiss Flat, same K and batch
    recall: float | None


class TimedRow(_Named):
    """A row that has been measured."""

    qps: float
    cpu_qps: float
    cpu_share: float
    to_flat: float
    recall: float


@dataclass
class Point:
    """The measurements of one contender with one setting at one K."""

    key: str
    kind: type[Contender]
    setting: int
    k: int
    single: bool = False  # one query per call
    count: int = 0  # queries per measurement
    recall: float | None = None
    seconds: list[float] = field(default_factory=list)  # by the clock, one per repeat
    busy: list[float] = field(default_factory=list)  # of the processor, one per repeat
    note: str = ""  # why the point is left out

    def __str__(self) -> str:
        return f"{self.label}, K={self.k}"

    @property
    def label(self) -> str:
        one = ", one query per call" if self.single else ""
        return self.kind.label(self.setting) + one

    @property
    def rates(self) -> list[float]:
        """Queries per second of each repeat."""
        return [self.count / s for s in self.seconds]


def queries_within(budget: float, seconds: float, count: int, most: int) -> int:
    """How many queries fit the budget in seconds if `count` of them took `seconds`; 1 to `most`."""
    return max(1, min(most, round(budget / seconds * count)))


def to_rows(points: Sequence[Point], builds: Mapping[str, Build], codes: int) -> list[Row]:
    """One row per point. `codes` is the number of codes that were built.

    faiss Flat must have been measured at every K and in every batch that others were.
    """
    base = [p for p in points if p.key in ("flat", "before") and p.rates and not p.note]
    rates = {(p.key, p.k, p.single): median(p.rates) for p in base}
    return [_row(p, rates, builds.get(p.key), codes) for p in points]


def _row(
    point: Point, rates: Mapping[tuple[str, int, bool], float], build: Build | None, codes: int
) -> Row:
    place = point.k, point.single
    qps = median(point.rates) if point.rates and not point.note else None
    figures: BuildFigures = build_figures(build, codes) if build else {}
    before = rates.get(("before", *place))
    compared: Compared = {"to_before": qps / before} if qps and before else {}
    return {
        "contender": point.key,
        "label": point.label,
        "title": point.kind.title,
        "knob": point.kind.knob,
        "setting": point.setting,
        "ours": point.kind.ours,
        "batch": "single" if point.single else "whole",
        "k": point.k,
        "queries": point.count,
        "qps": qps,
        "qps_all": [round(x, 1) for x in point.rates],
        "cpu_qps": median(point.count / b for b in point.busy) if point.busy else None,
        "cpu_share": sum(point.busy) / sum(point.seconds) if point.busy else None,
        "to_flat": None if qps is None else qps / rates["flat", *place],
        "recall": point.recall,
        "note": point.note,
        **figures,
        **compared,
    }


def build_figures(build: Build, codes: int) -> BuildFigures:
    """Codes per second and bytes per code of one contender."""

    def per_code(memory: Memory) -> BytesPerCode:
        counted = None if memory.counted is None else memory.counted / codes
        return {"rss": memory.rss / codes, "counted": counted}

    memory = {"built": build.built, "optimized": build.optimized, "searched": build.searched}
    return {
        "build_codes_per_s": codes / build.build_s,
        "optimize_s": build.optimize_s,
        "bytes_a_code": {when: per_code(m) for when, m in memory.items() if m is not None},
    }
