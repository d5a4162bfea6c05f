"""Makes the int8 graph of the backbone that the shipped models share.

    python bench/quantise.py --data DIR         # COCO images, as for `mch train`
    python bench/quantise.py --data DIR --maps  # only the scales of the maps, for tuned blocks

Activations are 8-bit numbers, weights of depthwise layers too. Other weights have 7 bits: CPUs
without VNNI add two products in 16 bits, and with 8 bits that sum could overflow, so that codes
would depend on the CPU.

First, channels are scaled and shifted so that each uses the whole range of 8 bits, and channels
that nothing uses become copies of those whose rounding errs most; the network stays the same. Then
layers are rounded one after the other, on training images, plain and edited. Each layer's weights
are fitted to undo what rounding before it has done, then rounded one column at a time, and later
columns make up for the error (GPTQ, arXiv:2210.17323). Its bias makes up for the mean error. The
images on which `answers.py` measures play no part.

Tuned blocks take a map from within the graph, where channels are scaled and shifted. A second file
says how to undo that: for each channel, the line that fits the numbers of the float graph best.
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
from safetensors.torch import save
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from common import progress, script
from mchindex.datasets import ImageSource, open_dataset
from mchindex.datasets.edits import EDITS
from mchindex.files import read_file, write_file
from mchindex.inference.extract import resized
from mchindex.inference.graph import (
    INT8,
    MAPS,
    SHARED,
    SHARED_NAMES,
    check_graph,
    session,
    with_output,
)
from mchindex.regions import WHOLE

SIZE = 224
SEVEN, EIGHT = 64, 127  # the largest weight of 7 and of 8 bits
SHARES = (0.55, 0.65, 0.75, 0.85, 0.92, 1.0)  # of a row's largest weight, that may be its range
SAMPLES = 60_000  # rows that the error of a layer is measured on
RANGED = 256  # images on which the ranges of channels are measured
POSITIONS = 40_000  # at which they are
TOP = 6.0  # of a clipped map
UNUSED = 1e-3  # the length of the weights that a channel is multiplied with, at most
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
        return x.clamp(0, TOP) if self.clips else x

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
    choices = [Scale.of(low * share, high * share) for share in np.geomspace(0.1, 1, 40)]
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


def use_spare_channels(layers: list[Layer]) -> None:
    """Makes channels that nothing uses copies of the ones whose rounding errs most.

    In each block, a map is convolved channel by channel, and the next layer mixes the channels. It
    takes the mean of copies, which are shifted by parts of a step, so that the steps get smaller.
    """
    users = _users(layers)
    for layer in layers[:-1]:
        by_channel = users[layer.output][0]
        if by_channel.groups == 1:
            continue
        mixing = users[by_channel.output][0]
        assert layer.weight is not None
        assert by_channel.weight is not None
        assert mixing.weight is not None
        used = mixing.weight.flatten(1).norm(dim=0)
        noise = (by_channel.weight.flatten(1).norm(dim=1) * used).tolist()
        spare = (used < UNUSED).nonzero().flatten().tolist()
        copies = {c: [c] for c in range(len(noise)) if c not in spare}
        for channel in spare:
            worst = max((noise[c] / len(several), c) for c, several in copies.items())[1]
            copies[worst].append(channel)
        for channel, several in copies.items():
            n, total = len(several), by_channel.weight[channel].sum()
            bias, next_bias = layer.bias[channel].clone(), by_channel.bias[channel].clone()
            mixed = mixing.weight[:, channel] / n
            for i, copy in enumerate(several):
                shift = (i - (n - 1) / 2) / n * TOP / 255
                layer.weight[copy], layer.bias[copy] = layer.weight[channel], bias + shift
                by_channel.weight[copy] = by_channel.weight[channel]
                by_channel.bias[copy] = next_bias - shift * total
                mixing.weight[:, copy] = mixed


def ranges(layers: list[Layer], pixels: NDArray[np.uint8]) -> dict[str, tuple[Tensor, Tensor]]:
    """By map: the least and the largest number of each channel."""
    maps = {layers[0].inputs[0]: _start(pixels)}
    found = {}
    for place, layer in enumerate(layers):
        parts = []
        for start in range(0, len(pixels), AT_A_TIME):
            some = [maps[name][start : start + AT_A_TIME].float() for name in layer.inputs]
            parts.append(layer.clipped(layer(some, layer.weight, layer.bias)).half())
        maps[layer.output] = torch.cat(parts)
        rows = maps[layer.output].transpose(0, 1).flatten(1)
        rows = rows[:, :: max(1, rows.shape[1] // POSITIONS)].float()
        found[layer.output] = rows.amin(1), rows.amax(1)
        _forget(maps, layers[place + 1 :])
    return found


def spread(layers: list[Layer], found: dict[str, tuple[Tensor, Tensor]]) -> None:
    """Scales and shifts the channels of maps that are not clipped, so that all of them have about
    the same range, around 0; the layers that read them undo it. Maps that are added up have the
    same scales. `found` is what `ranges` returns."""
    users, together = _users(layers), {layer.output: {layer.output} for layer in layers}
    for layer in layers:
        if layer.weight is None:
            joined = set().union(*(together[name] for name in (*layer.inputs, layer.output)))
            together.update(dict.fromkeys(joined, joined))
    shifts: dict[str, Tensor] = {}
    for layer in layers:
        if layer.clips:
            continue
        halves = [(found[name][1] - found[name][0]) / 2 for name in sorted(together[layer.output])]
        half = torch.stack(halves).amax(0).clamp(min=1e-3)
        scale = half.mean() / half
        if layer.weight is None:
            shifts[layer.output] = shifts[layer.inputs[0]] + shifts[layer.inputs[1]]
        else:
            low, high = found[layer.output]
            shifts[layer.output] = (low + high) / 2 * scale
            layer.weight = layer.weight * scale.view(-1, 1, 1, 1)
            layer.bias = layer.bias * scale - shifts[layer.output]
        for user in users[layer.output]:
            if user.weight is not None:
                # Zeros around a map would have to be shifted, too.
                assert user.groups == 1
                assert not any(user.pads)
                user.weight = user.weight / scale.view(1, -1, 1, 1)
                user.bias = user.bias + user.weight.flatten(1) @ shifts[layer.output]


def _users(layers: list[Layer]) -> dict[str, list[Layer]]:
    """By map: the layers that read it."""
    return {one.output: [other for other in layers if one.output in other.inputs] for one in layers}


def _start(pixels: NDArray[np.uint8]) -> Tensor:
    """The first map."""
    return ((torch.from_numpy(pixels).float() - 127) / 128).half()


def _forget(maps: dict[str, Tensor], layers: list[Layer]) -> None:
    """Deletes the maps that none of these layers read."""
    for name in maps.keys() - {name for layer in layers for name in layer.inputs}:
        del maps[name]


def rounded_weights(weight: Tensor, square: Tensor, sizes: Tensor, most: int) -> Tensor:
    """GPTQ: rounds column after column; those that follow make up for the error."""
    upper = torch.linalg.cholesky(torch.linalg.inv(square), upper=True)
    left, whole = weight.clone(), torch.empty_like(weight)
    for i in range(weight.shape[1]):
        whole[:, i] = (left[:, i] / sizes).round().clamp(-most, most)
        error = (left[:, i] - whole[:, i] * sizes) / upper[i, i]
        left[:, i + 1 :] -= error[:, None] * upper[i, i + 1 :]
    return whole


def best_weights(
    weight: Tensor, square: Tensor, smallest: Tensor, most: int
) -> tuple[Tensor, Tensor]:
    """Rounded weights, and for each row the size of 1, `smallest` at least, with which the output
    errs least."""
    largest = weight.abs().amax(1).clamp(min=1e-8)
    best, chosen = torch.zeros_like(weight), largest
    least = torch.full_like(largest, torch.inf)
    for share in SHARES:
        sizes = torch.maximum(largest * share / most, smallest)
        whole = rounded_weights(weight, square, sizes, most)
        wrong = whole * sizes[:, None] - weight
        error = ((wrong @ square) * wrong).sum(1)
        better = error < least
        best, chosen = torch.where(better[:, None], whole, best), torch.where(better, sizes, chosen)
        least = torch.minimum(error, least)
    return best, chosen


def quantise(layers: list[Layer], pixels: NDArray[np.uint8]) -> dict[str, Scale]:
    """Rounds the weights of all layers; returns the scales of the maps, by name."""
    first = layers[0].inputs[0]
    scales = {first: Scale(1 / 128, 127)}  # so that pixels need no rounding at all
    exact, rounded = {first: _start(pixels)}, {first: _start(pixels)}
    for place, layer in enumerate(layers):
        if layer.weight is not None:
            flat, given = layer.weight.flatten(1).double(), layer.inputs[0]
            # The bias of a channel without weights must fit into 32 bits.
            smallest = layer.bias.abs().double() / (scales[given].size * LARGEST_BIAS)
            if layer.groups == 1:
                flat, square = fitted(flat, layer.rows(exact[given]), layer.rows(rounded[given]))
                whole, sizes = best_weights(flat, square, smallest, SEVEN)
            else:
                sizes = torch.maximum(weight_scales(flat, EIGHT), smallest)
                whole = (flat / sizes[:, None]).round().clamp(-EIGHT, EIGHT)
            layer.whole, layer.scale = whole.float().view_as(layer.weight), sizes.float()
        _run(layer, exact, rounded, scales)
        for maps in (exact, rounded):
            _forget(maps, layers[place + 1 :])
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


def scales_of_maps(exact: bytes, whole: bytes, pixels: NDArray[np.uint8]) -> dict[str, Tensor]:
    """By map that blocks can take: factors and offsets (2, channels) that turn the numbers of the
    int8 graph into those of the float graph."""
    made = {node.output[0]: node for node in onnx.load_from_string(exact).graph.node}
    names = [str(one.input[0]) for name, one in made.items() if "_expand_conv/Conv" in name]
    found = {}
    for name in names:
        graphs = with_output(exact, name), with_output(whole, f"{name}.whole", whole=True)
        runs = [session(data).run for data in graphs]
        sums = np.zeros(())
        for start in range(0, len(pixels), AT_A_TIME):
            some = {"pixels": pixels[start : start + AT_A_TIME]}
            y, x = (run(None, some)[-1].astype(np.float64) for run in runs)
            sums = sums + np.stack([v.mean((0, 2, 3)) for v in (x, y, x * x, x * y)])
        x, y, square, product = sums / -(-len(pixels) // AT_A_TIME)
        factor = (product - x * y) / np.maximum(square - x * x, 1e-9)
        found[name] = torch.from_numpy(np.stack([factor, y - factor * x]).astype(np.float32))
        progress(f"{name}: {len(x)} channels")
    return found


def features(data: bytes, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    def parts() -> Iterator[NDArray[np.float32]]:
        run = session(data).run
        for start in range(0, len(pixels), 8):
            yield run(None, {"pixels": pixels[start : start + 8]})[0].mean((2, 3))

    return np.concatenate(list(parts()))


def main() -> None:
    p = script(__doc__)
    p.add_argument("--data", required=True, help="the data set, as for `mch train --data`")
    p.add_argument("--images", type=int, default=1024, help="to calibrate on (%(default)s)")
    p.add_argument("--out", type=Path, default=SHARED / INT8, help="%(default)s")
    p.add_argument("--maps", action="store_true", help="only the scales of the maps")
    args = p.parse_args()
    dataset = open_dataset(args.data)
    train = np.random.default_rng(0).permutation(dataset.splits["train"])
    data = read_file(SHARED / SHARED_NAMES[0])

    def write_maps(whole: bytes) -> None:
        found = scales_of_maps(data, whole, views(dataset.images, train[:RANGED]))
        write_file(args.out.with_name(MAPS), save(found))

    if args.maps:
        write_maps(read_file(args.out))
        return
    layers = layers_of(data)
    with torch.inference_mode():
        pixels = views(dataset.images, train[: args.images])
        use_spare_channels(layers)
        spread(layers, ranges(layers, pixels[:RANGED]))
        scales = quantise(layers, pixels)
    whole = graph_of(layers, scales)
    write_file(args.out, whole)
    write_maps(whole)
    pixels = views(dataset.images, train[-CHECKED:])
    exact, found = features(data, pixels), features(whole, pixels)
    cosine = (exact * found).sum(1) / np.linalg.norm(exact, axis=1) / np.linalg.norm(found, axis=1)
    print(f"cosine to floats: {cosine.mean():.5f} on average, {cosine.min():.5f} at least")
    print(f"wrote {args.out}, {len(whole):,} bytes")


if __name__ == "__main__":
    main()
