"""Merges what the shards of a cluster found into what one index of all images would have found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mchindex._core import bucket_ranks
from mchindex.index.ranking import reached
from mchindex.index.results import Found


def merged(parts: Sequence[Found], count: int) -> Found:
    """The first `count` hits of each query, in the order of one index.

    Keys are unique among the parts. Each part has its first `count` hits, or all that it has, in as
    many columns as it needs.
    """
    first = parts[0]
    keys = _joined([part.keys for part in parts])
    # lexsort sorts by its last key first: missing hits last, then the order of the search, then key
    order = np.lexsort((keys, *_sorted_by(parts), keys < 0))[:, :count]
    places = order + keys.shape[1] * np.arange(len(keys))[:, None]  # in all rows, one after another

    def pick(columns: list[NDArray[Any]]) -> NDArray[Any]:
        picked: NDArray[Any] = _joined(columns).ravel()[places]
        return picked

    similar = [part.similarities for part in parts if part.similarities is not None]
    found = Found(
        keys.ravel()[places],
        pick([part.distances for part in parts]),
        pick([part.regions for part in parts]),
        pick([part.scores for part in parts]),
        first.buckets.copy(),
        first.radius.copy(),
        sum((part.candidates for part in parts[1:]), first.candidates.copy()),
        np.logical_and.reduce([part.exact for part in parts]),
        sum(part.codes for part in parts),
        first.rank,
        pick(similar) if similar else None,
        partial=any(part.partial for part in parts),
    ).wider(count)
    if first.order is not None:
        found.radius = reached(found.keys, found.distances)
        return found
    # A query that found enough images stopped at the last of them; the others went on to their
    # limits, which are the same in all parts.
    full = np.flatnonzero(found.keys[:, -1] >= 0)
    if len(full):
        last = _joined([_masks(part) for part in parts])[full, order[full, count - 1]]
        found.buckets[full] = bucket_ranks(last)
        found.radius[full] = found.distances[full, -1]
        found.exact[full] = True
    return found


def _sorted_by(parts: Sequence[Found]) -> list[NDArray[Any]]:
    """What hits are sorted by before their keys, the most important last."""
    if parts[0].order is not None:
        columns = [part.order for part in parts if part.order is not None]
        return [-_joined([column.astype(np.float64) for column in columns])]
    masks = _joined([_masks(part) for part in parts])
    # At one distance, Algorithm 1 visits the largest mask first, read as a big-endian number.
    more = -masks.shape[-1] % 8
    words = np.pad(masks, ((0, 0), (0, 0), (0, more))).view(">u8")
    largest_first = [~words[..., i].astype(np.uint64) for i in range(words.shape[-1])]
    return [*reversed(largest_first), _joined([part.distances for part in parts])]


def _joined(columns: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """The hits of all parts side by side."""
    return np.concatenate(columns, 1)


def _masks(part: Found) -> NDArray[np.uint8]:
    assert part.masks is not None
    return part.masks
