"""Makes the int8 graph of the backbone that the shipped models share.

    python bench/quantise.py --data DIR       # COCO images, as for `mch train`

Activations are 8-bit numbers, weights of depthwise layers too. Other weights have 7 bits: CPUs
without VNNI add two products in 16 bits, and with 8 bits that sum could overflow, so that codes
would depend on the CPU. Layers are rounded one after the other, on training images, plain and
edited. Each layer's weights are first fitted to undo what rounding before it has done, then rounded
one column at a time, and later columns make up for the error (GPTQ, arXiv:2210.17323). Its bias
makes up for the mean error. The images on which `answers.py` measures play no part.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from common import progress, script
from edits import EDITS
from mchindex.datasets import ImageSource, open_dataset
from mchindex.files import read_file, write_file
from mchindex.inference.extract import resized
from mchindex.inference.graph import INT8, SHARED, SHARED_NAMES, check_graph, session
from mchindex.regions import WHOLE

SIZE = 224
SEVEN, EIGHT = 64, 127  # the largest weight of 7 and of 8 bits
SAMPLES = 25_000  # rows that the error of a layer is measured on
VALUES = 200_000  # numbers that a range is chosen on
AT_A_TIME = 32  # images
DAMPING = 0.01  # added to the diagonal, as a share of its mean
CHECKED = 256  # images on which the graph is compared with floats
LARGEST_BIAS = 1 << 28


@dataclass(frozen=True)
class Scale:
    """The number of q is size * (q - zero)."""

    size: float
    zero: int

    @classmethod
    def of(cls, low: float, high: float) -> Scale:
        low, high = min(low, 0.0), max(high, 1e-6)
        size = float(np.float32((high - low) / 255))
        return cls(size, min(255, round(-low / size)))

    def rounded(self, x: Tensor) -> Tensor:
        whole = (x / self.size).round().add(self.zero).clamp(0, 255)
        return whole.sub(self.zero).mul(self.size)


@dataclass
class Layer:
    """A convolution, perhaps clipped to 0…6, or a sum of two maps."""

    name: str
    inputs: list[str]
    output: str
    weight: Tensor | None = None  # None: a sum
    bias: Tensor = field(default_factory=lambda: torch.empty(0))
    stride: int = 1
    pads: list[int] = field(default_factory=list)
    groups: int = 1
    clips: bool = False
    whole: Tensor = field(default_factory=lambda: torch.empty(0))  # the rounded weight
    scale: Tensor = field(default_factory=lambda: torch.empty(0))  # of each output channel
    new_bias: Tensor = field(default_factory=lambda: torch.empty(0))

    def padded(self, x: Tensor) -> Tensor:
        top, left, bottom, right = self.pads
        return F.pad(x, (left, right, top, bottom)) if any(self.pads) else x

    def __call__(self, x: list[Tensor], weight: Tensor | None, bias: Tensor) -> Tensor:
        """Before clipping."""
        if weight is None:
            return x[0] + x[1]
        return F.conv2d(self.padded(x[0]), weight, bias, self.stride, groups=self.groups)

    def clipped(self, x: Tensor) -> Tensor:
        return x.clamp(0, 6) if self.clips else x

    def rows(self, x: Tensor) -> Tensor:
        """What the weights of an output channel are multiplied with, some `SAMPLES` rows."""
        assert self.weight is not None
        kernel = self.weight.shape[-1]
        some = x if kernel == 1 else x[:AT_A_TIME]
        some = some.float()
        if kernel == 1:
            rows = some.permute(0, 2, 3, 1).reshape(-1, some.shape[1])
        else:
            rows = F.unfold(self.padded(some), kernel, stride=self.stride).transpose(1, 2)
            rows = rows.reshape(-1, rows.shape[-1])
        return rows[:: max(1, len(rows) // SAMPLES)]


def layers_of(data: bytes) -> list[Layer]:
    """The layers of the graph of EfficientNet-Lite0, in the order in which they run."""
    graph = onnx.load_from_string(data).graph
    values = {t.name: torch.tensor(numpy_helper.to_array(t)) for t in graph.initializer}
    layers: list[Layer] = []
    for node in graph.node:
        if node.op_type == "Conv":
            facts = {a.name: helper.get_attribute_value(a) for a in node.attribute}
            layers.append(
                Layer(
                    node.name, [node.input[0]], node.output[0], values[node.input[1]],
                    values[node.input[2]], facts["strides"][0], list(facts["pads"]), facts["group"],
                )
            )  # fmt: skip
        elif node.op_type == "Clip":
            layers[-1].output, layers[-1].clips = node.output[0], True
        elif node.op_type == "Add":
            layers.append(Layer(node.name, list(node.input), node.output[0]))
        elif node.op_type not in ("Cast", "Sub", "Div", "Constant"):
            raise SystemExit(f"{node.op_type} is not expected in this graph")
    return layers


def views(images: ImageSource, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Images as the backbone takes them; every second one is edited."""
    edits = list(EDITS.values())
    found = []
    for i, row in enumerate(rows.tolist()):
        image = images.image(row)
        if i % 2:
            image = edits[i // 2 % len(edits)](image)
        found.append(resized(image, WHOLE, SIZE))
    return np.stack(found)


def best_scale(values: Tensor, clips: bool) -> Scale:
    """The scale with which rounding errs least, in the mean of squares."""
    low, high = (0.0 if clips else float(values.min())), float(values.max())
    choices = [Scale.of(low * share, high * share) for share in np.linspace(0.5, 1, 21)]
    errors = [float((s.rounded(values) - values).square().mean()) for s in choices]
    return choices[int(np.argmin(errors))]


def weight_scales(weight: Tensor, most: int) -> Tensor:
    """For each row, the size of 1 with which rounding errs least."""
    largest = weight.abs().amax(1).clamp(min=1e-8)
    best, least = largest / most, torch.full_like(largest, torch.inf)
    for share in np.linspace(0.5, 1, 26):
        size = largest * share / most
        whole = (weight / size[:, None]).round().clamp(-most, most)
        error = (whole * size[:, None] - weight).square().sum(1)
        best, least = torch.where(error < least, size, best), torch.minimum(error, least)
    return best


def fitted(weight: Tensor, exact: Tensor, rounded: Tensor) -> tuple[Tensor, Tensor]:
    """Weights that give for rounded inputs about what `weight` gives for exact ones, and the
    covariance of the rounded inputs."""
    x, y = rounded - rounded.mean(0), exact - exact.mean(0)
    square = (x.T @ x / len(x)).double()
    square += DAMPING * square.diagonal().mean() * torch.eye(len(square)).double()
    change = ((y - x).T @ x / len(x)).double()
    return weight + weight @ change @ torch.linalg.inv(square), square


def rounded_weights(weight: Tensor, square: Tensor, sizes: Tensor, most: int) -> Tensor:
    """GPTQ: rounds column after column; those that follow make up for the error."""
    upper = torch.linalg.cholesky(torch.linalg.inv(square), upper=True)
    left, whole = weight.clone(), torch.empty_like(weight)
    for i in range(weight.shape[1]):
        whole[:, i] = (left[:, i] / sizes).round().clamp(-most, most)
        error = (left[:, i] - whole[:, i] * sizes) / upper[i, i]
        left[:, i + 1 :] -= error[:, None] * upper[i, i + 1 :]
    return whole


def quantise(layers: list[Layer], pixels: NDArray[np.uint8]) -> dict[str, Scale]:
    """Rounds the weights of all layers; returns the scales of the maps, by name."""
    first = layers[0].inputs[0]
    scales = {first: Scale(1 / 128, 127)}  # so that pixels need no rounding at all
    start = ((torch.from_numpy(pixels).float() - 127) / 128).half()
    exact, rounded = {first: start}, {first: start}
    for place, layer in enumerate(layers):
        if layer.weight is not None:
            flat = layer.weight.flatten(1).double()
            most = SEVEN if layer.groups == 1 else EIGHT
            if layer.groups == 1:
                flat, square = fitted(
                    flat, layer.rows(exact[layer.inputs[0]]), layer.rows(rounded[layer.inputs[0]])
                )
            sizes = weight_scales(flat, most)
            # The bias of a channel without weights must fit into 32 bits.
            unit = scales[layer.inputs[0]].size
            sizes = torch.maximum(sizes, layer.bias.abs() / (unit * LARGEST_BIAS))
            if layer.groups == 1:
                whole = rounded_weights(flat, square, sizes, most)
            else:
                whole = (flat / sizes[:, None]).round().clamp(-most, most)
            layer.whole, layer.scale = whole.float().view_as(layer.weight), sizes.float()
        _run(layer, exact, rounded, scales)
        later = {name for other in layers[place + 1 :] for name in other.inputs}
        for maps in (exact, rounded):
            for name in set(maps) - later - {layer.output}:
                del maps[name]
        progress(f"layer {place + 1} of {len(layers)}")
    return scales


def _run(
    layer: Layer, exact: dict[str, Tensor], rounded: dict[str, Tensor], scales: dict[str, Scale]
) -> None:
    """Computes the exact and the rounded output of a layer, its bias and its scale."""
    weight = None if layer.weight is None else layer.whole * layer.scale.view(-1, 1, 1, 1)
    wanted, found, wrong = [], [], []
    for part in range(0, len(exact[layer.inputs[0]]), AT_A_TIME):
        some = slice(part, part + AT_A_TIME)
        y = layer([exact[name][some].float() for name in layer.inputs], layer.weight, layer.bias)
        z = layer([rounded[name][some].float() for name in layer.inputs], weight, layer.bias)
        wrong.append((y - z).mean((0, 2, 3)))
        wanted.append(layer.clipped(y).half())
        found.append(z.half())
    layer.new_bias = torch.stack(wrong).mean(0)
    values = torch.cat([y.flatten()[:: max(1, y.numel() * len(wanted) // VALUES)] for y in wanted])
    scale = scales[layer.output] = best_scale(values.float(), layer.clips)
    shift = 0 if layer.weight is None else layer.new_bias.view(-1, 1, 1)
    layer.new_bias = layer.bias + layer.new_bias if layer.weight is not None else layer.bias
    exact[layer.output] = torch.cat(wanted)
    rounded[layer.output] = torch.cat(
        [scale.rounded(layer.clipped(z.float() + shift)).half() for z in found]
    )


def graph_of(layers: list[Layer], scales: dict[str, Scale]) -> bytes:
    """The layers as ONNX: integers from the pixels to the last map."""
    nodes: list[Any] = []
    values: list[Any] = []

    def constant(name: str, value: Any) -> str:
        values.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    pixels = layers[0].inputs[0]
    scaled = {
        name: [
            constant(f"{name}.size", np.float32(s.size)),
            constant(f"{name}.zero", np.uint8(s.zero)),
        ]
        for name, s in scales.items()
    }
    for layer in layers:
        names = ["pixels" if name == pixels else f"{name}.whole" for name in layer.inputs]
        output, own = f"{layer.output}.whole", scaled[layer.output]
        if layer.weight is None:
            terms = [f"{layer.name}.{name}" for name in names]
            for name, term, given in zip(names, terms, layer.inputs, strict=True):
                nodes.append(helper.make_node("DequantizeLinear", [name, *scaled[given]], [term]))
            nodes.append(helper.make_node("Add", terms, [f"{layer.name}.sum"]))
            nodes.append(helper.make_node("QuantizeLinear", [f"{layer.name}.sum", *own], [output]))
            continue
        unit = scales[layer.inputs[0]].size * layer.scale.double()
        bias = (layer.new_bias.double() / unit).round().numpy().astype(np.int32)
        parts = [
            constant(f"{layer.name}.weight", layer.whole.numpy().astype(np.int8)),
            constant(f"{layer.name}.sizes", layer.scale.numpy()),
            constant(f"{layer.name}.zeros", np.zeros(len(bias), np.int8)),
            *own,
            constant(f"{layer.name}.bias", bias),
        ]
        nodes.append(
            helper.make_node(
                "QLinearConv", [names[0], *scaled[layer.inputs[0]], *parts], [output],
                kernel_shape=list(layer.weight.shape[2:]), strides=[layer.stride] * 2,
                pads=layer.pads, group=layer.groups,
            )
        )  # fmt: skip
    last = layers[-1].output
    nodes.append(helper.make_node("DequantizeLinear", [output, *scaled[last]], ["features"]))
    graph = helper.make_graph(
        nodes,
        "int8",
        [helper.make_tensor_value_info("pixels", TensorProto.UINT8, ["n", 3, "rows", "columns"])],
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, ["n", None, None, None])],
        values,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.checker.check_model(model)
    data: bytes = model.SerializeToString()
    check_graph(data)
    return data


def features(data: bytes, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    def parts() -> Iterator[NDArray[np.float32]]:
        run = session(data).run
        for start in range(0, len(pixels), 8):
            yield run(None, {"pixels": pixels[start : start + 8]})[0].mean((2, 3))

    return np.concatenate(list(parts()))


def main() -> None:
    p = script(__doc__)
    p.add_argument("--data", required=True, help="the data set, as for `mch train --data`")
    p.add_argument("--images", type=int, default=768, help="to calibrate on (%(default)s)")
    p.add_argument("--out", type=Path, default=SHARED / INT8, help="%(default)s")
    args = p.parse_args()
    dataset = open_dataset(args.data)
    train = np.random.default_rng(0).permutation(dataset.splits["train"])
    data = read_file(SHARED / SHARED_NAMES[0])
    layers = layers_of(data)
    with torch.inference_mode():
        scales = quantise(layers, views(dataset.images, train[: args.images]))
    whole = graph_of(layers, scales)
    write_file(args.out, whole)
    pixels = views(dataset.images, train[-CHECKED:])
    exact, found = features(data, pixels), features(whole, pixels)
    cosine = (exact * found).sum(1) / np.linalg.norm(exact, axis=1) / np.linalg.norm(found, axis=1)
    print(f"cosine to floats: {cosine.mean():.5f} on average, {cosine.min():.5f} at least")
    print(f"wrote {args.out}, {len(whole):,} bytes")


if __name__ == "__main__":
    main()
