"""The names of things that a query and a hit have in common."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from helpers.small_model import photo, small_model, write_photos
from mchindex import MCHIndex
from mchindex.index.in_common import LEAST, Things
from mchindex.inference.words import STEPS, WHOLE_SHARE
from mchindex.models.fine import FineHash
from mchindex.models.words import Words

BITS = 32


def words(**rows: list[float]) -> Words:
    """Words whose probability is 0.5 at a score of 0; the key is the name, _ is a space."""
    made = Words([name.replace("_", " ") for name in rows], BITS)
    vectors = torch.zeros(len(rows), BITS)
    for place, row in enumerate(rows.values()):
        vectors[place, : len(row)] = torch.tensor(row)
    made.vectors.copy_(vectors.to(torch.int8))
    made.curves[:, 0] = 20
    made.check()
    return made


def code(*signs: int) -> NDArray[np.uint8]:
    """The fine code whose first bits are given as 1 and -1, and the others 0."""
    bits = np.zeros(BITS, np.uint8)
    bits[: len(signs)] = np.array(signs) > 0
    return np.packbits(bits)


def named(made: Words, query: NDArray[np.uint8], hit: NDArray[np.uint8]) -> list[str]:
    (names,) = Things(made).common(query[None], hit[None, None])
    return names


def test_a_thing_must_be_probable_in_both_pictures() -> None:
    made = words(dog=[1], frisbee=[0, 1], sofa=[0, 0, 1])
    assert sorted(named(made, code(1, 1, 1), code(1, 1, 1))) == ["dog", "frisbee", "sofa"]
    assert sorted(named(made, code(1, 1, -1), code(1, 1, 1))) == ["dog", "frisbee"]
    assert named(made, code(1, 1, -1), code(1, -1, 1)) == ["dog"]
    assert named(made, code(1, 1, -1), code(-1, -1, 1)) == []


def test_at_most_three_names_the_most_probable_first() -> None:
    made = words(dog=[1], frisbee=[0, 1], sofa=[0, 0, 1], lamp=[0, 0, 0, 1])
    made.curves[:, 0] = torch.tensor([2.0, 4, 3, 1.5])
    everything = code(1, 1, 1, 1)
    assert named(made, everything, everything) == ["frisbee", "sofa", "dog"]


def test_only_the_more_specific_of_related_words_is_named() -> None:
    made = words(animal=[2, 2, 2], dog=[5, 0, 0], cat=[0, 5, 0], horse=[0, 0, 5], sofa=[0, 0, 0, 1])
    assert sorted(named(made, code(1, 1, -1, 1), code(1, 1, -1, 1))) == ["cat", "dog", "sofa"]
    # The word above is named if nothing below it is in common.
    assert named(made, code(1, 1, -1, -1), code(1, -1, 1, -1)) == ["dog"]
    made.curves[1] = torch.tensor([0.5, 0.0])
    assert named(made, code(1, 1, -1, -1), code(1, -1, 1, -1)) == ["animal"]


def test_of_words_that_mean_the_same_the_shortest_is_named() -> None:
    made = words(pachyderm=[1, 1], elephant=[1, 1])
    assert named(made, code(1, 1), code(1, 1)) == ["elephant"]


def test_the_score_is_that_of_a_search_by_words() -> None:
    made = words(dog=[3, 1], sofa=[0, 0, 2])
    codes = np.stack([code(-1, 1, 1), code(1, 1, -1)])[None]
    found = Things(made).probabilities(codes)[0]
    dog = WHOLE_SHARE * -0.5 + (1 - WHOLE_SHARE) * 1
    sofa = WHOLE_SHARE * 1 + (1 - WHOLE_SHARE) * 1
    expected = 1 / (1 + np.exp(-20 * np.array([dog, sofa])))
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> MCHIndex:
    model, rng = small_model(), torch.Generator().manual_seed(0)
    made = Words(["dog, domestic dog", "sofa"], BITS)
    made.vectors.copy_(torch.randint(-STEPS, STEPS, made.vectors.shape, generator=rng))
    made.curves.copy_(torch.tensor([[0.1, 5.0], [0.1, -5.0]]))  # always, never
    x = torch.rand(50, model.backbone.dim, generator=rng)
    folder = tmp_path_factory.mktemp("in_common")
    files = write_photos(folder, 4)
    opened = MCHIndex(replace(model, fine=FineHash.fit(x, BITS), words=made))
    opened.add(files)
    return opened


def test_an_index_names_what_its_hits_share_with_the_query(index: MCHIndex) -> None:
    assert LEAST > 0.5
    hits = index.search(photo(1), k=3)
    expected = {id: ["dog"] for id in hits.ids}
    assert index.in_common(hits, photo(1)) == expected
    assert index.in_common(hits, photo(1), region=(0, 0, 20, 20)) == expected
    assert index.in_common(hits, id=hits[0].id) == expected
    assert index.in_common(hits, id=hits[0].id, region="whole") == expected
    with pytest.raises(TypeError, match="either a query or the id"):
        index.in_common(hits)
    with pytest.raises(TypeError, match="must be a box"):
        index.in_common(hits, photo(1), region="top-left")


def test_images_that_were_removed_have_nothing_in_common() -> None:
    model = small_model()
    x = torch.rand(50, model.backbone.dim, generator=torch.Generator().manual_seed(0))
    made = words(dog=[1])
    made.curves[:, 1] = 50
    with MCHIndex(replace(model, fine=FineHash.fit(x, BITS), words=made)) as index:
        index.add([photo(i) for i in range(3)], ids=["a", "b", "c"])
        hits = index.search(photo(1))
        index.remove("a")
        assert index.in_common(hits, photo(1)) == {"b": ["dog"], "c": ["dog"]}
        assert index.in_common(hits, id="a") == {}


def test_a_model_without_words_names_nothing(tmp_path: Path) -> None:
    with MCHIndex(small_model()) as index:
        index.add(write_photos(tmp_path, 2))
        assert index.in_common(index.search(photo(0)), photo(0)) == {}
    with MCHIndex(bits=16) as index:
        index.add_codes([1], np.zeros((1, 2), np.uint8))
        assert index.in_common(index.search_codes(np.zeros(2, np.uint8)), id=1) == {}
