"""What places in a ranking are worth, by slow sums and by finite differences."""

import numpy as np
import torch
from numpy.typing import NDArray

from helpers.toys import hamming, random_labels, random_signs
from mchindex.training.ranking import BUCKET, Counts, counts, place_values

Floats = NDArray[np.float64]


def precisions(similar: Floats, images: Floats) -> Floats:
    """The precision in the middle of each distance, for one query."""
    out = np.empty(len(similar))
    for d in range(len(similar)):
        hits = similar[:d].sum() + similar[d] / 2 + 0.5
        out[d] = hits / (images[:d].sum() + images[d] / 2 + 0.5)
    return out


def average_precision(similar: Floats, images: Floats, relevant: float) -> float:
    return float((similar * precisions(similar, images)).sum() / relevant)


def f1(similar: Floats, images: Floats, relevant: float) -> float:
    return float(2 * similar[0] / (images[0] + relevant))


def test_counts_by_a_double_loop() -> None:
    b, labels = random_signs(30, 8, 1), random_labels(30, 3, 2)
    got = counts(b, labels)
    distance = hamming(b, b).tolist()
    similar, every = np.zeros((30, 9)), np.zeros((30, 9))
    for i in range(30):
        for j in range(30):
            if i != j:
                every[i, int(distance[i][j])] += 1
                similar[i, int(distance[i][j])] += bool((labels[i] & labels[j]).any())
    np.testing.assert_array_equal(got.all, every)
    np.testing.assert_array_equal(got.similar, similar)


def test_values_are_the_slopes_of_average_precision_and_the_changes_of_f1() -> None:
    rng = np.random.default_rng(0)
    similar = rng.integers(0, 5, (6, 9)).astype(float)
    similar[0, 0] = similar[1] = 0  # an empty bucket, and a query that nothing is similar to
    others = rng.integers(0, 9, (6, 9)).astype(float)
    others[0, 0] = 0
    images = similar + others
    values = place_values(Counts(torch.from_numpy(similar), torch.from_numpy(images))).numpy()
    tiny = 1e-6
    for q in range(6):
        relevant = max(1.0, similar[q].sum())
        before = average_precision(similar[q], images[q], relevant)
        for d in range(9):
            for good in (0, 1):
                more = np.eye(9)[d]
                after = average_precision(
                    similar[q] + good * tiny * more, images[q] + tiny * more, relevant
                )
                want = (after - before) / tiny
                moved = similar[q] + good * more, images[q] + more
                want += BUCKET * (f1(*moved, relevant) - f1(similar[q], images[q], relevant))
                np.testing.assert_allclose(values[q, 9 * good + d], want, rtol=1e-4, atol=1e-6)
    assert (values[:, 9:] >= 0).all()  # a similar image never harms
    assert (values[:, :9] <= 0).all()
