"""What a run says: the table, the winners, the doubts, and the targets met or missed."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from common import Cell

Row = dict[str, Any]
GOOD = 0.98  # recall from which a contender counts as an answer to the same question

# QPS of ours divided by QPS of IndexBinaryFlat, one thread, at least: {K: ratio}
RATIOS = {
    Cell(): {10: 170, 100: 32, 1000: 11},
    Cell(bits=32): {10: 170, 100: 60, 1000: 14},
    Cell(data="uniform"): {10: 7, 100: 4, 1000: 4},
    Cell(n=10_000_000): {10: 850, 100: 35, 1000: 13},
    Cell(codes_per_image=1.6): {10: 72, 100: 14, 1000: 8},
    Cell(bits=128): {10: 30, 100: 8, 1000: 4},
    Cell(bits=256): {10: 15, 100: 5, 1000: 3},
}
AUTO = 1.25  # auto is at most this much slower than the best forced strategy
BUILD = 3e6  # codes a second at 64 bits, at least
SPREAD = 1.5  # between repeats, above which a run is doubted
BYTES, BYTES_SUBSTRING = 24, 64  # a code at 64 bits, at most: without and with the index


def measured(rows: Iterable[Row], k: int) -> list[Row]:
    return [r for r in rows if r["k"] == k and r["qps"] and r["batch"] == "whole"]


def is_auto(row: Row) -> bool:
    return bool(row["contender"] == "auto" and row["batch"] == "whole")


def winner(rows: list[Row], k: int) -> Row | None:
    """The fastest with good recall among the peers and `auto`, which is what a user calls."""
    able = [r for r in measured(rows, k) if r["recall"] >= GOOD and (is_auto(r) or not r["ours"])]
    return max(able, key=lambda r: float(r["qps"]), default=None)


def ks(rows: list[Row]) -> list[int]:
    return sorted({r["k"] for r in rows})


def check(
    what: str, value: float, bound: float, at_least: bool, timed: bool = True
) -> dict[str, Any]:
    """`timed`: the value depends on how quiet the machine was."""
    meets = value >= bound if at_least else value <= bound
    found = {"what": what, "value": value, "bound": bound}
    return found | {"at_least": at_least, "meets": meets, "timed": timed}


def target_lines(checks: list[dict[str, Any]], doubted: bool) -> list[str]:
    """One line a target. In a doubted run a time proves nothing, met or missed, and says so."""
    return [
        f"{'meets      ' if c['meets'] else 'FALLS SHORT'}  {c['what']}: {c['value']:,.4g} "
        f"(at {'least' if c['at_least'] else 'most'} {c['bound']:,.4g})"
        + (" - IN DOUBT, measure again" if doubted and c["timed"] else "")
        for c in checks
    ]


def targets(cell: Cell, threads: int, rows: list[Row]) -> list[dict[str, Any]]:
    """The targets that this cell can speak about."""
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
        able = [r for r in here if r["recall"] >= GOOD and not r["ours"]]
        if able:
            best = max(able, key=lambda r: float(r["qps"]))
            times = auto["qps"] / best["qps"]
            out.append(check(f"K={k} QPS ÷ best peer ({best['label']})", times, 1.0, True))
        forced = [r for r in here if r["ours"] and not is_auto(r)]
        if forced:
            best = max(forced, key=lambda r: float(r["qps"]))
            times = best["qps"] / auto["qps"]
            out.append(check(f"K={k} time of auto ÷ {best['label']}", times, AUTO, False))
    return out + (memory_targets(rows) if cell.bits == 64 and cell.n >= 1_000_000 else [])


def memory_targets(rows: list[Row]) -> list[dict[str, Any]]:
    out = []
    builds = {r["contender"]: r for r in rows if r["ours"] and "bytes_a_code" in r}
    if auto := builds.get("auto"):
        out.append(check("build, codes/s", auto["build_codes_per_s"], BUILD, True))
    for key, bound in (("scan", BYTES), ("auto", BYTES_SUBSTRING)):
        if key in builds:
            found = builds[key]["bytes_a_code"]
            which = "without" if key == "scan" else "with"
            name = f"bytes a code {which} the substring index"
            counted = max(when["counted"] for when in found.values())
            out.append(check(f"{name}, memory()", counted, bound, False, timed=False))
            out.append(
                check(
                    f"{name}, process growth", found["optimized"]["rss"], bound, False, timed=False
                )
            )
    return out


def doubts(rows: list[Row], threads: int) -> list[str]:
    """Signs that the machine was not quiet."""
    out = []
    flat = {r["k"]: r["qps"] for r in rows if r["contender"] == "flat" and r["qps"]}
    for small, large in pairwise(sorted(flat)):
        if flat[large] > 1.05 * flat[small]:
            out.append(f"faiss Flat is faster at K={large} than at K={small}: distrust this run")
    timed = [r for r in rows if r["qps"]]
    spread = {f"{r['label']}, K={r['k']}": max(r["qps_all"]) / min(r["qps_all"]) for r in timed}
    wide = [name for name, x in spread.items() if x > SPREAD]
    if wide:
        worst = max(wide, key=spread.__getitem__)
        out.append(
            f"the repeats of {len(wide)} of {len(timed)} measurements differ by more than a "
            f"factor {SPREAD}, at worst {spread[worst]:.1f} ({worst})"
        )
    # Not every contender keeps several threads busy, but Flat does.
    steady = timed if threads == 1 else [r for r in timed if r["contender"] == "flat"]
    waited = [r for r in steady if r["cpu_share"] < 0.9 * threads]
    if waited:
        share = min(r["cpu_share"] for r in waited) / threads
        out.append(
            f"{len(waited)} of {len(steady)} measurements had the processor for less than 90 % of "
            f"their time (at worst {share:.0%}): something else was running"
        )
    return out


def number(value: float | None, digits: int = 3) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.{digits}g}"


def table(content: dict[str, Any]) -> str:
    """The whole run, one line a contender and setting."""
    s, rows = content["settings"], content["rows"]
    steps = ks(rows)
    best = {k: winner(rows, k) for k in steps}
    lines = [
        f"\n{s['cell']}: {s['n']:,} codes of {s['images']:,} images, {s['threads']} thread(s), "
        f"median of {s['repeats']}, {content['machine']['cpu']}",
        f"{'':30}" + "".join(f"|{f'K = {k}':^29}" for k in steps) + "|   bytes a code |    build",
        f"{'':30}"
        + "".join(f"|{'QPS':>11} {'x Flat':>8} {'recall':>7} " for _ in steps)
        + "|  own |  process | codes/s",
    ]
    notes = []
    for label in dict.fromkeys(r["label"] for r in rows):
        mine = {r["k"]: r for r in rows if r["label"] == label}
        line = f"{label:30}"
        for k in steps:
            r = mine[k]
            star = "*" if r is best[k] else " "
            recall = "-" if r["recall"] is None else f"{r['recall']:.4f}"
            line += f"|{number(r['qps']):>10}{star} {number(r['to_flat']):>8} {recall:>7} "
        said = {
            r["note"]: [o["k"] for o in mine.values() if o["note"] == r["note"]]
            for r in mine.values()
        }
        notes += [f"{label}, K={', '.join(map(str, at))}: {t}" for t, at in said.items() if t]
        one = mine[steps[0]]
        memory = one.get("bytes_a_code", {}).get("optimized", {})
        line += f"|{number(memory.get('counted')):>5} |{number(memory.get('rss')):>9} "
        lines.append(line + f"|{number(one.get('build_codes_per_s')):>11}")
    lines.append(f"* fastest of the peers and `ours auto` with recall ≥ {GOOD}")
    for k in steps:
        win = best[k]
        if win and not win["ours"]:
            lines.append(f"K={k}: a peer wins: {win['label']}, {win['qps']:,.0f} QPS")
    auto = next((r for r in rows if is_auto(r) and r.get("optimize_s") is not None), None)
    if auto:
        built = auto["bytes_a_code"]["built"]
        lines.append(
            f"ours auto: optimize(substring=True) took {auto['optimize_s']:.2f} s; before it "
            f"{number(built['counted'])} bytes a code (process {number(built['rss'])})"
        )
    lines += notes
    lines += [f"doubt: {text}" for text in content["doubts"]]
    return "\n".join(lines)
