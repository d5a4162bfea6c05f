"""bench/answers.py: its measures, its data, its targets, and one small run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import answers
from answer_data import CELLS, SMALLEST, map_cells, unit, windows_of
from answer_measures import agreement, mean_average_precision, quality
from answer_report import AGREEMENT, COPIES, QUADRANT, speed_targets, table, targets
from helpers.answer_run import write_dataset, write_model
from helpers.small_model import photo, write_photos
from mchindex.datasets.base import FileSource
from mchindex.datasets.edits import EDITS, Edited
from mchindex.regions import corners_and_centre, overlaps


def plain_quality(
    answers: np.ndarray, asked: np.ndarray, labels: np.ndarray
) -> tuple[float, float, float]:
    """nDCG@10, P@10 and weighted Jaccard@10, one answer at a time."""
    rarity = [np.log(len(labels) / max(1, int(column.sum()))) for column in labels.T]
    ndcg, precision, jaccard = [], [], []
    for row, own in zip(answers, asked, strict=True):
        gains = []
        for other in labels:
            either = (own | other).sum()
            gains.append((own & other).sum() / either if either else 0.0)
        ideal = sum(g / np.log2(i + 2) for i, g in enumerate(sorted(gains, reverse=True)[:10]))
        got = sum(gains[a] / np.log2(i + 2) for i, a in enumerate(row[:10]))
        if ideal:
            ndcg.append(got / ideal)
        for a in row[:10]:
            precision.append(bool((own & labels[a]).any()))
            both = sum(r for r, x, y in zip(rarity, own, labels[a], strict=True) if x and y)
            either = sum(r for r, x, y in zip(rarity, own, labels[a], strict=True) if x or y)
            jaccard.append(both / either if either > 1e-12 else 0.0)
    return float(np.mean(ndcg)), float(np.mean(precision)), float(np.mean(jaccard))


@given(st.integers(0, 2**32 - 1), st.integers(10, 40), st.integers(1, 5))
def test_quality_is_what_a_plain_computation_gives(seed: int, n: int, classes: int) -> None:
    rng = np.random.default_rng(seed)
    labels, asked = rng.random((n, classes)) < 0.4, rng.random((4, classes)) < 0.4
    labels[0], asked[0] = True, True  # so that something can be found
    order = np.stack([rng.permutation(n) for _ in asked])
    found = quality(order, asked, labels)
    want = plain_quality(order, asked, labels)
    assert (found.ndcg, found.precision, found.jaccard) == pytest.approx(want)


def test_missing_answers_gain_nothing() -> None:
    labels = np.ones((20, 2), bool)
    order = np.arange(20)[None]
    short = np.where(order < 5, order, -1)
    assert quality(order, labels[:1], labels).precision == 1
    assert quality(short, labels[:1], labels).precision == 0.5


def test_mean_average_precision_and_agreement() -> None:
    labels = np.array([[True], [False], [True], [False]])
    asked = np.array([[True]])
    assert mean_average_precision(np.array([[0, 2, 1, 3]]), asked, labels) == 1
    assert mean_average_precision(np.array([[1, 0, 3, 2]]), asked, labels) == 0.5
    truth = np.arange(20).reshape(1, 20)
    assert agreement(truth, truth) == 1
    assert agreement(np.arange(5, 25).reshape(1, 20), truth) == 0.5
    assert agreement(np.full((1, 10), -1), np.full((1, 10), -1) + (np.arange(10) == 0)) == 0


def test_an_edited_image_has_a_key_and_a_name_of_its_own(tmp_path: Path) -> None:
    write_photos(tmp_path, 1)
    source = FileSource(tmp_path, ["000.png"])
    edited = {edit: Edited(source, edit) for edit in EDITS}
    assert len({source.key(0), *(e.key(0) for e in edited.values())}) == len(EDITS) + 1
    sizes = {edit: e.image(0).size for edit, e in edited.items()}
    assert (sizes["half size"], sizes["top-left quadrant"]) == ((30, 20), (30, 20))
    width, height = sizes["crop 70 %"]
    assert width * height / (60 * 40) == pytest.approx(0.7, abs=0.06)
    assert edited["flipped"].image(0).getpixel((0, 0)) == photo(0).getpixel((59, 0))
    assert edited["grey"].name(0) == "000.png, grey"


def test_windows_lie_within_the_image_and_are_divided_like_it() -> None:
    layout = corners_and_centre().array()
    boxes = windows_of(b"key", 50, layout, seed=3)
    assert boxes.shape == (50, 6, 4)
    assert (boxes[0] == layout).all()
    assert boxes.min() >= 0
    assert boxes.max() <= 1
    whole, corner = boxes[:, 0], boxes[:, 1]
    sides = whole[:, 2] - whole[:, 0]
    assert (sides >= SMALLEST).all()
    assert np.allclose(corner[:, :2], whole[:, :2])
    assert np.allclose(corner[:, 2] - corner[:, 0], sides / 2)
    assert not np.array_equal(boxes, windows_of(b"another", 50, layout, seed=3))


def test_cells_of_a_map_are_its_cells() -> None:
    shares = overlaps(map_cells().array()[1:], CELLS, CELLS)
    assert np.allclose(shares, np.eye(CELLS**2), atol=1e-6)


def test_rows_get_the_length_1() -> None:
    rows = unit(np.array([[3, 4], [0, 0]], np.float16))
    assert rows.tolist() == [[pytest.approx(0.6), pytest.approx(0.8)], [0, 0]]


def perfect() -> dict[str, Any]:
    """A record that meets every target."""
    good = {"ndcg": 0.6, "precision": 0.9, "jaccard": 0.5, "map": 0.7, "itself": 1.0,
            "copies": dict.fromkeys(EDITS, 1.0), "quadrant_in_ten": 1.0}  # fmt: skip
    less = {"ndcg": 0.5, "precision": 0.8, "jaccard": 0.4, "map": 0.6}
    one = dict.fromkeys(EDITS, 0.5)
    quality_rows = [
        good | {"label": "best"}, good | {"label": "fine"}, good | less | {"label": "code"},
        good | less | {"label": "float cosine, flat"},
        good | {"label": "fine, one code per image", "copies": one},
    ]  # fmt: skip

    def timed(label: str, qps: float, ours: bool = True, ndcg: float = 0.6) -> dict[str, Any]:
        return {
            "label": label, "contender": "ours" if ours else "hnsw", "ours": ours, "note": "",
            "ndcg": ndcg, "precision": 0.9, "jaccard": 0.5, "agreement": 1.0 if ours else None,
            "bytes_per_image": 250.0, "build_s": 1.0, "qps": qps, "cpu_qps": qps,
        }  # fmt: skip

    rows = [
        timed("ours, best", 100), timed("ours, best, 2 threads", 190),
        timed("ours, exhaustive", 10), timed("a good peer", 50, False),
        timed("a fast peer", 5000, False, 0.4),
    ]  # fmt: skip
    settings = {"images": {"indexed": 2200, "queries": 800}, "many": 1_000_000}
    return {"quality": quality_rows, "speed": {"own": rows, "many": rows}, "settings": settings}


def misses(content: dict[str, Any]) -> list[str]:
    return [t["what"] for t in targets(content) if not t["meets"]]


def test_a_record_that_falls_short_says_where() -> None:
    assert not misses(perfect())
    content = perfect()
    best = content["quality"][0]
    best["ndcg"], best["itself"] = 0.51, 0.99
    best["copies"] = best["copies"] | {edit: bound - 0.01 for edit, bound in COPIES.items()}
    best["quadrant_in_ten"] = QUADRANT["best"][1] - 0.01
    assert misses(content) == [
        "nDCG@10 ÷ float cosine's",
        "itself first",
        *(f"first: {edit}" for edit in COPIES),
        "in ten: quadrant, best",
    ]


def test_speed_is_compared_with_peers_that_answer_as_well() -> None:
    rows = perfect()["speed"]["many"]
    found = {t["what"]: t["value"] for t in speed_targets("many", rows)}
    assert found["many: queries per second ÷ exhaustive"] == 10
    assert found["many: two threads ÷ one"] == 1.9
    (against,) = (what for what in found if "peer" in what)
    assert "a good peer" in against
    assert found[against] == 2
    for row in rows:
        row["agreement"] = AGREEMENT["many"] - 0.001
        row["bytes_per_image"] = 257
    assert [t["meets"] for t in speed_targets("many", rows)][:2] == [False, False]


def test_the_table_has_a_line_for_every_contender_and_why_one_is_missing() -> None:
    content = perfect()
    content["speed"]["many"][3] = {"label": "a slow peer", "ours": False, "note": "build stopped"}
    lines = table(content).splitlines()
    for label in ("best", "fine", "code", "ours, exhaustive", "a fast peer"):
        assert any(line.startswith(label) for line in lines)
    assert any(line.split() == ["a", "slow", "peer", "build", "stopped"] for line in lines)


def test_a_small_run_from_the_images_to_the_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("faiss")
    pytest.importorskip("usearch")
    write_dataset(tmp_path / "data")
    write_model(tmp_path / "model")
    file = tmp_path / "answers.json"
    options = ["--data", tmp_path / "data", "--model", tmp_path / "model", "--cache",
               tmp_path / "cache", "--json", file, "--many", 60, "--repeats", 1,
               "--budget", 0.01]  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["answers.py", *map(str, options)])
    answers.main()
    content = json.loads(file.read_text())
    assert content["settings"]["images"] == {"validation": 8, "queries": 6, "indexed": 20}
    best = content["quality"][0]
    assert best["label"] == "best"
    assert best["itself"] == 1
    assert set(best["copies"]) == set(EDITS)
    for size in ("own", "many"):
        rows = {row["label"]: row for row in content["speed"][size]}
        assert rows["ours, best"]["agreement"] == 1
        assert rows["float cosine, flat"]["qps"] > 0
        assert rows["faiss IVF-PQ nprobe=8"]["note"]  # too few images to train it
    assert len(content["targets"]) > 20
    assert file.with_suffix(".svg").read_text().startswith("<?xml")
    assert "20 images, 6 queries" in capsys.readouterr().out
    assert len(list((tmp_path / "cache" / "windows").iterdir())) == 1
