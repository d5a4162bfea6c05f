"""Features on disk: computed once, and shared by all methods, code lengths and seeds.

They are stored in shards of a few hundred images. A shard's name is a hash of the images' content,
the backbone's weights and the regions, so that no stale features are ever read. An extraction that
was interrupted resumes with the first shard that is missing.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mchindex.datasets import ImageSource
from mchindex.errors import ImageError
from mchindex.files import open_file, replacing
from mchindex.inference.extract import Job
from mchindex.models.extract import Extractor
from mchindex.models.mch import digest
from mchindex.progress import Progress, Step, silent
from mchindex.regions import WHOLE, Boxes, Layout, random_boxes

SHARD = 512  # images per shard


class Regions(Protocol):
    """Which boxes of each image features are computed for."""

    @property
    def about(self) -> str:
        """A description of everything that the boxes depend on besides the image's key."""
        ...

    def boxes(self, key: bytes) -> Boxes:
        """The boxes of the image with this key, the same number for every image."""
        ...


@dataclass(frozen=True)
class Fixed:
    """The same boxes for every image."""

    layout: Layout

    @property
    def about(self) -> str:
        return f"fixed {self.layout.boxes}"

    def boxes(self, key: bytes) -> Boxes:
        return self.layout.array()


@dataclass(frozen=True)
class WithCrops:
    """The whole image and random crops of it, for training."""

    count: int
    sigma: float | tuple[float, float]
    seed: int = 0

    @property
    def about(self) -> str:
        return f"whole and {self.count} crops of {self.sigma} from seed {self.seed}"

    def boxes(self, key: bytes) -> Boxes:
        crops = random_boxes(self.count, self.sigma, self.seed, key)
        return np.concatenate([[WHOLE], crops])


WHOLE_ONLY = Fixed(Layout(("whole",), (WHOLE,)))


def default_cache() -> Path | None:
    """The folder in `$MCH_CACHE`, or mchindex in the user's cache folder.

    None, so that nothing is cached, if the user has no home folder.
    """
    if own := os.environ.get("MCH_CACHE"):
        return Path(own)
    if cache := os.environ.get("XDG_CACHE_HOME"):
        return Path(cache) / "mchindex"
    try:
        return Path.home() / ".cache/mchindex"
    except RuntimeError:
        return None


class FeatureCache:
    """A folder of shards; with None for a folder, nothing is stored."""

    def __init__(self, root: Path | None) -> None:
        self.root = root

    def features(
        self,
        extractor: Extractor,
        images: ImageSource,
        rows: Sequence[int] | NDArray[np.int64],
        regions: Regions,
        progress: Progress = silent,
    ) -> NDArray[np.float16]:
        """The features of some images, (len(rows), regions, dim).

        Those of an image that cannot be read are NaN; see `unreadable`.
        """
        backbone = extractor.backbone
        identity = digest(backbone.identity | {"mode": extractor.mode}, backbone.state_dict())
        parts = []
        for start in range(0, len(rows), SHARD):
            part = [int(i) for i in rows[start : start + SHARD]]
            keys = [_key(images, i) for i in part]
            parts.append(self._shard(extractor, images, part, keys, regions, identity))
            progress(Step("features", start + len(part), len(rows)))
        if not parts:
            return np.empty((0, len(regions.boxes(b"")), backbone.dim), np.float16)
        return np.concatenate(parts)

    def _shard(
        self,
        extractor: Extractor,
        images: ImageSource,
        rows: list[int],
        keys: list[bytes],
        regions: Regions,
        identity: str,
    ) -> NDArray[np.float16]:
        path = None
        if self.root is not None:
            total = hashlib.sha256(f"{identity} {regions.about} {extractor.engine}".encode())
            for key in keys:
                total.update(key)
            path = self.root / identity[:12] / f"{total.hexdigest()[:40]}.npy"
        count = len(regions.boxes(b""))
        shape = (len(rows), count, extractor.backbone.dim)
        if path is not None and (stored := _stored(path, shape)) is not None:
            return stored

        def load(place: int) -> Job | None:
            try:
                return images.image(rows[place]), regions.boxes(keys[place])
            except ImageError:
                return None

        out = np.full(shape, np.nan, np.float16)
        for part in extractor.stream(range(len(rows)), load, count):
            good = [place for place, there in zip(part.sources, part.loaded, strict=True) if there]
            out[good] = part.features
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as file:
                np.save(file, out)
        return out


def _stored(path: Path, shape: tuple[int, ...]) -> NDArray[np.float16] | None:
    """The features in a file; None if there is none, or if it is damaged and has to be replaced."""
    try:
        with open_file(path) as stream:
            array: NDArray[np.float16] = np.load(stream, allow_pickle=False)
    except (ValueError, OSError, EOFError):
        return None
    return array if array.shape == shape and array.dtype == np.float16 else None


def unreadable(features: NDArray[np.float16]) -> NDArray[np.bool_]:
    """(n,): which images could not be read."""
    broken: NDArray[np.bool_] = np.isnan(features[:, 0, 0])
    return broken


def _key(images: ImageSource, row: int) -> bytes:
    try:
        return images.key(row)
    except (OSError, ImageError):
        return bytes(32)  # the file no longer exists: its features are NaN
