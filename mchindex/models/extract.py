"""Features of regions with a torch backbone, see `mchindex.inference.extract`.

On a CPU, ONNX Runtime runs the backbone if it can, because it is faster.
"""

from __future__ import annotations

import threading
import warnings
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mchindex.errors import MissingExtraError
from mchindex.inference import extract
from mchindex.inference.extract import BATCH, Mode, Pixels, Runner, check_mode
from mchindex.inference.graph import GraphRunner, TunedBlocks
from mchindex.inference.threads import cores, most_threads
from mchindex.models.backbones import Backbone
from mchindex.models.onnx_export import export

Engine = Literal["auto", "torch", "onnx"]
ENGINES: tuple[Engine, ...] = ("auto", "torch", "onnx")
GPU_BATCH = 256

if (_threads := most_threads()) is not None:  # set before torch was imported
    torch.set_num_threads(_threads)


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


class Extractor(extract.Extractor):
    """Computes the features of regions with a backbone, on one device, in one of the modes."""

    def __init__(
        self,
        backbone: Backbone,
        mode: Mode = "crops",
        device: torch.device | None = None,
        engine: Engine = "auto",
    ) -> None:
        check_mode(mode)
        if engine not in ENGINES:
            raise ValueError(f"engine is one of {', '.join(ENGINES)}, not {engine!r}")
        self.backbone = backbone
        self.device = choose_device() if device is None else device
        backbone.to(self.device).eval()
        network = Network(backbone, mode)
        if mode == "pooled":
            with torch.inference_mode():  # raises here if the backbone has no feature map
                network(torch.zeros(1, 3, backbone.size, backbone.size, device=self.device))
        run = _runner(network, self.device, engine)
        super().__init__(run, backbone.size, backbone.dim, mode)

    def workers(self) -> int:
        return min(cores(), torch.get_num_threads())

    def step(self, regions: int) -> int:
        if self.device.type == "cpu":
            return super().step(regions)
        return max(1, GPU_BATCH // (regions if self.mode == "crops" else 1))


class Network(nn.Module):
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

    def __init__(self, network: Network, device: torch.device) -> None:
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


def _runner(network: Network, device: torch.device, engine: Engine) -> Runner:
    plain = _TorchRunner(network, device)
    if engine == "torch" or (engine == "auto" and device.type != "cpu"):
        return plain
    try:
        return graph_runner(exported(network), network)
    except MissingExtraError:
        if engine == "onnx":
            raise
        return plain
    except ValueError as error:
        if engine == "onnx":
            raise
        warnings.warn(f"{error}: torch is used", stacklevel=4)
        return plain


def exported(network: Network) -> bytes:
    """The graph of a backbone. Raises ValueError if ONNX cannot express it."""
    size = network.backbone.size
    sample = torch.zeros(2, 3, size, size, dtype=torch.uint8, device=_device(network))
    return export(network, {"pixels": sample}, ["features"], "this backbone")


def graph_runner(data: bytes, network: Network, tuned: TunedBlocks | None = None) -> GraphRunner:
    """What runs a graph. Raises ValueError unless it gives the features that torch gives.

    `tuned` is for tuned blocks with a graph of their own, see `GraphRunner`."""
    size = network.backbone.size
    pixels = np.random.default_rng(0).integers(0, 256, (3, 3, size, size), np.uint8)
    run = GraphRunner(lambda: data, network.mode == "crops", "cpu", tuned)
    try:
        ours, theirs = run(pixels), _TorchRunner(network, _device(network))(pixels)
    except Exception as error:  # ONNX cannot express everything that a network may do
        raise ValueError("ONNX Runtime cannot run this backbone") from error
    atol = 1e-3 * float(np.abs(theirs).max())
    if ours.shape != theirs.shape or not np.allclose(ours, theirs, rtol=1e-2, atol=atol):
        raise ValueError("ONNX Runtime gives other features than torch")
    return run


def _device(network: Network) -> torch.device:
    return next(network.parameters()).device
