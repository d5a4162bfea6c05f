"""Merges what the shards of a cluster found into what one index of all images would have found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mchindex._core import SearchResult
from mchindex.cluster.shard import Part
from mchindex.index.ranking import reached
from mchindex.index.results import Found


def merged(parts: Sequence[Part], count: int | None, bits: int) -> Found:
    """The first `count` hits of each query, in the order of one index; all hits if it is None.

    Keys are unique among the parts. Each part has its first `count` hits, or all that it has.
    """
    packed = [part.found for part in parts if isinstance(part.found, bytes)]
    if packed:
        codes = sum(part.facts.codes for part in parts)
        return Found.of(SearchResult.merge(packed, count), codes, bits)
    assert count is not None
    return _by_score([part.found for part in parts if isinstance(part.found, Found)], count)


def _by_score(parts: Sequence[Found], count: int) -> Found:
    """The hits that are first by their order, and then by their keys."""

    def joined(columns: Sequence[NDArray[Any] | None]) -> NDArray[Any]:
        """The hits of all parts side by side."""
        return np.concatenate([column for column in columns if column is not None], 1)

    first = parts[0]
    keys = joined([part.keys for part in parts])
    best = joined([part.order for part in parts]).astype(np.float64)
    # lexsort sorts by its last key first: missing hits last, then the order of the search, then key
    places = np.lexsort((keys, -best, keys < 0))[:, :count]

    def pick(columns: Sequence[NDArray[Any] | None]) -> NDArray[Any]:
        return np.take_along_axis(joined(columns), places, 1)

    found = Found(
        pick([part.keys for part in parts]),
        pick([part.distances for part in parts]),
        pick([part.regions for part in parts]),
        pick([part.scores for part in parts]),
        first.buckets.copy(),
        first.radius.copy(),
        sum((part.candidates for part in parts[1:]), first.candidates.copy()),
        np.logical_and.reduce([part.exact for part in parts]),
        sum(part.codes for part in parts),
        first.rank,
        pick([part.similarities for part in parts]) if first.similarities is not None else None,
    ).wider(count)
    found.radius = reached(found.keys, found.distances)
    return found
