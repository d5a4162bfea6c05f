"""Words of a model: learning, saving, looking up."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from helpers.small_model import small_model
from mchindex.errors import ModelError, UnknownWordError
from mchindex.inference.words import STEPS, normal, read_text
from mchindex.models import MCHModel
from mchindex.models.fine import FineHash
from mchindex.models.words import Words

DIM = 12


def samples(n: int = 400) -> tuple[torch.Tensor, torch.Tensor]:
    """Features (n, 3, DIM) and labels (n, 2): a label adds to two features, in one view of three
    and, weakly, in the whole image."""
    rng = torch.Generator().manual_seed(0)
    x = torch.rand(n, 3, DIM, generator=rng)
    labels = torch.rand(n, 2, generator=rng) < 0.3
    where = torch.randint(1, 3, (n, 2), generator=rng)
    for c in range(2):
        for i in torch.nonzero(labels[:, c]).flatten().tolist():
            x[i, where[i, c], 2 * c : 2 * c + 2] += 4
            x[i, 0, 2 * c : 2 * c + 2] += 2
    return x.half(), labels


@pytest.fixture(scope="module")
def learnt() -> tuple[Words, FineHash]:
    x, labels = samples()
    fine = FineHash.fit(x.flatten(0, 1), 32)
    words = Words.of_labels(x, labels, ["Dog", "Fire_hydrant"], fine)
    assert words is not None
    return words, fine


def with_words(names: list[str]) -> MCHModel:
    model = small_model()
    x = torch.rand(50, model.backbone.dim, generator=torch.Generator().manual_seed(0))
    words = Words(names, 32)
    words.vectors.copy_(torch.randint(1, STEPS, words.vectors.shape))
    words.curves.fill_(2.5)
    return replace(model, fine=FineHash.fit(x, 32), words=words)


def test_learnt_words_tell_images_and_views_apart(learnt: tuple[Words, FineHash]) -> None:
    words, fine = learnt
    x, labels = samples()
    bits = np.unpackbits(fine.codes(x.numpy()), axis=-1).astype(np.float32) * 2 - 1
    for c, name in enumerate(("dog", "fire hydrant")):
        query = words.query(name)
        assert query.vectors.shape == (1, 32)
        similarity = bits @ query.vectors[0] / np.abs(query.vectors[0]).sum()
        score = 0.3 * similarity[:, 0] + 0.7 * similarity.max(1)
        shown = labels[:, c].numpy()
        assert score[shown].mean() > score[~shown].mean() + 0.2
        probability = 1 / (1 + np.exp(-(score * query.curves[0, 0] + query.curves[0, 1])))
        assert probability[shown].mean() > 0.5 > probability[~shown].mean()


def test_labels_that_say_nothing_are_left_out() -> None:
    x, labels = samples(60)
    fine = FineHash.fit(x.flatten(0, 1), 16)
    all_, none = torch.ones(60, 1, dtype=torch.bool), torch.zeros(60, 1, dtype=torch.bool)
    labels = torch.cat([labels, all_, none, labels[:, :1]], 1)
    words = Words.of_labels(x, labels, ["a, b", "- ", "always", "never", "a b"], fine)
    assert words is not None
    assert words.names == ("a b",)
    assert Words.of_labels(x, labels[:, 2:4], ["always", "never"], fine) is None


def test_names_are_compared_in_one_form() -> None:
    assert normal(" Fire_Hydrant, red ") == "fire hydrant red"
    assert normal("--x-ray fish") == "x-ray fish"
    assert read_text("Dog,  sofa ,-person,") == [("dog", True), ("sofa", True), ("person", False)]


@pytest.mark.parametrize("text", ["", " , ", "-", "- ,"])
def test_a_text_without_words_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must name something"):
        read_text(text)


def test_a_text_is_text() -> None:
    with pytest.raises(TypeError, match="not list"):
        read_text(["dog"])  # type: ignore[arg-type]


def test_look_up() -> None:
    words = Words(["dog, domestic dog", "sofa, couch", "dogsled", "butterfly"], 8)
    assert [words.row(w) for w in ("dog", "domestic dog", "dogs", "couches", "butterflies")] == [
        0, 0, 0, 1, 3,
    ]  # fmt: skip
    assert words.starting("dog") == ["dog", "dogsled"]
    assert len(words.starting()) == 6
    with pytest.raises(UnknownWordError, match=r"'dgo'.*knows dog.*words\(\) lists") as caught:
        words.row("dgo")
    assert caught.value.word == "dgo"
    assert "dog" in caught.value.near
    with pytest.raises(UnknownWordError, match="word 'qqq'; MCHIndex"):
        words.query("dog, -qqq")
    query = words.query("dog, -sofa")
    assert query.wanted.tolist() == [True, False]


@pytest.mark.parametrize("names", [["a", "a"], ["a, b", "b"], ["A"], [""], ["a,b"], ["-a"]])
def test_names_that_are_ambiguous_or_not_in_form_are_refused(names: list[str]) -> None:
    with pytest.raises(ValueError, match="is not a word, or is there twice"):
        Words(names, 8)


def test_words_are_saved_and_leave_the_fingerprint_alone(tmp_path: Path) -> None:
    model = with_words(["dog, domestic dog", "sofa"])
    assert model.words is not None
    assert replace(model, words=None).fingerprint == model.fingerprint
    model.save(tmp_path)
    loaded = MCHModel.load(tmp_path)
    assert loaded.words is not None
    assert loaded.words.names == model.words.names
    assert torch.equal(loaded.words.vectors, model.words.vectors)
    assert loaded.words.fingerprint == model.words.fingerprint
    replace(model, words=None).save(tmp_path)
    assert MCHModel.load(tmp_path).words is None


def _edited(folder: Path, **words: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["words"] = config["words"] | words
    (folder / "config.json").write_text(json.dumps(config))


def test_damaged_words_are_refused(tmp_path: Path) -> None:
    model = with_words(["dog", "sofa"])
    for words, match in (
        ({"names": ["dog", "couch"]}, "differ from those"),
        ({"names": ["dog"]}, "words.vectors"),
        ({"names": ["dog", 3]}, "must be text"),
        ({"names": {}}, "'names'.*must be a list"),
        ({"names": ["dog", "dog"]}, "there twice"),
        ({"names": ["a" * 2000, "dog"]}, "at most"),
        ({"fingerprint": None}, "must be text"),
    ):
        model.save(tmp_path)
        _edited(tmp_path, **words)
        with pytest.raises(ModelError, match=match):
            MCHModel.load(tmp_path)
    for value in (0, 100):
        model.save(tmp_path)
        weights = load_file(tmp_path / "model.safetensors")
        weights["words.vectors"] = torch.full_like(weights["words.vectors"], value)
        save_file(weights, tmp_path / "model.safetensors")
        with pytest.raises(ModelError, match="none of them zero"):
            MCHModel.load(tmp_path)
    model.save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["fine"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="no fine codes"):
        MCHModel.load(tmp_path)
