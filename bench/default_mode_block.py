"""What docs/learning.md says about the default mode, from the record of default_mode.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from answer_blocks import lines_of, paragraph, read_record, short

NAMES = {"dch": "DCH", "hashnet": "HashNet", "adsh": "ADSH", "mmhh": "MMHH", "ksh": "KSH"}
SLACK = 0.005  # by which precision may fall
FEW = 1.1  # codes per image
PARTS = 1.3  # times as many quadrants that find their picture

Cell = dict[str, dict[str, float]]  # way -> figure -> mean over the seeds


def cells(rows: list[dict[str, Any]]) -> dict[tuple[str, int], tuple[Cell, int]]:
    """The means of each cell, and how many seeds it has."""
    out = {}
    for key in sorted({(row["method"], row["bits"]) for row in rows}, key=_order):
        found = [row for row in rows if (row["method"], row["bits"]) == key]
        means = {
            way: {name: float(np.mean([r[way][name] for r in found])) for name in found[0][way]}
            for way in ("base", "mch", "random_keep")
        }
        out[key] = means, len(found)
    return out


def _order(key: tuple[str, int]) -> tuple[int, int]:
    return list(NAMES).index(key[0]), key[1]


def above(name: str) -> Callable[[Cell], bool]:
    """Whether MCH is above one code per image and above random keeping."""
    return lambda c: c["mch"][name] > max(c["base"][name], c["random_keep"][name])


CLAIMS: dict[str, Callable[[Cell], bool]] = {
    "mAP is above both one code per image and random keeping": above("map"),
    "recall in the query's bucket (R@H=0) is": above("r0"),
    "F1 there is": above("f1_own"),
    f"precision there is at most {SLACK} below that of one code": lambda c: (
        c["mch"]["p0"] >= c["base"]["p0"] - SLACK
    ),
    f"images have at least {FEW} codes": lambda c: c["mch"]["anhc"] >= FEW,
    f"a quadrant finds its picture at least {PARTS} times as often": lambda c: (
        c["mch"]["quadrant_in_ten"] >= PARTS * c["base"]["quadrant_in_ten"]
    ),
}


def default_mode_block() -> str:
    content = read_record("default_mode.json", "bench/default_mode.py")
    settings, found = content["settings"], cells(content["rows"])
    table = []
    for (method, bits), (c, seeds) in found.items():
        base, mch, chance = c["base"], c["mch"], c["random_keep"]
        shown = [
            f"{short(base[name], 4)} → {short(mch[name], 4)} ({short(chance[name], 4)})"
            for name in ("map", "r0", "f1_own", "p0")
        ]
        part = f"{short(base['quadrant_in_ten'])} → {short(mch['quadrant_in_ten'])}"
        table.append([f"{NAMES[method]}-{bits}", str(seeds), *shown, f"{mch['anhc']:.2f}", part])
    head = ["X", "seeds", "mAP", "R@H=0", "F1", "P@H=0", "codes per image", "quadrant in ten"]
    lines = [
        paragraph(
            f"`python bench/default_mode.py --data DIR`: {settings['train']:,} training images at",
            f"{settings['size']} px, {settings['queries']:,} queries against",
            f"{settings['database']:,} images. X → MCH-X, and in brackets as many codes of random",
            "regions. The last column says how often the top-left quadrant of one of",
            f"{settings['parts']:,} images finds that image among the first ten, by semantic codes",
            "alone.",
        ),
        "",
        *lines_of(head, table),
        "",
        f"Of these {len(found)} cells:",
        "",
    ]
    for claim, holds in CLAIMS.items():
        names = {key: f"{NAMES[key[0]]}-{key[1]}" for key in found}
        met = [names[key] for key, (c, _) in found.items() if holds(c)]
        missed = [name for name in names.values() if name not in met]
        words = f"in all but {', '.join(missed)}" if missed else "in all"
        if len(met) < len(missed):
            words = f"in {', '.join(met)} only" if met else "in none"
        lines.append(f"- {claim}: {words}.")
    return "\n".join(lines) + "\n"
