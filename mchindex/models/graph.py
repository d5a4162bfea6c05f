"""Makes the ONNX graphs of a model, with which `GraphModel` runs it without torch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mchindex.files import read_file, write_file
from mchindex.inference.graph import (
    GRAPH,
    INT8,
    SHARED,
    SHARED_NAMES,
    Facts,
    TunedBlocks,
    check_graph,
    config_hash,
    int8_map,
    session,
    sha256,
)
from mchindex.inference.saved import WEIGHTS
from mchindex.models.backbones import EfficientNetLite0, Trunk, Tuned
from mchindex.models.extract import Network, exported, graph_runner
from mchindex.models.hashing import HashMethod, sign
from mchindex.models.onnx_export import export, fold_padding, shorten_weights
from mchindex.models.policy import Policy
from mchindex.regions import overlaps

if TYPE_CHECKING:
    from mchindex.models.mch import MCHModel

SAMPLE = 64  # rows of features on which graphs are compared with torch
AGREES = 0.999  # the least share of equal bits


class HashLayers(nn.Module):
    """(n, dim) features -> f(x), which the policy reads, and numbers whose signs are codes."""

    def __init__(self, method: HashMethod, policy: Policy | None) -> None:
        super().__init__()
        self.method = method
        self.backbone = policy is not None and policy.reads == "backbone"

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        f = self.method.features(features)
        # Not the features themselves: a graph's output is not one of its inputs.
        return features.clone() if self.backbone else f, self.method.last(f)


class Keep(nn.Module):
    """The states of regions -> the probability of keeping each."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, f: Tensor, f_region: Tensor, b: Tensor, b_region: Tensor) -> Tensor:
        return self.policy.keep(f, f_region, b, b_region)


def write_graph(model: MCHModel, folder: Path) -> None:
    """Writes the graphs of a model to the folder that it was saved to.

    Raises ValueError if ONNX Runtime cannot run the model, or does not give what torch gives, and
    MissingExtraError if a package is missing; the folder then stays as it was.
    """
    tensors = model.tensors()
    files, cut = _backbone(model, tensors)
    files["hash"] = "hash.onnx", _hash(model, tensors)
    if model.policy is not None:
        files["policy"] = "policy.onnx", _policy(model, tensors)
    for name, data in files.values():
        if name not in SHARED_NAMES:
            write_file(folder / name, data)
    facts = Facts(
        model.fingerprint,
        config_hash(folder),
        sha256(read_file(folder / WEIGHTS)),
        model.backbone.dim,
        {part: (name, sha256(data)) for part, (name, data) in files.items()},
        cut,
    )
    write_file(folder / GRAPH, json.dumps(facts.to_json(), indent=1) + "\n")


def shared_graph() -> bytes:
    """The graph of EfficientNet-Lite0 with its ImageNet weights, for inputs whose sides are a
    multiple of 32 pixels."""
    backbone = EfficientNetLite0(224)
    backbone.load_pretrained()
    network = Network(backbone.eval(), "pooled")
    pixels = torch.zeros(2, 3, 224, 224, dtype=torch.uint8)
    data = export(network, {"pixels": pixels}, ["features"], "EfficientNet-Lite0", square=True)
    return shorten_weights(fold_padding(data))


Files = dict[str, tuple[str, bytes]]  # by part: the name of the graph and its content


def _backbone(model: MCHModel, tensors: Mapping[str, Tensor]) -> tuple[Files, str | None]:
    """The graphs of the backbone, those that ship if they are the same. For tuned blocks with a
    graph of their own, also what the map that they take is called in the backbone's."""
    network = Network(model.backbone, model.mode)
    shared = SHARED / SHARED_NAMES[0]
    tuned = model.backbone if isinstance(model.backbone, Tuned) else None
    plain = model.backbone if tuned is None else tuned.base
    if model.pretrained and type(plain) is EfficientNetLite0 and shared.is_file():
        whole = read_file(shared)
        files = {"backbone": (shared.name, whole)}
        try:
            if tuned is None:
                graph_runner(whole, network)
                return files | {"int8": (INT8, read_file(SHARED / INT8))}, None
            cut, data = _cut(whole, tuned), _tuned(tuned, tensors)
            blocks = TunedBlocks(cut, lambda: session(data, _named(data, tensors)))
            graph_runner(whole, network, blocks)
            files["tuned"] = "tuned.onnx", data
            if int8_map(cut) is not None:
                files["int8"] = INT8, read_file(SHARED / INT8)
            return files, cut
        except ValueError:  # of a size that it does not take
            pass
    data = exported(network)
    graph_runner(data, network)
    return {"backbone": ("backbone.onnx", data)}, None


def _cut(whole: bytes, tuned: Tuned) -> str:
    """What the map before the tuned blocks is called in the graph that ships."""
    import onnx

    conv = f"/_blocks/_blocks.{len(tuned.base.parts()) - tuned.blocks}/_expand_conv/Conv_output_0"
    made = {node.output[0]: node for node in onnx.load_from_string(whole).graph.node}
    return str(made[conv].input[0])


class _Tail(nn.Module):
    """Tuned blocks, whose weights have the names that they have in a saved model."""

    def __init__(self, tuned: Tuned) -> None:
        super().__init__()
        self.tuned = tuned.tail

    def forward(self, x: Tensor) -> Tensor:
        maps: Tensor = self.tuned(x)
        return maps


def _tuned(tuned: Tuned, tensors: Mapping[str, Tensor]) -> bytes:
    """The graph of tuned blocks: a map -> features."""
    trunk = Trunk(tuned.base, tuned.blocks)
    x = torch.zeros(2, trunk.dim, *trunk.cells, device=next(tuned.parameters()).device)
    tail = _Tail(tuned).eval()
    data = export(tail, {"map": x}, ["features"], "the tuned blocks", tensors, square=True)
    return fold_padding(data)


def _hash(model: MCHModel, tensors: Mapping[str, Tensor]) -> bytes:
    layers = HashLayers(model.method, model.policy)
    x = _sample(model)
    data = export(layers, {"features": x[:2]}, ["f", "z"], "this method", tensors)
    with torch.inference_mode():
        want = layers(x)
    got = _outputs(data, {"features": x}, tensors)
    same = ((got[1] > 0) == (want[1].cpu().numpy() > 0)).mean()
    if not (_close(got[0], want[0]) and same >= AGREES):
        raise ValueError("ONNX Runtime gives other codes than torch")
    return data


def _policy(model: MCHModel, tensors: Mapping[str, Tensor]) -> bytes:
    assert model.policy is not None
    keep = Keep(model.policy)
    with torch.inference_mode():
        f, z = HashLayers(model.method, model.policy)(_sample(model))
    b = sign(z)
    half = len(f) // 2
    inputs = {"f": f[:half], "f_region": f[half:], "b": b[:half], "b_region": b[half:]}
    inputs = {name: x.clone() for name, x in inputs.items()}
    few = {name: x[:2] for name, x in inputs.items()}
    data = export(keep, few, ["keep"], "this policy", tensors)
    with torch.inference_mode():
        want = keep(*inputs.values())
    if not _close(_outputs(data, inputs, tensors)[0], want):
        raise ValueError("ONNX Runtime gives other probabilities than torch")
    return data


def _sample(model: MCHModel) -> Tensor:
    """Features to compare graphs on: as large as those of noise, and not negative."""
    with torch.inference_mode():
        large = model.backbone(_pixels(model)).abs().max()
    rows = np.random.default_rng(0).random((SAMPLE, model.backbone.dim), np.float32) * max(
        float(large), 1e-3
    )
    return torch.from_numpy(rows.astype(np.float16).astype(np.float32)).to(model.device)


def _outputs(
    data: bytes, inputs: Mapping[str, Tensor], tensors: Mapping[str, Tensor]
) -> Sequence[NDArray[np.float32]]:
    try:
        found: Sequence[NDArray[np.float32]] = session(data, _named(data, tensors)).run(
            None, {name: x.cpu().numpy() for name, x in inputs.items()}
        )
    except Exception as error:
        raise ValueError(f"ONNX Runtime cannot run this model: {error}") from error
    return found


def _named(data: bytes, tensors: Mapping[str, Tensor]) -> dict[str, NDArray[np.float32]]:
    """The weights that a graph only names."""
    return {name: tensors[name].float().numpy() for name in check_graph(data)}


def _close(got: NDArray[np.float32], want: Tensor) -> bool:
    theirs = want.cpu().numpy()
    atol = 1e-3 * max(float(np.abs(theirs).max()), 1e-6)
    return got.shape == theirs.shape and np.allclose(got, theirs, rtol=1e-2, atol=atol)


class WholeModel(nn.Module):
    """Everything between pixels and codes in one module, for other runtimes.

    Pixels are (n, 3, size, size) uint8, or (n, regions, 3, size, size) if regions are crops.
    """

    shares: Tensor  # (regions, cells): how much of each region a cell of the map is

    def __init__(self, model: MCHModel) -> None:
        super().__init__()
        self.network = Network(model.backbone, model.mode)
        self.layers = HashLayers(model.method, model.policy)
        self.policy, self.fine = model.policy, model.fine
        self.regions = len(model.layout)
        rows = columns = 1
        if model.mode == "pooled":
            with torch.inference_mode():
                rows, columns = self.network(_pixels(model)).shape[-2:]
        shares = overlaps(model.layout.array(), rows, columns)
        self.register_buffer("shares", torch.from_numpy(shares.astype(np.float32)).to(model.device))

    def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
        """The numbers whose signs are codes (n, regions, bits), the probabilities of keeping
        (n, regions) and, if the model has fine codes, the numbers whose signs they are."""
        if self.network.mode == "pooled":
            features = self.shares @ self.network(pixels).flatten(2).transpose(1, 2)
        else:
            features = self.network(pixels.flatten(0, 1)).unflatten(0, (-1, self.regions))
        features = features.half().float()  # as the index rounds them
        f, z = self.layers(features.flatten(0, 1))
        f, z = f.unflatten(0, (-1, self.regions)), z.unflatten(0, (-1, self.regions))
        nothing = 0 * z[..., 0]  # the tracer would write the number of rows into other zeros
        keep = torch.cat([nothing[:, :1] + 1, nothing[:, 1:]], 1)
        if self.policy is not None and self.regions > 1:
            b = torch.where(z > 0, 1.0, -1.0)
            states = [
                side.flatten(0, 1)
                for both in (f, b)
                for side in (both[:, :1].expand(-1, self.regions - 1, -1), both[:, 1:])
            ]
            others = self.policy.keep(*states).unflatten(0, (-1, self.regions - 1))
            keep = torch.cat([keep[:, :1], others], 1)
        out = (z, keep)
        return out if self.fine is None else (*out, self.fine.project(features))


def export_whole(model: MCHModel, path: Path) -> None:
    """Writes a model as one ONNX graph for other runtimes; docs/learning.md says what it takes and
    gives. Raises ValueError if ONNX cannot express it, or if it gives something else than torch."""
    whole = WholeModel(model).eval()
    pixels = _pixels(model, 3)
    if model.mode == "crops":
        pixels = pixels[:, None].expand(-1, len(model.layout), -1, -1, -1).contiguous()
    names = ["codes", "keep", *(["fine"] if model.fine is not None else [])]
    data = export(whole, {"pixels": pixels[:2]}, names, "this model")
    with torch.inference_mode():
        wanted = whole(pixels)
    found = _outputs(data, {"pixels": pixels}, {})
    if not all(_close(ours, theirs) for ours, theirs in zip(found, wanted, strict=True)):
        raise ValueError("ONNX Runtime gives something else than torch for this model")
    write_file(path, data)


def _pixels(model: MCHModel, inputs: int = 2) -> Tensor:
    """Inputs of noise."""
    size = model.backbone.size
    noise = np.random.default_rng(0).integers(0, 256, (inputs, 3, size, size), np.uint8)
    return torch.from_numpy(noise).to(model.device)
