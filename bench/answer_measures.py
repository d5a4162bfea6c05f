"""How good answers are, by the labels of the images: the measures of `answers.py`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from common import Ids

Labels = NDArray[np.bool_]  # (images, classes)
Reals = NDArray[np.float64]

TOP = 10
AT_A_TIME = 16  # queries that are judged together


@dataclass(frozen=True)
class Quality:
    """Means over the queries, of their first TOP answers."""

    ndcg: float  # the gain of an answer is the Jaccard index of its labels and the query's
    precision: float  # share of answers with a label of the query
    jaccard: float  # mean Jaccard index in which rare labels count for more


def quality(answers: Ids, query_labels: Labels, labels: Labels) -> Quality:
    """`answers` (q, at least TOP) are places in `labels`, best first; -1 stands for none."""
    kinds, kind_of = np.unique(labels, axis=0, return_inverse=True)
    kind_of = kind_of.reshape(-1)
    sizes = np.bincount(kind_of)
    plain, rarity = np.ones(labels.shape[1]), np.log(len(labels) / np.maximum(labels.sum(0), 1))
    discount = 1 / np.log2(np.arange(2, TOP + 2))
    found = answers[:, :TOP]
    there = found >= 0
    where = kind_of[np.where(there, found, 0)]
    gain = _jaccard(query_labels, kinds, plain)  # (q, kinds)
    ideal = np.array([_largest(row, sizes) for row in gain]) @ discount
    got = np.where(there, np.take_along_axis(gain, where, 1), 0)
    rare = np.where(there, np.take_along_axis(_jaccard(query_labels, kinds, rarity), where, 1), 0)
    possible = ideal > 0
    return Quality(
        float(((got @ discount)[possible] / ideal[possible]).mean()),
        float((got > 0).mean()),
        float(rare.mean()),
    )


def mean_average_precision(answers: Ids, query_labels: Labels, labels: Labels) -> float:
    """Of complete rankings, (q, images); queries that share a label with no image do not count."""
    found = []
    for start in range(0, len(answers), AT_A_TIME):
        part = slice(start, start + AT_A_TIME)
        relevant = (query_labels[part].astype(np.float32) @ labels.T.astype(np.float32)) > 0
        hits = np.take_along_axis(relevant, answers[part], 1)
        precision = hits.cumsum(1) / np.arange(1, hits.shape[1] + 1)
        total = hits.sum(1)
        found.append(((precision * hits).sum(1) / np.maximum(total, 1))[total > 0])
    return float(np.concatenate(found).mean())


def agreement(answers: Ids, truth: Ids) -> float:
    """The share of the true first TOP answers that are among the first TOP given ones."""
    same = (answers[:, :TOP, None] == truth[:, None, :TOP]) & (truth[:, None, :TOP] >= 0)
    return float(same.any(1).sum() / (truth[:, :TOP] >= 0).sum())


def _jaccard(queries: Labels, others: Labels, weights: Reals) -> Reals:
    """(queries, others): weight of the shared labels as a share of that of all labels of both."""
    both = (queries * weights) @ others.T.astype(np.float64)
    either = (queries @ weights)[:, None] + (others @ weights)[None] - both
    out: Reals = np.divide(both, either, out=np.zeros_like(both), where=either > 1e-12)
    return out


def _largest(values: Reals, sizes: Ids) -> Reals:
    """The TOP largest of values of which there are `sizes` each, in falling order."""
    order = np.argsort(-values, kind="stable")[:TOP]
    best = np.repeat(values[order], np.minimum(sizes[order], TOP))[:TOP]
    return np.pad(best, (0, TOP - len(best)))
