"""Measuring a model on a data set, against one code per image and against chance.

Four ways to choose which regions' codes are kept: `base` (the whole image's only), `mch` (those
that the policy keeps), `random_keep` (regions at random, with as many distinct codes in total as
`mch`) and `keep_all`. A policy that does not beat `random_keep` has learnt nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mchindex.datasets import Dataset
from mchindex.errors import DatasetError
from mchindex.evaluation import Codes, Evaluation, evaluate
from mchindex.inference.region_codes import Encoded, Packed, RegionCodes
from mchindex.models.mch import MCHModel
from mchindex.progress import Progress, part_of, silent
from mchindex.training.features import WHOLE_ONLY, FeatureCache, Fixed, unreadable

WAYS = ("base", "mch", "random_keep", "keep_all")


@dataclass(frozen=True)
class Coded:
    """The codes of a data set's queries and database, and their labels."""

    queries: Packed  # (q, bits // 8)
    database: RegionCodes
    query_labels: NDArray[np.bool_]
    labels: NDArray[np.bool_]
    classes: tuple[str, ...]
    skipped: dict[str, int]


def encode_dataset(
    model: MCHModel, dataset: Dataset, cache: Path | None = None, progress: Progress = silent
) -> Coded:
    """The codes of all queries and of every region of the database.

    `cache` is the folder of the feature cache. Images that cannot be read are left out and counted.
    Raises DatasetError if there are no queries or no database, or none that can be read.
    """
    store = FeatureCache(cache)
    rows = {name: dataset.splits[name] for name in ("query", "database")}
    wanted = {"query": WHOLE_ONLY, "database": Fixed(model.layout)}
    features, skipped = {}, dict(dataset.skipped)
    for name, which in rows.items():
        if not len(which):
            raise DatasetError(f"{dataset.name} has no {name} images: it cannot be measured on")
        step = _named(progress, name)
        array = store.features(model.extractor, dataset.images, which, wanted[name], step)
        broken = unreadable(array)
        if broken.all():
            raise DatasetError(f"none of the {name} images of {dataset.name} can be read")
        if broken.any():
            skipped["unreadable"] = skipped.get("unreadable", 0) + int(broken.sum())
        features[name], rows[name] = array[~broken], which[~broken]
    return Coded(
        model.codes_of(torch.from_numpy(features["query"][:, 0])),
        model.regions_of(features["database"]),
        dataset.labels[rows["query"]],
        dataset.labels[rows["database"]],
        dataset.classes,
        skipped,
    )


def _named(progress: Progress, split: str) -> Progress:
    """Progress whose stages also name the split."""
    return lambda step: progress(replace(step, stage=f"{split} {step.stage}"))


def kept_by(way: str, regions: RegionCodes, xi: float, seed: int = 0) -> NDArray[np.bool_]:
    """(n, regions): which regions one of the four ways keeps."""
    if way == "base":
        kept = np.zeros(regions.keep.shape, bool)
        kept[:, 0] = True
        return kept
    if way == "keep_all":
        return np.ones(regions.keep.shape, bool)
    kept = regions.kept(xi)
    if way == "mch":
        return kept
    if way == "random_keep":
        return _at_random(regions, int(regions.distinct(kept).sum()), seed)
    raise ValueError(f"the way to keep codes is one of {', '.join(WAYS)}, not {way!r}")


def _at_random(regions: RegionCodes, codes: int, seed: int) -> NDArray[np.bool_]:
    """Random regions, as many as give this many distinct codes in total."""
    lot = np.random.default_rng(seed).random(regions.keep.shape)
    lot[:, 0] = -1
    low, high = 0.0, 1.0
    for _ in range(24):
        middle = (low + high) / 2
        if regions.distinct(lot < middle).sum() < codes:
            low = middle
        else:
            high = middle
    kept: NDArray[np.bool_] = lot < high
    return kept


def as_codes(encoded: Encoded) -> Codes:
    """Codes in the form that `evaluate` takes."""
    return Codes(encoded.codes, encoded.images, encoded.kept)


def measure(
    coded: Coded,
    xi: float,
    ways: Sequence[str] = WAYS,
    *,
    seed: int = 0,
    threads: int = 0,
    progress: Progress = silent,
    **options: Any,
) -> dict[str, Evaluation]:
    """The figures of each way; `options` are passed on to `evaluate`."""
    out = {}
    for number, way in enumerate(ways):
        kept = kept_by(way, coded.database, xi, seed)
        out[way] = evaluate(
            coded.queries,
            as_codes(coded.database.chosen(kept)),
            coded.query_labels,
            coded.labels,
            classes=coded.classes,
            threads=threads,
            progress=part_of(progress, number, len(ways)),
            **options,
        )
    return out
