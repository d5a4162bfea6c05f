"""What turns images into codes: a model, run by ONNX Runtime or by torch."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import lru_cache
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mchindex.catalogue import Precision
from mchindex.errors import ModelError
from mchindex.images import BYTES, Source, is_file_object, read_picture
from mchindex.inference.extract import Extractor, Job, Mode
from mchindex.inference.fine import FineCodes
from mchindex.inference.region_codes import Encoded, Packed, RegionCodes, check_budget
from mchindex.inference.words import KnownWords
from mchindex.regions import WHOLE, Box, Layout, in_pixels

ROWS = 4096  # rows of features per pass


class Encoder(ABC):
    """Turns images into codes: `encode` for images to store, `encode_query` for queries."""

    precision: Precision = "float"  # with which the backbone computes
    int8_graph: str | None = None  # the SHA-256 of the graph, if the precision is int8
    xi: float  # regions with at least this probability are kept
    mode: Mode  # how features of regions are computed, see `Extractor`
    layout: Layout  # the regions of an image
    fine: FineCodes | None  # None: no fine codes
    words: KnownWords | None  # by which images are found; None: none

    @property
    @abstractmethod
    def bits(self) -> int:
        """The length of a code."""

    @property
    @abstractmethod
    def method_name(self) -> str:
        """What its hashing method is called."""

    @property
    @abstractmethod
    def input_size(self) -> int:
        """The side of the backbone's input in pixels."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """A hash of everything that codes depend on: models that share it give the same codes."""

    @property
    @abstractmethod
    def own_xi(self) -> float:
        """The xi that is part of the fingerprint."""

    @property
    @abstractmethod
    def fine_kind(self) -> tuple[int, str] | None:
        """The bits and the fingerprint of the fine codes; None if there are none."""

    @property
    @abstractmethod
    def extractor(self) -> Extractor:
        """Computes features with the model's backbone."""

    @abstractmethod
    def codes_of(self, features: Any) -> Packed:
        """The packed codes of (n, dim) features.

        Raises ModelError if the features or what the method makes of them are not finite.
        """

    @abstractmethod
    def regions_of(self, features: NDArray[np.float16]) -> RegionCodes:
        """The code and the probability of keeping of every region.

        `features` is (n, regions, dim), the whole image first. Raises ModelError if they, or what
        the method or the policy makes of them, are not finite.
        """

    @abstractmethod
    def has_policy(self) -> bool:
        """Whether it chooses regions. Without a policy, it stores one code per image."""

    @abstractmethod
    def with_xi(self, xi: float) -> Encoder:
        """The same model with another xi."""

    @abstractmethod
    def save(self, path: str | PathLike[str]) -> None:
        """Writes the model to a folder."""

    @property
    def least(self) -> int:
        """The side in pixels that a picture needs so that no region has to be enlarged.

        JPEG files are decoded at a half, a quarter or an eighth of their size as long as this
        remains. The codes of the same picture given as an array may differ in a bit or two.
        """
        return _least_side(self.layout.boxes if self.mode == "crops" else (WHOLE,), self.input_size)

    def encode(self, images: Iterable[Source]) -> Encoded:
        """The codes to store: those of the whole images and of the regions that the policy keeps.

        Raises ImageError for an image that cannot be read.
        """
        return self.choose(self._all_regions(images))

    def encode_query(
        self, images: Iterable[Source], region: Sequence[float] | None = None
    ) -> Packed:
        """The codes of whole images, or of a part of each, (n, bits // 8).

        `region` is a box (x0, y0, x1, y1) in pixels of the upright picture at its full size. Raises
        ImageError for an image that cannot be read, and ValueError for a region that is not within
        the picture.
        """
        return self.encode_queries(images, region)[0]

    def encode_queries(
        self, images: Iterable[Source], region: Sequence[float] | None = None
    ) -> tuple[Packed, NDArray[np.float32] | None]:
        """What `encode_query` gives, and the projections (n, fine bits) that are compared with
        fine codes; None if the model has none."""
        features = self._features(images, np.array([WHOLE]), region)[:, 0]
        fine = None if self.fine is None else self.fine.projections(features)
        return self.codes_of(features), fine

    def with_codes(self, codes: float, images: Iterable[Source]) -> Encoder:
        """The same model, with xi set so that images like these have `codes` codes on average.

        Give some hundreds of images. Raises ValueError if there are none, or if no xi can give that
        many codes.
        """
        self.check_codes(codes)
        regions = self._all_regions(images)
        if not len(regions.codes):
            raise ValueError("xi is set from images: give at least one, better some hundreds")
        return self.with_xi(regions.xi_for(codes))

    def check_codes(self, codes: float) -> None:
        """Raises ValueError if no xi gives this many codes per image."""
        if not self.has_policy():
            raise ValueError("a model without a policy stores one code per image")
        check_budget(codes, self.layout)

    def choose(self, regions: RegionCodes) -> Encoded:
        """Keeps the whole image and the regions with a probability of at least xi."""
        return regions.chosen(regions.kept(self.xi))

    def _all_regions(self, images: Iterable[Source]) -> RegionCodes:
        return self.regions_of(self._features(images, self.layout.array()))

    def _features(
        self,
        images: Iterable[Source],
        boxes: NDArray[np.float64],
        region: Sequence[float] | None = None,
    ) -> NDArray[np.float16]:
        if isinstance(images, (str, *BYTES, PathLike, Image.Image)) or is_file_object(images):
            raise TypeError("pass a list of images: [image] for one")

        def load(source: Source) -> Job:
            if region is None:
                return read_picture(source, self.least).image, boxes
            # The part may be small, so the picture is decoded at its full size.
            return cut_out(read_picture(source).image, region), boxes

        return self.extractor.collect(images, load, len(boxes))


@lru_cache(64)
def _least_side(boxes: tuple[Box, ...], input_size: int) -> int:
    return math.ceil(input_size / min(min(x1 - x0, y1 - y0) for x0, y0, x1, y1 in boxes))


def cut_out(image: Image.Image, region: Sequence[float]) -> Image.Image:
    """The part of a picture within a box (x0, y0, x1, y1) in pixels.

    Raises ValueError for a box that is not within the picture.
    """
    if len(region) != 4:
        raise ValueError(f"a region is a box (x0, y0, x1, y1) in pixels, not {tuple(region)}")
    x0, y0, x1, y1 = region
    width, height = image.size
    if not (0 <= x0 < x1 <= width and 0 <= y0 < y1 <= height):
        raise ValueError(
            f"the region {tuple(region)} is not within the picture of {width} x {height} pixels"
        )
    box = (x0 / width, y0 / height, x1 / width, y1 / height)
    return image if box == WHOLE else image.crop(in_pixels(box, width, height))


def not_finite(what: str, wrong: int, regions: int) -> ModelError:
    """The error of numbers whose signs would mean nothing."""
    return ModelError(
        f"{what} for {wrong} of {regions} regions have values that are not finite numbers, so that "
        "no code can be computed: the model is unsuitable for these images"
    )
