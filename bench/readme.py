"""Writes the figures in README.md, docs/learning.md and docs/words.md, from bench/results/ and
docs/paper/.

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

from common import RESULTS, Cell
from measurements import Row
from paper.records import Record, from_json
from paper.report import render
from verdicts import RATIOS, ks, measured, winner

ROOT = Path(__file__).parents[1]
README, DOCS = ROOT / "README.md", ROOT / "docs" / "learning.md"
WORDS = ROOT / "docs" / "words.md"
REPORT = ROOT / "docs" / "paper" / "paper.json"
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


def short(figure: float, digits: int = 3) -> str:
    """A share without its leading zero."""
    return f"{figure:.{digits}f}".removeprefix("0")


def words_block() -> str:
    path = RESULTS / "words.json"
    if not path.exists():
        sys.exit(f"no {path}: run bench/word_search.py")
    data = json.loads(path.read_text("utf-8"))
    words, floats, share = data["words"], data["floats"], data["share"]
    general, pairs, regions = data["general"], data["pairs"], data["regions"]
    shown = [name for name in general if name not in ("words", "map", "p10")]
    few = ", ".join(f'"{name}" {short(general[name], 1)}' for name in shown)
    return f"""`python bench/word_search.py --data DIR`, with `{data["settings"]["model"]}` and
{data["settings"]["images"]:,} images that it was not trained on:

| COCO's 80 classes | mAP | P@10 |
|---|---|---|
| words on fine codes (192 bytes per image) | {short(words["map"])} | {short(words["p10"])} |
| classifiers learnt in the same way on the features (six times 1,280 floats) | {short(floats["map"])} | {short(floats["p10"])} |
| share | **{short(share["map"])}** | {short(share["p10"])} |

| general words | mAP | P@10 |
|---|---|---|
| {general["words"]} words above COCO's classes | {short(general["map"])} | {short(general["p10"])} |

P@10 of some: {few}.
An image counts as right if it has a label below the word. What COCO has no label for, such as a tomato for "food",
counts as wrong.

| two words, up to 200 pairs of classes | mAP | by the first word alone |
|---|---|---|
| "a, b": both | {short(pairs["both"])} | {short(pairs["both_by_first_word"])} |
| "a, -b": the first without the second | {short(pairs["without"])} | {short(pairs["without_by_first_word"])} |

**Where**: the data has no boxes, so whether a region contains the thing cannot be counted. Instead, the five parts of a
picture were cut out, encoded as pictures of their own, and judged by the classifiers on features. Of {regions["hits"]} right hits
that showed a part, that part was the most probable one of the five in {short(regions["shown_is_most_probable"], 2)} (chance: .20). The classifiers saw
the thing in {short(regions["shown_has_the_thing"], 2)} of the parts shown, and in {short(regions["any_has_the_thing"], 2)} of all parts. The judge shares its backbone with the
words, so this is evidence and no proof.
"""  # noqa: E501


BLOCKS: dict[Path, dict[str, Callable[[], str]]] = {
    README: {
        "figures": search_block,
        "learning": partial(paper_block, "learning.md.j2"),
        "beyond": partial(paper_block, "beyond-readme.md.j2"),
    },
    DOCS: {"beyond": partial(paper_block, "beyond-docs.md.j2")},
    WORDS: {"words": words_block},
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
