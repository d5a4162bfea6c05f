"""Ranks images by words: how probable it is that each shows the things that are named.

For each word, an image has a score: a weighted mean of the similarity of the fine code of the whole
image and that of the most similar region. The word's curve turns it into a probability. Words are
combined as if they were independent: the score of a hit is the geometric mean of the probabilities
of the wanted things, and of the absence of the unwanted ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mchindex._core import FineTable
from mchindex.index.ranking import Allowed
from mchindex.index.results import Found

if TYPE_CHECKING:
    from mchindex.inference.words import WordQuery


def ranked_by_words(
    table: FineTable, query: WordQuery, k: int, allowed: Allowed | None, threads: int
) -> Found:
    """The k images that most probably show what the words name, and nothing that they exclude."""
    weights = (0.0, query.whole_share, 1 - query.whole_share, 0.0)
    if len(query.wanted) == 1 and query.wanted[0]:
        found = table.rank(query.vectors, k, None, weights, allowed=allowed, threads=threads)
        scores = np.exp(_log_probability(found.scores[0], query.curves[0]))
        scores[found.keys[0] < 0] = 0
        return _found(
            found.keys[0], found.regions[0], scores, int(found.looked_at[0]), found.scores[0]
        )
    # The order of several words is that of none of them, so every image is needed. One call sees
    # one state of the table.
    images = max(1, len(table))
    every = table.rank(query.vectors, images, None, weights, allowed=allowed, threads=threads)
    order = np.argsort(every.keys, axis=1)
    order = order[:, np.searchsorted(every.keys[0], 0, sorter=order[0]) :]  # missing ones have -1
    keys = every.keys[0][order[0]]
    total, least = np.zeros(len(keys)), np.full(len(keys), np.inf)
    place = np.zeros(len(keys), np.int16)
    for word, (curve, wanted) in enumerate(zip(query.curves, query.wanted, strict=True)):
        logs = _log_probability(every.scores[word][order[word]], curve if wanted else -curve)
        total += logs
        if wanted:  # the region shown is that of the thing that is least certain
            weaker = logs < least
            place = np.where(weaker, every.regions[word][order[word]], place)
            least = np.where(weaker, logs, least)
    best = np.lexsort((keys, -total))[:k]
    scores = np.exp(total[best] / len(query.wanted))
    return _found(keys[best], place[best], scores, len(keys), total[best])


def _log_probability(score: NDArray[np.float32], curve: NDArray[np.float32]) -> NDArray[np.float64]:
    """The logarithm of the probability that a curve gives for scores."""
    logits = score.astype(np.float64) * curve[0] + curve[1]
    logs: NDArray[np.float64] = -np.logaddexp(0, -logits)
    return logs


def _found(
    keys: NDArray[np.int64],
    regions: NDArray[np.int16],
    scores: NDArray[np.float64],
    looked_at: int,
    order: NDArray[np.floating[Any]],
) -> Found:
    """The answer to one query, whose words have no code and hence no distance."""
    return Found(
        keys[None],
        np.full((1, len(keys)), -1, np.int32),
        regions[None],
        scores.astype(np.float32)[None],
        np.zeros(1, np.int64),
        np.zeros(1, np.int32),
        np.array([looked_at], np.int64),
        np.ones(1, bool),
        0,
        "fine",
        order=order[None],
    )
