"""bench/answer_blocks.py: what the docs say about recipes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import answer_blocks
import recipes
from common import RESULTS


def test_every_recipe_has_a_name_for_the_docs() -> None:
    assert list(answer_blocks.RECIPES) == list(recipes.TRIALS)


def test_figures_about_recipes_are_those_of_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = json.loads((RESULTS / "recipes.json").read_text("utf-8"))
    base, crops, *_, larger, _ = record["rows"]
    base |= {"encode_ms": 10.0, "top-left quadrant": 0.5}
    crops |= {"gain": 0.0123, "gain_error": 0.003}
    larger |= {"gain": -0.25, "encode_ms": 35.0, "top-left quadrant": 0.25}
    (tmp_path / "recipes.json").write_text(json.dumps(record), "utf-8")
    monkeypatch.setattr(answer_blocks, "RESULTS", tmp_path)
    text = " ".join(answer_blocks.recipes_block().split())
    assert "changes nDCG@10 by -0.250, takes 3.5 times the processor time" in text
    assert "first in .250 of all cases instead of .500" in text
    assert "4.1 times its standard error" in text
    assert "chance" not in text
    assert "| labels for crops | .498 | +0.0123 ± 0.0030 |" in text
