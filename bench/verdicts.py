"""What the rows of a search run show: who wins, which targets are met, and what casts doubt."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TypedDict, TypeGuard

from common import Cell
from measurements import Row, TimedRow

FORCED = ("probe", "substring", "scan")
GOOD = 0.98  # the recall at which a contender counts as answering the same question

# {K: at least this many times the QPS of IndexBinaryFlat, with one thread}
RATIOS = {
    Cell(): {10: 170, 100: 32, 1000: 11},
    Cell(bits=32): {10: 170, 100: 60, 1000: 14},
    Cell(data="uniform"): {10: 7, 100: 4, 1000: 4},
    Cell(n=10_000_000): {10: 850, 100: 35, 1000: 13},
    Cell(codes_per_image=1.6): {10: 72, 100: 14, 1000: 8},
    Cell(bits=128): {10: 30, 100: 8, 1000: 4},
    Cell(bits=256): {10: 15, 100: 5, 1000: 3},
}
# {K: at least this many times the QPS of the earlier commit that --against names}
BEFORE = {
    Cell(): {10: 1.3},
    Cell(bits=128): {10: 1.5},
    Cell(bits=256): {10: 1.8},
    Cell(data="uniform"): {10: 1.4, 100: 1.4, 1000: 1.4},
}
KEPT = 0.95  # the same in every other cell
PEER = {Cell(bits=256): 1.8}  # at least this many times the QPS of the best peer; elsewhere 1
AUTO = 1.25  # `auto` takes at most this many times as long as the best forced strategy
BUILD = 3e6  # codes added per second at 64 bits, at least
BYTES, BYTES_SUBSTRING = 24, 64  # per code at 64 bits, at most: without and with the index
SPREAD = 1.5  # repeats that differ by more than this factor cast doubt on a run
STEADY = 0.9  # so does a process that had the processor for a smaller share of its time


class Target(TypedDict):
    what: str
    value: float
    bound: float
    at_least: bool  # whether the bound is the smallest or the largest value allowed
    meets: bool
    timed: bool  # whether other work on the machine changes the value


def ks(rows: Iterable[Row]) -> list[int]:
    """Every K of a run, in ascending order."""
    return sorted({r["k"] for r in rows})


def is_timed(row: Row) -> TypeGuard[TimedRow]:
    return bool(row["qps"])


def measured(rows: Iterable[Row], k: int) -> list[TimedRow]:
    """The rows at this K that were measured with all queries in one call."""
    return [r for r in rows if is_timed(r) and r["k"] == k and r["batch"] == "whole"]


def is_auto(row: Row | TimedRow) -> bool:
    """Whether this is what a user gets by default: `auto`, all queries in one call."""
    return row["contender"] == "auto" and row["batch"] == "whole"


def fastest(rows: Iterable[TimedRow]) -> TimedRow | None:
    return max(rows, key=lambda r: r["qps"], default=None)


def winner(rows: Iterable[Row], k: int) -> TimedRow | None:
    """The fastest of the peers and `auto` whose recall is good, or None."""
    able = [r for r in measured(rows, k) if r["recall"] >= GOOD]
    return fastest(r for r in able if is_auto(r) or not r["ours"])


def check(what: str, value: float, bound: float, at_least: bool, timed: bool = True) -> Target:
    meets = value >= bound if at_least else value <= bound
    return {
        "what": what, "value": value, "bound": bound,
        "at_least": at_least, "meets": meets, "timed": timed,
    }  # fmt: skip


def target_lines(targets: Iterable[Target], doubted: bool) -> list[str]:
    """One line per target; in a doubted run, those that depend on time are marked as in doubt."""
    return [
        f"{'meets      ' if t['meets'] else 'FALLS SHORT'}  {t['what']}: {t['value']:,.4g} "
        f"(at {'least' if t['at_least'] else 'most'} {t['bound']:,.4g})"
        + (" - IN DOUBT, measure again" if doubted and t["timed"] else "")
        for t in targets
    ]


def targets(cell: Cell, threads: int, rows: list[Row]) -> list[Target]:
    """The targets that a run of this cell can meet or miss."""
    out = []
    for k in ks(rows):
        here = measured(rows, k)
        auto = next((r for r in here if is_auto(r)), None)
        if auto is None:
            continue
        out.append(check(f"K={k} recall of ours", auto["recall"], 1.0, True, timed=False))
        bound = RATIOS.get(cell, {}).get(k) if threads == 1 else None
        if bound:
            out.append(check(f"K={k} QPS ÷ IndexBinaryFlat", auto["to_flat"], bound, True))
        if best := fastest(r for r in here if r["recall"] >= GOOD and not r["ours"]):
            times = auto["qps"] / best["qps"]
            least = PEER.get(cell, 1.0)
            out.append(check(f"K={k} QPS ÷ best peer ({best['label']})", times, least, True))
        if best := fastest(r for r in here if r["ours"] and r["contender"] in FORCED):
            times = best["qps"] / auto["qps"]
            out.append(check(f"K={k} time of auto ÷ {best['label']}", times, AUTO, False))
        if gain := auto.get("to_before"):
            least = BEFORE.get(cell, {}).get(k, KEPT) if threads == 1 else KEPT
            out.append(check(f"K={k} QPS ÷ the earlier commit", gain, least, True))
    return out + (build_targets(rows) if cell.bits == 64 and cell.n >= 1_000_000 else [])


def build_targets(rows: Iterable[Row]) -> list[Target]:
    """How fast our table is built, and how large it is."""
    out = []
    builds = {r["contender"]: r for r in rows if r["ours"] and "bytes_a_code" in r}
    if auto := builds.get("auto"):
        out.append(check("build, codes/s", auto["build_codes_per_s"], BUILD, True))
    for key, bound, which in (("scan", BYTES, "without"), ("substring", BYTES_SUBSTRING, "with")):
        if key in builds:
            memory = builds[key]["bytes_a_code"]
            counted = max(m["counted"] for m in memory.values() if m["counted"] is not None)
            grown = memory["optimized"]["rss"]
            name = f"bytes per code {which} the substring index"
            out.append(check(f"{name}, memory()", counted, bound, False, timed=False))
            out.append(check(f"{name}, process growth", grown, bound, False, timed=False))
    return out


def doubts(rows: Iterable[Row], threads: int) -> list[str]:
    """Signs that other work on the machine disturbed the run, one sentence each."""
    timed = [r for r in rows if is_timed(r)]
    flat = [r for r in timed if r["contender"] == "flat" and r["batch"] == "whole"]
    out = _faster_at_larger_k({r["k"]: r["qps"] for r in flat})
    out += doubted_spread({f"{r['label']}, K={r['k']}": r["qps_all"] for r in timed})
    # Not every contender keeps several threads busy, but Flat does.
    steady = timed if threads == 1 else [r for r in timed if r["contender"] == "flat"]
    waited = [r for r in steady if r["cpu_share"] < STEADY * threads]
    if waited:
        share = min(r["cpu_share"] for r in waited) / threads
        out.append(
            f"{len(waited)} of {len(steady)} measurements had the processor for less than "
            f"{STEADY:.0%} of their time (at worst {share:.0%}): something else was running"
        )
    return out


def doubted_spread(repeats: Mapping[str, Sequence[float]]) -> list[str]:
    """A sentence about the measurements whose repeats differ too much, if there are any."""
    spread = {name: max(all_) / min(all_) for name, all_ in repeats.items()}
    wide = [name for name, x in spread.items() if x > SPREAD]
    if not wide:
        return []
    worst = max(wide, key=spread.__getitem__)
    return [
        f"the repeats of {len(wide)} of {len(repeats)} measurements differ by more than a "
        f"factor of {SPREAD}, at worst {spread[worst]:.1f} ({worst})"
    ]


def _faster_at_larger_k(qps: Mapping[int, float]) -> list[str]:
    """`qps` of faiss Flat by K, which can only fall as K grows."""
    return [
        f"faiss Flat is faster at K={large} than at K={small}: do not trust this run"
        for small, large in pairwise(sorted(qps))
        if qps[large] > 1.05 * qps[small]
    ]
