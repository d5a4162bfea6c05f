"""Features of regions: images and boxes in, one row of numbers per region out.

The mode "crops" cuts out every region, resizes it and runs the backbone on it, as the paper does.
"pooled" runs the backbone once on the whole image and averages its feature map over each region,
weighting each cell by how much of it the region covers.

On a CPU, ONNX Runtime runs the backbone if it is installed, because it is faster.
"""

from __future__ import annotations

import io
import os
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.util import find_spec
from typing import Generic, Literal, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from mchindex.budget import Budget
from mchindex.images import one_picture
from mchindex.models.backbones import Backbone
from mchindex.regions import WHOLE, Boxes, in_pixels, overlaps

Mode = Literal["crops", "pooled"]
Engine = Literal["auto", "torch", "onnx"]
MODES: tuple[Mode, ...] = ("crops", "pooled")
ENGINES: tuple[Engine, ...] = ("auto", "torch", "onnx")

Pixels = NDArray[np.uint8]  # (n, 3, size, size)
BATCH = 8  # inputs per pass on a CPU: larger batches do not fit its caches
GPU_BATCH = 256
AHEAD = 400 << 20  # bytes of sources that are taken ahead
AT_A_TIME = 16  # inputs in all passes of ONNX Runtime: each takes some 25 MB while it is computed


def set_threads(threads: int) -> None:
    """Sets how many threads torch and the extraction use, in this process."""
    torch.set_num_threads(threads)


def cores() -> int:
    """Threads to use: as many as torch may use, but no more than this process has cores."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(available or 1, torch.get_num_threads())


def choose_device(name: str | None = None) -> torch.device:
    """The named device; for None or "auto", the GPU if there is one, otherwise the CPU.

    Raises ValueError for a device that cannot be used.
    """
    if name is None or name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device {name!r} cannot be used here: {reason}") from None
    return device


def resized(image: Image.Image, box: Sequence[float], size: int) -> Pixels:
    """A region of an image, cut out and resized to (3, size, size)."""
    # Cropped first: Pillow's resize(box=…) would mix in pixels from outside the region.
    region = image.crop(in_pixels(box, *image.size))
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
    """Computes the features of regions with a backbone, on one device, in one of the modes."""

    def __init__(
        self,
        backbone: Backbone,
        mode: Mode = "crops",
        device: torch.device | None = None,
        engine: Engine = "auto",
    ) -> None:
        if mode not in MODES:
            raise ValueError(f"regions are {' or '.join(MODES)}, not {mode!r}")
        if engine not in ENGINES:
            raise ValueError(f"engine is one of {', '.join(ENGINES)}, not {engine!r}")
        self.backbone, self.mode = backbone, mode
        self.device = choose_device() if device is None else device
        backbone.to(self.device).eval()
        network = _Network(backbone, mode)
        if mode == "pooled":
            with torch.inference_mode():  # raises here if the backbone has no feature map
                network(torch.zeros(1, 3, backbone.size, backbone.size, device=self.device))
        self._run = _runner(network, self.device, engine)

    @property
    def engine(self) -> str:
        """What runs the backbone: "torch" or "onnx"."""
        return self._run.name

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
        parts = [extracted.features for extracted in self.stream(sources, load, regions)]
        return np.concatenate([self._nothing(regions), *parts])

    def stream(
        self,
        sources: Iterable[T],
        load: Callable[[T], Job | None],
        regions: int,
        bytes_of: Callable[[T], int] = lambda source: 0,
    ) -> Iterator[Extracted[T]]:
        """Yields the features of the sources, in their order, a few sources at a time.

        `load` turns a source into an image and its boxes, `regions` of them, or returns None to
        leave it out. It runs in the threads that run the backbone, ahead of what is yielded; an
        exception that it raises ends the stream. `bytes_of` says how much memory a source takes:
        fewer sources that take much are taken ahead.
        """
        step = 1 if self.mode == "crops" else BATCH
        if self.device.type != "cpu":
            step = max(1, GPU_BATCH // (regions if self.mode == "crops" else 1))

        def prepare(source: T) -> _Views | None:
            # The picture is freed before another is decoded: it may be much larger than the views.
            with one_picture():
                job = load(source)
                views = None if job is None else self._views(*job)
                del job
            return views

        def work(group: list[T]) -> Extracted[T]:
            prepared = [prepare(source) for source in group]
            views = [v for v in prepared if v is not None]
            features = self._features(views) if views else self._nothing(regions)
            return Extracted(group, [v is not None for v in prepared], features)

        workers = cores()
        pool = ThreadPoolExecutor(workers)
        running: deque[tuple[int, Future[Extracted[T]]]] = deque()
        ahead = 0
        try:
            for group in _groups(sources, step, bytes_of):
                held = sum(map(bytes_of, group))
                running.append((held, pool.submit(work, group)))
                ahead += held
                while len(running) > 2 * workers or (running and ahead > AHEAD):
                    held, first = running.popleft()
                    ahead -= held
                    yield first.result()
            while running:
                yield running.popleft()[1].result()
        finally:
            pool.shutdown(cancel_futures=True)

    def _nothing(self, regions: int) -> NDArray[np.float16]:
        return np.empty((0, regions, self.backbone.dim), np.float16)

    def _views(self, image: Image.Image, boxes: Boxes) -> _Views:
        distinct, where = np.unique(boxes, axis=0, return_inverse=True)
        inputs = distinct if self.mode == "crops" else np.array([WHOLE])
        pixels = np.stack([resized(image, box, self.backbone.size) for box in inputs])
        return _Views(pixels, distinct, where.reshape(-1))

    def _features(self, views: Sequence[_Views]) -> NDArray[np.float16]:
        out = self._run(np.concatenate([v.pixels for v in views]))
        if self.mode == "crops":
            ends = np.cumsum([len(v.pixels) for v in views])[:-1]
            parts = np.split(out.astype(np.float16), ends)
            return np.stack([part[v.places] for part, v in zip(parts, views, strict=True)])
        rows, columns = out.shape[-2:]
        cells = out.reshape(*out.shape[:2], -1)
        pooled = [overlaps(v.boxes, rows, columns) @ c.T for c, v in zip(cells, views, strict=True)]
        return np.stack(
            [p[v.places].astype(np.float16) for p, v in zip(pooled, views, strict=True)]
        )


class _Network(nn.Module):
    """A backbone whose output is what a mode needs: features or a feature map."""

    def __init__(self, backbone: Backbone, mode: Mode) -> None:
        super().__init__()
        self.backbone, self.mode = backbone, mode
        self.train(backbone.training)

    def forward(self, pixels: Tensor) -> Tensor:
        if self.mode == "pooled":
            return self.backbone.feature_map(pixels)
        features: Tensor = self.backbone(pixels)
        return features


class _TorchRunner:
    name = "torch"

    def __init__(self, network: _Network, device: torch.device) -> None:
        self.network, self.device = network, device
        self.lock = threading.Lock()  # torch uses all threads for one pass
        if device.type == "cpu":
            network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def __call__(self, pixels: Pixels) -> NDArray[np.float32]:
        out = []
        mixed = torch.autocast(self.device.type, enabled=self.device.type == "cuda")
        batch = BATCH if self.device.type == "cpu" else GPU_BATCH
        with self.lock, torch.inference_mode(), mixed:
            for start in range(0, len(pixels), batch):
                x = torch.from_numpy(pixels[start : start + batch]).to(self.device)
                x = x.contiguous(memory_format=torch.channels_last)
                out.append(self.network(x).float().cpu().numpy())
        return np.concatenate(out)


class _OnnxRunner:
    """Each calling thread runs passes of its own, faster than many threads for one pass.

    All passes together have `AT_A_TIME` inputs at most, because their memory would otherwise grow
    with the number of threads. The size of a pass does not change the features.
    """

    name = "onnx"

    def __init__(self, network: _Network) -> None:
        size = network.backbone.size
        file = io.BytesIO()
        example = torch.zeros(2, 3, size, size)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # from the tracer: only the batch size varies
            torch.onnx.export(
                network,
                (example,),
                file,  # type: ignore[arg-type]  # it takes a stream, too
                input_names=["pixels"],
                output_names=["features"],
                dynamic_axes={"pixels": {0: "n"}, "features": {0: "n"}},
                dynamo=False,
            )
        network.eval()
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        self.session = onnxruntime.InferenceSession(
            file.getvalue(), options, providers=["CPUExecutionProvider"]
        )
        self.inputs = Budget(AT_A_TIME)

    def __call__(self, pixels: Pixels) -> NDArray[np.float32]:
        size = max(1, min(BATCH, AT_A_TIME // cores()))
        out = []
        for start in range(0, len(pixels), size):
            batch = pixels[start : start + size]
            with self.inputs.held(len(batch)):
                out.append(self.session.run(None, {"pixels": batch.astype(np.float32)})[0])
        return np.concatenate(out)


def _runner(network: _Network, device: torch.device, engine: Engine) -> _TorchRunner | _OnnxRunner:
    plain = _TorchRunner(network, device)
    if engine == "torch" or (engine == "auto" and device.type != "cpu"):
        return plain
    if find_spec("onnxruntime") is None or find_spec("onnx") is None:
        if engine == "onnx":
            raise ValueError("engine 'onnx' needs ONNX Runtime: pip install 'mchindex[fast]'")
        return plain
    size = network.backbone.size
    sample = np.random.default_rng(0).integers(0, 256, (2, 3, size, size), np.uint8)
    try:
        fast = _OnnxRunner(network)
        ours, theirs = fast(sample), plain(sample)
    except Exception as error:  # ONNX cannot express everything that a network may do
        if engine == "onnx":
            raise ValueError(f"ONNX Runtime cannot run this backbone: {error}") from error
        warnings.warn("ONNX Runtime cannot run this backbone: torch is used", stacklevel=3)
        return plain
    atol = 1e-3 * float(np.abs(theirs).max())
    if ours.shape != theirs.shape or not np.allclose(ours, theirs, rtol=1e-2, atol=atol):
        if engine == "onnx":
            raise ValueError("ONNX Runtime gives other features than torch for this backbone")
        warnings.warn("ONNX Runtime gives other features than torch: torch is used", stacklevel=3)
        return plain
    return fast
