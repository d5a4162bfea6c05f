"""The whole model, which turns images into codes: a backbone, a hashing method and a policy."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save
from torch import Tensor, nn

from mchindex import json_text
from mchindex.catalogue import CONFIG, LARGEST_CONFIG, find
from mchindex.errors import MissingExtraError, ModelError
from mchindex.files import write_file
from mchindex.images import Source
from mchindex.inference.encoder import ROWS, Encoder, not_finite
from mchindex.inference.extract import Mode, check_mode
from mchindex.inference.fine import check_cells
from mchindex.inference.graph import GRAPH
from mchindex.inference.model import GraphModel
from mchindex.inference.region_codes import Packed, RegionCodes, check_bits, check_xi
from mchindex.inference.saved import FORMAT, WEIGHTS, Config
from mchindex.models import saved
from mchindex.models.backbones import BACKBONES, Backbone, Tuned, Wrapped, create_backbone
from mchindex.models.extract import Engine, Extractor, choose_device
from mchindex.models.fine import FineHash
from mchindex.models.graph import write_graph
from mchindex.models.hashing import HashMethod, pack, sign
from mchindex.models.methods import METHODS, create_method
from mchindex.models.policy import Policy
from mchindex.models.registry import Registry, built_in, not_registered, origin
from mchindex.models.words import Words
from mchindex.regions import Layout, read_layout

__all__ = ["MCHModel", "digest", "load_with_torch"]

# In config.json, but codes do not depend on them. Fine codes and words have fingerprints of their
# own.
ASIDE = ("about", "plugins", "fine", "words", "fingerprint")
# What building a network from wrong settings raises.
_UNUSABLE = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
)


@dataclass
class MCHModel(Encoder):
    """A model that torch runs: it can be trained, measured and saved."""

    backbone: Backbone
    method: HashMethod
    policy: Policy | None  # None: one code per image
    sigma: float = 0.5  # side of a region, as a share of the image's
    xi: float = 0.5  # regions with at least this probability are kept
    mode: Mode = "crops"  # how features of regions are computed, see `Extractor`
    device: torch.device = field(default_factory=choose_device)
    engine: Engine = "auto"
    about: dict[str, Any] = field(default_factory=dict)  # how it was trained, for people
    # Whether the backbone has its pretrained weights; these are not saved with the model.
    pretrained: bool = False
    layout_name: str = "corners"  # the regions of an image, as `read_layout` names them
    fine: FineHash | None = None  # None: no fine codes
    words: Words | None = None  # by which images are found; None: none

    def __post_init__(self) -> None:
        check_xi(self.xi)
        check_mode(self.mode)
        self.layout: Layout = read_layout(self.layout_name, self.sigma)
        self._extractor: Extractor | None = None
        for module in (self.backbone, self.method, self.policy, self.fine, self.words):
            if module is not None:
                module.to(self.device).eval()

    @property
    def bits(self) -> int:
        return self.method.bits

    @property
    def method_name(self) -> str:
        return self.method.name

    @property
    def input_size(self) -> int:
        return self.backbone.size

    @property
    def own_xi(self) -> float:
        return self.xi

    @property
    def fine_kind(self) -> tuple[int, str] | None:
        return None if self.fine is None else (self.fine.bits, self.fine.fingerprint)

    @property
    def extractor(self) -> Extractor:
        """Made when it is first needed."""
        if self._extractor is None:
            self._extractor = Extractor(self.backbone, self.mode, self.device, self.engine)
        return self._extractor

    def has_policy(self) -> bool:
        return self.policy is not None

    def with_xi(self, xi: float) -> MCHModel:
        return replace(self, xi=xi)

    def with_codes(self, codes: float, images: Iterable[Source]) -> MCHModel:
        return cast(MCHModel, super().with_codes(codes, images))

    def codes_of(self, features: Tensor | NDArray[Any]) -> Packed:
        if isinstance(features, np.ndarray):
            features = torch.from_numpy(features)
        with torch.inference_mode():
            parts = [pack(self._states(x)[1]) for x in features.split(ROWS)]
        return np.concatenate(parts) if parts else np.empty((0, self.bits // 8), np.uint8)

    def regions_of(self, features: NDArray[np.float16]) -> RegionCodes:
        n, regions, _ = features.shape
        codes = np.empty((n, regions, self.bits // 8), np.uint8)
        keep = np.zeros((n, regions), np.float32)
        keep[:, 0] = 1
        with torch.inference_mode():
            step = max(1, ROWS // regions)
            for start in range(0, n, step):
                part = slice(start, start + step)
                x = torch.from_numpy(features[part]).flatten(0, 1)
                f, b = self._states(x)
                if self.policy is not None and self.policy.reads == "backbone":
                    f = x.to(self.device, torch.float32)
                f, b = (y.unflatten(0, (-1, regions)) for y in (f, b))
                codes[part] = pack(b)
                if self.policy is None or regions == 1:
                    continue
                whole_and_region = [
                    side.flatten(0, 1)
                    for both in (f, b)
                    for side in (both[:, :1].expand(-1, regions - 1, -1), both[:, 1:])
                ]
                probability = _finite(self.policy.keep(*whole_and_region), "the policy's output")
                keep[part, 1:] = probability.unflatten(0, (-1, regions - 1)).cpu().numpy()
        return RegionCodes(codes, keep)

    def _states(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """The input of the method's last layer, and the signs that are the codes."""
        x = _finite(features, "the backbone's features").to(self.device, torch.float32)
        f = _finite(self.method.features(x), "the method's features")
        return f, sign(_finite(self.method.last(f), "the method's output"))

    @property
    def fingerprint(self) -> str:
        config = {name: value for name, value in self.config().items() if name not in ASIDE}
        tensors = self.tensors(everything=True)
        codes = {name: t for name, t in tensors.items() if not name.startswith(("fine.", "words."))}
        return digest(config | {"format": 1}, codes)

    def config(self) -> dict[str, Any]:
        """What config.json holds, except for the fingerprint."""
        own = {"backbone": type(self._frozen), "method": type(self.method)}
        plugins = {part: origin(kind) for part, kind in own.items() if not built_in(kind)}
        config = {
            "format": FORMAT if self._tail is not None else 1 if self.fine is None else 2,
            "backbone": {**self.backbone.identity, "pretrained": self.pretrained},
            "regions": self.mode,
            "layout": self.layout_name,
            "method": self.method.name,
            "bits": self.bits,
            "settings": self.method.settings.to_json(),
            "policy": None if self.policy is None else self.policy.to_json(),
            "sigma": self.sigma,
            "xi": self.xi,
            "about": self.about,
        }
        if self.fine is not None:
            config["fine"] = {
                "bits": self.fine.bits,
                "cells": len(self.fine.cells),
                "fingerprint": self.fine.fingerprint,
            }
        if self.words is not None:
            names, fingerprint = list(self.words.names), self.words.fingerprint
            config["words"] = {"names": names, "fingerprint": fingerprint}
        return config | {"plugins": plugins} if plugins else config

    @property
    def _frozen(self) -> Backbone:
        """The backbone without tuned blocks."""
        return self.backbone.base if isinstance(self.backbone, Tuned) else self.backbone

    @property
    def _tail(self) -> nn.Module | None:
        """The tuned blocks; None if there are none."""
        return self.backbone.tail if isinstance(self.backbone, Tuned) else None

    def _modules(self) -> dict[str, nn.Module]:
        """The parts of the model that have weights."""
        parts = {
            "method": self.method, "policy": self.policy, "backbone": self._frozen,
            "tuned": self._tail, "fine": self.fine, "words": self.words,
        }  # fmt: skip
        return {part: module for part, module in parts.items() if module is not None}

    def tensors(self, everything: bool = False) -> dict[str, Tensor]:
        """The weights by name: those that are saved, or all, with a pretrained backbone's."""
        return {
            f"{part}.{name}": tensor.detach().cpu().contiguous()
            for part, module in self._modules().items()
            if everything or part != "backbone" or not self.pretrained
            for name, tensor in module.state_dict().items()
        }

    def save(self, path: str | PathLike[str]) -> None:
        """Writes config.json, model.safetensors and graphs to a directory, replacing those it has.

        The graphs are what runs the model without torch. There are none if ONNX cannot express the
        model, if the package onnx is missing, or if the model's engine is "torch". Raises
        ModelError, and writes nothing, for a model that `load` would refuse.
        """
        folder = Path(path)
        try:
            for part, module in self._modules().items():
                saved.check_finite(part, module)
            config = self.config() | {"fingerprint": self.fingerprint}
            json_text.dumps(config)
            text = json.dumps(config, indent=1, ensure_ascii=False) + "\n"
            if len(text.encode()) > LARGEST_CONFIG:
                raise ValueError(f"its {CONFIG} would have more than {LARGEST_CONFIG:,} bytes")
        except ValueError as error:
            raise ModelError(f"this model cannot be saved: {error}") from error
        weights = save({name: _half(tensor) for name, tensor in self.tensors().items()})
        folder.mkdir(parents=True, exist_ok=True)
        (folder / GRAPH).unlink(missing_ok=True)  # it is of the old weights
        write_file(folder / WEIGHTS, weights)
        write_file(folder / CONFIG, text)
        if self.engine != "torch":
            self.save_graph(folder)

    def save_graph(self, folder: Path) -> bool:
        """Writes the model's graphs to the folder that it was saved to, if it can have any."""
        try:
            write_graph(self, folder)
        except (MissingExtraError, ValueError):
            return False
        return True

    @classmethod
    def load(
        cls,
        path: str | PathLike[str],
        *,
        sigma: float | None = None,
        xi: float | None = None,
        device: str | None = None,
        engine: Engine = "auto",
        backbone: Backbone | None = None,
    ) -> MCHModel:
        """Loads a model: a shipped one by its name, or one from its directory.

        `sigma` and `xi` replace the model's own. `backbone` is for a model that was saved with a
        `Wrapped` one. Raises ModelError for a directory that holds no usable model, and for a model
        whose backbone or method is not registered.
        """
        folder = find(path)
        facts, tensors = saved.read_folder(folder)
        where = choose_device(device)
        try:
            config = Config.read(facts)
            model = cls._from_config(config, tensors, where, engine, backbone)
        except _UNUSABLE as error:
            reason = str(error)
            short = reason if len(reason) <= 500 else reason[:500] + "…"
            raise ModelError(f"{folder} does not hold a usable model: {short}") from error
        if model.fingerprint != config.fingerprint:
            raise ModelError(
                f"{folder} is damaged: its weights or settings differ from those that were saved"
            )
        return replace(
            model,
            sigma=model.sigma if sigma is None else sigma,
            xi=model.xi if xi is None else xi,
        )

    @classmethod
    def _from_config(
        cls,
        config: Config,
        tensors: Mapping[str, Tensor],
        device: torch.device,
        engine: Engine,
        backbone: Backbone | None,
    ) -> MCHModel:
        def part(name: str) -> dict[str, Tensor]:
            start = name + "."
            return {k.removeprefix(start): v for k, v in tensors.items() if k.startswith(start)}

        if backbone is None:
            if config.backbone == Wrapped.name:
                raise ValueError("it was saved with a Wrapped backbone: pass it, load(backbone=…)")
            _check_known(BACKBONES, config.backbone, config.plugins)
            weights = "pretrained" if config.pretrained else None
            backbone = create_backbone(config.backbone, config.size, weights)
        if not config.pretrained:
            saved.load("backbone", backbone, part("backbone"))
        if config.tuned:
            backbone = Tuned(backbone, config.tuned)
            saved.load("tuned", backbone.tail, part("tuned"))
        _check_known(METHODS, config.method, config.plugins)
        dim, bits = backbone.dim, check_bits(config.bits)
        method = saved.build(
            "method",
            lambda: create_method(config.method, dim, bits, config.settings),
            part("method"),
        )
        policy = None
        if config.policy_width is not None:
            width, reads = config.policy_width, config.policy_reads
            features = dim if reads == "backbone" else method.feature_dim
            policy = saved.build(
                "policy", lambda: Policy(features, bits, width, reads=reads), part("policy")
            )
        fine = None
        if config.fine is not None:
            fine_bits, cells, fingerprint = config.fine
            check_cells(cells)
            mean, branches = tensors.get("fine.mean"), len(backbone.branches)
            fine_dim = dim
            if branches > 1 and mean is not None and mean.shape == (dim // branches,):
                # An early model, which has fine codes of the frozen features alone.
                fine_dim, branches = dim // branches, 1
            fine = saved.build(
                "fine", lambda: FineHash(fine_dim, fine_bits, cells, branches), part("fine")
            )
            if fingerprint not in (None, fine.fingerprint):
                raise ValueError("its fine hash differs from the one that was saved")
        words = None
        if config.words is not None:
            if fine is None:
                raise ValueError("it has words, but no fine codes to compare them with")
            names, fingerprint = config.words
            words = saved.build("words", lambda: Words(names, fine_bits), part("words"))
            words.check()
            if words.fingerprint != fingerprint:
                raise ValueError("its words differ from those that were saved")
        return cls(
            backbone,
            method,
            policy,
            config.sigma,
            config.xi,
            config.mode,
            device,
            engine,
            config.about,
            config.pretrained,
            config.layout,
            fine,
            words,
        )


def load_with_torch(folder: Path, device: str | None) -> Encoder:
    """A model without a usable graph, which it gets if the folder can be written to."""
    model = MCHModel.load(folder, device=device)
    if model.device.type != "cpu":
        return model
    try:
        graph = GraphModel.load(folder) if model.save_graph(folder) else None
    except OSError:  # such as on a read-only disk
        return model
    return model if graph is None else graph


def _check_known(registry: Registry[Any], name: Any, plugins: Mapping[str, Any]) -> None:
    if plugins.get(registry.kind) is not None and name not in registry:
        raise ModelError(not_registered(registry.kind, name, plugins[registry.kind]))


def digest(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """A short hash of settings and weights."""
    total = hashlib.sha256(json.dumps(config, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        total.update(tensor.cpu().contiguous().numpy().tobytes())
    return total.hexdigest()[:32]


def _finite(x: Tensor, what: str) -> Tensor:
    """The same tensor. Raises ModelError if it is not finite: its signs would mean nothing."""
    good = x.isfinite().flatten(1).all(1) if x.ndim > 1 else x.isfinite()
    if not bool(good.all()):
        raise not_finite(what, int((~good).sum()), len(x))
    return x


def _half(tensor: Tensor) -> Tensor:
    """The tensor in half precision if that loses nothing, otherwise as it is."""
    if tensor.dtype != torch.float32:
        return tensor
    half = tensor.half()
    return half if torch.equal(half.float(), tensor) else tensor
