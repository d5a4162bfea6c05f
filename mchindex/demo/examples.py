"""The example queries on a demo's page: which ones are shown, and what each of them found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mchindex.index import MCHIndex
from mchindex.index.results import Hit, Hits
from mchindex.regions import Box
from mchindex.storage.records import Id

QUERIES = 6  # on a page
HITS = 6  # per query
RANKED = {  # how hits are ranked, in words
    "base": "one code per image, nearest first",
    "code": "several codes per image (MCH), nearest first",
    "best": "MCH with fine codes, best match first",
    "fine": "MCH, by fine codes alone",
}


@dataclass(frozen=True)
class ExampleHit:
    """A hit of an example query."""

    hit: Hit
    whole_distance: int | None  # of the image's code for the whole image; None: it has none
    box: Box | None  # of the hit's region, as fractions of the image's sides
    shared_classes: tuple[str, ...] | None  # those of the query's; None: there are no labels

    @property
    def by_region(self) -> bool:
        return by_region(self.hit)


@dataclass(frozen=True)
class ExampleAnswer:
    """The hits of an example query, ranked in one way."""

    title: str  # how they are ranked
    effort: str  # of the search
    hits: list[ExampleHit]


@dataclass(frozen=True)
class ExampleQuery:
    """A query on the page, with its hits."""

    name: str
    path: str | None
    classes: tuple[str, ...] | None  # None: there are no labels
    answers: list[ExampleAnswer]


def by_region(hit: Hit) -> bool:
    """Whether a region matched best, rather than the whole image."""
    return hit.region != "whole"


def choose(answers: Sequence[Hits], *more: Sequence[Hits]) -> tuple[list[int], int]:
    """Numbers of the queries to show, and how many queries have a hit found by a region.

    Those with such a hit come first; if they are too few, others follow. No two of them have the
    same list of hits, neither in these answers nor in any of `more` answers to the same queries.
    How good the hits are plays no part.
    """
    regional = [q for q, hits in enumerate(answers) if any(map(by_region, hits))]
    with_region = set(regional)
    order = regional + [q for q in range(len(answers)) if q not in with_region]
    lists: list[set[tuple[Id, ...]]] = [set() for _ in (answers, *more)]
    chosen = []
    for q in order:
        here = [tuple(every[q].ids) for every in (answers, *more)]
        if any(one in seen for one, seen in zip(here, lists, strict=True)):
            continue
        chosen.append(q)
        for one, seen in zip(here, lists, strict=True):
            seen.add(one)
    return chosen[:QUERIES], len(regional)


def how_chosen(shown: int, with_region: int, total: int, what: str, order: str) -> str:
    """Explains `choose` to a reader: `with_region` of `total` queries have a hit by a region."""
    if with_region == 0:
        text = (
            f"For none of the {total:,} {what} was one of the first {HITS} hits found by a region. "
            f"Shown are {shown}, {order}."
        )
    else:
        text = (
            f"Shown are {shown} {what}, {order}: first those for which at least one of the first "
            f"{HITS} hits was found by a region, which holds for {with_region:,} of {total:,}."
        )
    return text + (
        " A query whose hits are already shown for another one is passed over. No query was chosen "
        "for the quality of its hits."
    )


def example_answer(
    title: str,
    index: MCHIndex,
    hits: Hits,
    code: NDArray[np.uint8] | None,
    classes: tuple[str, ...] | None = None,
    classes_of: Mapping[str, tuple[str, ...]] | None = None,
) -> ExampleAnswer:
    """The hits of a query with this code in an index; words have no code.

    With labels, `classes` are the query's and `classes_of` those of every image by its id.
    """
    examples = []
    for hit in hits:
        stored = index[hit.id]
        whole = None
        if code is not None and "whole" in stored.regions:
            other = stored.codes[stored.regions.index("whole")]
            whole = int(np.bitwise_count(code ^ other).sum())
        box = None
        if hit.box is not None and stored.size is not None:
            (x0, y0, x1, y1), (width, height) = hit.box, stored.size
            box = x0 / width, y0 / height, x1 / width, y1 / height
        shared = None
        if classes is not None and classes_of is not None:
            shared = tuple(c for c in classes if c in classes_of[str(hit.id)])
        examples.append(ExampleHit(hit, whole, box, shared))
    return ExampleAnswer(title, hits.effort(), examples)


def name_of(path: str | None) -> str:
    return "" if path is None else Path(path).stem
