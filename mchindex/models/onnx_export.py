"""Exports torch modules as ONNX graphs."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Collection, Mapping, Sequence
from importlib.util import find_spec

import numpy as np
import torch
from torch import Tensor, nn

from mchindex.errors import MissingExtraError
from mchindex.inference.graph import check_graph
from mchindex.inference.saved import WEIGHTS


def export(
    module: nn.Module,
    inputs: Mapping[str, Tensor],
    outputs: Sequence[str],
    what: str,
    outside: Collection[str] = (),
    square: bool = False,
) -> bytes:
    """A module as an ONNX graph whose inputs have any number of rows.

    The weights named in `outside` are left out of it: the graph names them only. `what` is what
    messages call the module. `square`: the inputs are pictures of any size. Raises ValueError if
    the graph cannot be made or may not be run, and MissingExtraError if a package is missing.
    """
    for package in ("onnx", "onnxruntime"):
        if find_spec(package) is None:
            raise MissingExtraError(f"to make ONNX graphs, the package {package} is needed")
    file = io.BytesIO()
    axes = {0: "n"} | ({2: "rows", 3: "columns"} if square else {})
    try:
        # It prints what it cannot export.
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")  # from the tracer: only the shapes named here vary
            torch.onnx.export(
                module,
                tuple(inputs.values()),
                file,  # type: ignore[arg-type]  # it takes a stream, too
                input_names=list(inputs),
                output_names=list(outputs),
                dynamic_axes={name: axes for name in inputs} | {name: {0: "n"} for name in outputs},
                do_constant_folding=not outside,  # folding would replace weights by others
                dynamo=False,
            )
        module.eval()
        data = _without(file.getvalue(), outside) if outside else file.getvalue()
        check_graph(data)
    except Exception as error:  # ONNX cannot express everything that a network may do
        raise ValueError(f"ONNX Runtime cannot run {what}") from error
    return data


def _without(data: bytes, outside: Collection[str]) -> bytes:
    """A graph that names some of its weights and does not hold them."""
    import onnx

    model = onnx.load_from_string(data)
    for tensor in model.graph.initializer:
        if tensor.name in outside:
            tensor.ClearField("raw_data")
            tensor.ClearField("float_data")
            tensor.data_location = onnx.TensorProto.EXTERNAL
            tensor.external_data.add(key="location", value=WEIGHTS)
    content: bytes = model.SerializeToString()
    return content


def fold_padding(data: bytes) -> bytes:
    """A graph in which convolutions pad their inputs themselves, which takes much less time.

    For graphs whose padding keeps TensorFlow's rule, and inputs whose sides are divisible by all
    strides: then the padding does not depend on the size of the input.
    """
    import onnx

    model = onnx.load_from_string(data)
    graph = model.graph
    made_by = {name: node for node in graph.node for name in node.output}
    for node in graph.node:
        source = made_by.get(node.input[0]) if node.op_type == "Conv" else None
        if source is not None and source.op_type == "Pad":
            facts = {a.name: a for a in node.attribute}
            total = facts["kernel_shape"].ints[0] - facts["strides"].ints[0]
            facts["pads"].ints[:] = [total // 2] * 2 + [total - total // 2] * 2
            node.input[0] = source.input[0]
    needed = {output.name for output in graph.output}
    nodes = []
    for node in reversed(graph.node):
        if needed.intersection(node.output):
            needed.update(node.input)
            nodes.append(node)
    del graph.node[:]
    graph.node.extend(reversed(nodes))
    content: bytes = model.SerializeToString()
    return content


def shorten_weights(data: bytes) -> bytes:
    """A graph whose weights have 16 significant bits, so that a wheel packs them better.

    Features are rounded to 11 bits, so that this changes no more than another order of additions.
    """
    import onnx

    model = onnx.load_from_string(data)
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            bits = onnx.numpy_helper.to_array(tensor).view(np.uint32)
            short = ((bits.astype(np.uint64) + 0x80) & 0xFFFFFF00).astype(np.uint32)
            tensor.raw_data = short.view(np.float32).tobytes()
    content: bytes = model.SerializeToString()
    return content
