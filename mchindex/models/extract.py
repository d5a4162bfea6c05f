"""Features of regions: images and boxes in, one row of numbers for each region out.

`crops` cuts every region out, resizes it and runs the backbone on it, as the paper does. `pooled`
runs the backbone once on the whole image and averages its feature map over each region, cells
weighted by how much of the region lies in them.

On a CPU, ONNX Runtime runs the backbone where it is installed: it is faster.
"""

from __future__ import annotations

import io
import itertools
import os
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.util import find_spec
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from mchindex.models.backbones import Backbone
from mchindex.regions import Boxes, in_pixels, overlaps

Mode = Literal["crops", "pooled"]
Engine = Literal["auto", "torch", "onnx"]
MODES: tuple[Mode, ...] = ("crops", "pooled")
ENGINES: tuple[Engine, ...] = ("auto", "torch", "onnx")

Pixels = NDArray[np.uint8]  # (n, 3, size, size)
BATCH = 8  # passes at a time on a CPU: larger ones leave its caches
GPU_BATCH = 256


def cores() -> int:
    """Threads to work with: as many as torch has been given, of the cores there are."""
    there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(there or 1, torch.get_num_threads())


def choose_device(name: str | None = None) -> torch.device:
    """The device asked for, or the GPU where there is one, or the CPU."""
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
    """A region of an image, cut out and stretched to size x size: (3, size, size)."""
    # Cut first: resizing with a box of Pillow's would mix in pixels from beyond the region.
    region = image.crop(in_pixels(box, *image.size))
    small = region.resize((size, size), Image.Resampling.BILINEAR)
    return np.asarray(small).transpose(2, 0, 1)


T = TypeVar("T")
Job = tuple[Image.Image, Boxes]


class Part(NamedTuple, Generic[T]):
    """Some of the sources of a stream."""

    sources: list[T]
    loaded: list[bool]  # which of them have features
    features: NDArray[np.float16]  # (loaded, regions, dim)


class Extractor:
    """A backbone made ready to give the features of regions."""

    def __init__(
        self,
        backbone: Backbone,
        mode: Mode = "crops",
        device: torch.device | None = None,
        engine: Engine = "auto",
    ) -> None:
        if mode not in MODES:
            raise ValueError(f"regions come as {' or '.join(MODES)}, not {mode!r}")
        if engine not in ENGINES:
            raise ValueError(f"an engine is one of {', '.join(ENGINES)}, not {engine!r}")
        self.backbone, self.mode = backbone, mode
        self.device = choose_device() if device is None else device
        backbone.to(self.device).eval()
        part = _Part(backbone, mode)
        if mode == "pooled":
            with torch.inference_mode():  # says at once where a backbone has no map
                part(torch.zeros(1, 3, backbone.size, backbone.size, device=self.device))
        self._run = _runner(part, self.device, engine)

    @property
    def engine(self) -> str:
        return self._run.name

    def __call__(self, images: Sequence[Image.Image], boxes: Boxes) -> NDArray[np.float16]:
        """Features of `boxes`, (regions, 4) for all images or (n, regions, 4): (n, regions, dim).

        Rounded to float16, in which features are also kept on disk: a code does not depend on
        where its features came from. Equal boxes of an image have equal features.
        """
        every = np.broadcast_to(boxes, (len(images), *boxes.shape[-2:]))
        jobs = zip(images, every, strict=True)
        parts = [part.features for part in self.stream(jobs, lambda job: job, boxes.shape[-2])]
        return np.concatenate([self._nothing(boxes.shape[-2]), *parts])

    def stream(
        self, sources: Iterable[T], load: Callable[[T], Job | None], regions: int
    ) -> Iterator[Part[T]]:
        """Features of what comes, in its order; the next are loaded while the last are used.

        `load` makes an image and its boxes of a source, or None where it cannot; it runs in the
        threads that run the backbone.
        """
        step = 1 if self.mode == "crops" else BATCH
        if self.device.type != "cpu":
            step = max(1, GPU_BATCH // (regions if self.mode == "crops" else 1))
        run = self._pooled if self.mode == "pooled" else self._cropped

        def work(group: list[T]) -> Part[T]:
            loaded = [load(source) for source in group]
            jobs = [job for job in loaded if job is not None]
            features = run(jobs) if jobs else self._nothing(regions)
            return Part(group, [job is not None for job in loaded], features)

        workers = cores()
        pool = ThreadPoolExecutor(workers)
        running: deque[Future[Part[T]]] = deque()
        try:
            remaining = iter(sources)
            while group := list(itertools.islice(remaining, step)):
                running.append(pool.submit(work, group))
                if len(running) > 2 * workers:
                    yield running.popleft().result()
            while running:
                yield running.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)

    def _nothing(self, regions: int) -> NDArray[np.float16]:
        return np.empty((0, regions, self.backbone.dim), np.float16)

    def _cropped(self, jobs: Sequence[Job]) -> NDArray[np.float16]:
        size = self.backbone.size
        pixels: list[Pixels] = []
        places: list[NDArray[np.intp]] = []
        for image, boxes in jobs:
            distinct, where = np.unique(boxes, axis=0, return_inverse=True)
            places.append(len(pixels) + where.reshape(-1))
            pixels += [resized(image, box, size) for box in distinct]
        features = self._run(np.stack(pixels)).astype(np.float16)
        return np.stack([features[place] for place in places])

    def _pooled(self, jobs: Sequence[Job]) -> NDArray[np.float16]:
        size = self.backbone.size
        whole = (0.0, 0.0, 1.0, 1.0)
        maps = self._run(np.stack([resized(image, whole, size) for image, _ in jobs]))
        rows, columns = maps.shape[-2:]
        out = []
        for cells, (_, boxes) in zip(maps.reshape(*maps.shape[:2], -1), jobs, strict=True):
            distinct, where = np.unique(boxes, axis=0, return_inverse=True)
            pooled = overlaps(distinct, rows, columns) @ cells.T
            out.append(pooled[where.reshape(-1)].astype(np.float16))
        return np.stack(out)


class _Part(nn.Module):
    """The part of a backbone that a mode needs."""

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

    def __init__(self, part: _Part, device: torch.device) -> None:
        self.part, self.device = part, device
        self.lock = threading.Lock()  # torch has threads of its own: one pass at a time
        if device.type == "cpu":
            part.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def __call__(self, pixels: Pixels) -> NDArray[np.float32]:
        out = []
        mixed = torch.autocast(self.device.type, enabled=self.device.type == "cuda")
        batch = BATCH if self.device.type == "cpu" else GPU_BATCH
        with self.lock, torch.inference_mode(), mixed:
            for start in range(0, len(pixels), batch):
                x = torch.from_numpy(pixels[start : start + batch]).to(self.device)
                x = x.contiguous(memory_format=torch.channels_last)
                out.append(self.part(x).float().cpu().numpy())
        return np.concatenate(out)


class _OnnxRunner:
    """A session for each caller at a time, of one thread each: faster than one of many threads.

    Sessions are kept for the next caller, because building one takes longer than a pass.
    """

    name = "onnx"

    def __init__(self, part: _Part) -> None:
        size = part.backbone.size
        file = io.BytesIO()
        example = torch.zeros(2, 3, size, size)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the tracer: shapes are fixed but for the first
            torch.onnx.export(
                part,
                (example,),
                file,  # type: ignore[arg-type]  # a stream will do
                input_names=["pixels"],
                output_names=["features"],
                dynamic_axes={"pixels": {0: "n"}, "features": {0: "n"}},
                dynamo=False,
            )
        part.eval()
        self.model = file.getvalue()
        self.idle: list[Any] = []  # sessions that nobody uses at the moment

    def _session(self) -> Any:
        try:
            return self.idle.pop()
        except IndexError:
            import onnxruntime

            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = 1
            options.log_severity_level = 3
            return onnxruntime.InferenceSession(
                self.model, options, providers=["CPUExecutionProvider"]
            )

    def __call__(self, pixels: Pixels) -> NDArray[np.float32]:
        session, out = self._session(), []
        for start in range(0, len(pixels), BATCH):
            part = pixels[start : start + BATCH].astype(np.float32)
            out.append(session.run(None, {"pixels": part})[0])
        self.idle.append(session)
        return np.concatenate(out)


def _runner(part: _Part, device: torch.device, engine: Engine) -> _TorchRunner | _OnnxRunner:
    plain = _TorchRunner(part, device)
    if engine == "torch" or (engine == "auto" and device.type != "cpu"):
        return plain
    if find_spec("onnxruntime") is None or find_spec("onnx") is None:
        if engine == "onnx":
            raise ValueError("engine 'onnx' needs ONNX Runtime: pip install 'mchindex[fast]'")
        return plain
    size = part.backbone.size
    sample = np.random.default_rng(0).integers(0, 256, (2, 3, size, size), np.uint8)
    try:
        fast = _OnnxRunner(part)
        ours, theirs = fast(sample), plain(sample)
    except Exception as error:  # what a user's network may do, ONNX may not be able to
        if engine == "onnx":
            raise ValueError(f"ONNX Runtime cannot run this backbone: {error}") from error
        warnings.warn("ONNX Runtime cannot run this backbone: torch is used", stacklevel=3)
        return plain
    if not np.allclose(ours, theirs, rtol=1e-2, atol=1e-3 * float(np.abs(theirs).max())):
        if engine == "onnx":
            raise ValueError("ONNX Runtime gives other features than torch for this backbone")
        warnings.warn("ONNX Runtime gives other features than torch: torch is used", stacklevel=3)
        return plain
    return fast
