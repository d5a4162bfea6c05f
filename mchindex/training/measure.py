"""A model measured on a data set: its codes against one code an image, and against chance.

Four ways of keeping, over the same codes: `base` (the whole image's only), `mch` (what the policy
keeps), `random_keep` (regions at random, as many distinct codes an image as the policy has) and
`keep_all`. A policy that does not beat `random_keep` has learnt nothing.
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
from mchindex.models.hashing import Packed
from mchindex.models.mch import MCHModel
from mchindex.models.region_codes import Encoded, RegionCodes
from mchindex.progress import Progress, part_of, silent
from mchindex.training.features import WHOLE_ONLY, FeatureCache, Fixed, unreadable

WAYS = ("base", "mch", "random_keep", "keep_all")


@dataclass(frozen=True)
class Coded:
    """A data set's queries and database in a model's codes."""

    queries: Packed  # (q, bits // 8)
    database: RegionCodes
    query_labels: NDArray[np.bool_]
    labels: NDArray[np.bool_]
    classes: tuple[str, ...]
    skipped: dict[str, int]


def encode_dataset(
    model: MCHModel, dataset: Dataset, cache: Path | None = None, progress: Progress = silent
) -> Coded:
    """Codes of all queries and of every region of the database, through the cache of features."""
    store = FeatureCache(cache)
    rows = {name: dataset.splits[name] for name in ("query", "database")}
    wanted = {"query": WHOLE_ONLY, "database": Fixed(model.layout)}
    found, skipped = {}, dict(dataset.skipped)
    for name, which in rows.items():
        if not len(which):
            raise DatasetError(f"{dataset.name} has no {name} images: nothing can be measured")
        step = _named(progress, name)
        features = store.features(model.extractor, dataset.images, which, wanted[name], step)
        broken = unreadable(features)
        if broken.all():
            raise DatasetError(f"none of the {name} images of {dataset.name} can be read")
        if broken.any():
            skipped["unreadable"] = skipped.get("unreadable", 0) + int(broken.sum())
        found[name], rows[name] = features[~broken], which[~broken]
    return Coded(
        model.codes_of(torch.from_numpy(found["query"][:, 0])),
        model.regions_of(found["database"]),
        dataset.labels[rows["query"]],
        dataset.labels[rows["database"]],
        dataset.classes,
        skipped,
    )


def _named(progress: Progress, split: str) -> Progress:
    """Progress that says which split's features they are."""
    return lambda step: progress(replace(step, stage=f"{split} {step.stage}"))


def kept_by(way: str, found: RegionCodes, xi: float, seed: int = 0) -> NDArray[np.bool_]:
    """(n, regions): which regions one of the four ways keeps."""
    if way == "base":
        kept = np.zeros(found.keep.shape, bool)
        kept[:, 0] = True
        return kept
    if way == "keep_all":
        return np.ones(found.keep.shape, bool)
    kept = found.kept(xi)
    if way == "mch":
        return kept
    if way == "random_keep":
        return _at_random(found, int(found.distinct(kept).sum()), seed)
    raise ValueError(f"a way of keeping is one of {', '.join(WAYS)}, not {way!r}")


def _at_random(found: RegionCodes, codes: int, seed: int) -> NDArray[np.bool_]:
    """Regions by lot, so many that there are as many distinct codes as asked for."""
    lot = np.random.default_rng(seed).random(found.keep.shape)
    lot[:, 0] = -1
    low, high = 0.0, 1.0
    for _ in range(24):
        middle = (low + high) / 2
        if found.distinct(lot < middle).sum() < codes:
            low = middle
        else:
            high = middle
    kept: NDArray[np.bool_] = lot < high
    return kept


def as_codes(encoded: Encoded) -> Codes:
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
    """Each way's figures; `options` go to `evaluate`."""
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
