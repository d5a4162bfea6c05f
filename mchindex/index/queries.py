"""Queries as objects: encoded and searched apart from each other, for many callers at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from numpy.typing import NDArray

from mchindex.images import Source
from mchindex.index.arguments import Limits, Rank
from mchindex.index.in_common import known_words, stored_codes, things_of
from mchindex.index.inputs import resolved_ids
from mchindex.index.mixture import mixed
from mchindex.index.model import IndexModel
from mchindex.index.ranking import Query
from mchindex.index.results import Answers
from mchindex.index.searching import Searcher
from mchindex.index.table import LiveTable
from mchindex.storage.records import Id, Row
from mchindex.storage.store import Facet, Store

if TYPE_CHECKING:
    from mchindex.inference.words import KnownWords


class Queries:
    """What a service needs of an index besides the methods of `MCHIndex`.

    An id that is not in the index is never read as the name of a file.
    """

    def __init__(
        self, store: Store, live: LiveTable, searcher: Searcher, model: IndexModel
    ) -> None:
        self._store, self._live, self._searcher, self._model = store, live, searcher, model

    def encode(self, images: Iterable[Source]) -> Query:
        """Images as queries, one row each. Raises ImageError for one that cannot be read."""
        return self._model.encode_queries(images, None, self._live.fine_kind)

    def stored(
        self, wanted: Sequence[tuple[Id, str | None]]
    ) -> list[tuple[Query, Id] | KeyError | ValueError]:
        """Images in the index as queries: for each id and name of a region (None: the whole image),
        the query and the stored id, or the reason why there is none."""
        return self._searcher.queries_of(wanted)

    def mixed(self, like: Sequence[Query], unlike: Sequence[Query], rank: Rank | None) -> Query:
        """One query that is like all of some and unlike all of others."""
        return mixed(like, unlike, rank)

    def search(
        self, query: Query, k: int, leave_out: Sequence[Sequence[Id]], **limits: Unpack[Limits]
    ) -> Answers:
        """The answers to the rows of a query; `leave_out` are, for each, ids that are no hits."""
        return self._searcher.search(query, k, leave_out, **limits)

    @property
    def fine_bits(self) -> int:
        """The width of the fine codes in the index; 0 if there are none."""
        kind = self._live.fine_kind
        return 0 if kind is None else kind.bits

    @property
    def words(self) -> KnownWords | None:
        """The words by which images can be found; None if there are none."""
        return known_words(self._live, self._model)

    def known_words(self) -> KnownWords:
        """The words of the model. Raises ValueError if there are none."""
        words, kind = self._model.model.words, self._live.fine_kind
        if words is None:
            raise ValueError(
                f"{self._store.name} cannot be searched by words: its model knows none. A model "
                "learns the names of the labels that it is trained with"
            )
        if kind is not None and not self._model.fine_agrees(kind):
            raise ValueError(
                f"{self._store.name} cannot be searched by words: it has the fine codes of another "
                "version of its model. Create a new index"
            )
        return words

    def by_words(self, text: str, k: int, **limits: Unpack[Limits]) -> Answers:
        """The images that most probably show what words name: one answer."""
        return self._searcher.by_words(self.known_words().query(text), k, **limits)

    def in_common(self, query: Query, own: Id | None, ids: Sequence[Id]) -> dict[Id, list[str]]:
        """The names of what a query and stored images probably show, see `MCHIndex.in_common`.

        `own` is the id of the query, if it is the whole of an image in the index.
        """
        words = self.words
        if words is None or query.fine is None or not ids:
            return {}
        found = stored_codes(self._store, self._live, ids if own is None else [*ids, own])
        mine: NDArray[np.uint8] | None = None if own is None else found.get(own)
        if mine is None:
            mine = np.packbits(query.fine > 0, axis=1)
        hits = {id: found[id] for id in ids if id in found}
        if not hits:
            return {}
        names = things_of(words).common(mine, np.stack(list(hits.values())))
        return dict(zip(hits, names, strict=True))

    def row(self, id: Id) -> Row | None:
        """The record of an image."""
        (name,) = resolved_ids(self._store, [id])
        return self._store.rows_of([name]).get(name)

    def rows_by_key(self, keys: Sequence[int]) -> dict[int, Row]:
        """The records of images that a search found. Those that have been removed since have only
        an id."""
        return self._store.rows(keys)

    def rows(self, ids: Sequence[Id]) -> dict[Id, Row]:
        """The records of images, by their stored ids; only of those that are in the index."""
        return self._store.rows_of(ids)

    def page(self, after: int, limit: int, conditions: Mapping[str, Any] | None) -> list[Row]:
        """Up to `limit` images whose keys are above `after`, oldest first."""
        return self._store.page(after, limit, conditions)

    def facets(self, most: int) -> list[Facet]:
        """The keys of the metadata and their values, see `Store.facets`."""
        return self._store.facets(most)

    def version(self) -> tuple[int, int]:
        """A value that changes whenever the index does."""
        return self._store.version()

    def in_bucket(self, codes: NDArray[np.uint8]) -> list[int]:
        """How many images have each of some codes."""
        return self._live.in_bucket(codes)

    def has_fine(self, id: Id) -> bool:
        """Whether an image has fine codes."""
        return any(known.fine for known in self._store.known([id]).values())

    def state(self) -> tuple[int, int, int]:
        """A value that changes whenever images are added, replaced or removed."""
        state = self._store.state()
        return state.images, state.key, state.gone
