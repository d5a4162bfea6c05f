"""bench/words.py and bench/word_search.py: the table of things, what is learnt of them, and how
it is measured."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import word_search
import words
from mchindex._core import FineTable
from mchindex.catalogue import SHIPPED
from mchindex.inference.words import normal
from mchindex.models import MCHModel
from mchindex.models.fine import FineHash
from mchindex.models.words import Words


@pytest.fixture(scope="module")
def things() -> list[words.Thing]:
    return words.read_table()


def classes_of(things: list[words.Thing], name: str) -> list[str]:
    every = sorted(thing.coco for thing in things if thing.coco)
    (row,) = [row for row, thing in enumerate(things) if name in thing.names]
    return [every[place] for place in words.coco_classes(things, every)[row]]


def test_the_table_has_every_class_once_and_every_name_once(things: list[words.Thing]) -> None:
    assert sorted(t.imagenet for t in things if t.imagenet is not None) == list(range(1000))
    assert len({t.coco for t in things if t.coco}) == len([t for t in things if t.coco]) == 80
    names = [name for thing in things for name in thing.names]
    assert len(set(names)) == len(names)
    assert all(normal(name) == name for name in names)
    synsets = {thing.synset for thing in things}
    assert all(above in synsets for thing in things for above in thing.above)


def test_general_words_stand_above_the_right_classes(things: list[words.Thing]) -> None:
    assert classes_of(things, "fruit") == ["apple", "banana", "orange"]
    assert {"dog", "bird", "zebra"} <= set(classes_of(things, "animal"))
    assert {"bicycle", "bus", "boat"} <= set(classes_of(things, "vehicle"))
    assert not {"person", "car"} & set(classes_of(things, "animal"))
    assert {"pizza", "carrot", "cake"} <= set(classes_of(things, "food"))
    assert "potted plant" in classes_of(things, "plant")
    assert "car" not in classes_of(things, "container")
    assert classes_of(things, "dog") == ["dog"]


@pytest.mark.parametrize("name", sorted(folder.name for folder in SHIPPED.iterdir()))
def test_the_models_that_ship_know_the_table_and_the_docs_say_how_much(
    name: str, things: list[words.Thing]
) -> None:
    known = MCHModel.load(name, device="cpu").words
    assert known is not None
    assert list(known.names) == [", ".join(thing.names) for thing in things]
    docs = (Path(words.__file__).parents[1] / "docs" / "words.md").read_text("utf-8")
    assert f"{len(known.rows):,} names of {len(known.names):,} things" in docs


def samples() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Features (n, 2, dim), the thing in each image (n,) and weights of a classifier of it."""
    rng = torch.Generator().manual_seed(0)
    kinds = torch.randint(0, 4, (600,), generator=rng)
    centres = torch.randn(4, 24, generator=rng)
    x = centres[kinds][:, None] + 0.4 * torch.randn(600, 2, 24, generator=rng)
    return x.half(), kinds, centres


THINGS = [
    words.Thing("1", None, "", ["animal"], []),
    words.Thing("2", None, "dog", ["dog"], ["1"]),
    words.Thing("3", 0, "", ["puppy"], ["2"]),
    words.Thing("4", 1, "", ["cat", "kitty"], ["1"]),
    words.Thing("5", None, "", ["vehicle"], []),
    words.Thing("6", 2, "", ["lorry"], ["5"]),
    words.Thing("7", 3, "car", ["car"], ["5"]),
]


@pytest.fixture(scope="module")
def learnt() -> tuple[Words, FineTable]:
    """Words of a small table of things, learnt from samples, and the fine codes of these."""
    x, kinds, centres = samples()
    fine = FineHash.fit(x.flatten(0, 1), 64)
    labels = np.stack([kinds.numpy() == 3, kinds.numpy() == 0], 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(words, "read_table", lambda: THINGS)
        patch.setattr(words, "classifier", lambda: (4 * centres, torch.zeros(4)))
        found = words.words_of(x.numpy(), labels, ["car", "dog"], fine)
    return found, word_search.table_of(fine.codes(x.numpy()))


def test_a_word_finds_all_that_is_below_it(learnt: tuple[Words, FineTable]) -> None:
    (known, table), (_, kinds, _) = learnt, samples()
    below = {"animal": {0, 1}, "puppy": {0}, "dog": {0}, "kitty": {1}, "vehicle": {2, 3},
             "lorry": {2}, "car": {3}}  # fmt: skip
    for word, own in below.items():
        scores = word_search.scores_of(table, known, word)
        right = np.isin(kinds.numpy(), list(own))
        assert word_search.average_precision(scores, right) > 0.95, word
        assert scores[right].mean() > 0.5 > scores[~right].mean(), word


def test_average_precision_and_figures_by_class() -> None:
    scores = np.array([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.1, 0.4]])
    labels = np.array([[True, False], [False, False], [True, False], [True, True]])
    assert word_search.average_precision(scores[:, 0], labels[:, 0]) == pytest.approx(
        (1 + 2 / 3 + 3 / 4) / 3
    )
    found = word_search.by_class(scores, labels)  # the second class has too few images
    assert found["map"] == pytest.approx((1 + 2 / 3 + 3 / 4) / 3)
    assert found["p10"] == pytest.approx(3 / 4)


def test_general_words_are_judged_by_the_labels_below_them(
    learnt: tuple[Words, FineTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    (known, table), (_, kinds, _) = learnt, samples()
    monkeypatch.setattr(word_search, "read_table", lambda: THINGS)
    monkeypatch.setattr(word_search, "SHOWN", ("vehicle",))
    vehicles = kinds.numpy() >= 2
    found = word_search.general(table, known, ["car", "dog"], np.stack([vehicles, ~vehicles], 1))
    assert found["words"] == 2  # "animal" and "vehicle"
    assert found["map"] > 0.95
    assert found["vehicle"] == 1
    found = word_search.general(table, known, ["car", "dog"], np.stack([~vehicles, vehicles], 1))
    assert found["map"] < 0.5
    assert found["vehicle"] == 0


def test_a_word_for_what_hardly_any_image_shows_has_a_probability() -> None:
    scores = torch.linspace(-1, 1, 1001)
    rare = torch.tensor([4.0, -20.0])
    raised = words._raised(rare, scores)
    assert raised[0] == rare[0]
    share = float((raised[0] * scores + raised[1]).sigmoid().mean())
    assert share == pytest.approx(words.LEAST_SHARE, rel=0.01)
    common = torch.tensor([4.0, -1.0])
    assert torch.equal(words._raised(common, scores), common)


def test_a_logistic_curve_is_fitted() -> None:
    x = torch.linspace(-3, 3, 2001)
    a, b = words.logistic(x, (2 * x - 1).sigmoid()).tolist()
    assert a == pytest.approx(2, abs=0.1)
    assert b == pytest.approx(-1, abs=0.1)
