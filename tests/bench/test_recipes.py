"""bench/recipes.py: its images, and one small run."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import recipes
from answer_data import Photos
from helpers.answer_run import write_dataset
from helpers.small_model import small_model
from mchindex.datasets import open_dataset
from mchindex.models.backbones import SmallNet
from mchindex.models.fine import FineHash
from mchindex.regions import corners_and_centre
from mchindex.training.features import FeatureCache, WithCrops
from ship import parts


class Known(SmallNet):
    """A small backbone whose random weights count as pretrained."""

    def load_pretrained(self) -> None:
        pass


def test_the_images_are_those_that_no_report_uses(tmp_path: Path) -> None:
    write_dataset(tmp_path, 20, 40, 100)
    dataset = open_dataset(tmp_path)
    model = small_model()
    model.fine, model.about = FineHash(model.backbone.dim, 64), {"seed": 0}
    photos = Photos.read(model, dataset, FeatureCache(None), 0)
    asked = recipes.validation_rows(dataset, 0)
    np.testing.assert_array_equal(asked, photos.validation)
    known = recipes.training_rows(dataset, 50, 0)
    assert len(known) == 50
    assert not set(known) & {*asked, *photos.queries, *photos.indexed}
    assert set(known) <= set(parts(dataset, 0)[0].splits["train"])


def test_one_pass_gives_the_regions_and_the_crops() -> None:
    layout, crops = corners_and_centre(), WithCrops(3, 0.5)
    boxes = recipes.RegionsAndCrops(layout, crops).boxes(b"key")
    np.testing.assert_array_equal(boxes[:6], layout.array())
    np.testing.assert_array_equal(boxes[6:], crops.boxes(b"key")[1:])
    other = recipes.RegionsAndCrops(layout, WithCrops(3, 0.5, seed=1))
    assert other.about != recipes.RegionsAndCrops(layout, crops).about


def test_the_gain_is_that_of_the_same_queries() -> None:
    base, better = {"folds": [0.3, 0.5]}, {"folds": [0.4, 0.6]}
    more, error = recipes.gain(better, base)
    assert more == pytest.approx(0.1)
    assert error == pytest.approx(0)


def test_the_larger_backbone_has_the_shape_of_its_weights() -> None:
    state = recipes.EfficientNetLite2().state_dict()
    assert state["_conv_head.weight"].shape == (1280, 352, 1, 1)
    assert len({name.split(".")[1] for name in state if name.startswith("_blocks.")}) == 21
    assert state["_blocks.15._project_conv.weight"].shape == (208, 720, 1, 1)


def test_a_small_run_from_the_images_to_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_dataset(tmp_path / "data", 20, 40, 100)
    quick = {"epochs": 2, "hidden": 8}
    agent = {"steps": 2, "every": 1, "width": 8}
    trials = {
        "one": recipes.Trial("hashnet", quick, agent, backbone=Known, size=32),
        "two": recipes.Trial("dch", quick, agent, labels="crops", backbone=Known, size=32),
    }
    monkeypatch.setattr(recipes, "TRIALS", trials)
    file = tmp_path / "recipes.json"
    options = ["--data", tmp_path / "data", "--images", 90, "--cache", tmp_path / "cache",
               "--json", file, "--names", "two", "one"]  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["recipes.py", *map(str, options)])
    recipes.main()
    content = json.loads(file.read_text())
    one, two = content["rows"]
    assert (one["name"], two["name"], two["method"], two["labels"]) == (
        "one",
        "two",
        "dch",
        "crops",
    )
    assert content["settings"]["images"] == 90
    for row in (one, two):
        assert 0 < row["ndcg"] <= 1
        assert 1 <= row["codes"] <= 6
        assert len(row["folds"]) == recipes.FOLDS
        assert row["encode_ms"] > 0
    assert two["gain"] == pytest.approx(two["ndcg"] - one["ndcg"])
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]] == ["one", "two"]
