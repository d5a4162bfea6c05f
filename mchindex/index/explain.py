"""Says why an image is a hit: the same picture, a part of it, alike, or the same kind of thing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image

from mchindex.index.results import Hit
from mchindex.index.same_picture import Match, find_in
from mchindex.regions import Box

# A picture searched by a part of itself has a similarity below 0.2 in one of a thousand cases.
# Different photographs of COCO have about 0.0 on average, and 0.7 if one is the nearest of 4,000.
UNLIKE, ALIKE = 0.2, 0.5
ALL = 0.85  # the share of a picture's area from which on a part counts as all of it
MOST = 0.6  # the share from which on a part is so large that its place says little
SAME_KIND = 8  # codes that differ in at most 1 of 8 bits mean the same kind of thing


@dataclass(frozen=True)
class Reason:
    """Why an image is a hit."""

    text: str
    same: bool = False  # whether it is the query's picture or a part of it
    box: Box | None = None  # the part of the hit that is the query's picture; None: all of it


def explain(
    hit: Hit,
    bits: int,
    query: Image.Image | None = None,
    picture: Image.Image | None = None,
    words: Sequence[str] = (),
) -> Reason:
    """Why an image is a hit of a query.

    `bits` are those of the hit's code. `query` and `picture` are the query's picture and the hit's:
    only with both of them can the hit be called the same picture, because only pixels can tell.
    They may be small. `words` are the names of things that the query and the hit have in common.
    """
    if (
        query is not None
        and picture is not None
        and (hit.similarity is None or hit.similarity >= UNLIKE)
    ):
        if match := find_in(query, picture):
            box = None if _all(match) else match.box
            most = _area(match.box) >= MOST
            text = "same picture, cropped" if most else f"same picture, {_place(match.box)}"
            return Reason(_mirrored("same picture" if box is None else text, match), True, box)
        if match := find_in(picture, query):
            text = "part of the query"
            if not _all(match):
                text += f", its {_place(match.box)}"
            return Reason(_mirrored(text, match), True)
    if words:
        return Reason(", ".join(words))
    if hit.similarity is not None and hit.similarity >= ALIKE:
        return Reason("looks alike")
    if hit.distance < 0:  # words have no code
        return Reason("shows what was named")
    if hit.distance * SAME_KIND <= bits:
        return Reason("same kind of thing")
    return Reason("somewhat alike")


def _mirrored(text: str, match: Match) -> str:
    return f"{text}, mirrored" if match.mirrored else text


def _all(match: Match) -> bool:
    return _area(match.box) >= ALL


def _area(box: Box) -> float:
    x0, y0, x1, y1 = box
    return (x1 - x0) * (y1 - y0)


def _place(box: Box) -> str:
    """A part of a picture in words: "top-left quadrant", "right part", "centre"."""
    x0, y0, x1, y1 = box
    down, across = _side(y0, 1 - y1, "top", "bottom"), _side(x0, 1 - x1, "left", "right")
    place = "-".join(name for name in (down, across) if name)
    if not place:
        return "centre"
    quarter = 0.4 <= x1 - x0 <= 0.6 and 0.4 <= y1 - y0 <= 0.6
    return f"{place} {'quadrant' if down and across and quarter else 'part'}"


def _side(before: float, after: float, first: str, last: str) -> str:
    """The side at which a part lies, by what is left of the picture before and after it."""
    if abs(before - after) < 0.15:
        return ""
    return first if before < after else last
