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

QUERIES = 6  # on a page
HITS = 6  # per query


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
class ExampleQuery:
    """A query on the page, with its hits."""

    name: str
    path: str | None
    classes: tuple[str, ...] | None  # None: there are no labels
    hits: list[ExampleHit]
    buckets: int  # that the search visited, empty ones included
    radius: int  # Hamming distance up to which it searched


def by_region(hit: Hit) -> bool:
    """Whether a region's code was nearest, rather than that of the whole image."""
    return hit.region != "whole"


def choose(answers: Sequence[Hits]) -> tuple[list[int], int]:
    """Numbers of the queries to show, and how many queries have a hit found by a region.

    Those with such a hit come first; if they are too few, others follow. How good the hits are
    plays no part.
    """
    chosen = [q for q, hits in enumerate(answers) if any(map(by_region, hits))]
    others = [q for q in range(len(answers)) if q not in set(chosen)]
    return (chosen + others)[:QUERIES], len(chosen)


def how_chosen(with_region: int, total: int, what: str, order: str) -> str:
    """Explains `choose` to a reader: `with_region` of `total` queries have a hit by a region."""
    shown = min(QUERIES, total)
    if with_region == 0:
        text = (
            f"For none of the {total:,} {what} was one of the {HITS} nearest pictures found "
            f"by the code of a region. Shown are the first {shown}, {order}."
        )
    else:
        text = (
            f"Shown are the first {min(with_region, QUERIES)} {what}, {order}, for which at least "
            f"one of the {HITS} nearest pictures was found by the code of a region; this holds for "
            f"{with_region:,} of {total:,}."
        )
        if with_region < shown:
            text += f" The other {shown - with_region} are the first for which it does not."
    return text + " No query was chosen for the quality of its hits."


def example_query(
    index: MCHIndex,
    hits: Hits,
    code: NDArray[np.uint8],
    path: str | None,
    classes: tuple[str, ...] | None = None,
    classes_of: Mapping[str, tuple[str, ...]] | None = None,
) -> ExampleQuery:
    """A query with its code and file, and its hits in the index.

    With labels, `classes` are the query's and `classes_of` those of every image by its id.
    """
    examples = []
    for hit in hits:
        stored = index[hit.id]
        whole = None
        if "whole" in stored.regions:
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
    name = "" if path is None else Path(path).stem
    return ExampleQuery(name, path, classes, examples, hits.buckets, hits.radius)
