"""The whole model: backbone, hashing method and policy. It gives each image its codes."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from mchindex.catalogue import find, names
from mchindex.errors import ModelError
from mchindex.images import Source, read_picture
from mchindex.models.backbones import Backbone, create_backbone
from mchindex.models.extract import Engine, Extractor, Job, Mode, choose_device
from mchindex.models.hashing import HashMethod, Packed, pack
from mchindex.models.methods import create_method
from mchindex.models.policy import Policy
from mchindex.models.region_codes import Encoded, RegionCodes, check_budget, check_xi
from mchindex.regions import WHOLE, Layout, in_pixels, read_layout

FORMAT = 1
CONFIG, WEIGHTS = "config.json", "model.safetensors"
ROWS = 4096  # rows of features at a time


@dataclass
class MCHModel:
    """`encode` for images that are stored, `encode_query` for those that are looked for."""

    backbone: Backbone
    method: HashMethod
    policy: Policy | None  # None: one code an image
    sigma: float = 0.5  # a region's side over the image's
    xi: float = 0.5  # the probability from which on a region is kept
    mode: Mode = "crops"
    device: torch.device = field(default_factory=choose_device)
    engine: Engine = "auto"
    about: dict[str, Any] = field(default_factory=dict)  # how it was trained, for people
    pretrained: bool = False  # the backbone's weights are those that come beside it
    layout_name: str = "corners"  # of the regions, as `read_layout` takes it

    def __post_init__(self) -> None:
        check_xi(self.xi)
        self.layout: Layout = read_layout(self.layout_name, self.sigma)
        self._extractor: Extractor | None = None
        for module in (self.backbone, self.method, self.policy):
            if module is not None:
                module.to(self.device).eval()

    @property
    def bits(self) -> int:
        return self.method.bits

    @property
    def least(self) -> int:
        """Pixels a side that a picture needs for no region to be enlarged.

        JPEG files are decoded at a half, a quarter or an eighth of their size where that leaves as
        much. The same picture given as an array, decoded whole, may differ in a bit or two.
        """
        sides = self.layout.array() if self.mode == "crops" else np.array([WHOLE])
        return math.ceil(self.backbone.size / float((sides[:, 2:] - sides[:, :2]).min()))

    @property
    def extractor(self) -> Extractor:
        if self._extractor is None:
            self._extractor = Extractor(self.backbone, self.mode, self.device, self.engine)
        return self._extractor

    def encode(self, images: Iterable[Source]) -> Encoded:
        """The codes to store: the whole image's, and those of the regions that the policy keeps."""
        return self.choose(self.regions_of(self._features(images, self.layout.array())))

    def encode_query(
        self, images: Iterable[Source], region: Sequence[float] | None = None
    ) -> Packed:
        """The whole images' codes, (n, bits // 8)."""
        if region is not None:
            images = [_cut(image, region) for image in images]
        features = self._features(images, np.array([WHOLE]))
        return self.codes_of(torch.from_numpy(features[:, 0]))

    def with_codes(self, codes: float, images: Iterable[Source]) -> MCHModel:
        """The same model with the xi at which images like these have so many codes on average."""
        self.check_codes(codes)
        found = self.regions_of(self._features(images, self.layout.array()))
        if not len(found.codes):
            raise ValueError("give at least one image, better some hundreds: xi is set by them")
        return replace(self, xi=found.xi_for(codes))

    def check_codes(self, codes: float) -> None:
        """Raises where no xi gives so many codes an image."""
        if self.policy is None:
            raise ValueError("a model without a policy stores one code an image")
        check_budget(codes, self.layout)

    def choose(self, found: RegionCodes) -> Encoded:
        """Keeps what the policy gives a probability of at least xi, and the whole image always."""
        return found.chosen(found.kept(self.xi))

    def codes_of(self, features: Tensor) -> Packed:
        """(n, dim) features of whole images -> their codes, packed."""
        with torch.inference_mode():
            parts = [pack(self.method.codes(self._float(x))) for x in features.split(ROWS)]
        return np.concatenate(parts) if parts else np.empty((0, self.bits // 8), np.uint8)

    def regions_of(self, features: NDArray[np.float16]) -> RegionCodes:
        """(n, regions, dim) features, the whole image first -> every region's code and keeping."""
        n, regions, _ = features.shape
        codes = np.empty((n, regions, self.bits // 8), np.uint8)
        keep = np.zeros((n, regions), np.float32)
        keep[:, 0] = 1
        with torch.inference_mode():
            step = max(1, ROWS // regions)
            for start in range(0, n, step):
                part = slice(start, start + step)
                x = self._float(torch.from_numpy(features[part]).flatten(0, 1))
                f, b = (y.unflatten(0, (-1, regions)) for y in self.method.states(x))
                codes[part] = pack(b)
                if self.policy is None or regions == 1:
                    continue
                whole_and_region = [
                    side.flatten(0, 1)
                    for both in (f, b)
                    for side in (both[:, :1].expand(-1, regions - 1, -1), both[:, 1:])
                ]
                probability = self.policy.keep(*whole_and_region)
                keep[part, 1:] = probability.unflatten(0, (-1, regions - 1)).cpu().numpy()
        return RegionCodes(codes, keep)

    def _float(self, x: Tensor) -> Tensor:
        return x.to(self.device, torch.float32)

    def _features(self, images: Iterable[Source], boxes: NDArray[np.float64]) -> Any:
        if isinstance(images, (str, bytes, PathLike, Image.Image)):
            raise TypeError("pass a list of images: [image] for one")

        def load(source: Source) -> Job:
            return read_picture(source, self.least).image, boxes

        parts = [part.features for part in self.extractor.stream(images, load, len(boxes))]
        empty = np.empty((0, len(boxes), self.backbone.dim), np.float16)
        return np.concatenate([empty, *parts])

    @property
    def fingerprint(self) -> str:
        """Of all that decides about codes: two models with the same one give the same codes."""
        config = {k: v for k, v in self.config().items() if k not in ("about", "fingerprint")}
        return digest(config, self._tensors(everything=True))

    def config(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "backbone": {**self.backbone.identity, "pretrained": self.pretrained},
            "regions": self.mode,
            "layout": self.layout_name,
            "method": self.method.name,
            "bits": self.bits,
            "settings": self.method.settings.to_json(),
            "policy": None if self.policy is None else {"width": self.policy.width},
            "sigma": self.sigma,
            "xi": self.xi,
            "about": self.about,
        }

    def _tensors(self, everything: bool = False) -> dict[str, Tensor]:
        modules: dict[str, nn.Module | None] = {"method": self.method, "policy": self.policy}
        if everything or not self.pretrained:
            modules["backbone"] = self.backbone
        return {
            f"{part}.{name}": tensor.detach().cpu().contiguous()
            for part, module in modules.items()
            if module is not None
            for name, tensor in module.state_dict().items()
        }

    def save(self, path: str | PathLike[str]) -> None:
        """Writes a directory of config.json and model.safetensors; what was there is replaced."""
        folder = Path(path)
        folder.mkdir(parents=True, exist_ok=True)
        config = self.config() | {"fingerprint": self.fingerprint}
        weights = save({name: _half(tensor) for name, tensor in self._tensors().items()})
        _replace(folder / WEIGHTS, lambda file: file.write_bytes(weights))
        text = json.dumps(config, indent=1, ensure_ascii=False) + "\n"
        _replace(folder / CONFIG, lambda file: file.write_text(text, "utf-8"))

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
        """Reads a model that ships, by its name, or a directory; sigma and xi may be others.

        `backbone` is for a model on a network of the user's own (`Wrapped`).
        """
        folder = find(path)
        config, tensors = _read(folder)
        where = choose_device(device)
        try:
            model = cls._built(config, tensors, where, engine, backbone)
        except (KeyError, TypeError, ValueError, RuntimeError, AttributeError) as error:
            raise ModelError(f"{folder} does not hold a usable model: {error}") from error
        if model.fingerprint != config.get("fingerprint"):
            raise ModelError(
                f"{folder} is damaged: its weights or settings are not those that were saved"
            )
        return replace(
            model,
            sigma=model.sigma if sigma is None else sigma,
            xi=model.xi if xi is None else xi,
        )

    @classmethod
    def _built(
        cls,
        config: Mapping[str, Any],
        tensors: Mapping[str, Tensor],
        device: torch.device,
        engine: Engine,
        backbone: Backbone | None,
    ) -> MCHModel:
        def part(name: str) -> dict[str, Tensor]:
            start = name + "."
            return {k.removeprefix(start): v for k, v in tensors.items() if k.startswith(start)}

        body, pretrained = config["backbone"], bool(config["backbone"]["pretrained"])
        if backbone is None:
            weights = "pretrained" if pretrained else None
            backbone = create_backbone(body["name"], body["size"], weights)
        if not pretrained:
            backbone.load_state_dict(part("backbone"))
        method = create_method(config["method"], backbone.dim, config["bits"], config["settings"])
        method.load_state_dict(part("method"))
        policy = None
        if config["policy"] is not None:
            policy = Policy(method.feature_dim, method.bits, config["policy"]["width"])
            policy.load_state_dict(part("policy"))
        return cls(
            backbone,
            method,
            policy,
            config["sigma"],
            config["xi"],
            config["regions"],
            device,
            engine,
            dict(config.get("about", {})),
            pretrained,
            config.get("layout", "corners"),
        )


def _cut(source: Source, region: Sequence[float]) -> Image.Image:
    """The part of an image that a box in pixels of the whole picture names."""
    image, size = read_picture(source)
    if len(region) != 4:
        raise ValueError("a region is a box (x0, y0, x1, y1) in pixels")
    x0, y0, x1, y1 = region
    width, height = size
    if not (0 <= x0 < x1 <= width and 0 <= y0 < y1 <= height):
        raise ValueError(
            f"the region {tuple(region)} does not lie within the picture of {width} x {height}"
        )
    box = (x0 / width, y0 / height, x1 / width, y1 / height)
    return image if box == WHOLE else image.crop(in_pixels(box, *image.size))


def digest(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """A short hash of settings and weights."""
    total = hashlib.sha256(json.dumps(config, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        total.update(tensor.cpu().contiguous().numpy().tobytes())
    return total.hexdigest()[:32]


def _half(tensor: Tensor) -> Tensor:
    """In half the space where that loses nothing."""
    if tensor.dtype != torch.float32:
        return tensor
    half = tensor.half()
    return half if torch.equal(half.float(), tensor) else tensor


def _replace(path: Path, write: Any) -> None:
    """Writes a file beside its place and moves it there, so that no half of it is ever read."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(new)
        os.replace(new, path)
    finally:
        new.unlink(missing_ok=True)


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    if not (folder / CONFIG).is_file():
        known = ", ".join(names())
        raise ModelError(f"{folder} is not a model: it has no {CONFIG} (models by name: {known})")
    try:
        config = json.loads((folder / CONFIG).read_text("utf-8"))
        version = config["format"]
    except (ValueError, KeyError, TypeError, UnicodeDecodeError) as error:
        raise ModelError(f"{folder / CONFIG} is damaged: {error}") from error
    if not isinstance(version, int) or version > FORMAT:
        raise ModelError(f"{folder} was written by a newer mchindex (format {version})")
    try:
        return config, load_file(folder / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{folder / WEIGHTS} cannot be read: {error}") from error


__all__: Sequence[str] = ["Encoded", "MCHModel", "ModelError", "RegionCodes"]
