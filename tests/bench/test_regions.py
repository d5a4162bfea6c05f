"""bench/regions.py: its pasted things, its measures, and one small run."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import regions
from helpers.answer_run import write_dataset, write_model
from helpers.small_model import write_photos
from mchindex.datasets.base import FileSource
from mchindex.regions import corners_and_centre, in_pixels, random_boxes
from regions import CutOut, Pasted, inside, pairs, where


def test_the_thing_is_where_its_box_is_and_nothing_else_changes(tmp_path: Path) -> None:
    write_photos(tmp_path, 2)
    source = FileSource(tmp_path, ["000.png", "001.png"])
    pasted = Pasted(source, np.array([0]), np.array([1]), 0)
    before, after = (np.asarray(x.image(0).convert("RGB")) for x in (source, pasted))
    left, top, right, bottom = in_pixels(pasted.box(0).tolist(), *pasted.image(0).size)
    changed = (before != after).any(-1)
    assert changed[top:bottom, left:right].mean() > 0.9
    changed[top:bottom, left:right] = False
    assert not changed.any()


def test_a_part_is_cut_out_of_the_image(tmp_path: Path) -> None:
    write_photos(tmp_path, 1)
    source = FileSource(tmp_path, ["000.png"])
    part = CutOut(source, np.array([0.5, 0.5, 1, 1]))
    whole = np.asarray(source.image(0))
    height, width = whole.shape[:2]
    assert (np.asarray(part.image(0)) == whole[height // 2 :, width // 2 :]).all()
    assert part.key(0) != CutOut(source, np.array([0, 0, 0.5, 0.5])).key(0)


@given(st.integers(0, 1000))
def test_the_share_inside_a_box_is_that_of_points_in_it(seed: int) -> None:
    box = random_boxes(1, (0.3, 0.6), seed, b"key")
    places = corners_and_centre().array()
    x, y = np.meshgrid(*[(np.arange(200) + 0.5) / 200] * 2)
    points = np.stack([x.ravel(), y.ravel()], 1)
    for share, region in zip(inside(places, box)[0], places, strict=True):
        in_region = points[((points > region[:2]) & (points < region[2:])).all(1)]
        in_both = ((in_region > box[0, :2]) & (in_region < box[0, 2:])).all(1)
        assert share == pytest.approx(in_both.mean(), abs=0.03)


def test_pairs_share_no_label_and_use_each_thing_once() -> None:
    labels = np.eye(2, dtype=bool)[[0, 1, 0, 1, 0, 1]]
    chosen = pairs(labels, np.array([0, 1]), np.array([2, 3, 4, 5]))
    assert not (labels[[0, 1]] & labels[chosen]).any()
    assert len(set(chosen.tolist())) == 2


def test_the_best_part_is_counted_and_the_whole_image_is_no_place() -> None:
    layout = corners_and_centre()
    boxes = np.array([[0, 0, 0.4, 0.4]] * 3)
    found = where(layout, boxes, np.array([0, 1, 4]))  # whole, top-left, bottom-right
    assert found["name_a_part"] == pytest.approx(2 / 3)
    assert found["best_part"] == 0.5
    assert found["inside"] == pytest.approx(0.64 / 2)


def test_a_small_run_from_the_images_to_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_dataset(tmp_path / "data")
    write_model(tmp_path / "model")
    file = tmp_path / "regions.json"
    options = ["--data", tmp_path / "data", "--model", tmp_path / "model", "--cache",
               tmp_path / "cache", "--json", file]  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["regions.py", *map(str, options)])
    regions.main()
    content = json.loads(file.read_text())
    assert content["settings"]["pasted"] == 6
    assert [row["regions"] for row in content["rows"]] == [6, 10, 15, 17]
    assert all(0 <= row["things"]["fine"]["in_ten"] <= 1 for row in content["rows"])
    assert "parts cut out of indexed images, fine" in capsys.readouterr().out
