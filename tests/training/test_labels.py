"""Labels for crops, labels guessed from neighbours, and the number of codes per image."""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.toys import blobs, hamming, random_labels
from mchindex import MCHIndex
from mchindex.cli import run
from mchindex.datasets import open_dataset, read_photos
from mchindex.datasets.scenes import SceneSource, scenes
from mchindex.errors import DatasetError
from mchindex.models import MCHModel, RegionCodes, create_method
from mchindex.models.views import Features, similar
from mchindex.training import TrainingOptions, encode_dataset, train_model
from mchindex.training.agent import AgentSettings, agent_settings, scaled
from mchindex.training.crop_labels import CropLabelSettings, with_crop_labels
from mchindex.training.pseudo_labels import (
    PseudoLabelSettings,
    spherical_k_means,
    with_pseudo_labels,
)

CLASSES = 4
QUICK = CropLabelSettings(epochs=60, batch=64, lr=3e-3, hidden=32, dropout=0.1)


def two_things(n: int, seed: int = 0) -> tuple[Features, torch.Tensor]:
    """Images of two classes, whose crops show one of them; and which one that is."""
    rng = np.random.default_rng(seed)
    centres = 3 * np.random.default_rng(99).standard_normal((CLASSES, 16))
    things = np.stack([rng.permutation(CLASSES)[:2] for _ in range(n)])
    which = rng.integers(0, 2, (n, 4))
    crops = centres[things[np.arange(n)[:, None], which]]
    whole = centres[things].mean(1, keepdims=True)
    array = np.concatenate([whole, crops], 1) + 0.3 * rng.standard_normal((n, 5, 16))
    labels = np.zeros((n, CLASSES), bool)
    labels[np.arange(n)[:, None], things] = True
    shows = np.eye(CLASSES, dtype=bool)[things[np.arange(n)[:, None], which]]
    data = Features(torch.from_numpy(array.astype(np.float32)), torch.from_numpy(labels))
    return data, torch.from_numpy(shows)


# Labels for crops.


def test_crops_get_the_labels_of_what_they_show() -> None:
    data, truth = two_things(400)
    found = with_crop_labels(data, QUICK)
    assert found.by_view is not None
    right = (found.by_view[:, 1:] == truth).all(2).float().mean()
    assert right > 0.9
    assert torch.equal(found.by_view[:, 0], data.labels)
    assert torch.equal(found.labels, data.labels)
    assert torch.equal(found.array, data.array)


@settings(max_examples=15)
@given(st.integers(2, 40), st.integers(1, 6), st.integers(0, 2**31), st.floats(0.1, 1.0))
def test_a_crop_shows_no_more_than_its_image(
    n: int, classes: int, seed: int, clarity: float
) -> None:
    labels = random_labels(n, classes, seed)
    array = torch.from_numpy(np.random.default_rng(seed).random((n, 3, 5), np.float32))
    few = CropLabelSettings(epochs=1, batch=8, hidden=4, clarity=clarity)
    found = with_crop_labels(Features(array, labels), few, seed)
    assert found.by_view is not None
    assert not (found.by_view & ~labels[:, None]).any()
    # A view has the label that is clearest in it, so every label is in some view.
    assert torch.equal(found.by_view.any(1), labels)
    again = with_crop_labels(Features(array, labels), few, seed).by_view
    assert again is not None
    assert torch.equal(again, found.by_view)


@pytest.mark.parametrize("name", ["dch", "hashnet", "adsh", "ksh"])
def test_codes_of_crops_then_stand_with_what_they_show(name: str) -> None:
    """A crop's code is nearer to images with its label than to others with its image's labels."""
    data, truth = two_things(300)
    quick: dict[str, Any] = {"epochs": 40, "batch": 64, "hidden": 32}
    quick = {"anchors": 60, "crop_share": 0.5} if name == "ksh" else quick
    quick |= {"sample": 200, "inner": 2} if name == "adsh" else {}

    def apart(views: Features) -> float:
        method = create_method(name, 16, 16, quick)
        method.fit(views)
        method.eval()
        crop, whole = method.codes(data.array[:, 1]), method.codes(data.array[:, 0])
        d = hamming(crop, whole).astype(float)
        shares = similar(truth[:, 0], data.labels).numpy()
        other = similar(data.labels, data.labels).numpy() & ~shares
        return float(d[other].mean() - d[shares].mean()) / 16

    assert apart(with_crop_labels(data, QUICK)) > apart(data) + 0.01


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CropLabelSettings(clarity=0), "clarity is above 0 and at most 1, not 0"),
        (lambda: CropLabelSettings(epochs=0), "at least 1 epoch"),
        (lambda: CropLabelSettings(hidden=0), "hidden is at least 1, not 0"),
        (lambda: CropLabelSettings(crop_share=5), "crop_share is between 0 and 1, not 5"),
        (lambda: PseudoLabelSettings(votes=0), "votes is at least 1, not 0"),
        (lambda: PseudoLabelSettings(centres=1), "centres is at least 2, not 1"),
        (lambda: PseudoLabelSettings(power=2), "power is above 0 and at most 1, not 2"),
        (lambda: AgentSettings(worth=1.0), "worth is a share between 0 and 1, not 1.0"),
    ],
)
def test_settings_that_cannot_be(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


# Neighbours.


def test_neighbours_find_the_classes_that_nobody_named() -> None:
    data = blobs(300, dim=12, classes=5, views=4)
    near = PseudoLabelSettings(centres=15, whole=1, crop=1, directions=8, power=1.0)
    found = with_pseudo_labels(data.array, near)
    assert found.labels.shape == (300, 15)
    guessed, truth = similar(found.labels, found.labels), similar(data.labels, data.labels)
    assert (guessed & truth).sum() / guessed.sum() > 0.95
    assert (guessed & truth).sum() / truth.sum() > 0.5


@settings(max_examples=25)
@given(st.integers(2, 60), st.integers(1, 5), st.integers(0, 2**31))
def test_neighbours_of_anything(n: int, views: int, seed: int) -> None:
    array = torch.from_numpy(np.random.default_rng(seed).random((n, views, 6), np.float32))
    found = with_pseudo_labels(array, PseudoLabelSettings(directions=4, rounds=3), seed)
    assert found.by_view is not None
    assert found.by_view.shape[:2] == (n, views)
    assert 2 <= found.labels.shape[1] <= max(2, n // 5)
    assert found.by_view.any(2).all()  # everything is near something
    assert torch.equal(found.labels, found.by_view.any(1))
    again = with_pseudo_labels(array, PseudoLabelSettings(directions=4, rounds=3), seed)
    assert torch.equal(again.labels, found.labels)


@settings(max_examples=40)
@given(st.integers(2, 60), st.integers(2, 8), st.integers(0, 2**31))
def test_k_means_serves_no_worse_with_every_round(n: int, centres: int, seed: int) -> None:
    centres = min(centres, n)
    rng = np.random.default_rng(seed)
    x = torch.nn.functional.normalize(torch.from_numpy(rng.standard_normal((n, 5))), dim=1)

    def closeness(rounds: int) -> float:
        middle = spherical_k_means(x, centres, rounds, seed)
        torch.testing.assert_close(middle.norm(dim=1), torch.ones(centres, dtype=x.dtype))
        return float((x @ middle.T).amax(1).mean())

    served = [closeness(rounds) for rounds in (1, 2, 4, 8)]
    assert all(b >= a - 1e-6 for a, b in itertools.pairwise(served))


def test_few_pictures_lie_in_few_directions() -> None:
    """With fewer images than directions, whole images still share labels with similar crops."""
    array = blobs(30, dim=64, classes=2, views=4).array
    found = with_pseudo_labels(array, PseudoLabelSettings(centres=2, whole=1, crop=1))
    assert found.by_view is not None
    alike = (found.by_view[:, :1] == found.by_view[:, 1:]).all(2).float().mean()
    assert alike > 0.9


def test_an_agent_of_guessed_labels_keeps_a_share() -> None:
    assert agent_settings("hashnet", guessed=True).worth == 0.3
    assert agent_settings("hashnet", {"bonus": 0.2}, guessed=True).worth is None
    reward = torch.from_numpy(np.random.default_rng(0).standard_normal((500, 8)) - 3).float()
    got = scaled(reward, AgentSettings(worth=0.3))
    assert float((got > 0).float().mean()) == pytest.approx(0.3, abs=0.01)
    order = scaled(reward, AgentSettings()).flatten().argsort()
    assert torch.equal(got.flatten().argsort(), order)


# How many codes.


@st.composite
def region_codes(draw: st.DrawFn) -> RegionCodes:
    n, regions, kinds = draw(st.integers(1, 20)), draw(st.integers(1, 11)), draw(st.integers(1, 9))
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    keep = rng.random((n, regions)).astype(np.float32)
    keep = np.round(keep, 1) if draw(st.booleans()) else keep  # many equal, some 0, some 1
    keep[:, 0] = 1
    return RegionCodes(rng.integers(0, kinds, (n, regions, 1), np.uint8), keep)


@given(region_codes(), st.floats(0, 1))
def test_an_image_keeps_its_likeliest_regions_and_at_most_six(
    found: RegionCodes, xi: float
) -> None:
    kept = found.kept(xi)
    for keep, flags in zip(found.keep, kept, strict=True):
        able = [i for i, p in enumerate(keep) if p >= xi and p > 0]
        best = sorted(able, key=lambda i: (-keep[i], i))[:6]
        assert sorted(best) == np.flatnonzero(flags).tolist()
    assert kept[:, 0].all()


@given(region_codes(), st.floats(1, 6))
def test_xi_for_a_number_of_codes_is_the_best_there_is(found: RegionCodes, codes: float) -> None:
    n, keep = len(found.keep), found.keep

    def off(xi: float) -> float:
        return abs(len(found.chosen(found.kept(xi))) / n - codes)

    best = min(off(float(xi)) for xi in np.unique(keep[keep > 0]))
    assert off(found.xi_for(codes)) == pytest.approx(best)


OPTIONS = TrainingOptions(
    method="hashnet",
    bits=16,
    backbone="small",
    size=32,
    crops=3,
    settings={"epochs": 2, "batch": 16, "hidden": 16},
    agent_settings={"steps": 20, "batch": 16, "width": 8, "every": 10},
    backbone_settings={"epochs": 2, "batch": 16},
)
SCENES = scenes(160, size=32, train=100)


def trained(options: TrainingOptions, data: Any = SCENES, **more: Any) -> Any:
    return train_model(data, options, device="cpu", engine="torch", **more)


def test_a_model_for_a_number_of_codes(weights: str, tmp_path: Path) -> None:
    options = replace(OPTIONS, weights=weights, agent_settings={"steps": 20, "worth": 0.5})
    model = trained(replace(options, codes=2.0), out=tmp_path / "out").model
    again = MCHModel.load(tmp_path / "out", device="cpu", engine="torch")
    assert again.xi == model.xi
    images = [SCENES.images.image(int(i)) for i in SCENES.splits["database"]]
    assert len(model.encode(images)) / len(images) == pytest.approx(2.0, abs=0.05)
    more = model.with_codes(3.0, images)
    assert len(more.encode(images)) / len(images) == pytest.approx(3.0, abs=0.05)
    assert more.fingerprint != model.fingerprint
    for codes, given_images, message in (
        (0.5, images, "codes per image must be between 1 and 6, not 0.5"),
        (2.0, [], "give at least one, better some hundreds"),
    ):
        with pytest.raises(ValueError, match=message):
            model.with_codes(codes, given_images)
    with pytest.raises(ValueError, match="without a policy stores one code"):
        replace(model, policy=None).with_codes(2.0, images)


# From pictures to a model.


@pytest.mark.parametrize("labels", ["crops", "neighbours"])
def test_training_on_other_labels(labels: Any, weights: str, tmp_path: Path) -> None:
    few = {"epochs": 2} if labels == "crops" else {"centres": 20}
    options = replace(OPTIONS, weights=weights, labels=labels, labels_settings=few)
    first = trained(options, out=tmp_path / "a")
    assert first.seconds.keys() >= {"features", "labels", "base", "agent", "fine codes"}
    assert ("words" in first.seconds) == (labels == "crops")  # neighbours have no names
    assert MCHModel.load(tmp_path / "a", device="cpu").fingerprint == first.model.fingerprint
    assert trained(options).model.fingerprint == first.model.fingerprint
    plain = trained(replace(options, labels="images", labels_settings={}))
    assert plain.model.fingerprint != first.model.fingerprint


def test_no_label_is_looked_at_without_supervision(weights: str) -> None:
    options = replace(OPTIONS, weights=weights, labels="neighbours")
    bare = replace(SCENES, labels=np.zeros_like(SCENES.labels))
    with pytest.raises(
        DatasetError, match='has no labels: train without them, with labels="neighbours"'
    ):
        trained(replace(options, labels="images"), bare)
    assert trained(options, bare).model.fingerprint == trained(options).model.fingerprint


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": "guess"}, "labels is one of images, crops, neighbours, not 'guess'"),
        ({"labels": "crops", "finetune": True}, "labels for crops needs a fixed backbone"),
        ({"labels": "neighbours"}, "needs a trained backbone, and small has no"),
        ({"labels": "crops", "labels_settings": {"votes": 3}}, "no setting is called 'votes'"),
        ({"codes": 7.0}, "codes per image must be between 1 and 6, not 7"),
        ({"codes": 7.0, "layout": "grid:3x3"}, "codes per image must be between 1 and 6, not 7"),
        ({"codes": 4.0, "layout": "grid:1x2"}, "codes per image must be between 1 and 3, not 4"),
        ({"codes": 2.0, "agent": False}, "without an agent, images have one code"),
        ({"codes": 2.0, "xi": 0.3}, "sets xi: give only one of them"),
        ({"labels": "crops", "method": "ksh", "settings": {}}, "set its crop_share above 0"),
        ({"labels": "crops", "method": "itq", "settings": {}}, "itq does not learn from crops, so"),
    ],
)
def test_what_cannot_be_asked_for(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    changes = changes | ({"agent_settings": {}} if changes.get("agent") is False else {})
    with pytest.raises(ValueError, match=message):
        trained(replace(OPTIONS, **changes), out=tmp_path)
    assert list(tmp_path.iterdir()) == []


# Photos.


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("photos")
    (root / "more").mkdir()
    source = SceneSource(80, seed=1, size=40)
    for i in range(80):
        source.image(i).save(root / ("more" if i % 2 else "") / f"{i}.png")
    (root / "notes.txt").write_text("no picture")
    return root


def model_of(weights: str) -> MCHModel:
    model: MCHModel = trained(replace(OPTIONS, weights=weights)).model
    return model


def test_a_folder_of_pictures_is_a_data_set(photos: Path, weights: str, tmp_path: Path) -> None:
    data = open_dataset(f"photos:{photos}")
    with pytest.raises(DatasetError, match="has no query images: it cannot be measured on"):
        encode_dataset(model_of(weights), data)
    assert len(data) == 80
    assert not data.labels.any()
    assert [len(data.splits[s]) for s in ("query", "train", "database")] == [0, 80, 80]
    assert data.images.image(0).size == (40, 40)
    with pytest.raises(DatasetError, match="holds no image files"):
        read_photos(tmp_path)


def test_photos_train_a_model_that_fills_an_index(
    photos: Path, weights: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, index = str(tmp_path / "model"), str(tmp_path / "own.mch")
    small = ["--backbone", "small", "--weights", weights, "--size", "32", "--crops", "3"]
    quick = ["--set", "epochs=2", "--set", "agent.steps=20", "--set", "labels.centres=16"]
    machine = ["--engine", "torch", "--threads", "1", "--no-cache"]
    given_data = ["--data", str(photos)]
    command = ["train", *given_data, *small, *quick, *machine, "--bits", "16", "--out", out]
    assert run([*command, "--codes", "1.5"]) == 2
    assert "labels.csv" in capsys.readouterr().err  # labelled data is expected
    assert run([*command, "--unsupervised", "--codes", "1.5"]) == 0
    text = capsys.readouterr().out
    assert "MCH-HASHNET" in text
    assert "not measured" in text
    (photos / "broken.png").write_bytes(b"no picture")
    adding = ["add", str(photos), "--index", index, "--model", out, "--codes", "2", "--quiet"]
    assert run(adding) == 1  # all but the broken one
    with MCHIndex.open(index) as opened:
        assert opened.stats()["codes"] / len(opened) == pytest.approx(2.0, abs=0.05)
    capsys.readouterr()
    assert run(adding) == 1
    assert "--codes" in capsys.readouterr().err  # settled when the index was made
    assert run(["add", str(photos), "--index", f"{index}2", "--model", out, "--codes", "9"]) == 2
    assert "between 1 and 6, not 9" in capsys.readouterr().err
    (photos / "broken.png").unlink()
    query = str(photos / "0.png")
    assert run(["search", query, "--index", index, "-k", "3", "--json"]) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--crop-labels", "--unsupervised"], "give one of them"),
        (["--set", "labels.clarity=0.3"], "--crop-labels"),
        (["--crop-labels", "--set", "labels.votes=3"], "'votes'"),
        (["--codes", "9"], "between 1 and 6"),
    ],
)
def test_words_that_do_not_fit(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run(["train", "--data", "scenes:60", "--out", str(tmp_path / "m"), *words])
    assert code == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "m").exists()
