"""A search run as a table of text."""

from __future__ import annotations

from typing import Any

from measurements import Row
from verdicts import GOOD, is_auto, ks, winner


def number(value: float | None, digits: int = 3) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.{digits}g}"


def table(content: dict[str, Any]) -> str:
    """The record of a run, one line per contender and setting."""
    s = content["settings"]
    rows: list[Row] = content["rows"]
    steps = ks(rows)
    best = {k: winner(rows, k) for k in steps}
    lines = [
        f"\n{s['cell']}: {s['n']:,} codes of {s['images']:,} images, {s['threads']} thread(s), "
        f"median of {s['repeats']}, {content['machine']['cpu']}",
        f"{'':32}" + "".join(f"|{f'K = {k}':^29}" for k in steps) + "| bytes per code |    build",
        f"{'':32}"
        + "".join(f"|{'QPS':>11} {'x Flat':>8} {'recall':>7} " for _ in steps)
        + "|  own |  process | codes/s",
    ]
    notes = []
    for label in dict.fromkeys(r["label"] for r in rows):
        mine = {r["k"]: r for r in rows if r["label"] == label}
        line = f"{label:32}"
        for k in steps:
            r = mine[k]
            star = "*" if r is best[k] else " "
            recall = "-" if r["recall"] is None else f"{r['recall']:.4f}"
            line += f"|{number(r['qps']):>10}{star} {number(r['to_flat']):>8} {recall:>7} "
        one = mine[steps[0]]
        memory = one.get("bytes_a_code", {}).get("optimized")
        counted, grown = (memory["counted"], memory["rss"]) if memory else (None, None)
        line += f"|{number(counted):>5} |{number(grown):>9} "
        lines.append(line + f"|{number(one.get('build_codes_per_s')):>11}")
        notes += _notes(label, list(mine.values()))
    lines.append(f"* fastest of the peers and `ours auto` with recall ≥ {GOOD}")
    for k, win in best.items():
        if win and not win["ours"]:
            lines.append(f"K={k}: a peer wins: {win['label']}, {win['qps']:,.0f} QPS")
    auto = next((r for r in rows if is_auto(r) and r.get("optimize_s") is not None), None)
    if auto:
        built = auto["bytes_a_code"]["built"]
        lines.append(
            f"ours auto: optimize() took {auto['optimize_s']:.2f} s; before it, "
            f"{number(built['counted'])} bytes per code (process {number(built['rss'])})"
        )
    if s.get("against"):
        lines.append(f"ours before: auto at commit {s['against'][:12]}")
        lines += [
            f"K={r['k']}: {r['to_before']:.2f} times the queries per second of ours before"
            for r in rows
            if is_auto(r) and r.get("to_before")
        ]
    lines += notes
    lines += [f"doubt: {text}" for text in content["doubts"]]
    return "\n".join(lines)


def _notes(label: str, rows: list[Row]) -> list[str]:
    """Why figures are missing, each reason once with the Ks it applies to."""
    reasons: dict[str, list[int]] = {}
    for row in rows:
        if row["note"]:
            reasons.setdefault(row["note"], []).append(row["k"])
    return [f"{label}, K={', '.join(map(str, at))}: {text}" for text, at in reasons.items()]
