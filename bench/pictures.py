"""Draws the charts in docs/ from the committed records.

python bench/pictures.py           # draw them
python bench/pictures.py --check   # exit 1 if they differ from the records
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from charts import Line, Panel, Point, chart
from common import RESULTS

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs"
METHODS = {"ksh": "KSH", "hashnet": "HashNet", "adsh": "ADSH", "dch": "DCH", "mmhh": "MMHH"}
MOST = 10_000  # buckets
SPEED_NAMES = {
    "ours, best": ("mchindex, best", "right"),
    "ours, exhaustive": ("mchindex, every image", "below"),
    "ours, fine": ("mchindex, fine", "below"),
    "float cosine, flat": ("floats, flat", "above"),
    "faiss IVF-PQ nprobe=8": ("FAISS IVF-PQ, 8 lists", "above"),
    "faiss IVF-PQ nprobe=64": ("64 lists", "above"),
    "faiss HNSW efSearch=32": ("FAISS HNSW, 32", "below"),
    "faiss HNSW efSearch=128": ("128", "below"),
    "usearch expansion=64": ("usearch, 64", "right"),
    "usearch expansion=256": ("256", "above"),
    "faiss IndexBinaryFlat": ("one fine code, flat", "below"),
}


def by_label(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {row["label"]: row for row in rows}


def quality_by_bytes(answers: dict[str, Any]) -> str:
    quality, many = by_label(answers["quality"]), by_label(answers["speed"]["many"])
    own = by_label(answers["speed"]["own"])
    ours, one = many["ours, best"], many["faiss IndexBinaryFlat"]
    floats = own["float cosine, flat"]
    placed = [
        ("best", "mchindex, best", ours, True, "right"),
        ("float cosine, flat", "1,280 floats", floats, False, "left"),
        ("fine, one code per image", "one fine code", one, False, "right"),
    ]

    def panel(title: str, ticks: tuple[float, ...], value: Any) -> Panel:
        points = [
            Point(row["bytes_per_image"], value(quality[label]), name, is_ours, side)
            for label, name, row, is_ours, side in placed
        ]
        return Panel(title, (10, 100, 1000, 10000), ticks, "bytes per image", points)

    images = answers["settings"]["images"]
    return chart(
        "Quality against bytes",
        f"{images['indexed']:,} photographs, {images['queries']:,} queries; bytes per image of an "
        f"index of {answers['settings']['many']:,}. Up and to the left is better.",
        [
            panel(
                "Shares labels with the query (nDCG@10)",
                (0.44, 0.46, 0.48, 0.5),
                lambda row: row["ndcg"],
            ),
            panel(
                "A quadrant finds its picture first",
                (0.4, 0.5, 0.6, 0.7, 0.8),
                lambda row: row["copies"]["top-left quadrant"],
            ),
        ],
    )


def quality_by_time(answers: dict[str, Any]) -> str:
    rows = by_label(answers["speed"]["many"])
    points = [
        Point(rows[label]["cpu_qps"], rows[label]["ndcg"], name, rows[label]["ours"], side)
        for label, (name, side) in SPEED_NAMES.items()
        if label in rows and not rows[label]["note"]
    ]
    many = answers["settings"]["many"]
    return chart(
        "Quality against speed",
        f"{many:,} windows of photographs, one thread. Up and to the right is better.",
        [
            Panel(
                "Shares labels with the query (nDCG@10)",
                (10, 100, 1000, 10_000, 100_000),
                (0.42, 0.44, 0.46, 0.48),
                "queries per second",
                points,
            )
        ],
        height=440,
    )


def f1_by_buckets(paper: dict[str, Any]) -> str:
    rows = {row["method"]: row for row in paper["rows"] if row["bits"] == 32}
    panels = []
    for method, name in METHODS.items():
        one, several = (
            [(buckets, f1) for buckets, f1 in rows[method][kind]["f1_buckets"] if buckets <= MOST]
            for kind in ("base", "mch")
        )
        lines = [Line(one), Line(several, ours=True)]
        panels.append(
            Panel(name, (1, 100, MOST), (0, 0.2, 0.4, 0.6), "buckets visited", lines=lines)
        )
    return chart(
        "F1 against buckets visited",
        "32 bits, COCO. Solid: several codes per image (MCH). Dashed: one code per image.",
        panels,
        height=320,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check", action="store_true", help="change nothing, fail if a chart differs"
    )
    check = parser.parse_args().check
    answers = json.loads((RESULTS / "answers.json").read_text("utf-8"))
    paper = json.loads((FOLDER / "paper" / "paper.json").read_text("utf-8"))
    charts = {
        "quality-bytes.svg": quality_by_bytes(answers),
        "quality-time.svg": quality_by_time(answers),
        "f1-buckets.svg": f1_by_buckets(paper),
    }
    for name, text in charts.items():
        path = FOLDER / name
        if check and (not path.exists() or path.read_text("utf-8") != text):
            sys.exit(f"{path.name} differs from the records: run bench/pictures.py")
        if not check:
            path.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
