"""bench/default_mode.py: how often a part finds its picture, and what the docs say."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import answer_blocks
import default_mode
from default_mode_block import cells, default_mode_block
from mchindex.inference.region_codes import Encoded

WAYS = ("base", "mch", "random_keep")


def encoded(codes: list[int], images: list[int]) -> Encoded:
    n = max(images) + 1
    return Encoded(
        np.array(codes, np.uint8)[:, None],
        np.array(images, np.int64),
        np.zeros(len(codes), np.int16),
        np.ones((n, 1), np.float32),
        np.ones(n, np.int64),
    )


def test_a_part_finds_its_picture_by_its_nearest_code_and_ties_are_shared() -> None:
    part = np.array([[0b0000_0001]], np.uint8)
    far = 0b1111_0000
    # Eight images are nearer than four that tie, of which two are among the first ten.
    database = encoded([1] * 8 + [far, 0, 0, 0, 0], [*range(8), 8, 8, 9, 10, 11])
    for own, chance in ((0, 1.0), (8, 2 / 4), (11, 2 / 4)):
        got = default_mode.found_in_ten(part, database, np.array([own]), 12)
        assert got == pytest.approx(chance)
    last = encoded([1] * 10 + [far], [*range(11)])
    assert default_mode.found_in_ten(part, last, np.array([10]), 11) == 0


def row(method: str, seed: int, gain: float) -> dict[str, Any]:
    names = (*default_mode.FIGURES, "quadrant_in_ten")
    base = dict.fromkeys(names, 0.5)
    return {"method": method, "bits": 32, "seed": seed} | {
        way: base | ({"map": 0.5 + gain, "anhc": 1.2} if way == "mch" else {"anhc": 1.0})
        for way in WAYS
    }


def test_what_the_docs_say_is_what_the_record_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [row("hashnet", 0, 0.2), row("hashnet", 1, 0.1), row("dch", 0, -0.1)]
    assert {key: seeds for key, (_, seeds) in cells(rows).items()} == {
        ("dch", 32): 1,
        ("hashnet", 32): 2,
    }
    settings = {"train": 1, "size": 224, "queries": 2, "database": 3, "parts": 4}
    record = json.dumps({"settings": settings, "rows": rows})
    (tmp_path / "default_mode.json").write_text(record, "utf-8")
    monkeypatch.setattr(answer_blocks, "RESULTS", tmp_path)
    text = " ".join(default_mode_block().split())
    assert "| HashNet-32 | 2 | .5000 → .6500 (.5000) |" in text
    assert "random keeping: in all but DCH-32." in text
    assert "(R@H=0) is: in none." in text
    assert "at most 0.005 below that of one code: in all." in text
    assert "at least 1.1 codes: in all." in text
