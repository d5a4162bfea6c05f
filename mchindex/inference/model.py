"""GraphModel: a saved model that ONNX Runtime and NumPy run.

Nothing is read before it is needed.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Mapping
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from mchindex.catalogue import CONFIG, Precision, check_precision, find, shipped_name
from mchindex.errors import MissingExtraError, ModelError
from mchindex.files import read_file, write_file
from mchindex.inference import graph
from mchindex.inference.encoder import ROWS, Encoder, not_finite
from mchindex.inference.extract import Extractor, check_mode
from mchindex.inference.fine import FineArrays, check_cells, check_fine_bits, fine_fingerprint
from mchindex.inference.graph import GRAPH, SHARED_NAMES, Facts, GraphRunner, TunedBlocks
from mchindex.inference.region_codes import Packed, RegionCodes, check_bits, check_xi
from mchindex.inference.saved import WEIGHTS, Config, check_header, read_settings
from mchindex.inference.words import WordArrays
from mchindex.regions import read_layout

T = TypeVar("T")


class GraphModel(Encoder):
    """A model that runs without torch. `load_model` finds it by its name or folder."""

    def __init__(
        self,
        folder: Path,
        config: Config,
        facts: Facts,
        device: str | None = None,
        precision: Precision = "float",
    ) -> None:
        """Raises ValueError for settings that no model can have, and for a precision that the
        model does not have."""
        check_xi(config.xi)
        check_mode(config.mode)
        if precision == "int8" and "int8" not in facts.files:
            raise ValueError("it has no int8 graph, only one of floats")
        self.folder, self._config, self._facts, self._device = folder, config, facts, device
        self.precision = precision
        self.int8_graph = facts.files["int8"][1] if precision == "int8" else None
        self.xi, self.mode = config.xi, config.mode
        self.layout = read_layout(config.layout, config.sigma)
        self._bits = check_bits(config.bits)
        self._weights = _Weights(folder / WEIGHTS, facts.weights)
        self._loading = threading.RLock()
        self._parts: dict[str, Any] = {}  # what has been loaded

    @classmethod
    def load(
        cls, folder: Path, device: str | None = None, precision: Precision = "float"
    ) -> GraphModel | None:
        """The model in a folder; None if it has no graph, or one of other settings.

        Raises ModelError for a folder that holds no usable model, and ValueError for a device that
        cannot be used here.
        """
        facts = Facts.read(folder)
        if facts is None:
            return None
        if device not in (None, "auto", "cpu"):
            graph.providers_of(device)
        settings = read_settings(folder)
        if graph.config_hash(folder) != facts.config:
            return None
        try:
            config = Config.read(settings)
            if config.fingerprint != facts.model:
                return None
            return cls(folder, config, facts, device, precision)
        except (ArithmeticError, TypeError, ValueError) as error:
            raise ModelError(f"{folder} does not hold a usable model: {error}") from error

    def _part(self, name: str, load: Callable[[], T]) -> T:
        """A part of the model, loaded when it is first needed."""
        with self._loading:
            if name not in self._parts:
                try:
                    self._parts[name] = load()
                except ValueError as error:
                    raise ModelError(f"{self.folder} cannot be used: {error}") from error
            return cast(T, self._parts[name])

    @property
    def bits(self) -> int:
        return self._bits

    @property
    def method_name(self) -> str:
        return self._config.method

    @property
    def input_size(self) -> int:
        return self._config.size

    @property
    def fingerprint(self) -> str:
        return self._config.fingerprint

    @property
    def own_xi(self) -> float:
        return self._config.xi

    def has_policy(self) -> bool:
        return self._config.policy_width is not None

    def with_xi(self, xi: float) -> GraphModel:
        """The same model with another xi; both share what is loaded."""
        model = copy.copy(self)
        model.xi = check_xi(xi)
        return model

    @property
    def fine_kind(self) -> tuple[int, str] | None:
        if self._config.fine is None:
            return None
        bits, _, fingerprint = self._config.fine
        if fingerprint is None and self.fine is not None:  # an early model does not record it
            fingerprint = self.fine.fingerprint
        return bits, str(fingerprint)

    @property
    def fine(self) -> FineArrays | None:  # type: ignore[override]
        return None if self._config.fine is None else self._part("fine", self._load_fine)

    def _load_fine(self) -> FineArrays:
        assert self._config.fine is not None
        bits, cells, saved = self._config.fine
        mean = self._weights.read("fine.mean", kind=np.float32)
        dim = self._facts.dim
        if self._config.tuned:  # early models have fine codes of the frozen features alone
            own = dim // 2
            shapes, dim = [(2, own), (own,)], int(mean.size)
        else:
            shapes = [(dim,)]
        if mean.shape not in shapes:
            raise ValueError(f"its fine hash has means of shape {mean.shape}, not {shapes[0]}")
        rotation = self._weights.read("fine.rotation", (dim, check_fine_bits(bits)), np.float32)
        packed = self._weights.read("fine.cells", (check_cells(cells), bits // 8), np.uint8)
        parts = (("torch.float32", mean), ("torch.float32", rotation), ("torch.uint8", packed))
        fingerprint = fine_fingerprint(*parts)
        if saved not in (None, fingerprint):
            raise ValueError("its fine hash differs from the one that was saved")
        return FineArrays(mean, rotation, packed, fingerprint)

    @property
    def words(self) -> WordArrays | None:  # type: ignore[override]
        return None if self._config.words is None else self._part("words", self._load_words)

    def _load_words(self) -> WordArrays:
        assert self._config.words is not None
        if self._config.fine is None:
            raise ValueError("it has words, but no fine codes to compare them with")
        names, fingerprint = self._config.words
        shape = len(names), check_fine_bits(self._config.fine[0])
        vectors = self._weights.read("words.vectors", shape, np.int8)
        curves = self._weights.read("words.curves", (len(names), 2), np.float32)
        words = WordArrays(names, vectors, curves)
        if words.fingerprint != fingerprint:
            raise ValueError("its words differ from those that were saved")
        return words

    @property
    def extractor(self) -> Extractor:
        return self._part("extractor", self._make_extractor)

    def _make_extractor(self) -> Extractor:
        def read() -> bytes:
            return self._facts.read_part(self.folder, part)

        # Only CPUs run the int8 graph.
        part, device = ("int8", "cpu") if self.precision == "int8" else ("backbone", self._device)
        cut = self._facts.cut
        tuned = None
        if cut is not None:
            whole = part == "int8"
            tuned = TunedBlocks(cut, lambda: self._session("tuned", device), whole)
        runner = GraphRunner(read, self.mode == "crops", device, tuned)
        return Extractor(runner, self.input_size, self._facts.dim, self.mode)

    def _session(self, part: str, device: str | None = "cpu") -> Any:
        def load() -> Any:
            data = self._facts.read_part(self.folder, part)
            outside = {name: self._weights.read(name) for name in graph.check_graph(data)}
            return graph.session(data, outside, graph.providers_of(device))

        return self._part(part, load)

    def codes_of(self, features: NDArray[np.float16]) -> Packed:
        parts = [
            np.packbits(self._states(features[start : start + ROWS])[1] > 0, axis=-1)
            for start in range(0, len(features), ROWS)
        ]
        return np.concatenate(parts) if parts else np.empty((0, self.bits // 8), np.uint8)

    def regions_of(self, features: NDArray[np.float16]) -> RegionCodes:
        n, regions, dim = features.shape
        codes = np.empty((n, regions, self.bits // 8), np.uint8)
        keep = np.zeros((n, regions), np.float32)
        keep[:, 0] = 1
        step = max(1, ROWS // regions)
        for start in range(0, n, step):
            part = slice(start, start + step)
            f, z = self._states(features[part].reshape(-1, dim))
            codes[part] = np.packbits(z > 0, axis=-1).reshape(-1, regions, self.bits // 8)
            if self.has_policy() and regions > 1:
                keep[part, 1:] = self._keep(f, z, regions)
        return RegionCodes(codes, keep)

    def _states(
        self, features: NDArray[np.float16]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """The input of the method's last layer, and the numbers whose signs are the codes."""
        x = _finite(features, "the backbone's features").astype(np.float32)
        f, z = _run(self._session("hash"), {"features": x})
        return _finite(f, "the method's features"), _finite(z, "the method's output")

    def _keep(
        self, f: NDArray[np.float32], z: NDArray[np.float32], regions: int
    ) -> NDArray[np.float32]:
        """The probability of keeping each region but the whole image, (n, regions - 1)."""
        b = np.where(z > 0, np.float32(1), np.float32(-1))
        feeds = {}
        for name, rows in (("f", f), ("b", b)):
            several = rows.reshape(-1, regions, rows.shape[-1])
            whole = np.broadcast_to(several[:, :1], several[:, 1:].shape)
            feeds[name] = np.ascontiguousarray(whole.reshape(-1, rows.shape[-1]))
            feeds[f"{name}_region"] = several[:, 1:].reshape(-1, rows.shape[-1])
        (probability,) = _run(self._session("policy"), feeds)
        return _finite(probability, "the policy's output").reshape(-1, regions - 1)

    def check(self) -> None:
        """Raises ModelError if a file of the model is missing or damaged."""
        for part in self._facts.files:
            self._facts.read_part(self.folder, part)
        try:
            self._weights.check()
        except ValueError as error:
            raise ModelError(f"{self.folder} cannot be used: {error}") from error

    def save(self, path: str | PathLike[str]) -> None:
        """Copies the model to a folder, with the xi that it was saved with.

        Raises ModelError, and writes nothing, if a file of the model is missing or damaged.
        """
        target = Path(path)
        if target.resolve() == self.folder.resolve():
            return
        self.check()
        own = [name for name, _ in self._facts.files.values() if name not in SHARED_NAMES]
        target.mkdir(parents=True, exist_ok=True)
        for name in (WEIGHTS, *own, GRAPH, CONFIG):
            write_file(target / name, read_file(self.folder / name))


class _Weights:
    """The safetensors file of a model, of which single tensors are read."""

    def __init__(self, path: Path, hash_: str) -> None:
        self._path, self._hash = path, hash_

    def check(self) -> None:
        """Raises ValueError unless the file is the one that the graph was made of."""
        _ = self._file

    @cached_property
    def _file(self) -> Any:
        from safetensors import SafetensorError, safe_open

        try:
            check_header(self._path)
            if graph.sha256(read_file(self._path)) != self._hash:
                raise ValueError(f"its {WEIGHTS} is not the one that its graph was made of")
            return safe_open(self._path, framework="numpy")
        except (OSError, SafetensorError, RuntimeError, TypeError, OverflowError) as error:
            raise ValueError(f"{self._path} cannot be read: {error}") from error

    def read(
        self, name: str, shape: tuple[int, ...] | None = None, kind: Any = None
    ) -> NDArray[Any]:
        """A tensor, which must have this shape and type; half precision becomes single."""
        from safetensors import SafetensorError

        try:
            tensor: NDArray[Any] = self._file.get_tensor(name)
        except (SafetensorError, TypeError) as error:
            raise ValueError(f"its {WEIGHTS} has no usable {name!r}: {error}") from error
        if tensor.dtype == np.float16:
            tensor = tensor.astype(np.float32)
        if (shape is not None and tensor.shape != shape) or (
            kind is not None and tensor.dtype != kind
        ):
            raise ValueError(
                f"{name} in its {WEIGHTS} is {tensor.dtype} of shape {tensor.shape}, but the "
                f"settings need {np.dtype(kind)} of shape {shape}"
            )
        if tensor.dtype.kind == "f" and not np.isfinite(tensor).all():
            raise ValueError(f"{name} has values that are not finite numbers")
        return tensor


def _run(session: Any, feeds: Mapping[str, NDArray[Any]]) -> Any:
    try:
        return session.run(None, dict(feeds))
    except Exception as error:  # ONNX Runtime has many kinds
        raise ModelError(f"ONNX Runtime cannot run the model: {error}") from error


def _finite(x: NDArray[Any], what: str) -> NDArray[Any]:
    """The same array. Raises ModelError if it is not finite: its signs would mean nothing."""
    good = np.isfinite(x).reshape(len(x), -1).all(1)
    if not good.all():
        raise not_finite(what, int((~good).sum()), len(x))
    return x


def _is_int8_best(folder: Path, device: str | None) -> bool:
    """Whether a new index should use the int8 graph: its answers are measured for shipped models
    only."""
    facts = Facts.read(folder)
    if facts is None or "int8" not in facts.files or shipped_name(facts.model) is None:
        return False
    return graph.providers_of(device) == graph.providers_of("cpu")


def load_model(
    path: str | PathLike[str], *, device: str | None = None, precision: Precision | None = "float"
) -> Encoder:
    """Loads a model: a shipped one by its name, or one from its directory.

    `device` is cpu, cuda, coreml, …; by default a GPU if ONNX Runtime has one, otherwise the CPU.
    `precision` "int8" computes in whole numbers, on the CPU; None does so if the model ships and no
    GPU is used.
    A model without a graph, which an earlier version saved, and a model on a GPU that ONNX Runtime
    does not have, need torch. Such a model gets its graph then. Raises ModelError for a directory
    that holds no usable model, and MissingExtraError if torch is needed and not installed.
    """
    check_precision(precision)
    folder = find(path)
    if precision is None:
        precision = "int8" if _is_int8_best(folder, device) else "float"
    if precision == "int8":
        whole = GraphModel.load(folder, device, precision)
        if whole is None:
            read_settings(folder)
            raise ModelError(f"the model in {folder} has no int8 graph: use precision='float'")
        return whole
    gpu = device is not None and device.startswith("cuda") and find_spec("torch") is not None
    model = None if gpu else GraphModel.load(folder, device)
    if model is not None:
        return model
    if find_spec("torch") is None:
        read_settings(folder)  # a folder that is no model needs no torch
        raise MissingExtraError(f"the model in {folder} has no graph that can be used here")
    # By name, because nothing here may import torch unless it is needed.
    loaded: Encoder = import_module("mchindex.models.mch").load_with_torch(folder, device)
    return loaded
