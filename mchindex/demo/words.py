"""Words as queries: does the name of a thing find pictures that show it, and where they show it?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mchindex.demo.examples import HITS, ExampleAnswer, by_region, example_answer
from mchindex.index import MCHIndex
from mchindex.index.results import Hit
from mchindex.regions import Box

SHOWN = 3  # words on the page

Things = Mapping[str, Mapping[str, Box]]  # by picture and class: where the thing is, in fractions


@dataclass(frozen=True)
class ExampleWord:
    """A word on the page, and what it found."""

    word: str
    answer: ExampleAnswer


@dataclass(frozen=True)
class WordsFound:
    """How well words find their things."""

    shares: dict[str, float]  # by word: of its first hits, those that show the thing
    regions: int  # right hits that were found by a region
    inside: float  # of those, the share whose region has the middle of the thing in it
    chance: float  # what `inside` would be for one of the regions at random
    examples: list[ExampleWord]

    @property
    def share(self) -> float:
        """The mean over all words."""
        return float(np.mean(list(self.shares.values())))


def find_words(index: MCHIndex, words: Sequence[str], things: Things) -> WordsFound:
    """Searches by each of the words among the pictures of `things`.

    `things` says for each picture, by its id, which things it shows and where.
    """
    classes_of = {picture: tuple(found) for picture, found in things.items()}
    answers = {word: index.search(text=word, k=HITS, allowed=list(things)) for word in words}
    layout = index.layout
    assert layout is not None
    parts = [tuple(map(float, box)) for box in layout.array()[1:]]
    shares, inside, chances = {}, [], []
    for word, hits in answers.items():
        right = [hit for hit in hits if word in things[str(hit.id)]]
        shares[word] = len(right) / max(1, len(hits))
        for hit in filter(by_region, right):
            thing = things[str(hit.id)][word]
            inside.append(has_middle(_region(hit, index), thing))
            chances.append(np.mean([has_middle(part, thing) for part in parts]))
    return WordsFound(
        shares,
        len(inside),
        float(np.mean(inside)) if inside else 0.0,
        float(np.mean(chances)) if chances else 0.0,
        [
            ExampleWord(word, example_answer("", index, answers[word], None, (word,), classes_of))
            for word in words[:SHOWN]
        ],
    )


def _region(hit: Hit, index: MCHIndex) -> Sequence[float]:
    layout = index.layout
    assert layout is not None
    return [float(side) for side in layout.array()[layout.names.index(hit.region)]]


def has_middle(region: Sequence[float], thing: Box) -> bool:
    """Whether the middle of a thing is in a region."""
    x0, y0, x1, y1 = region
    x, y = (thing[0] + thing[2]) / 2, (thing[1] + thing[3]) / 2
    return bool(x0 <= x <= x1 and y0 <= y <= y1)
