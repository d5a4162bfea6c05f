"""The images of `answers.py`, none of which the models were trained on: their features and codes,
edited copies of them, and windows of them, as many as are asked for.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from common import Codes, Ids, progress
from mchindex.datasets import Dataset
from mchindex.datasets.edits import Edited
from mchindex.files import open_file, replacing
from mchindex.inference.region_codes import Encoded
from mchindex.models import MCHModel
from mchindex.regions import WHOLE, Boxes, Layout, grid, overlaps
from mchindex.training.features import WHOLE_ONLY, FeatureCache, Fixed, unreadable
from ship import parts

Floats = NDArray[np.float32]
Features = NDArray[np.float16]

CELLS = 7  # rows and columns of the feature map that windows are pooled from
SMALLEST = 0.5  # side of a window, at least, as a share of the image's
SOURCES = 32  # images per file of windows
COMPONENTS = 128  # of the floats that stand for a window
COPIES = 400  # indexed images that are edited


# Photographs.


@dataclass(frozen=True)
class Queries:
    """Images as queries."""

    floats: Floats  # (n, dim) of length 1: of the frozen backbone
    codes: Codes  # (n, bits // 8)
    fine: Floats  # (n, fine bits)
    all_floats: Floats  # (n, …) of length 1: of tuned blocks, too

    def __len__(self) -> int:
        return len(self.codes)


@dataclass(frozen=True)
class Images:
    """Images as an index stores them."""

    floats: Floats  # (n, dim) of length 1: of the whole images, by the frozen backbone
    fine: NDArray[np.uint8]  # (n, regions, fine bits // 8)
    codes: Codes  # (m, bits // 8), those of an image after one another
    regions: NDArray[np.int16]  # (m,)
    counts: Ids  # (n,) codes of each image
    labels: NDArray[np.bool_]  # (n, classes)
    all_floats: Floats  # (n, …) of length 1: of tuned blocks, too; no rows for windows

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def owners(self) -> Ids:
        """(m,): the image of each code."""
        return np.repeat(np.arange(len(self)), self.counts)


@dataclass(frozen=True)
class Photos:
    """Images that the model was not trained on. Settings are chosen with the validation images,
    and figures are reported for the others."""

    model: MCHModel
    dataset: Dataset
    cache: FeatureCache
    validation: Ids  # rows of the data set
    queries: Ids
    indexed: Ids
    features: dict[int, Features]  # row -> (regions + CELLS ** 2, dim)

    @classmethod
    def read(cls, model: MCHModel, dataset: Dataset, cache: FeatureCache, seed: int) -> Photos:
        """Divides the unseen images by the seed: a quarter for validation, and of the rest four
        in fifteen as queries."""
        if model.mode != "pooled" or model.fine is None:
            raise SystemExit("answers.py needs a model with pooled regions and fine codes")
        _, unseen = parts(dataset, model.about["seed"])
        rows = np.sort(np.concatenate([unseen.splits["query"], unseen.splits["database"]]))
        progress(f"features of {len(rows):,} images")
        features = cache.features(
            model.extractor, dataset.images, rows, Fixed(model.layout + map_cells())
        )
        good = ~unreadable(features)
        rows, features = rows[good], features[good]
        mixed = np.random.default_rng(seed).permutation(rows)
        first = len(rows) // 4
        second = first + (len(rows) - first) * 4 // 15
        return cls(
            model, dataset, cache, mixed[:first], mixed[first:second], mixed[second:],
            dict(zip(rows.tolist(), features, strict=True)),
        )  # fmt: skip

    @property
    def choosing(self) -> tuple[Ids, Ids]:
        """Queries and indexed images, of the validation images, to choose settings with."""
        queries = len(self.validation) * 3 // 10
        return self.validation[:queries], self.validation[queries:]

    @property
    def sources(self) -> Ids:
        """The images that windows are taken of: all that are no query, here or in validation."""
        return np.concatenate([self.indexed, self.choosing[1]])

    def regions(self, rows: Ids) -> Features:
        """(n, regions, dim)"""
        return np.stack([self.features[row][: len(self.model.layout)] for row in rows.tolist()])

    def maps(self, rows: Ids) -> Features:
        """(n, CELLS ** 2, dim)"""
        return np.stack([self.features[row][-(CELLS**2) :] for row in rows.tolist()])

    def as_queries(self, rows: Ids) -> Queries:
        return queries_of(self.model, self.regions(rows)[:, 0])

    def as_images(self, rows: Ids) -> Images:
        features = self.regions(rows)
        fine, encoded = coded(self.model, features)
        return Images(
            unit(frozen(self.model, features[:, 0])), fine, encoded.codes, encoded.regions,
            np.bincount(encoded.images, minlength=len(rows)), self.dataset.labels[rows],
            unit(features[:, 0]),
        )  # fmt: skip

    def copies(self, edit: str, rows: Ids) -> Queries:
        """Edited copies of images as queries."""
        source = Edited(self.dataset.images, edit)
        features = self.cache.features(self.model.extractor, source, rows, WHOLE_ONLY)
        return queries_of(self.model, features[:, 0])


def map_cells() -> Layout:
    """The cells of a feature map as regions."""
    cells = grid(CELLS, CELLS, 1 / CELLS)
    # Their number is what counts: rounding must not make a cell reach into the next.
    edges = [i / CELLS for i in range(CELLS + 1)]
    boxes = tuple(
        (edges[x], edges[y], edges[x + 1], edges[y + 1]) for y in range(CELLS) for x in range(CELLS)
    )
    return replace(cells, boxes=(WHOLE, *boxes))


def unit(x: NDArray[np.float16] | Floats) -> Floats:
    """Rows of length 1."""
    wide = np.asarray(x, np.float32)
    length = np.linalg.norm(wide, axis=-1, keepdims=True)
    out: Floats = np.divide(wide, np.maximum(length, 1e-12), dtype=np.float32)
    return out


def frozen(model: MCHModel, features: Features) -> Features:
    """The features of the backbone without tuned blocks."""
    return features[..., -(model.backbone.dim // len(model.backbone.branches)) :]


def queries_of(model: MCHModel, features: Features) -> Queries:
    assert model.fine is not None
    codes = model.codes_of(torch.from_numpy(features))
    fine, whole = model.fine.projections(features), unit(features)
    return Queries(unit(frozen(model, features)), codes, fine, whole)


def coded(model: MCHModel, features: Features) -> tuple[Codes, Encoded]:
    """The fine codes of all regions, and the codes of those that the model keeps."""
    assert model.fine is not None
    return model.fine.codes(features), model.choose(model.regions_of(features))


# Windows.


@dataclass(frozen=True)
class Components:
    """Principal components, by which floats are shortened."""

    mean: Floats
    axes: Floats  # (dim, COMPONENTS)

    @classmethod
    def fit(cls, features: Features) -> Components:
        x = unit(features.reshape(-1, features.shape[-1]))
        mean: Floats = x.mean(0)
        _, axes = np.linalg.eigh(np.cov(x - mean, rowvar=False))
        return cls(mean, axes[:, ::-1][:, :COMPONENTS].astype(np.float32))

    def __call__(self, floats: Floats) -> Floats:
        short: Floats = np.matmul(floats - self.mean, self.axes, dtype=np.float32)
        return unit(short)


def windows_of(key: bytes, count: int, layout: Boxes, seed: int) -> NDArray[np.float64]:
    """(count, regions, 4): random windows of an image, each divided as the layout divides an image.
    The first is the whole image."""
    rng = np.random.default_rng([seed, *key])
    side = rng.uniform(SMALLEST, 1, count)
    side[0] = 1
    left, top = rng.random((2, count)) * (1 - side)
    start = np.stack([left, top, left, top], axis=1)[:, None]
    boxes: NDArray[np.float64] = start + layout * side[:, None, None]
    return boxes.clip(0, 1)


def many_images(photos: Photos, rows: Ids, total: int, seed: int, short: Components) -> Images:
    """`total` windows of these images, in equal shares, coded as if they were images.

    Their features are pooled from the feature maps, and their labels are those of the images. What
    is computed is kept with the cached features, so that an interrupted run resumes.
    """
    model = photos.model
    assert model.fine is not None
    each = -(-total // len(rows))
    facts = [
        model.fingerprint,
        model.fine.fingerprint,
        model.xi,
        CELLS,
        SMALLEST,
        SOURCES,
        each,
        seed,
    ]
    identity = hashlib.sha256(json.dumps(facts).encode())
    identity.update(np.ascontiguousarray(short.axes).tobytes())
    keys = [photos.dataset.images.key(row) for row in rows.tolist()]
    layout, found = model.layout.array(), []
    for start in range(0, len(rows), SOURCES):
        part = slice(start, start + SOURCES)
        name = hashlib.sha256(identity.digest() + b"".join(keys[part])).hexdigest()[:40]
        root = photos.cache.root
        path = None if root is None else root / "windows" / f"{name}.npz"
        stored = None if path is None else _stored(path)
        if stored is None:
            maps = photos.maps(rows[part]).astype(np.float32)
            boxes = (windows_of(key, each, layout, seed) for key in keys[part])
            shares = (overlaps(b, CELLS, CELLS) for b in boxes)
            features = np.concatenate([s @ m for s, m in zip(shares, maps, strict=True)])
            stored = _as_arrays(model, features.astype(np.float16), short)
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                with replacing(path) as file:
                    np.savez(file, allow_pickle=False, **stored)
        found.append(stored)
        if start // SOURCES % 10 == 0:
            progress(f"windows of {start:,} of {len(rows):,} images")
    whole = {name: np.concatenate([part[name] for part in found]) for name in found[0]}
    codes = int(whole["counts"][:total].sum())
    return Images(
        whole["floats"][:total], whole["fine"][:total], whole["codes"][:codes],
        whole["regions"][:codes], whole["counts"][:total],
        np.repeat(photos.dataset.labels[rows], each, axis=0)[:total], np.empty((0, 0), np.float32),
    )  # fmt: skip


def _as_arrays(model: MCHModel, features: Features, short: Components) -> dict[str, NDArray[Any]]:
    fine, encoded = coded(model, features)
    return {
        "fine": fine,
        "codes": encoded.codes,
        "regions": encoded.regions,
        "counts": np.bincount(encoded.images, minlength=len(fine)),
        "floats": short(unit(frozen(model, features[:, 0]))).astype(np.float16),
    }


def _stored(path: Path) -> dict[str, NDArray[Any]] | None:
    """The arrays of a file; None if there is none, or if it is damaged."""
    try:
        with open_file(path) as stream, np.load(stream, allow_pickle=False) as arrays:
            return dict(arrays)
    except (OSError, ValueError, EOFError, KeyError):
        return None
