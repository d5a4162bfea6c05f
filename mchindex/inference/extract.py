"""Features of regions: images and boxes in, one row of numbers per region out.

The mode "crops" cuts out every region, resizes it and runs the backbone on it, as the paper does.
"pooled" runs the backbone once on the whole image and averages its feature map over each region,
weighting each cell by how much of it the region covers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from itertools import chain, islice
from typing import Generic, Literal, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mchindex.images import one_picture
from mchindex.inference.threads import cores
from mchindex.regions import WHOLE, Boxes, in_pixels, overlaps

Mode = Literal["crops", "pooled"]
MODES: tuple[Mode, ...] = ("crops", "pooled")

Pixels = NDArray[np.uint8]  # (n, 3, size, size)
BATCH = 8  # inputs per pass on a CPU: larger batches do not fit its caches
AHEAD = 400 << 20  # bytes of sources that are taken ahead
# Channels that are pooled at a time. NumPy would divide a larger product among the cores, which are
# busy with other images, and they would wait for each other in a busy loop.
CHANNELS = 1280


class Runner(Protocol):
    """Runs a backbone: pixels -> features (n, dim) or feature maps (n, dim, rows, columns)."""

    @property
    def name(self) -> str: ...
    def __call__(self, pixels: Pixels) -> NDArray[np.float32]: ...


def check_mode(mode: str) -> None:
    if mode not in MODES:
        raise ValueError(f"regions are {' or '.join(MODES)}, not {mode!r}")


def resized(image: Image.Image, box: Sequence[float], size: int) -> Pixels:
    """A region of an image, cut out and resized to (3, size, size)."""
    # Cropped first: Pillow's resize(box=…) would mix in pixels from outside the region.
    place = in_pixels(box, *image.size)
    region = image if place == (0, 0, *image.size) else image.crop(place)
    small = region.resize((size, size), Image.Resampling.BILINEAR)
    return np.asarray(small).transpose(2, 0, 1)


T = TypeVar("T")
Job = tuple[Image.Image, Boxes]


class _Views(NamedTuple):
    """An image as the backbone takes it."""

    pixels: Pixels
    boxes: Boxes  # the distinct ones
    places: NDArray[np.intp]  # of the regions' boxes among the distinct ones


class Extracted(NamedTuple, Generic[T]):
    """The features of some consecutive sources of a stream."""

    sources: list[T]
    loaded: list[bool]  # which of them have features
    features: NDArray[np.float16]  # (loaded, regions, dim)


def _pooled(shares: NDArray[np.float32], cells: NDArray[np.float32]) -> NDArray[np.float32]:
    """(regions, cells) and (channels, cells) -> (regions, channels)."""
    parts = [shares @ cells[start : start + CHANNELS].T for start in range(0, len(cells), CHANNELS)]
    return np.concatenate(parts, 1) if len(parts) > 1 else parts[0]


@lru_cache(64)
def _distinct(boxes: bytes) -> tuple[Boxes, NDArray[np.intp]]:
    """The distinct ones of boxes, and where each is among them; most images have the same boxes."""
    distinct, where = np.unique(np.frombuffer(boxes).reshape(-1, 4), axis=0, return_inverse=True)
    return distinct, where.reshape(-1)


@lru_cache(64)
def _shares(boxes: bytes, rows: int, columns: int) -> NDArray[np.float32]:
    """`overlaps` of boxes that many images have."""
    return overlaps(np.frombuffer(boxes).reshape(-1, 4), rows, columns)


def _groups(sources: Iterable[T], most: int, bytes_of: Callable[[T], int]) -> Iterator[list[T]]:
    """Yields lists of up to `most` sources, fewer if they take much memory."""
    group: list[T] = []
    held = 0
    for source in sources:
        group.append(source)
        held += bytes_of(source)
        if len(group) == most or held > AHEAD // 4:
            yield group
            group, held = [], 0
    if group:
        yield group


class Extractor:
    """Computes the features of regions with a backbone, in one of the modes."""

    def __init__(self, run: Runner, size: int, dim: int, mode: Mode = "crops") -> None:
        """`run` computes features of inputs of `size` pixels per side, or, if the mode is "pooled",
        their feature maps; `dim` is the number of features."""
        check_mode(mode)
        self.size, self.dim, self.mode = size, dim, mode
        self._run = run

    @property
    def engine(self) -> str:
        """What runs the backbone: "torch" or "onnx"."""
        return self._run.name

    def workers(self) -> int:
        """Threads that load images and run the backbone."""
        return cores()

    def step(self, regions: int) -> int:
        """Sources per pass, each of which has this many regions."""
        return 1 if self.mode == "crops" else BATCH

    def __call__(self, images: Sequence[Image.Image], boxes: Boxes) -> NDArray[np.float16]:
        """The features of regions, (n, regions, dim).

        `boxes` is (regions, 4), the same for all images, or (n, regions, 4). Features are rounded
        to float16, the type in which they are cached on disk, so that an image has the same codes
        whether or not its features were cached. Equal boxes of an image have equal features.
        """
        every = np.broadcast_to(boxes, (len(images), *boxes.shape[-2:]))
        return self.collect(zip(images, every, strict=True), lambda job: job, boxes.shape[-2])

    def collect(
        self, sources: Iterable[T], load: Callable[[T], Job], regions: int
    ) -> NDArray[np.float16]:
        """All that `stream` yields, in one array (n, regions, dim)."""
        rest = iter(sources)
        some = list(islice(rest, self.step(regions) + 1))
        if len(some) <= self.step(regions):  # one pass needs no thread of its own
            return self._pass(some, load, regions).features
        parts = [e.features for e in self.stream(chain(some, rest), load, regions)]
        return np.concatenate(parts)

    def stream(
        self,
        sources: Iterable[T],
        load: Callable[[T], Job | None],
        regions: int,
        bytes_of: Callable[[T], int] = lambda source: 0,
        skip: Callable[[T], bool] = lambda source: False,
    ) -> Iterator[Extracted[T]]:
        """Yields the features of the sources, in their order, a few sources at a time.

        `load` turns a source into an image and its boxes, `regions` of them, or returns None to
        leave it out. It runs in the threads that run the backbone, ahead of what is yielded; an
        exception that it raises ends the stream. `bytes_of` says how much memory a source takes:
        fewer sources that take much are taken ahead. `skip`, which the calling thread runs, says
        cheaply that `load` would return None; it may miss some.
        """
        workers = self.workers()
        groups = _groups(sources, self.step(regions), bytes_of)
        some = list(islice(groups, 2))
        if len(some) == 1 and not all(map(skip, some[0])):  # one pass needs no thread of its own
            yield self._pass(some[0], load, regions)
            return
        pool = ThreadPoolExecutor(workers)
        running: deque[tuple[int, Future[Extracted[T]]]] = deque()
        ahead = 0
        try:
            for group in chain(some, groups):
                held = sum(map(bytes_of, group))
                if all(map(skip, group)):  # no thread need wake up for it
                    future: Future[Extracted[T]] = Future()
                    future.set_result(
                        Extracted(group, [False] * len(group), self._nothing(regions))
                    )
                else:
                    future = pool.submit(self._pass, group, load, regions)
                running.append((held, future))
                ahead += held
                while len(running) > 2 * workers or (running and ahead > AHEAD):
                    held, first = running.popleft()
                    ahead -= held
                    yield first.result()
            while running:
                yield running.popleft()[1].result()
        finally:
            pool.shutdown(cancel_futures=True)

    def _pass(self, group: list[T], load: Callable[[T], Job | None], regions: int) -> Extracted[T]:
        """The features of sources that go through the backbone together."""

        def prepare(source: T) -> _Views | None:
            # The picture is freed before another is decoded: it may be much larger than the views.
            with one_picture():
                job = load(source)
                views = None if job is None else self._views(*job)
                del job
            return views

        prepared = [prepare(source) for source in group]
        views = [v for v in prepared if v is not None]
        features = self._features(views) if views else self._nothing(regions)
        return Extracted(group, [v is not None for v in prepared], features)

    def _nothing(self, regions: int) -> NDArray[np.float16]:
        return np.empty((0, regions, self.dim), np.float16)

    def _views(self, image: Image.Image, boxes: Boxes) -> _Views:
        distinct, places = _distinct(np.asarray(boxes, np.float64).tobytes())
        inputs = distinct if self.mode == "crops" else np.array([WHOLE])
        pixels = np.stack([resized(image, box, self.size) for box in inputs])
        return _Views(pixels, distinct, places)

    def _features(self, views: Sequence[_Views]) -> NDArray[np.float16]:
        out = self._run(np.concatenate([v.pixels for v in views]))
        if self.mode == "crops":
            ends = np.cumsum([len(v.pixels) for v in views])[:-1]
            parts = np.split(out.astype(np.float16), ends)
            return np.stack([part[v.places] for part, v in zip(parts, views, strict=True)])
        rows, columns = out.shape[-2:]
        cells = out.reshape(*out.shape[:2], -1)
        pooled = [
            _pooled(_shares(v.boxes.tobytes(), rows, columns), c)
            for c, v in zip(cells, views, strict=True)
        ]
        return np.stack(
            [p[v.places].astype(np.float16) for p, v in zip(pooled, views, strict=True)]
        )
