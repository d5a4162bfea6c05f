"""The names of things that a query and its hits have in common, as far as their fine codes tell."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mchindex.errors import ModelError
from mchindex.images import Source, read_picture
from mchindex.index.inputs import resolved_ids
from mchindex.index.model import IndexModel
from mchindex.index.results import Hits
from mchindex.index.searching import Searcher
from mchindex.index.table import LiveTable
from mchindex.storage.records import Id
from mchindex.storage.store import Store

if TYPE_CHECKING:
    from mchindex.inference.encoder import Encoder
    from mchindex.inference.words import KnownWords

# The least probability for both pictures. Of COCO's classes that are named for neighbours among its
# photographs, 96 % are labels of both; with 0.5, 89 %.
LEAST = 0.8
MOST = 3  # names per hit
RELATED = 0.2  # the least cosine of two words' vectors if only one of them is to be named
# A word with more words whose cosine is at least this is more general: so is the one above in 95 %
# of all pairs of WordNet.
NEAR = 0.25
GENERAL = 40  # such words: "animal" or "furnishing" say little beside another name
# A word may be replaced by one with a shorter name, because common words are short: "elephant", not
# "pachyderm". It has at least this cosine and this probability, and is not more general.
SAME, LEAST_OF_SAME = 0.4, 0.7


def in_common(
    store: Store,
    live: LiveTable,
    searcher: Searcher,
    model: IndexModel,
    hits: Hits,
    query: Source | None,
    id: Id | None,
    region: Sequence[float] | str | None,
) -> dict[Id, list[str]]:
    """The names of things that a query and each hit probably show, see `MCHIndex.in_common`."""
    words = known_words(live, model)
    if words is None or not len(hits):
        return {}
    loaded = model.model
    own: NDArray[np.uint8] | None
    if id is None:
        own = _of_picture(loaded, query, region)
    elif region is None:
        (own,) = stored_codes(store, live, resolved_ids(store, [id])).values() or (None,)
    else:
        fine = searcher.query_of(id, region)[0].fine
        own = None if fine is None else np.packbits(fine > 0, axis=1)
    found = stored_codes(store, live, hits.ids)
    if own is None or not found:
        return {}
    things = things_of(words)
    names = things.common(own, np.stack(list(found.values())))
    return dict(zip(found, names, strict=True))


def known_words(live: LiveTable, model: IndexModel) -> KnownWords | None:
    """The words of the index's model; None if it has none that fit the fine codes of the index."""
    try:
        words = model.model.words
    except (ModelError, ValueError):  # a search by id does without the model
        return None
    return words if words is not None and model.fine_agrees(live.fine_kind) else None


class Things:
    """The words of a model, for pictures that are given by the fine codes of their regions."""

    def __init__(self, words: KnownWords) -> None:
        from mchindex.inference.words import WHOLE_SHARE

        self._names = [names.split(", ")[0] for names in words.names]
        steps, self._curves = words.arrays()
        vectors = steps.astype(np.float32)
        self._weights = (vectors / np.abs(vectors).sum(1, keepdims=True)).T.copy()
        self._units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        near = (self._units @ self._units.T >= NEAR).sum(1)
        self._near = near
        self._specific = np.log1p(len(near) / near)
        self._whole_share = WHOLE_SHARE

    def probabilities(self, codes: NDArray[np.uint8]) -> NDArray[np.float32]:
        """How probable each thing is in each picture: (n, regions, bytes) -> (n, words)."""
        signs = np.unpackbits(codes, axis=-1).astype(np.float32) * 2 - 1
        flat = signs.reshape(-1, signs.shape[-1]) @ self._weights  # much faster than in 3-D
        scores = flat.reshape(*codes.shape[:2], -1)
        score = self._whole_share * scores[:, 0] + (1 - self._whole_share) * scores.max(1)
        logits = score * self._curves[:, 0] + self._curves[:, 1]
        found: NDArray[np.float32] = 1 / (1 + np.exp(-logits))
        return found

    def common(self, query: NDArray[np.uint8], hits: NDArray[np.uint8]) -> list[list[str]]:
        """The names of what a picture (regions, bytes) has in common with each of several: the most
        probable and specific ones, and of names that are related, only one."""
        both = np.minimum(self.probabilities(query[None]), self.probabilities(hits))
        return [self._best(row) for row in both]

    def _best(self, probabilities: NDArray[np.float32]) -> list[str]:
        rows = np.flatnonzero(probabilities >= LEAST)
        worth = probabilities[rows] * self._specific[rows]
        chosen: list[int] = []
        for row in rows[np.argsort(-worth, kind="stable")].tolist():
            if chosen and self._near[row] >= GENERAL:
                continue
            if (self._units[chosen] @ self._units[row] < RELATED).all():
                chosen.append(row)
            if len(chosen) == MOST:
                break
        return list(dict.fromkeys(self._name(row, probabilities) for row in chosen))

    def _name(self, row: int, probabilities: NDArray[np.float32]) -> str:
        same = (self._units @ self._units[row] >= SAME) & (self._near <= self._near[row])
        rows = [row, *np.flatnonzero(same & (probabilities >= LEAST_OF_SAME)).tolist()]
        return min((self._names[other] for other in rows), key=len)


@lru_cache(maxsize=1)  # a page has many queries of one index
def things_of(words: KnownWords) -> Things:
    return Things(words)


def _of_picture(
    model: Encoder, query: Source | None, region: Sequence[float] | str | None
) -> NDArray[np.uint8] | None:
    """The fine codes of a picture's regions, or of a part of it."""
    fine_codes = model.fine
    if query is None or fine_codes is None:
        return None
    if isinstance(region, str):
        raise TypeError("the region of a query must be a box (x0, y0, x1, y1) in pixels")
    if region is not None:
        fine = model.encode_queries([query], region)[1]
        return None if fine is None else np.packbits(fine > 0, axis=1)
    boxes = model.layout.array()
    features = model.extractor.collect(
        [query], lambda source: (read_picture(source, model.least).image, boxes), len(boxes)
    )
    return fine_codes.codes(features[0])


def stored_codes(store: Store, live: LiveTable, ids: Sequence[Id]) -> dict[Id, NDArray[np.uint8]]:
    """The fine codes (regions, bytes) of images, without those that have been removed."""
    keys = {id: known.key for id, known in store.known(ids).items()}
    codes = live.fine_codes(list(keys.values()))
    return {id: codes[key] for id, key in keys.items() if key in codes}
