"""Searching by words: what is found, in which order, and what is said otherwise."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from helpers.indexes import drawn, tiny_model
from mchindex import MCHIndex
from mchindex._core import FineTable
from mchindex.errors import UnknownWordError
from mchindex.index.words import ranked_by_words
from mchindex.inference.words import STEPS, WHOLE_SHARE, WordQuery
from mchindex.models import MCHModel
from mchindex.models.fine import FineHash
from mchindex.models.words import Words

FINE = 64


@cache
def talking_model() -> MCHModel:
    model = tiny_model()
    rng = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (200, model.backbone.dim), generator=rng)
    words = Words(["red, reddish", "green", "blue"], FINE)
    words.vectors.copy_(torch.randint(-STEPS, STEPS, words.vectors.shape, generator=rng))
    words.curves.copy_(torch.tensor([[9.0, -1], [7, -2], [8, 0]]))
    talking = replace(model, fine=FineHash.fit(x.half(), FINE), words=words)
    talking._extractor = model.extractor  # pixels are features
    return talking


@pytest.fixture
def index() -> MCHIndex:
    index = MCHIndex(talking_model())
    index.add([drawn(i) for i in range(30)], metadata=[{"even": i % 2 == 0} for i in range(30)])
    return index


def oracle(fine: NDArray[np.uint8], query: WordQuery) -> tuple[NDArray[np.float64], list[int]]:
    """The score of every image, and the best region for the first word."""
    bits = np.unpackbits(fine, axis=-1).astype(np.float64) * 2 - 1
    total = np.zeros(len(fine))
    regions: list[int] = []
    for vector, curve, wanted in zip(query.vectors, query.curves, query.wanted, strict=True):
        similarity = bits @ vector / np.abs(vector).sum()
        score = WHOLE_SHARE * similarity[:, 0] + (1 - WHOLE_SHARE) * similarity.max(1)
        p = 1 / (1 + np.exp(-(score * curve[0] + curve[1])))
        total += np.log(p if wanted else 1 - p)
        regions = regions or similarity.argmax(1).tolist()
    return np.exp(total / len(query.wanted)), regions


@pytest.mark.parametrize("text", ["red", "-red", "red, green", "red, -blue", "red,green,-blue"])
def test_the_order_is_that_of_a_plain_computation(index: MCHIndex, text: str) -> None:
    model = talking_model()
    assert model.fine is not None
    assert model.words is not None
    features = model._features([drawn(i) for i in range(30)], model.layout.array())
    scores, regions = oracle(model.fine.codes(features), model.words.query(text))
    order = np.lexsort((np.arange(30), -scores))
    ids = index.ids()
    hits = index.search(text=text, k=30)
    assert hits.ids == [ids[i] for i in order]
    np.testing.assert_allclose([hit.score for hit in hits], scores[order], atol=1e-3)
    assert all(0 <= hit.score <= 1 for hit in hits)
    assert (hits.exact, hits.rank, hits.candidates) == (True, "fine", 30)
    if text == "red":
        names = [model.layout.names[regions[i]] for i in order]
        assert [hit.region for hit in hits] == names
        assert all(hit.box is not None for hit in hits)
    assert index.search(text=text, k=4, offset=3).ids == hits.ids[3:7]
    assert index.search(text=text, k=5, offset=28).ids == hits.ids[28:]
    even = [i for i in hits.ids if index[i].metadata["even"]]
    assert index.search(text=text, k=99, filter={"even": True}).ids == even
    some = hits.ids[5:9]
    assert index.search(text=text, k=99, allowed=some).ids == some
    assert index.search(text=text, allowed=[]).ids == []


def test_equal_scores_are_in_the_order_of_keys() -> None:
    table = FineTable(8, 8, 1)
    table.add([3, 5, 9], np.zeros((3, 1, 1), np.uint8), [1, 1, 1], np.zeros((3, 1), np.uint8))
    query = WordQuery(np.ones((2, 8), np.float32), np.ones((2, 2), np.float32), np.ones(2, bool))
    assert ranked_by_words(table, query, 2, None, 0).keys.tolist() == [[3, 5]]


def test_words_of_an_empty_index() -> None:
    index = MCHIndex(talking_model())
    assert len(index.search(text="red")) == 0
    assert len(index.search(text="red, -blue")) == 0


def test_the_words_are_listed_by_prefix(index: MCHIndex) -> None:
    assert index.words() == ["blue", "green", "red", "reddish"]
    assert index.words("Re") == ["red", "reddish"]
    assert index.search(text="reddish").ids == index.search(text="RED").ids


def test_an_unknown_word_names_the_nearest(index: MCHIndex) -> None:
    with pytest.raises(UnknownWordError, match=r"'geren', but it knows green; .*words\(\)"):
        index.search(text="red, geren")


def test_what_cannot_be_combined_is_refused(index: MCHIndex) -> None:
    with pytest.raises(TypeError, match="either a query"):
        index.search(drawn(1), text="red")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="either a query"):
        index.search(text="red", id=1)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="text has no region"):
        index.search(text="red", region="whole")  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="max_radius limits the distance"):
        index.search(text="red", max_radius=3)
    with pytest.raises(ValueError, match="not by 'code'"):
        index.search(text="red", rank="code")
    with pytest.raises(ValueError, match="k must be at least 1"):
        index.search(text="red", k=0)
    with pytest.raises(TypeError, match="no option 'colour'"):
        index.search(text="red", colour=1)  # type: ignore[call-overload]


def test_an_index_without_words_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="its model knows none"):
        MCHIndex(replace(talking_model(), words=None)).search(text="red")
    with pytest.raises(ValueError, match="only codes"):
        MCHIndex(bits=32).words()
    plain, talking = replace(talking_model(), fine=None, words=None), talking_model()
    plain._extractor = talking.extractor
    with MCHIndex.open(tmp_path, plain) as old:
        old.add([drawn(i) for i in range(3)], [0, 1, 2])
    with MCHIndex.open(tmp_path, talking) as opened:
        with pytest.raises(ValueError, match=r"its images have no fine codes; .*again=True"):
            opened.search(text="red")
        opened.add(drawn(7), 7)
        with pytest.raises(ValueError, match=r"3 of its images have no fine codes"):
            opened.search(text="red")
        opened.add([drawn(i) for i in range(3)], [0, 1, 2], again=True)
        assert len(opened.search(text="red")) == 4


def test_words_are_kept_with_the_index(tmp_path: Path) -> None:
    with MCHIndex.open(tmp_path / "a", talking_model()) as index:
        index.add([drawn(i) for i in range(3)])
        expected = index.search(text="red, -blue").ids
        index.backup(tmp_path / "b")
    with MCHIndex.open(tmp_path / "b") as copy:
        assert copy.search(text="red, -blue").ids == expected
