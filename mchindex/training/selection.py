"""Which training images of a data set can be used: those with labels that can be decoded."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mchindex.datasets import Dataset
from mchindex.errors import DatasetError, ImageError
from mchindex.models.views import pair_weights


def trainable(dataset: Dataset, labelled: bool = True) -> Dataset:
    """The data set with the training images that can be learnt from, as far as labels tell.

    If they are trained by their labels (`labelled`), images without one are left out: they would
    count as unlike all others. Raises DatasetError if the data set then has no labels at all.
    """
    rows = dataset.splits["train"]
    if not labelled:
        return without(dataset, [], "", labelled)
    if not dataset.labels.any():
        raise DatasetError(
            f'{dataset.name} has no labels: train without them, with labels="neighbours"'
        )
    return without(dataset, rows[~dataset.labels[rows].any(1)].tolist(), "no label")


def readable(dataset: Dataset) -> Dataset:
    """Leaves out training images that cannot be decoded, by decoding each of them."""
    broken = []
    for i in dataset.splits["train"].tolist():
        try:
            dataset.images.image(i)
        except ImageError:
            broken.append(i)
    return without(dataset, broken, "unreadable")


def without(dataset: Dataset, rows: Sequence[int], reason: str, labelled: bool = True) -> Dataset:
    """Leaves out some training images, and counts them under `reason`.

    Raises DatasetError if fewer than two remain. If they are trained by their labels
    (`labelled`), raises ValueError unless some pairs share a label and some do not.
    """
    remaining = len(dataset.splits["train"]) - len(rows)
    if remaining < 2:
        skipped = dict(dataset.skipped) | ({reason: len(rows)} if rows else {})
        counts = ", ".join(f"{n} {why}" for why, n in skipped.items())
        raise DatasetError(
            f"{dataset.name} has {remaining} training images that can be used, and at least 2 are "
            "needed" + (f" (left out: {counts})" if counts else "")
        )
    dataset = dataset.without(list(rows), reason)
    if labelled:
        pair_weights(torch.from_numpy(dataset.labels[dataset.splits["train"]]))
    return dataset
