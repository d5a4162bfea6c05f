"""The ONNX graphs of a saved model: its files, whether they may be run, and running them.

graph.json names the files and their hashes, and those of config.json and the weights, so that a
graph is never used with other settings or weights than those it was made of. A graph may come from
a stranger, so it is looked through before ONNX Runtime gets it: it has standard operators only, no
loops, and reads no other file. The graphs of the hash layers and of the policy hold no weights;
they are given those of the model's safetensors file by name.
"""

from __future__ import annotations

import hashlib
import reprlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mchindex import json_text
from mchindex.budget import Budget
from mchindex.catalogue import CONFIG
from mchindex.errors import ModelError
from mchindex.files import read_file
from mchindex.inference.extract import BATCH, Pixels
from mchindex.inference.saved import WEIGHTS, field_of
from mchindex.inference.threads import cores

GRAPH = "graph.json"
FORMAT = 1
LARGEST_GRAPH = 1 << 30  # bytes of an ONNX file
LARGEST_FACTS = 1 << 16  # bytes of graph.json
DEEPEST = 8  # levels of graphs within graphs
AT_A_TIME = 16  # inputs in all passes of ONNX Runtime: each takes some 25 MB while it is computed
# int8: the backbone in whole numbers; tuned: blocks that take a map from within the backbone
PARTS = ("backbone", "int8", "tuned", "hash", "policy")
SHARED = Path(__file__).parent / "graphs"  # backbones of the package, which models share
INT8 = "efficientnet-lite0-int8.onnx"
# By what each channel of the maps in the int8 graph is multiplied, and what is added, to give those
# in the float graph. See `int8_map`.
MAPS = "efficientnet-lite0-int8-maps.safetensors"
SHARED_NAMES = ("efficientnet-lite0.onnx", INT8)
# Hashes of graphs that earlier versions had under these names. Their rounding differed a little: of
# 3,000 photographs, .001 % of the bits of the codes and .005 % of those of the fine codes changed.
_EARLIER = ("7eb019a7eb2096f112852c491d73f599459bc65078e3d1bfaf89f3542378f6c7",)
_DOMAINS = (b"", b"ai.onnx")
_ENDLESS = (b"Loop", b"Scan")  # a stranger's could run for ever


@dataclass(frozen=True)
class Facts:
    """What graph.json says."""

    model: str  # the fingerprint of the model
    config: str  # the SHA-256 of config.json
    weights: str  # the SHA-256 of model.safetensors
    dim: int  # features per image
    files: dict[str, tuple[str, str]]  # by part: the name and the SHA-256
    cut: str | None = None  # what the map that the tuned blocks take is called in the backbone

    @classmethod
    def read(cls, folder: Path) -> Facts | None:
        """None if the model has no graph. Raises ModelError if it cannot be used."""
        try:
            facts = json_text.loads(read_file(folder / GRAPH, LARGEST_FACTS))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            raise ModelError(f"{folder / GRAPH} cannot be read: {error}") from error
        try:
            if not isinstance(facts, dict):
                raise ValueError("it is not a JSON object")
            version = field_of(facts, "format", int, where=GRAPH)
            if version > FORMAT:
                return None  # made by a newer mchindex; the weights still say all
            files = field_of(facts, "files", dict, where=GRAPH)
            named, cut = {}, None
            for part in PARTS:
                if part in files:
                    file = field_of(files, part, dict, where=GRAPH)
                    name = field_of(file, "name", str, where=GRAPH)
                    if name != f"{part}.onnx" and name not in SHARED_NAMES:
                        raise ValueError(f"there is no graph called {reprlib.repr(name)}")
                    named[part] = name, field_of(file, "sha256", str, where=GRAPH)
                    if part == "tuned":
                        cut = field_of(file, "cut", str, where=GRAPH)
            if not {"backbone", "hash"} <= named.keys():
                raise ValueError("a model has the graphs of a backbone and of hash layers")
            return cls(
                field_of(facts, "model", str, where=GRAPH),
                field_of(facts, "config", str, where=GRAPH),
                field_of(facts, "weights", str, where=GRAPH),
                field_of(facts, "dim", int, where=GRAPH),
                named,
                cut,
            )
        except ValueError as error:
            raise ModelError(f"{folder / GRAPH} is damaged: {error}") from error

    def to_json(self) -> dict[str, Any]:
        files = {
            part: {"name": name, "sha256": hash_} for part, (name, hash_) in self.files.items()
        }
        if self.cut is not None:
            files["tuned"]["cut"] = self.cut
        return {
            "format": FORMAT, "model": self.model, "config": self.config, "weights": self.weights,
            "dim": self.dim, "files": files,
        }  # fmt: skip

    def read_part(self, folder: Path, part: str) -> bytes:
        """The graph of a part. Raises ModelError if it is missing, damaged, or may not be run."""
        name, hash_ = self.files[part]
        path = (SHARED if name in SHARED_NAMES else folder) / name
        try:
            data = read_file(path, LARGEST_GRAPH)
        except OSError as error:
            raise ModelError(f"{path} cannot be read: {error.strerror or error}") from error
        earlier = name in SHARED_NAMES and hash_ in _EARLIER
        if sha256(data) != hash_ and not earlier:
            raise ModelError(
                f"{path} is not the graph that the model in {folder} was saved with. Delete "
                f"{folder / GRAPH}, and the graph is made again: that needs "
                "pip install 'mchindex[train]'"
            )
        try:
            check_graph(data)
        except ValueError as error:
            raise ModelError(f"{path} cannot be used: {error}") from error
        return data


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# Looking through a graph. ONNX files are protocol buffers; the numbers of the fields are those of
# onnx.proto.


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError("it is not an ONNX graph")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _fields(data: memoryview) -> Iterator[tuple[int, Any]]:
    """The fields of a message: their numbers, and the bytes of those that have a length."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            value: Any
            value, at = _varint(data, at)
        elif kind in (1, 5):
            value = None
            at += 8 if kind == 1 else 4
        elif kind == 2:
            length, at = _varint(data, at)
            value = data[at : at + length]
            at += length
        else:
            raise ValueError("it is not an ONNX graph")
        if at > len(data):
            raise ValueError("it is cut short")
        yield key >> 3, value


def _message(value: Any) -> memoryview:
    if not isinstance(value, memoryview):
        raise ValueError("it is not an ONNX graph")
    return value


def check_graph(data: bytes) -> list[str]:
    """The names of the weights that a graph takes from elsewhere.

    Raises ValueError for a graph that may not be run: one with operators that are not ONNX's own,
    with loops, or that names another file than the model's weights.
    """
    outside: list[str] = []
    graphs = 0
    for number, value in _fields(memoryview(data)):
        if number == 7:
            graphs += 1
            _check_graph(_message(value), outside, DEEPEST)
        elif number == 25:
            raise ValueError("it defines operators of its own")
    if graphs != 1:
        raise ValueError("it is not an ONNX graph")
    return outside


def _check_graph(graph: memoryview, outside: list[str], depth: int) -> None:
    if not depth:
        raise ValueError(f"its graphs are nested in more than {DEEPEST} levels")
    for number, value in _fields(graph):
        if number == 1:
            _check_node(_message(value), depth)
        elif number == 5:
            name = _check_tensor(_message(value))
            if name is not None:
                outside.append(name)
        elif number == 15:
            raise ValueError("it has sparse weights")


def _check_node(node: memoryview, depth: int) -> None:
    for number, value in _fields(node):
        if number == 4 and bytes(_message(value)) in _ENDLESS:
            raise ValueError(f"it has a loop ({bytes(value).decode()})")
        if number == 7 and bytes(_message(value)) not in _DOMAINS:
            raise ValueError(f"it has an operator of {reprlib.repr(bytes(value))}")
        if number == 5:
            for kind, attribute in _fields(_message(value)):
                if kind in (5, 10) and _check_tensor(_message(attribute)) is not None:
                    raise ValueError("it reads a constant from another file")
                if kind in (6, 11):
                    _check_graph(_message(attribute), [], depth - 1)


def _check_tensor(tensor: memoryview) -> str | None:
    """The name of a tensor that is not in the graph itself; None for one that is."""
    name, outside = "", False
    for number, value in _fields(tensor):
        if number == 8:
            name = bytes(_message(value)).decode("utf-8", "replace")
        elif number == 13:
            outside = True
            entry = dict(_fields(_message(value)))
            if bytes(entry.get(1, b"")) == b"location" and bytes(entry.get(2, b"")) != _WEIGHTS:
                raise ValueError(f"it reads another file, {reprlib.repr(bytes(entry.get(2, b'')))}")
        elif number == 14:
            outside = outside or value == 1
    return name if outside else None


_WEIGHTS = WEIGHTS.encode()


def _bytes_field(number: int, value: bytes) -> bytes:
    return _encoded(number << 3 | 2) + _encoded(len(value)) + value


def _encoded(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def with_output(data: bytes, name: str, whole: bool = False) -> bytes:
    """A graph that also gives one of the tensors within it, as its last output: one of floats, or
    of `whole` numbers in 8 bits."""
    kind = _bytes_field(1, b"\x08\x02" if whole else b"\x08\x01")
    output = _bytes_field(1, name.encode()) + _bytes_field(2, kind)
    # A graph that is there twice is joined by the reader: the second one only has the new output.
    return data + _bytes_field(7, _bytes_field(12, output))


# Running a graph.


def providers_of(device: str | None) -> list[str]:
    """ONNX Runtime's names for what runs a graph on a device: cpu, cuda, coreml, …

    None or "auto" is a GPU if this build of ONNX Runtime has one, otherwise the CPU. Raises
    ValueError for a device that this build does not have.
    """
    if device == "cpu":
        return ["CPUExecutionProvider"]
    import onnxruntime

    there = onnxruntime.get_available_providers()
    short = {name.removesuffix("ExecutionProvider").lower(): name for name in there}
    if device is None or device == "auto":
        best = short.get("cuda")
        return ["CPUExecutionProvider"] if best is None else [best, "CPUExecutionProvider"]
    if device.partition(":")[0].lower() not in short:
        raise ValueError(
            f"device {device!r} cannot be used here: ONNX Runtime has {', '.join(sorted(short))}"
        )
    return [short[device.partition(":")[0].lower()], "CPUExecutionProvider"]


def session(
    data: bytes,
    weights: Mapping[str, NDArray[Any]] | None = None,
    providers: Sequence[str] = ("CPUExecutionProvider",),
) -> Any:
    """An ONNX Runtime session that uses the thread that calls it."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    if weights:
        values = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in weights.values()]
        options.add_external_initializers(list(weights), values)
    try:
        return onnxruntime.InferenceSession(data, options, providers=list(providers))
    except Exception as error:  # ONNX Runtime has many kinds
        raise ModelError(f"ONNX Runtime cannot load this graph: {error}") from error


def int8_map(cut: str) -> NDArray[np.float32] | None:
    """What turns a map within the shared int8 graph into that of the float graph, (2, channels):
    factors and what is added. None if it is not known for this map.

    Raises ModelError if the file that says so cannot be read.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(SHARED / MAPS, framework="numpy") as file:
            found: NDArray[np.float32] | None = file.get_tensor(cut) if cut in file.keys() else None  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{SHARED / MAPS} cannot be read: {error}") from error
    return found


class TunedBlocks(NamedTuple):
    """Blocks that take a map from within the graph of a backbone."""

    cut: str  # what the map is called in the float graph
    load: Callable[[], Any]  # gives their session
    int8: bool = False  # whether the backbone is the shared one in whole numbers


class GraphRunner:
    """Runs the graph of a backbone, which is loaded when it is first run.

    Each calling thread runs passes of its own, faster than many threads for one pass. All passes
    together have `AT_A_TIME` inputs at most, because their memory would otherwise grow with the
    number of threads. The size of a pass does not change the features.
    """

    name = "onnx"

    def __init__(
        self,
        read: Callable[[], bytes],
        crops: bool,
        device: str | None,
        tuned: TunedBlocks | None = None,
    ) -> None:
        """`read` returns the bytes of the graph; `crops`: features are wanted, not maps.

        `tuned` is for a model with tuned blocks. Their features come before those of the graph.
        """
        self._read, self._crops, self._device, self._tuned = read, crops, device, tuned
        self._session: Any = None
        self._map: NDArray[np.float32] | None = None  # see `int8_map`
        self._loading = threading.Lock()
        self._inputs = Budget(AT_A_TIME)

    def _loaded(self) -> Any:
        with self._loading:
            if self._session is None:
                data = self._read()
                if self._tuned is not None and self._tuned.int8:
                    data = with_output(data, f"{self._tuned.cut}.whole", whole=True)
                    if (scale := int8_map(self._tuned.cut)) is None:
                        raise ModelError(f"the int8 graph has no map {self._tuned.cut!r}")
                    self._map = scale[:, :, None, None]
                elif self._tuned is not None:
                    data = with_output(data, self._tuned.cut)
                self._session = session(data, providers=providers_of(self._device))
            return self._session

    def __call__(self, pixels: Pixels) -> NDArray[np.float32]:
        run = self._loaded().run
        tail = None if self._tuned is None else self._tuned.load()
        size = max(1, min(BATCH, AT_A_TIME // cores()))
        out = []
        for start in range(0, len(pixels), size):
            batch = np.ascontiguousarray(pixels[start : start + size])
            with self._inputs.held(len(batch)):
                maps = [*run(None, {"pixels": batch})]
                if self._map is not None:
                    maps[1] = maps[1] * self._map[0] + self._map[1]
                if tail is not None:
                    maps[1:] = tail.run(None, {"map": maps[1]})
            found = np.concatenate(maps[::-1], 1)
            out.append(found.mean((2, 3)) if self._crops and found.ndim == 4 else found)
        return np.concatenate(out)


def config_hash(folder: Path) -> str:
    """The SHA-256 of a model's config.json, which has been read before."""
    return sha256(read_file(folder / CONFIG))
