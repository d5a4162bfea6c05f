"""A policy that reads the backbone: the same choice by torch, by the graphs, and in one graph."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

from helpers.fine_models import fine_model
from helpers.small_model import photo
from mchindex.errors import ModelError
from mchindex.inference.extract import resized
from mchindex.inference.model import GraphModel
from mchindex.models import MCHModel, Policy
from mchindex.models.graph import export_whole
from mchindex.models.policy import Reads
from mchindex.regions import WHOLE

PHOTOS = [photo(i) for i in range(5)]


def model() -> MCHModel:
    """A pooled model whose policy reads the backbone and keeps about half of the regions."""
    base: MCHModel = replace(fine_model(), mode="pooled", xi=0.5, engine="auto")
    torch.manual_seed(2)
    policy = Policy(base.backbone.dim, base.bits, width=8, reads="backbone").eval()
    features = torch.from_numpy(base.extractor(PHOTOS, base.layout.array())).float()
    policy.fit_scale(features.flatten(0, 1))
    whole = replace(base, policy=policy)
    keep = whole.regions_of(features.half().numpy()).keep[:, 1:]
    policy.move_threshold(float(np.median(keep)))
    return whole


def test_it_reads_the_backbones_features_and_in_how_many_bits_codes_differ() -> None:
    policy = Policy(3, 8, width=4, reads="backbone")
    f, f_region, b = torch.rand(2, 3), torch.rand(2, 3), torch.ones(2, 8)
    other = b.clone()
    other[1, :2] = -1
    state = policy.state(f, f_region, b, other)
    assert torch.equal(state[:, :6], torch.cat([f, f_region], 1))
    assert state[:, 6].tolist() == [0, 8 * 2 / 8]
    with pytest.raises(ValueError, match="reads the method or the backbone, not 'pixels'"):
        Policy(3, 8, reads="pixels")  # type: ignore[arg-type]


@pytest.mark.parametrize("reads", ["method", "backbone"])
def test_the_threshold_moves_to_a_probability(reads: Reads) -> None:
    policy = Policy(3, 8, width=4, reads=reads).eval()
    state = torch.rand(40, 7 if reads == "backbone" else 22)
    before = policy(state)[:, 1].detach()
    policy.move_threshold(float(before[7]))
    after = policy(state)[:, 1].detach()
    assert float(after[7]) == pytest.approx(0.5, abs=1e-5)
    assert torch.equal(before.argsort(), after.argsort())


def test_torch_and_the_graphs_choose_alike(tmp_path: Path) -> None:
    torch_model = model()
    torch_model.save(tmp_path / "model")
    again = MCHModel.load(tmp_path / "model", device="cpu")
    assert again.config()["policy"] == {"width": 8, "reads": "backbone"}
    assert again.fingerprint == torch_model.fingerprint
    features = torch_model.extractor(PHOTOS, torch_model.layout.array())
    wanted = torch_model.regions_of(features)
    kept = wanted.kept(0.5)[:, 1:]
    assert 0 < kept.sum() < kept.size
    np.testing.assert_array_equal(again.regions_of(features).keep, wanted.keep)

    graph = GraphModel.load(tmp_path / "model")
    assert graph is not None
    np.testing.assert_allclose(graph.regions_of(features).keep, wanted.keep, atol=1e-4)

    export_whole(torch_model, tmp_path / "whole.onnx")
    pixels = np.stack([resized(p, WHOLE, torch_model.backbone.size) for p in PHOTOS])
    session = onnxruntime.InferenceSession(tmp_path / "whole.onnx")
    (keep,) = session.run(["keep"], {"pixels": pixels})
    np.testing.assert_allclose(keep, wanted.keep, atol=1e-4)


def test_a_model_that_reads_something_else_is_refused(tmp_path: Path) -> None:
    model().save(tmp_path)
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace('"reads": "backbone"', '"reads": "pixels"'))
    with pytest.raises(ModelError, match="reads the method or the backbone"):
        MCHModel.load(tmp_path)
