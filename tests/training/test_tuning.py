"""Tuning the last blocks of a backbone."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import ImageOps

from helpers.toys import Memory, same, state_of
from mchindex.datasets.scenes import scenes
from mchindex.errors import ModelError
from mchindex.inference.graph import GRAPH
from mchindex.inference.model import GraphModel, load_model
from mchindex.models import MCHModel, create_method
from mchindex.models.backbones import EfficientNetLite0, SmallNet, Trunk, Tuned, create_backbone
from mchindex.models.backbones.tuned import folded
from mchindex.models.fine import FineHash
from mchindex.models.graph import export_whole
from mchindex.models.views import Features
from mchindex.regions import WHOLE
from mchindex.training import TrainingOptions, train_model
from mchindex.training.features import FeatureCache
from mchindex.training.tuning import Mirrored, TuningSettings, maps_of, mean_precision, tune

SCENES = scenes(60, size=32, train=40)
QUICK = {"epochs": 2, "batch": 16, "lr": 1e-2}


def quick(file: str, **changes: Any) -> TrainingOptions:
    options = TrainingOptions(
        bits=16, backbone="small", size=32, crops=2, weights=file, tune=2,
        settings={"epochs": 2, "batch": 16, "hidden": 16},
        agent_settings={"steps": 20, "batch": 16, "width": 8, "every": 10},
        tuning_settings=dict(QUICK),
    )  # fmt: skip
    return replace(options, **changes)


def train(options: TrainingOptions, **more: Any) -> Any:
    return train_model(SCENES, options, device="cpu", engine="torch", **more)


def pixels(size: int = 32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (2, 3, size, size), dtype=torch.uint8, generator=generator)


def used() -> SmallNet:
    """A network whose normalisation has seen images."""
    torch.manual_seed(0)
    net = SmallNet(32)
    for _ in range(3):
        net(torch.randint(0, 256, (8, 3, 32, 32)))
    return net.eval()


@pytest.mark.parametrize("make", [used, lambda: EfficientNetLite0(64).eval()])
def test_the_blocks_of_a_backbone_make_its_feature_map(make: Any) -> None:
    backbone = make()
    x = backbone.normalise(pixels(backbone.size))
    with torch.no_grad():
        for part in backbone.parts():
            x = part(x)
        torch.testing.assert_close(x, backbone.feature_map(pixels(backbone.size)))


@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_tuned_blocks_start_out_as_they_were(blocks: int) -> None:
    backbone = used()
    tuned, trunk = Tuned(backbone, blocks).eval(), Trunk(backbone, blocks)
    with torch.no_grad():
        first, second = tuned.feature_map(pixels()).chunk(2, 1)
        wanted = backbone.feature_map(pixels())
        torch.testing.assert_close(second, wanted, rtol=0, atol=0)
        torch.testing.assert_close(first, wanted)
        torch.testing.assert_close(tuned.tail(trunk.feature_map(pixels())), wanted)
    assert (tuned.dim, len(tuned.branches)) == (2 * backbone.dim, 2)
    assert not any("norm" in type(part).__name__.lower() for part in tuned.tail.modules())


def test_folding_leaves_the_function_as_it_is() -> None:
    net = used()
    with torch.no_grad():
        wanted = net.feature_map(pixels())
        folded(net)
        torch.testing.assert_close(net.feature_map(pixels()), wanted)


def test_blocks_that_cannot_be_tuned() -> None:
    for blocks in (0, 4):
        with pytest.raises(ValueError, match=f"from 1 to 3 blocks of small .* not {blocks}"):
            Tuned(used(), blocks)
    with pytest.raises(ValueError, match="blocks of alexnet are not known"):
        Tuned(create_backbone("alexnet"), 1)


def test_maps_are_what_goes_into_the_tuned_blocks(tmp_path: Path) -> None:
    tuned = Tuned(used(), 2)
    rows, labels = [3, 1, 2], torch.from_numpy(SCENES.labels[[3, 1, 2]])
    cache = FeatureCache(tmp_path)
    maps = maps_of(tuned, SCENES.images, rows, labels, cache, "torch")
    assert list(tmp_path.rglob("*.npy"))
    again = maps_of(tuned, SCENES.images, rows, labels, cache, "torch")
    np.testing.assert_array_equal(maps.array, again.array)
    trunk = Trunk(tuned.base, 2)
    for mirrored in (False, True):
        source = [SCENES.images.image(i) for i in rows]
        source = [ImageOps.mirror(image) for image in source] if mirrored else source
        x = torch.from_numpy(np.stack([np.asarray(i).transpose(2, 0, 1) for i in source]))
        with torch.no_grad():
            wanted = trunk.feature_map(x)
        got = maps.batch(torch.arange(3), torch.full((3,), int(mirrored)))
        torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-3)


def test_mirrored_images_have_keys_of_their_own() -> None:
    source = Mirrored(SCENES.images)
    assert len(source) == len(SCENES.images)
    assert source.key(0) != SCENES.images.key(0)
    assert source.name(0).startswith(SCENES.images.name(0))


def learnt(settings: TuningSettings, seed: int = 0, state: Any = None) -> tuple[Tuned, list[float]]:
    tuned = Tuned(used(), 2)
    rows = SCENES.splits["train"]
    labels = torch.from_numpy(SCENES.labels[rows])
    maps = maps_of(tuned, SCENES.images, rows, labels, FeatureCache(None), "torch")
    return tuned, tune(tuned, maps, settings, seed, checkpoint=state)


def test_tuning_names_more_and_changes_the_last_blocks_only() -> None:
    settings = TuningSettings(epochs=8, batch=8, lr=1e-2, dropout=0.1)
    tuned, precisions = learnt(settings)
    assert len(precisions) == 8
    assert max(precisions) > precisions[0]
    assert same(state_of(tuned.base), state_of(used()))
    fresh = Tuned(used(), 2)
    assert not same(state_of(tuned.tail), state_of(fresh.tail))
    again, _ = learnt(settings)
    assert same(state_of(again.tail), state_of(tuned.tail))
    other, _ = learnt(settings, seed=1)
    assert not same(state_of(other.tail), state_of(tuned.tail))


def test_the_best_epoch_is_kept() -> None:
    # A learning rate that spoils the network in its first epochs at full height.
    settings = TuningSettings(epochs=8, batch=8, lr=0.1, classifier_lr=0.01, warm_up=0.5)
    tuned, precisions = learnt(settings)
    # The last one, of those that are equally good.
    best = max(i for i, value in enumerate(precisions) if value == max(precisions))
    assert best < len(precisions) - 1
    part = Memory(cut=best + 1)
    with pytest.raises(InterruptedError):
        learnt(settings, state=part)
    state = part.load()
    assert state is not None
    assert same(state["best"], state_of(tuned.tail))


@given(st.integers(1, 12), st.integers(1, 4), st.integers(0, 1000))
def test_mean_precision_is_that_of_a_plain_loop(images: int, classes: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    scores, labels = rng.random((images, classes)), rng.random((images, classes)) < 0.4
    wanted = []
    for c in range(classes):
        order = np.argsort(-scores[:, c], kind="stable")
        hits = [rank for rank, i in enumerate(order, 1) if labels[i, c]]
        if hits:
            wanted.append(np.mean([(k + 1) / rank for k, rank in enumerate(hits)]))
    got = mean_precision(torch.from_numpy(scores), torch.from_numpy(labels))
    assert got == pytest.approx(np.mean(wanted) if wanted else 0.0)


def test_an_interrupted_tuning_ends_the_same() -> None:
    settings = TuningSettings(epochs=3, batch=8, lr=1e-2)
    whole, precisions = learnt(settings)
    state = Memory(cut=2)
    with pytest.raises(InterruptedError):
        learnt(settings, state=state)
    state.cut = None
    rest, more = learnt(settings, state=state)
    assert more == precisions
    assert same(state_of(rest.tail), state_of(whole.tail))


# The whole training.


def test_a_tuned_model_from_pictures_to_codes(weights: str, tmp_path: Path) -> None:
    trained = train(quick(weights), out=tmp_path / "out")
    model = trained.model
    assert "tuning" in trained.seconds
    assert isinstance(model.backbone, Tuned)
    images = [SCENES.images.image(i) for i in range(12)]
    again = MCHModel.load(tmp_path / "out", device="cpu", engine="torch")
    assert again.fingerprint == model.fingerprint
    assert same(state_of(again.backbone), state_of(model.backbone))
    want = model.encode(images)
    np.testing.assert_array_equal(again.encode(images).codes, want.codes)
    plain = train(quick(weights, tune=0, tuning_settings={})).model
    assert plain.fingerprint != model.fingerprint
    # Fine codes and words are computed from both kinds of features.
    assert model.fine is not None
    assert model.fine.mean.numel() == model.backbone.dim
    assert model.words is not None
    assert len(model.words.names)


def test_fine_codes_of_the_features_as_they_were(weights: str, tmp_path: Path) -> None:
    """Models of earlier versions have such fine codes."""
    model = train(quick(weights)).model
    assert isinstance(model.backbone, Tuned)
    model.engine, model.words = "auto", None
    plain = MCHModel(model.backbone.base, create_method("lsh", model.backbone.base.dim, 8), None)
    images = [SCENES.images.image(i) for i in range(12)]
    theirs = plain.extractor(images, np.array([WHOLE]))
    model.fine = FineHash.fit(torch.from_numpy(theirs[:, 0]), 64)
    model.save(tmp_path)
    ours = model.extractor(images, np.array([WHOLE]))
    wanted = model.fine.codes(theirs)
    for engine in ("torch", "onnx"):
        again = MCHModel.load(tmp_path, device="cpu") if engine == "torch" else load_model(tmp_path)
        assert again.fine is not None
        np.testing.assert_array_equal(again.fine.codes(ours), wanted)


def test_the_graph_of_a_tuned_model(weights: str, tmp_path: Path) -> None:
    model = train(quick(weights)).model
    model.engine = "auto"
    model.save(tmp_path / "model")
    graph = load_model(tmp_path / "model", device="cpu")
    assert type(graph).__name__ == "GraphModel"
    images = [SCENES.images.image(i) for i in range(12)]
    ours, theirs = graph.encode_queries(images), model.encode_queries(images)
    differing = np.unpackbits(ours[0] ^ theirs[0]).mean()
    assert differing < 0.01
    assert ours[1] is not None
    assert theirs[1] is not None
    np.testing.assert_allclose(ours[1], theirs[1], rtol=1e-2, atol=1e-2)
    export_whole(model, tmp_path / "whole.onnx")


@pytest.mark.parametrize("mode", ["pooled", "crops"])
def test_tuned_blocks_of_the_backbone_that_ships(mode: Any, tmp_path: Path) -> None:
    tuned = Tuned(create_backbone("efficientnet-lite0", 64, "pretrained"), 2)
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in tuned.tail.parameters():
            weight.mul_(1 + 0.05 * torch.randn_like(weight))
    method = create_method("lsh", tuned.dim, 64)
    method.fit(Features(torch.rand(40, 1, tuned.dim), torch.eye(40)[:, :2] > 0))
    fine = FineHash.fit(torch.rand(80, tuned.dim), 64, branches=tuned.branches)
    model = MCHModel(tuned, method, None, mode=mode, pretrained=True, fine=fine)
    model.save(tmp_path)
    # The graph of the backbone is the one that ships, and only the tuned weights are saved.
    assert not (tmp_path / "backbone.onnx").exists()
    assert (tmp_path / "tuned.onnx").stat().st_size < 20_000
    assert {name.split(".")[0] for name in model.tensors()} == {"method", "tuned", "fine"}
    graph = load_model(tmp_path, device="cpu")
    assert isinstance(graph, GraphModel)
    images = [SCENES.images.image(i) for i in range(6)]
    boxes = np.array([WHOLE, (0, 0, 0.5, 0.5)])
    ours, theirs = graph.extractor(images, boxes), model.extractor(images, boxes)
    np.testing.assert_allclose(ours, theirs, rtol=1e-2, atol=2e-3)
    assert np.abs(ours[..., :1280] - ours[..., 1280:]).max() > 0.01
    assert np.unpackbits(graph.codes_of(ours[:, 0]) ^ model.codes_of(theirs[:, 0])).mean() < 0.02
    # In whole numbers, the blocks before the tuned ones give nearly the same map.
    whole = load_model(tmp_path, precision="int8")
    assert isinstance(whole, GraphModel)
    near = whole.extractor(images, boxes), graph.extractor(images, boxes)
    one, two = (x.astype(np.float64).reshape(-1, 1280) for x in near)
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(two, axis=1)
    assert ((one * two).sum(1) / lengths).min() > 0.95
    facts = json.loads((tmp_path / GRAPH).read_text("utf-8"))
    del facts["files"]["tuned"]["cut"]
    (tmp_path / GRAPH).write_text(json.dumps(facts))
    with pytest.raises(ModelError, match="'cut'"):
        load_model(tmp_path)


def test_crops_of_a_tuned_model(weights: str) -> None:
    model = train(quick(weights, regions="crops")).model
    assert len(model.encode([SCENES.images.image(0)]).codes) >= 1


def test_a_tuned_model_is_not_for_older_versions(weights: str, tmp_path: Path) -> None:
    model = train(quick(weights)).model
    assert model.config()["format"] == 3
    assert model.config()["backbone"] == {
        "name": "small", "size": 32, "tuned": 2, "pretrained": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tune": -1}, "tune is a number of blocks"),
        ({"tune": 4}, "from 1 to 3 blocks of small can be tuned"),
        ({"finetune": True}, "give one"),
        ({"labels": "neighbours"}, "training without labels cannot do it"),
        ({"backbone": "alexnet", "size": 224}, "alexnet has no feature map"),
        ({"tuning_settings": {"lr": "fast"}}, "lr=fast"),
        ({"tuning_settings": {"epochs": 0}}, "at least 1 epoch"),
        ({"tuning_settings": {"dropout": 1.0}}, "dropout is between 0 and 1"),
    ],
)
def test_tuning_that_cannot_be_is_refused_at_once(
    changes: dict[str, Any], message: str, weights: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        train(quick(weights, **changes), out=tmp_path)
    assert list(tmp_path.iterdir()) == []
