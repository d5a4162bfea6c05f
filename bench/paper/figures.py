"""The paper's own figures, read from figures.toml, and the names of the methods."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

UNSUPERVISED = ("lsh", "itq", "pca")
SUPERVISED = ("ksh", "hashnet", "adsh", "dch", "mmhh")
LABELS = {
    "lsh": "LSH", "itq": "ITQ", "pca": "PCA+rotation",
    "ksh": "KSH", "hashnet": "HashNet", "adsh": "ADSH", "dch": "DCH", "mmhh": "MMHH",
}  # fmt: skip
_ALL: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
DATASETS: dict[str, Any] = _ALL["datasets"]
BITS: list[int] = _ALL["bits"]
SETUP: str = _ALL["setup"]
CLASS_QUERIES: dict[str, int] = _ALL["classes"]
ANHC_XI: list[float] = _ALL["anhc"]["xi"]


def guess(name: str, classes: list[str]) -> str:
    """Which of the paper's data sets this is, by its name or its classes, or "none"."""
    plain = "".join(c for c in name.lower() if c not in "-_ ")
    coco = len(classes) == 80 and {"airplane", "hot dog", "toothbrush"} <= set(classes)
    return next((key for key in DATASETS if key in plain), "coco" if coco else "none")


def theirs(paper: str, figure: str, method: str, bits: int) -> tuple[float, float | None] | None:
    """The paper's figure for X and for MCH-X, or None where it prints none."""
    values = DATASETS.get(paper, {}).get(figure, {}).get(method)
    if values is None or bits not in BITS:
        return None
    at = BITS.index(bits)
    return values[0][at], values[1][at] if len(values) > 1 else None


def every_pair(figure: str) -> Iterator[tuple[str, float, float]]:
    """The cell's name, X and MCH-X for every pair that the paper prints."""
    for dataset, figures in DATASETS.items():
        for method in SUPERVISED:
            for bits, x, mch in zip(BITS, *figures[figure][method], strict=True):
                yield f"{dataset} {LABELS[method]}-{bits}", x, mch


def codes_per_image(sigma: str, xi: str) -> float | None:
    """The paper's ANHC of MCH-DCH with 32 bits on MS-COCO, or None where it prints none."""
    values = _ALL["anhc"]["sigma"].get(sigma)
    return values[ANHC_XI.index(float(xi))] if values and float(xi) in ANHC_XI else None
