"""Writes the figures in README.md and docs/, from bench/results/ and docs/paper/.

python bench/readme.py           # rewrite the blocks
python bench/readme.py --check   # exit 1 if they differ from the results
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from answer_blocks import (
    answers_block,
    demo_block,
    duplicates_block,
    quality_block,
    recipes_block,
    regions_block,
    words_block,
)
from common import RESULTS, Cell
from measurements import Row
from paper.records import Record, from_json
from paper.report import render
from verdicts import RATIOS, ks, measured, winner

ROOT = Path(__file__).parents[1]
README, FOLDER = ROOT / "README.md", ROOT / "docs"
REPORT = FOLDER / "paper" / "paper.json"
NAMES = {
    Cell(): "clustered, 64 bits",
    Cell(bits=32): "clustered, 32 bits",
    Cell(bits=128): "clustered, 128 bits",
    Cell(bits=256): "clustered, 256 bits",
    Cell(data="uniform"): "uniform, 64 bits",
    Cell(n=10_000_000): "clustered, 64 bits, 10 million",
    Cell(codes_per_image=1.6): "clustered, 64 bits, 1.6 codes per image",
}
PICTURE = Cell()


def load(cell: Cell) -> dict[str, Any] | None:
    path = RESULTS / f"{cell.name}-1t.json"
    return json.loads(path.read_text()) if path.exists() else None


def ratio(rows: list[Row], k: int) -> str:
    """Our speed over Flat's, and in brackets over that of the fastest peer with enough recall."""
    auto = next(r for r in measured(rows, k) if r["contender"] == "auto")
    peers = [r for r in rows if not r["ours"]]
    best = winner(peers, k)
    assert best is not None, "Flat always runs"
    rival = f" ({auto['qps'] / best['qps']:.1f})" if best["contender"] != "flat" else ""
    times = auto["to_flat"]
    return (f"{times:,.0f}" if times >= 100 else f"{times:.3g}") + rival


def paper_block(template: str) -> str:
    """What a template of bench/paper/report makes of the committed report."""
    if not REPORT.exists():
        sys.exit(f"no report in {REPORT.parent}: run bench/paper with --out {REPORT.parent}")
    return render(template, from_json(Record, json.loads(REPORT.read_text("utf-8"))))


def search_block() -> str:
    found = {cell: data for cell in RATIOS if (data := load(cell))}
    if not found:
        sys.exit(f"no results in {RESULTS}: run bench/search.py --suite")
    machine = next(iter(found.values()))["machine"]
    lines = [
        "Queries per second as a multiple of FAISS's `IndexBinaryFlat`. In brackets: as a multiple",
        "of the fastest peer with a recall of at least 0.98, if that is not Flat. Ours is exact.",
        f"One thread each, a million codes, {machine['cpu']},",
        f"faiss-cpu {machine['faiss-cpu']}, usearch {machine['usearch']}:",
        "",
        "| codes | K = 10 | K = 100 | K = 1000 | bytes per code | codes added per second |",
        "|---|---|---|---|---|---|",
    ]
    for cell, data in found.items():
        rows = data["rows"]
        auto = next(r for r in rows if r["contender"] == "auto")
        size = auto["bytes_a_code"]["built"]["counted"]
        ratios = " | ".join(ratio(rows, k) for k in ks(rows))
        rate = f"{auto['build_codes_per_s'] / 1e6:.1f} million"
        lines.append(f"| {NAMES[cell]} | {ratios} | {size:.0f} | {rate} |")
    lines += [
        "",
        f"![queries per second against recall](bench/results/{PICTURE.name}-1t.png)",
        "",
        "`make bench` measures this again. [bench/README.md](bench/README.md) explains how to read",
        "it, and what is fair about it.",
    ]
    return "\n".join(lines) + "\n"


BLOCKS: dict[Path, dict[str, Callable[[], str]]] = {
    README: {
        "demo": demo_block,
        "answers": answers_block,
        "figures": search_block,
        "learning": partial(paper_block, "learning.md.j2"),
        "beyond": partial(paper_block, "beyond-readme.md.j2"),
    },
    FOLDER / "learning.md": {
        "beyond": partial(paper_block, "beyond-docs.md.j2"),
        "recipes": recipes_block,
    },
    FOLDER / "answers.md": {"answers": quality_block, "regions": regions_block},
    FOLDER / "duplicates.md": {"duplicates": duplicates_block},
    FOLDER / "words.md": {"words": words_block},
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check", action="store_true", help="change nothing, fail if a block differs"
    )
    check = parser.parse_args().check
    for path, blocks in BLOCKS.items():
        text = new = path.read_text()
        for name, block in blocks.items():
            begin, end = f"<!-- {name}:begin -->\n", f"<!-- {name}:end -->\n"
            head, rest = new.split(begin)
            new = head + begin + block() + end + rest.split(end)[1]
        if check and new != text:
            sys.exit(f"{path.name} differs from the results: run bench/readme.py")
        if not check:
            path.write_text(new)


if __name__ == "__main__":
    main()
