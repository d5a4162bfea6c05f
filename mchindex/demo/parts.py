"""Parts of indexed pictures as queries: does a part find the picture that it was cut from?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from mchindex.demo.examples import HITS, ExampleAnswer, example_answer, name_of
from mchindex.images import open_rgb
from mchindex.index import MCHIndex
from mchindex.index.arguments import Rank
from mchindex.regions import Box
from mchindex.storage.records import Id

PARTS = 100  # pictures that are searched for by a part, at most
AMONG = 10  # hits among which the picture is looked for
SHOWN = 3  # parts on the page
RANKS: tuple[Rank, ...] = ("code", "best", "fine")
CORNERS = {"top-left": (0, 0), "top-right": (1, 0), "bottom-left": (0, 1), "bottom-right": (1, 1)}


@dataclass(frozen=True)
class ExamplePart:
    """A part of a picture on the page, and what it found."""

    name: str  # of the picture
    path: str
    corner: str  # which quarter of it is the query
    box: Box  # as fractions of the picture's sides
    answer: ExampleAnswer
    found: tuple[bool, ...]  # whether each hit is the picture


@dataclass(frozen=True)
class PartsFound:
    """How often a part finds its picture, by how hits are ranked."""

    parts: int
    first: dict[str, float]  # the share for which the picture is the first hit
    among: dict[str, float]  # the share for which it is one of the first `AMONG` hits
    examples: list[ExamplePart]


def find_parts(index: MCHIndex, base: MCHIndex, files: Sequence[str], seed: int) -> PartsFound:
    """Searches for pictures in both indexes, chosen at random, by a random quarter of each.

    `base` has one code per image, of the same model.
    """
    rng = np.random.default_rng(seed)
    chosen = [files[i] for i in rng.permutation(len(files))[:PARTS].tolist()]
    corners = [list(CORNERS)[i] for i in rng.integers(0, len(CORNERS), len(chosen)).tolist()]
    quarters = []
    for file, corner in zip(chosen, corners, strict=True):
        picture = open_rgb(file)
        x0, y0, x1, y1 = _box(corner)
        (width, height) = picture.size
        quarters.append(
            picture.crop((int(x0 * width), int(y0 * height), int(x1 * width), int(y1 * height)))
        )
    codes = index.model.encode_query(quarters)
    answers = {"base": base.search_codes(codes, AMONG)}
    answers |= {rank: index.search(quarters, AMONG, rank=rank) for rank in RANKS}
    places = {
        rank: [_place(hits.ids, file) for hits, file in zip(every, chosen, strict=True)]
        for rank, every in answers.items()
    }
    examples = []
    for i, code in enumerate(codes[:SHOWN]):
        hits = replace(answers["best"][i], hits=answers["best"][i].hits[:HITS])
        # Only what the part shows is known, not its classes: nothing is marked right or wrong.
        answer = example_answer("", index, hits, code)
        found = tuple(hit.id == chosen[i] for hit in hits)
        box = _box(corners[i])
        examples.append(ExamplePart(name_of(chosen[i]), chosen[i], corners[i], box, answer, found))
    return PartsFound(
        len(chosen),
        {rank: float(np.mean([p == 0 for p in every])) for rank, every in places.items()},
        {rank: float(np.mean([p is not None for p in every])) for rank, every in places.items()},
        examples,
    )


def _box(corner: str) -> Box:
    x, y = CORNERS[corner]
    return x / 2, y / 2, (x + 1) / 2, (y + 1) / 2


def _place(ids: Sequence[Id], wanted: Id) -> int | None:
    return list(ids).index(wanted) if wanted in ids else None
