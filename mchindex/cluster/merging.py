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
    """The first `count` hits of each query, in the order of one index. Keys are unique among the
    parts, each of which has its first `count` hits, or all it has."""
    width = max(count, max(part.keys.shape[1] for part in parts))
    keys = _joined([part.keys for part in parts], -1, width)
    distances = _joined([part.distances for part in parts], -1, width)
    # lexsort sorts by its last key first: missing hits last, then the order of the search, then key
    order = np.lexsort((keys, *_sorted_by(parts, distances, width), keys < 0))[:, :count]

    def pick(columns: list[NDArray[Any]], missing: float) -> NDArray[Any]:
        return np.take_along_axis(_joined(columns, missing, width), order, 1)

    first = parts[0]
    similar = [part.similarities for part in parts if part.similarities is not None]
    found = Found(
        np.take_along_axis(keys, order, 1),
        np.take_along_axis(distances, order, 1),
        pick([part.regions for part in parts], -1),
        pick([part.scores for part in parts], 0),
        first.buckets.copy(),
        first.radius.copy(),
        sum((part.candidates for part in parts[1:]), first.candidates.copy()),
        np.logical_and.reduce([part.exact for part in parts]),
        sum(part.codes for part in parts),
        first.rank,
        pick(similar, 0) if similar else None,
        partial=any(part.partial for part in parts),
    )
    if first.order is not None:
        found.radius = reached(found.keys, found.distances)
        return found
    # A query that found enough images stopped at the last of them; the others went on to their
    # limits, which are the same in all parts.
    full = np.flatnonzero(found.keys[:, -1] >= 0)
    masks = _joined_masks(parts, width)
    if len(full) and masks.shape[-1]:
        last = masks[full, order[full, -1]]
        found.buckets[full] = bucket_ranks(last)
        found.radius[full] = found.distances[full, -1]
        found.exact[full] = True
    return found


def _sorted_by(
    parts: Sequence[Found], distances: NDArray[np.int32], width: int
) -> list[NDArray[Any]]:
    """What hits are sorted by before their keys, the most important last."""
    if parts[0].order is not None:
        columns = [part.order for part in parts if part.order is not None]
        return [-_joined([c.astype(np.float64) for c in columns], 0, width)]
    masks = _joined_masks(parts, width)
    # At one distance, Algorithm 1 visits the largest mask first, read as a big-endian number.
    more = -masks.shape[-1] % 8
    words = np.pad(masks, ((0, 0), (0, 0), (0, more))).view(">u8")
    return [
        *(~words[..., i].astype(np.uint64) for i in reversed(range(words.shape[-1]))),
        distances,
    ]


def _joined(columns: Sequence[NDArray[Any]], missing: float, width: int) -> NDArray[Any]:
    """The hits of all parts side by side, each part with the same number of columns."""
    return np.concatenate(
        [np.pad(c, ((0, 0), (0, width - c.shape[1])), constant_values=missing) for c in columns], 1
    )


def _joined_masks(parts: Sequence[Found], width: int) -> NDArray[np.uint8]:
    masks = [part.masks for part in parts if part.masks is not None]
    return np.concatenate([np.pad(m, ((0, 0), (0, width - m.shape[1]), (0, 0))) for m in masks], 1)
