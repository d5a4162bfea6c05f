"""Plots: written by suffix, the same each time, with a base and its MCH told apart."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mchindex.evaluation import plot_cells, plot_f1_buckets, plot_learning_curve
from mchindex.evaluation.plots import _line

pytest.importorskip("matplotlib")

CURVES = {
    "DCH": [[1, 0.2], [10, 0.3], [1e9, 0.1]],
    "MCH-DCH": [[1, 0.3, 1], [10, 0.4, 2], [1e9, 0.1, 3]],
    "ITQ": [[1, 0.1]],
}
ROWS = [
    {"step": 0, "train_reward": -0.1, "kept": 0.5, "validation_reward": 0.0},
    {"step": 1, "train_reward": 0.2, "kept": 0.4},
    {"step": 2, "train_reward": 0.3, "kept": 0.3, "validation_reward": 0.2},
]
CELLS = {
    "DCH": {16: 0.5, 32: 0.6},
    "MCH-DCH": {16: 0.6, 32: 0.7, 64: 0.7},
    "ITQ": {32: 0.3},
    "MCH-KSH": {16: 0.4},
    "LSH": {16: 0.1, 64: 0.1},
    "MMHH": {16: 0.6},
}

DRAW: list[Callable[[Path], None]] = [
    lambda path: plot_f1_buckets(CURVES, path, title="64 bits"),
    lambda path: plot_learning_curve(ROWS, path),
    lambda path: plot_learning_curve(ROWS[:1], path),
    lambda path: plot_learning_curve([{"step": 1}], path),
    lambda path: plot_cells(CELLS, path, "mAP", "MS-COCO"),
    lambda path: plot_cells({"DCH": {16: 0.5}}, path, "mAP", "one point"),
]


@pytest.mark.parametrize("draw", DRAW)
def test_written_by_suffix(draw: Callable[[Path], None], tmp_path: Path) -> None:
    png, svg, again = tmp_path / "new" / "a.png", tmp_path / "a.svg", tmp_path / "b.SVG"
    for path in (png, svg, again):
        draw(path)
    assert png.read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in svg.read_bytes()
    assert svg.read_bytes() == again.read_bytes()
    with pytest.raises(ValueError, match=r"\.svg or \.png, not 'a\.pdf'"):
        draw(tmp_path / "a.pdf")


def test_base_is_dashed_and_mch_solid_in_one_colour() -> None:
    base, multiple, other = (_line(name, CURVES) for name in CURVES)
    assert base["color"] == multiple["color"] != other["color"]
    assert multiple["linestyle"] == "-" != base["linestyle"] == other["linestyle"]
    alone: dict[str, Any] = {"ITQ": [], "DCH": []}
    assert _line("ITQ", alone)["linestyle"] == "-"  # nothing to be told from


def test_nothing_to_draw(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    with pytest.raises(ValueError, match=r"curves must have points .* it is empty"):
        plot_f1_buckets({}, path)
    with pytest.raises(ValueError, match=r"values must have points .*'DCH'"):
        plot_cells({"DCH": {}}, path, "mAP", "")
    with pytest.raises(ValueError, match="'step'"):
        plot_learning_curve([], path)
    assert not path.exists()
