"""Hits as a page: one HTML file with its pictures inside, no scripts, no network.

The templates escape every value, whatever the pictures are called. Pages of other packages extend
`page.html` and take their templates from `templates`.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from PIL import Image

from mchindex.errors import ImageError
from mchindex.images import Thumbnail, reduced, thumbnail
from mchindex.index.explain import explain
from mchindex.index.grid import FRAME
from mchindex.index.results import Hit, Hits
from mchindex.index.same_picture import reduced_for_comparison
from mchindex.regions import Box, PixelBox, in_fractions
from mchindex.storage.records import Id

SIDE = 200  # pixels of a picture on a page, at most


@dataclass(frozen=True)
class ShownHit:
    """A hit on a page."""

    place: int  # 1: the best
    id: str
    name: str
    score: float
    distance: int  # below 0: words have no code
    region: str
    reason: str  # why it is a hit
    small: Thumbnail | None  # None: the picture cannot be read
    box: Box | None  # the part that matched; None: all of it


@dataclass(frozen=True)
class ShownAnswer:
    """A query on a page, with its hits."""

    title: str
    has_picture: bool  # False: the query is not a picture, and its title is shown instead
    small: Thumbnail | None
    box: Box | None  # the part that was searched for; None: all of it
    effort: str
    hits: list[ShownHit]

    @property
    def has_distances(self) -> bool:
        return any(hit.distance >= 0 for hit in self.hits)


def shown(
    hits: Hits,
    bits: int,
    query: Image.Image | None,
    *,
    title: str,
    region: PixelBox | None = None,
    has_picture: bool = True,
    words: Mapping[Id, Sequence[str]] | None = None,
    first: int = 1,
) -> ShownAnswer:
    """A query and its hits, each with the reason why it is one.

    `query` is None if its picture cannot be read, or if there is none (`has_picture`). `region` is
    the part of the query that was searched for, in pixels. `words` are the names of things that the
    query and each hit show, by the hit's id, and `first` is the place of the first hit.
    """
    box, part = None, query
    if query is not None and region is not None:
        box = in_fractions(region, query.size)
        x0, y0, x1, y1 = (round(v) for v in region)
        part = query.crop((x0, y0, max(x1, x0 + 1), max(y1, y0 + 1)))
    if part is not None:
        part = reduced_for_comparison(part)
    return ShownAnswer(
        title,
        has_picture,
        None if query is None else _small(query),
        box,
        hits.effort(),
        [
            _shown_hit(hit, place, bits, part, (words or {}).get(hit.id, ()))
            for place, hit in enumerate(hits, first)
        ],
    )


def hits_page(answers: Sequence[ShownAnswer]) -> str:
    """The page of one search or several."""
    return templates().get_template("hits.html").render(answers=answers)


def page_picture(path: str | None) -> Thumbnail | None:
    """A picture for a page; None if there is none or it cannot be read any more."""
    if path is None:
        return None
    try:
        return thumbnail(path, SIDE)
    except ImageError:
        return None


@cache
def templates(package: str | None = None) -> Environment:
    """The templates of this package and of another one."""
    packages = [name for name in (package, "mchindex.index") if name is not None]
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(name) for name in packages]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals |= {"frame": FRAME}
    return environment


def _shown_hit(
    hit: Hit, place: int, bits: int, query: Image.Image | None, words: Sequence[str]
) -> ShownHit:
    small = page_picture(hit.path)
    picture = None if small is None else Image.open(io.BytesIO(small.jpeg))
    reason = explain(hit, bits, query, picture, words)
    box = reason.box
    if not reason.same and small is not None and hit.box is not None and hit.region != "whole":
        box = in_fractions(hit.box, small.size)
    name = os.path.basename(str(hit.id)) or str(hit.id)
    return ShownHit(
        place, str(hit.id), name, hit.score, hit.distance, hit.region, reason.text, small, box
    )


def _small(image: Image.Image) -> Thumbnail:
    return thumbnail(reduced(image, SIDE), SIDE)._replace(size=image.size)
