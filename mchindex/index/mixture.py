"""Several pictures as one query: what is like all of some and unlike others.

The fine query is the mean of the normalised projections of the pictures to look for, minus half
the mean of those to avoid. The code is the bitwise majority of the codes of the pictures to look
for; in a tie, the first one decides. Only the fine codes can push pictures away.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mchindex.images import Source
from mchindex.index.identity import FineIdentity
from mchindex.index.inputs import check_id, one_image, resolved_ids
from mchindex.index.model import IndexModel
from mchindex.index.ranking import Query
from mchindex.index.searching import Searcher
from mchindex.storage.records import Id
from mchindex.storage.store import Store

Like: TypeAlias = Source | Id | tuple[Source | Id, Sequence[float] | str | None]
AGAINST = 0.5  # the weight of pictures to avoid


class _Part(NamedTuple):
    """One picture of a mixture."""

    query: Query
    id: Id | None  # of a picture in the index


class Mixture:
    """Makes one query of several pictures."""

    def __init__(
        self, store: Store, searcher: Searcher, model: IndexModel, fine: FineIdentity | None
    ) -> None:
        self._store, self._searcher, self._model, self._fine = store, searcher, model, fine

    def query(self, like: Any, unlike: Any, rank: Any) -> tuple[Query, list[Id], bool]:
        """The query, the ids of the pictures that are in the index, and whether any picture is to
        be unlike."""
        near = [self._part(one) for one in _several("like", like)]
        far = [self._part(one) for one in _several("unlike", unlike)]
        if not near:
            raise ValueError("like is empty: name at least one image to look for")
        query = mixed([part.query for part in near], [part.query for part in far], rank)
        ids = [part.id for part in (*near, *far) if part.id is not None]
        return query, ids, bool(far)

    def _part(self, one: Any) -> _Part:
        what, region = one if _is_pair(one) else (one, None)
        id_ = self._stored(what)
        if id_ is None:
            if isinstance(region, str):
                raise ValueError(
                    f"{what!r} is not in the index, so its region must be a box (x0, y0, x1, y1) "
                    f"in pixels, not {region!r}"
                )
            return _Part(self._model.encode_queries([what], region, self._fine), None)
        if region is None or isinstance(region, str):
            query, name = self._searcher.query_of(id_, region)
            return _Part(query, name)
        row = self._store.row(id_)
        if row is None or row.path is None:
            raise ValueError(
                f"image {id_!r} has no file to take a box from: name one of its regions"
            )
        return _Part(self._model.encode_queries([row.path], region, self._fine), id_)

    def _stored(self, what: Any) -> Id | None:
        """The id of an image in the index; None for a picture that must be read.

        Raises KeyError for an integer that is not an id.
        """
        if not isinstance(what, (str, int, np.integer)) and not hasattr(what, "__fspath__"):
            return None
        try:
            (name,) = resolved_ids(self._store, [check_id(what)])
        except ValueError:  # a file name that is no valid id
            return None
        if self._store.known([name]):
            return name
        if isinstance(name, int):
            raise KeyError(f"there is no image {name!r} in {self._store.name}")
        return None


def mixed(near: Sequence[Query], far: Sequence[Query], rank: Any) -> Query:
    """One query that is like all of some and unlike all of others."""
    has_fine = all(query.fine is not None for query in (*near, *far))
    if far and (not has_fine or rank == "code"):
        reason = "rank='code' does not use them" if has_fine else "an image here has none"
        raise ValueError(f"unlike works by fine codes, and {reason}: leave it out")
    fine = None
    if has_fine:
        fine = _mean(near) - AGAINST * _mean(far) if far else _mean(near)
    return Query(_majority(np.concatenate([query.codes for query in near])), fine)


def _is_pair(one: Any) -> bool:
    return isinstance(one, tuple) and len(one) == 2


def _several(name: str, given: Any) -> list[Any]:
    """What `like` and `unlike` may be: one picture or id, a pair, or a list of these."""
    if isinstance(given, (int, np.integer)) or one_image(given) or _is_pair_with_region(given):
        return [given]
    try:
        return list(given)
    except TypeError:
        raise TypeError(
            f"{name} must be images, ids or pairs (image, region), not {type(given).__name__}"
        ) from None


def _is_pair_with_region(given: Any) -> bool:
    """Whether a tuple is one picture and its region, a box of numbers, rather than two pictures."""
    if not _is_pair(given) or not isinstance(given[1], (tuple, list, np.ndarray)):
        return False
    return np.ndim(given[1]) == 1 and len(given[1]) == 4


def _mean(queries: Sequence[Query]) -> NDArray[np.float32]:
    rows = [query.fine for query in queries if query.fine is not None]
    fine = np.concatenate(rows).astype(np.float32)
    lengths = np.linalg.norm(fine, axis=1, keepdims=True)
    mean: NDArray[np.float32] = (fine / np.maximum(lengths, 1e-12)).mean(0, keepdims=True)
    return mean


def _majority(codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    bits = np.unpackbits(codes, axis=1)
    twice = 2 * bits.sum(0, dtype=np.int64)
    return np.packbits(np.where(twice == len(bits), bits[0], twice > len(bits)))[None]
