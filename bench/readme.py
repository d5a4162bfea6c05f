"""Writes the figures of README and docs from bench/results/ and the report in docs/paper.

So no number there is typed by hand.

python bench/readme.py           # rewrite the blocks
python bench/readme.py --check   # exit 1 if they are not what the results say
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from common import RESULTS, Cell
from measurements import Row
from verdicts import RATIOS, ks, measured, winner

ROOT = Path(__file__).parents[1]
README, DOCS = ROOT / "README.md", ROOT / "docs" / "learning.md"
REPORT = ROOT / "docs" / "paper" / "paper.json"
LEARNING = RESULTS / "learning-coco-crops-160.json"
LABELS = {"ksh": "KSH", "hashnet": "HashNet", "adsh": "ADSH", "dch": "DCH", "mmhh": "MMHH"}
NAMES = {
    Cell(): "clustered, 64 bits",
    Cell(bits=32): "clustered, 32 bits",
    Cell(bits=128): "clustered, 128 bits",
    Cell(bits=256): "clustered, 256 bits",
    Cell(data="uniform"): "uniform, 64 bits",
    Cell(n=10_000_000): "clustered, 64 bits, 10 million",
    Cell(codes_per_image=1.6): "clustered, 64 bits, 1.6 codes an image",
}
PICTURE = Cell()


def load(cell: Cell) -> dict[str, Any] | None:
    path = RESULTS / f"{cell.name}-1t.json"
    return json.loads(path.read_text()) if path.exists() else None


def ratio(rows: list[Row], k: int) -> str:
    """Ours over Flat, and in brackets over the fastest peer that finds what we find."""
    auto = next(r for r in measured(rows, k) if r["contender"] == "auto")
    peers = [r for r in rows if not r["ours"]]
    best = winner(peers, k)
    assert best is not None, "Flat is always there"
    rival = f" ({auto['qps'] / best['qps']:.1f})" if best["contender"] != "flat" else ""
    times = auto["to_flat"]
    return (f"{times:,.0f}" if times >= 100 else f"{times:.3g}") + rival


def learning_block() -> str:
    """What MCH brings to each base method at 32 bits."""
    data = json.loads(LEARNING.read_text())
    bits = data["paper"]["bits"].index(32)
    seeds = min(row["seeds"] for row in data["rows"])
    mean = f"mean of {seeds} seeds" if seeds > 1 else "one seed"
    lines = [
        f"At 32 bits, X → MCH-X, {mean}; in brackets the paper's figures (AlexNet",
        "fine-tuned on the whole of COCO). 2,000 queries, 18,000 images in the database, 8,000 of",
        "them for training; a frozen EfficientNet-Lite0 at 160 px, regions as crops:",
        "",
        "| X | R@H=0 | P@H=0 | mAP | F1 of the own bucket | codes an image |",
        "|---|---|---|---|---|---|",
    ]
    for row in data["rows"]:
        if row["bits"] != 32 or "mch" not in row:
            continue
        base, mch = row["base"], row["mch"]
        cells = []
        for name in ("r0", "p0", "map"):
            theirs = [v[bits] for v in data["paper"]["figures"][name][row["method"]]]
            cells.append(f"{base[name]:.3f} → {mch[name]:.3f} ({theirs[0]:.3f} → {theirs[1]:.3f})")
        cells.append(f"{base['f1_own']:.3f} → {mch['f1_own']:.3f}")
        lines.append(f"| {LABELS[row['method']]} | {' | '.join(cells)} | {mch['anhc']:.2f} |")
    gain = data["statements"]["R@H=0 ratio, geometric mean"]["value"]
    cells_in_all = data["statements"]["R@H=0 of MCH-X above X"]["cells"]
    lines += [
        "",
        f"Over all {cells_in_all} cells (16 to 64 bits) R@H=0 rises {gain:.2f} times,",
        "geometric mean.",
        "",
        f"![F1 by buckets visited](bench/results/{LEARNING.stem}-f1-32.png)",
        "",
        "`python bench/learning.py --data DIR` measures it again, on COCO or on other labelled",
        "images; [docs/learning.md](docs/learning.md) says how the codes are learnt.",
    ]
    return "\n".join(lines) + "\n"


def beyond() -> dict[str, Any]:
    if not REPORT.exists():
        sys.exit(f"no report in {REPORT.parent}: run bench/paper.py with --out there")
    found: dict[str, Any] = json.loads(REPORT.read_text())["beyond"]
    return found


def step_text(step: dict[str, Any]) -> str:
    return (
        f"F1 of the own bucket {step['f1_ratio']:.3f} times as high (mean of the cells' ratios "
        f"{step['f1_mean_ratio']:.2f}), mAP {step['map_change']:+.4f}"
    )


def beyond_line() -> str:
    """The best step in a sentence, for the README."""
    found = beyond()
    kept = [s for s in found["steps"] if s["kept"]]
    lines = ["Beyond the paper, no step gained anything."]
    if kept:
        best = max(kept, key=lambda s: s["f1_ratio"])
        cells = ", ".join(f"{LABELS[c['method']]}-{c['bits']}" for c in best["cells"])
        lines = [
            f"Beyond the paper, with as many codes an image, the best of {len(found['steps'])}",
            f"steps, by the same queries, is {best['name']}: {step_text(best)},",
            f"on the mean over {cells}.",
        ]
    lines += [
        found["unsupervised"]["verdict"],
        "[All steps](docs/learning.md#beyond-the-paper), and",
        "[the paper's experiments in full](docs/paper/paper.md), statement by statement.",
    ]
    return "\n".join(lines) + "\n"


def beyond_block() -> str:
    """Every step beyond the paper, and the cells of the ones that are kept."""
    found = beyond()
    lines = [
        "Each step is held to the number of codes that the paper's MCH has in the same cell, and",
        "is kept if F1 of the own bucket rises on the mean and mAP does not fall. The mean is over",
        "few cells and seeds: a change of less than a hundredth may be chance.",
        "",
        "| step | | F1 of the own bucket, times | mean of ratios | mAP | codes, off by at most |",
        "|---|---|---|---|---|---|",
    ]
    for s in found["steps"]:
        lines.append(
            f"| {s['name']} | {'kept' if s['kept'] else 'not kept'} | {s['f1_ratio']:.3f} | "
            f"{s['f1_mean_ratio']:.2f} | {s['map_change']:+.4f} | {s['anhc_off']:.3f} |"
        )
    for s in found["steps"]:
        if not s["kept"]:
            continue
        lines += ["", f"{s['name'].capitalize()}, cell by cell, MCH → with it:", ""]
        lines += [
            "| X | F1 of the own bucket | mAP | R@H=0 | codes an image |",
            "|---|---|---|---|---|",
        ]
        for c in s["cells"]:
            pairs = [f"{c['mch'][f]:.4f} → {c['step'][f]:.4f}" for f in ("f1_own", "map", "r0")]
            codes = f"{c['mch']['anhc']:.2f} → {c['step']['anhc']:.2f}"
            lines.append(f"| {LABELS[c['method']]}-{c['bits']} | {' | '.join(pairs)} | {codes} |")
    bare = found["unsupervised"]
    lines += ["", bare["statement"], ""]
    lines += ["| without labels | bits | mAP | R@H=0 | codes an image |", "|---|---|---|---|---|"]
    for c in bare["cells"]:
        lines.append(
            f"| {c['name']} | {c['bits']} | {c['map']:.4f} | {c['r0']:.4f} | {c['anhc']:.2f} |"
        )
    lines += ["", "`python bench/paper.py --data DIR --out report` measures it again."]
    return "\n".join(lines) + "\n"


def search_block() -> str:
    found = {cell: data for cell in RATIOS if (data := load(cell))}
    if not found:
        sys.exit(f"no results in {RESULTS}: run bench/search.py --suite")
    machine = next(iter(found.values()))["machine"]
    lines = [
        "How many times the queries a second of FAISS's `IndexBinaryFlat`, and in brackets how",
        "many times those of the fastest peer with a recall of at least 0.98, where that is",
        f"another. Ours is exact. One thread each, a million codes, {machine['cpu']},",
        f"faiss-cpu {machine['faiss-cpu']}, usearch {machine['usearch']}:",
        "",
        "| codes | K = 10 | K = 100 | K = 1000 | bytes a code | codes added a second |",
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
        f"![queries a second against recall](bench/results/{PICTURE.name}-1t.png)",
        "",
        "`make bench` measures it again; [bench/README.md](bench/README.md) says how to read it,",
        "and what is fair about it.",
    ]
    return "\n".join(lines) + "\n"


BLOCKS = {
    README: {"figures": search_block, "learning": learning_block, "beyond": beyond_line},
    DOCS: {"beyond": beyond_block},
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="change nothing, fail if it differs")
    check = parser.parse_args().check
    for path, blocks in BLOCKS.items():
        text = new = path.read_text()
        for name, block in blocks.items():
            begin, end = f"<!-- {name}:begin -->\n", f"<!-- {name}:end -->\n"
            head, rest = new.split(begin)
            new = head + begin + block() + end + rest.split(end)[1]
        if check and new != text:
            sys.exit(f"{path.name} does not say what the results say: run bench/readme.py")
        if not check:
            path.write_text(new)


if __name__ == "__main__":
    main()
