"""bench/readme.py: what the README says about speed, from the records."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import readme
from common import RESULTS, Cell
from readme import search_block


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with some of the committed records, from which the block is written."""
    monkeypatch.setattr(readme, "RESULTS", tmp_path)
    for cell in (Cell(), Cell(bits=32), Cell(bits=256)):
        shutil.copy(RESULTS / f"{cell.name}-1t.json", tmp_path)
    return tmp_path


def rows() -> dict[str, list[str]]:
    """The cells of the table by the first."""
    lines = [line.strip("| ").split(" | ") for line in search_block().splitlines() if "|" in line]
    return {first: others for first, *others in lines[2:]}


def put(folder: Path, name: str, content: dict[str, Any]) -> None:
    (folder / f"{name}.json").write_text(json.dumps(content))


def test_synthetic_codes_are_shown_alone_if_there_are_no_others(results: Path) -> None:
    assert list(rows()) == ["clustered, 64 bits", "clustered, 32 bits", "clustered, 256 bits"]


def test_real_codes_come_first_and_replace_some_of_the_others(results: Path) -> None:
    record = json.loads((RESULTS / f"{Cell(codes_per_image=1.6).name}-1t.json").read_text())
    record["settings"]["codes_per_image"] = 2.0653
    put(results, "semantic-64-million-1t", record)
    images = record["settings"]["images"]
    real = (
        f"windows of COCO photographs, semantic, 64 bits, 2.1 codes for each of {images:,} images"
    )
    assert list(rows()) == [real, "clustered, 64 bits", "clustered, 256 bits"]
    auto = next(r for r in record["rows"] if r["contender"] == "auto" and r["k"] == 10)
    first, *_, size, _ = rows()[real]
    assert first.startswith(f"{auto['to_flat']:.0f} (")
    assert size == f"{auto['bytes_a_code']['searched']['counted']:.0f}"


def test_the_other_records_have_sentences_once_they_are_there(results: Path) -> None:
    before = search_block()
    cell = {"bits": 32, "k": 10, "data": "far", "to_flat": 3.0}
    gate = [cell, cell | {"bits": 256, "data": "ten", "to_flat": 1.4}, cell | {"to_flat": None}]
    put(results, "gate", {"rows": gate, "failed": 1})
    call = {"bits": 64, "ours_us": 5.04, "faiss_us": 4.4}
    put(results, "calls", {"rows": [call], "settings": {"n": 100}})
    built = {"n": 1_000_000, "codes_per_s": 8.14e6, "peak_bytes_per_code": 40.2, "cores": 2}
    larger = built | {"n": 10_000_000, "codes_per_s": 5.0e6, "peak_bytes_per_code": 44.4}
    put(results, "building", {"rows": [built, larger]})
    block = search_block()
    text = " ".join(block.split())
    assert "2 kinds of codes, 32 to 256 bits, K = 10 to 10, all queries" in text
    assert "In 2 of 3 cells, `auto` is at least as fast" in text
    assert "The least ratio to Flat is 1.4." in text
    assert "a call with one query takes 5.0 µs, and FAISS's takes 4.4 µs" in text
    assert "with 2 cores: 8.1 for 1 million codes, 5.0 for 10 million codes." in text
    assert "The peak is at most 44 bytes per code" in text
    new = set(block.splitlines()) - set(before.splitlines())
    assert max(map(len, new)) <= readme.WIDTH
