"""Says why each hit is one, cheaply enough for a page of them.

Only pixels can tell that two pictures are the same, and comparing them takes some milliseconds per
pair. So only the first few hits that look much like the query are compared with it; the others are
explained by the names of what both show.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from PIL import Image

from mchindex.errors import ImageError
from mchindex.index.explain import ALIKE, Reason, explain
from mchindex.index.results import Hit
from mchindex.index.same_picture import reduced_for_comparison
from mchindex.server.pictures import read_indexed
from mchindex.server.problems import ProblemError
from mchindex.storage.records import Id, Row

COMPARED = 4  # hits, at most, whose pixels are compared with the query's
SIDE = 160  # pixels of a picture that is compared
KEPT = 256  # pictures that are kept


class Why(NamedTuple):
    """Why an image is a hit, and the part of it that matched, in pixels."""

    text: str
    same: bool
    box: tuple[float, ...] | None


class Reasons:
    """Explains hits; small versions of pictures are kept for the next time."""

    def __init__(self, bits: int) -> None:
        self._bits = bits
        self._lock = threading.Lock()
        self._kept: OrderedDict[bytes, Image.Image] = OrderedDict()

    def small(self, row: Row | None) -> Image.Image | None:
        """The picture of an image, small; None if it cannot be read."""
        if row is None or row.hash is None:
            return None
        with self._lock:
            if row.hash in self._kept:
                self._kept.move_to_end(row.hash)
                return self._kept[row.hash]
        try:
            image = reduced_for_comparison(read_indexed(row, SIDE).image)
        except (ImageError, ProblemError):
            return None
        with self._lock:
            self._kept[row.hash] = image
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return image

    def explain(
        self,
        hits: Sequence[Hit],
        query: Image.Image | None,
        rows: Mapping[Id, Row],
        words: Mapping[Id, Sequence[str]],
    ) -> list[Why]:
        """The reason for each hit. `rows` has the records of those that may be compared."""
        compared = 0
        reasons = []
        for hit in hits:
            picture = None
            alike = hit.similarity is not None and hit.similarity >= ALIKE
            if query is not None and alike and compared < COMPARED and hit.id in rows:
                picture = self.small(rows[hit.id])
                compared += picture is not None
            names = words.get(hit.id, ())
            reason = explain(hit, self._bits, query, picture, names)
            reasons.append(_why(hit, reason, bool(names)))
        return reasons


def _why(hit: Hit, reason: Reason, named: bool) -> Why:
    box: tuple[float, ...] | None = hit.box
    if reason.same:
        if reason.box is not None and hit.size is not None:
            width, height = hit.size
            box = tuple(
                round(share * side, 1)
                for share, side in zip(reason.box, (width, height, width, height), strict=True)
            )
        return Why(reason.text, True, box)
    close = named or (hit.similarity is not None and hit.similarity >= ALIKE)
    place = "" if hit.region == "whole" or not close else f", by its {_place(hit.region)}"
    return Why(reason.text + place, False, box)


def _place(region: str) -> str:
    """The name of a region in a sentence."""
    return region if region == "centre" or " " in region else f"{region} part"
