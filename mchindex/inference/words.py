"""Words: names of things, by which images are found without a picture of the thing.

A word is a direction: how much each bit of a fine code speaks for the thing or against it. The
fine codes of all regions are compared with it, so that a hit also shows where the thing is. There
is no text encoder: a model knows a list of names, and no sentences.
"""

from __future__ import annotations

import difflib
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mchindex.errors import UnknownWordError

MOST_WORDS = 10_000  # rows in a model
LONGEST = 1_000  # characters of the names of one row
STEPS = 15  # the largest magnitude in a vector: `FineTable` rounds to as many steps
WHOLE_SHARE = 0.3  # of the whole image in an image's score; its best region has the rest
NEAR = 5  # words that a message about an unknown word names


def normal(name: str) -> str:
    """A name as words are compared: lower case, without commas, a leading minus or extra spaces."""
    plain = name.lower().replace(",", " ").replace("_", " ")
    return " ".join(plain.split()).lstrip("- ")


def read_text(text: str) -> list[tuple[str, bool]]:
    """The words in a text such as "dog, sofa, -person": each with whether it is wanted.

    Raises TypeError if it is no text, and ValueError if it has no words.
    """
    if not isinstance(text, str):
        raise TypeError(f"text must be words separated by commas, not {type(text).__name__}")
    parts = [part.strip() for part in text.split(",")]
    words = [(normal(part), not part.startswith("-")) for part in parts]
    if not (words := [word for word in words if word[0]]):
        raise ValueError('text must name something, such as "dog" or "dog, sofa, -person"')
    return words


@dataclass(frozen=True, eq=False)
class WordQuery:
    """Words as a search takes them, one row each."""

    vectors: NDArray[np.float32]  # (words, fine bits), see `FineTable.rank`
    curves: NDArray[np.float32]  # (words, 2): probability = sigmoid(first * score + second)
    wanted: NDArray[np.bool_]  # (words,) False: images that show it are not wanted
    whole_share: float = WHOLE_SHARE


class KnownWords(ABC):
    """The words that a model knows: for each row, the names of one thing, and a direction."""

    names: tuple[str, ...]  # one text per row, the names separated by commas
    rows: dict[str, int]  # by name

    def _set_names(self, names: Sequence[str]) -> None:
        """Raises ValueError for names that cannot be words."""
        if len(names) > MOST_WORDS or any(len(row) > LONGEST for row in names):
            raise ValueError(
                f"a model has {MOST_WORDS:,} words at most, each of at most {LONGEST:,} characters"
            )
        self.names = tuple(names)
        self.rows = {}
        for row, text in enumerate(names):
            for name in text.split(", "):
                if not name or normal(name) != name or name in self.rows:
                    raise ValueError(f"{name!r} is not a word, or is there twice")
                self.rows[name] = row

    @abstractmethod
    def arrays(self) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
        """The vectors (rows, bits), from -STEPS to STEPS, and the curves (rows, 2), see
        `WordQuery`."""

    def check(self) -> None:
        """Raises ValueError for a vector that means nothing."""
        sizes = np.abs(self.arrays()[0].astype(np.int16))
        if len(sizes) and not (int(sizes.max()) <= STEPS and bool(sizes.any(1).all())):
            raise ValueError(f"words have vectors from {-STEPS} to {STEPS}, none of them zero")

    @property
    def fingerprint(self) -> str:
        """A hash of the words and their vectors."""
        total = hashlib.sha256("\n".join(self.names).encode())
        for array in self.arrays():
            total.update(np.ascontiguousarray(array).tobytes())
        return total.hexdigest()[:32]

    def starting(self, prefix: str = "") -> list[str]:
        """The words that start with `prefix`, in alphabetical order."""
        return sorted(name for name in self.rows if name.startswith(prefix.lower()))

    def row(self, word: str) -> int:
        """The row of a word. Raises UnknownWordError, which names the nearest words."""
        for name in (word, *_singular(word)):
            if name in self.rows:
                return self.rows[name]
        raise UnknownWordError(word, self.near(word))

    def near(self, word: str) -> list[str]:
        """The known words that `word` holds, such as "car" in "red car", and those that are spelt
        most like it."""
        held = [name for part in word.split() for name in (part, *_singular(part))]
        found = [
            *(name for name in held if name in self.rows),
            *difflib.get_close_matches(word, self.rows, NEAR, 0.6),
        ]
        inside = [name for name in self.starting() if word in name.split()]
        start = self.starting(word) if len(word) > 1 else []
        return list(dict.fromkeys([*found, *inside, *start]))[:NEAR]

    def query(self, text: str) -> WordQuery:
        """The words of a text, see `read_text`. Raises UnknownWordError for one that is unknown."""
        words = read_text(text)
        rows = [self.row(word) for word, _ in words]
        vectors, curves = self.arrays()
        return WordQuery(
            vectors[rows].astype(np.float32),
            curves[rows],
            np.array([wanted for _, wanted in words]),
        )


class WordArrays(KnownWords):
    """Words whose vectors are NumPy's."""

    def __init__(
        self, names: Sequence[str], vectors: NDArray[np.int8], curves: NDArray[np.float32]
    ) -> None:
        self._set_names(names)
        self._vectors, self._curves = vectors, curves
        self.check()

    def arrays(self) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
        return self._vectors, self._curves


def _singular(word: str) -> list[str]:
    """What a word may be the plural of."""
    ends = (("ies", "y"), ("es", ""), ("s", ""))
    return [word.removesuffix(end) + new for end, new in ends if word.endswith(end)]
