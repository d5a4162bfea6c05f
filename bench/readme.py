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
from textwrap import wrap
from typing import Any

from answer_blocks import (
    answers_block,
    demo_block,
    duplicates_block,
    quality_block,
    recipes_block,
    regions_block,
    tuning_block,
    words_block,
)
from billion_block import billion_block
from cluster_blocks import (
    added_block,
    billion_capacity_block,
    capacity_block,
    cluster_block,
    kills_block,
)
from common import RESULTS, Cell
from default_mode_block import default_mode_block
from measurements import Row
from paper.records import Record, from_json
from paper.report import render
from speed_blocks import precision_block, serve_block, size_block, speed_block, start_block
from verdicts import AUTO, RATIOS, is_auto, ks, measured, winner

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
WIDTH = 95  # of the README's lines


# Records of real codes, by the names of their files, which codes.py writes.
REAL = {
    "semantic-64": "COCO photographs, semantic, 64 bits",
    "semantic-64-million": "windows of COCO photographs, semantic, 64 bits",
    "fine-256": "COCO photographs, fine, 256 bits",
    "fine-256-million": "windows of COCO photographs, fine, 256 bits",
}
# Left out of the README as soon as there are real codes.
SYNTHETIC_ONLY = (Cell(bits=32), Cell(bits=128), Cell(codes_per_image=1.6))


def load(name: str) -> dict[str, Any] | None:
    """A record of bench/results, if it is there."""
    path = RESULTS / f"{name}.json"
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


def cells() -> dict[str, dict[str, Any]]:
    """What the table shows, by the words of its first column."""
    real = {
        f"{words}, {s['codes_per_image']:.1f} codes for each of {s['images']:,} images": data
        for name, words in REAL.items()
        if (data := load(f"{name}-1t")) and (s := data["settings"])
    }
    drawn = [cell for cell in RATIOS if not real or cell not in SYNTHETIC_ONLY]
    return real | {NAMES[cell]: data for cell in drawn if (data := load(f"{cell.name}-1t"))}


def size_of(row: Row) -> float:
    """Bytes per code, with all that was built while searching."""
    memory = row["bytes_a_code"]
    counted = memory.get("searched", memory["optimized"])["counted"]
    assert counted is not None, "our table counts its bytes"
    return counted


def gate_text(data: dict[str, Any]) -> str:
    """What the gate showed."""
    rows = data["rows"]
    widths, steps = ([row[key] for row in rows] for key in ("bits", "k"))
    least = min(row["to_flat"] for row in rows if row["to_flat"])
    return (
        "`python bench/search.py --gate` looks for codes on which ours is slow: "
        f"{len({row['data'] for row in rows})} kinds of codes, {min(widths)} to {max(widths)} "
        f"bits, K = {min(steps)} to {max(steps)}, all queries in one call and one query per call. "
        f"In {len(rows) - data['failed']} of {len(rows)} cells, `auto` is at least as fast as "
        f"`IndexBinaryFlat` and takes at most {AUTO} times as long as the best forced strategy. "
        f"The least ratio to Flat is {least:.2g}."
    )


def calls_text(data: dict[str, Any]) -> str:
    row = data["rows"][0]
    return (
        f"On a table of {data['settings']['n']} codes of {row['bits']} bits, a call with one query "
        f"takes {row['ours_us']:.1f} µs, and FAISS's takes {row['faiss_us']:.1f} µs "
        "(`python bench/calls.py`)."
    )


def building_text(data: dict[str, Any]) -> str:
    rows = data["rows"]
    speeds = [f"{r['codes_per_s'] / 1e6:.1f} for {r['n'] / 1e6:g} million codes" for r in rows]
    peak = max(row["peak_bytes_per_code"] for row in rows)
    return (
        f"Millions of codes added per second with {rows[0]['cores']} cores: "
        f"{', '.join(speeds)}. The peak is at most {peak:.0f} bytes per code beside the caller's "
        "arrays (`python bench/building.py`)."
    )


def search_block() -> str:
    found = cells()
    if not found:
        sys.exit(f"no results in {RESULTS}: run bench/search.py --suite")
    machine = next(iter(found.values()))["machine"]
    lines = [
        "Queries per second as a multiple of FAISS's `IndexBinaryFlat`. In brackets: as a multiple",
        "of the fastest peer with a recall of at least 0.98, if that is not Flat. Ours is exact.",
        "One thread each, a million codes unless a row says otherwise,",
        f"{machine['cpu']}, faiss-cpu {machine['faiss-cpu']}, usearch {machine['usearch']}:",
        "",
        "| codes | K = 10 | K = 100 | K = 1000 | bytes per code | codes added per second |",
        "|---|---|---|---|---|---|",
    ]
    for words, data in found.items():
        rows = data["rows"]
        auto = next(r for r in rows if is_auto(r))
        ratios = " | ".join(ratio(rows, k) for k in ks(rows))
        rate = f"{auto['build_codes_per_s'] / 1e6:.1f} million"
        lines.append(f"| {words} | {ratios} | {size_of(auto):.0f} | {rate} |")
    for name, text in (("gate", gate_text), ("calls", calls_text), ("building", building_text)):
        if record := load(name):
            lines += ["", *wrap(text(record), WIDTH, break_on_hyphens=False)]
    lines += [
        "",
        f"![queries per second against recall](../bench/results/{PICTURE.name}-1t.png)",
        "",
        "`python bench/search.py --all --codes FOLDER` measures this again; `bench/codes.py`",
        "writes codes of real images to the folder. [bench/README.md](../bench/README.md) explains",
        "how to read it, and what is fair about it.",
    ]
    return "\n".join(lines) + "\n"


BLOCKS: dict[Path, dict[str, Callable[[], str]]] = {
    README: {
        "answers": answers_block,
        "speed": speed_block,
    },
    FOLDER / "benchmarks.md": {
        "demo": demo_block,
        "figures": search_block,
        "learning": partial(paper_block, "learning.md.j2"),
        "beyond": partial(paper_block, "beyond-readme.md.j2"),
    },
    FOLDER / "learning.md": {
        "beyond": partial(paper_block, "beyond-docs.md.j2"),
        "default": default_mode_block,
        "recipes": recipes_block,
        "tuning": tuning_block,
    },
    FOLDER / "answers.md": {"answers": quality_block, "regions": regions_block},
    FOLDER / "billion.md": {"billion": billion_block},
    FOLDER / "cluster.md": {
        "cluster": cluster_block,
        "added": added_block,
        "kills": kills_block,
    },
    FOLDER / "scaling.md": {
        "capacity": capacity_block,
        "billion-capacity": billion_capacity_block,
    },
    FOLDER / "duplicates.md": {"duplicates": duplicates_block},
    FOLDER / "mchindex.md": {"precision": precision_block, "start": start_block},
    FOLDER / "operations.md": {"size": size_block},
    FOLDER / "questions.md": {"size": size_block},
    FOLDER / "serve.md": {"service": serve_block},
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
