"""The folder of a saved model, as it is read: whoever made it, nothing in it is taken on trust.

config.json is strict JSON of limited size, and every field has a type. The weights are a
safetensors file, which holds numbers and no code; they must have the names, shapes and types that
the settings lead to, and this is checked before any memory is taken for them.
"""

from __future__ import annotations

import math
import os
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from mchindex.catalogue import CONFIG, names, read_config
from mchindex.errors import ModelError
from mchindex.files import open_file

FORMAT = 2  # 1: without fine codes
WEIGHTS = "model.safetensors"
LARGEST_HEADER = 8 << 20  # bytes of a safetensors file that describe its tensors

M = TypeVar("M", bound=nn.Module)


@dataclass(frozen=True)
class Config:
    """What config.json says. `read` checks the type of every field."""

    backbone: str
    size: int
    pretrained: bool
    mode: Any  # checked by MCHModel
    layout: str
    method: str
    bits: int
    settings: dict[str, Any]
    policy_width: int | None  # None: no policy
    sigma: float
    xi: float
    about: dict[str, Any]
    plugins: dict[str, Any]
    fine: tuple[int, int, str | None] | None  # bits, number of cells, fingerprint if it was saved
    words: tuple[list[str], str] | None  # their names and their fingerprint; None: no words
    fingerprint: str

    @classmethod
    def read(cls, config: dict[str, Any]) -> Config:
        """Raises ValueError for a field that is missing or has the wrong type."""
        backbone = _field(config, "backbone", dict)
        policy = _field(config, "policy", dict, type(None))
        fine = _field({"fine": None} | config, "fine", dict, type(None))
        words = _field({"words": None} | config, "words", dict, type(None))
        return cls(
            _field(backbone, "name", str),
            _field(backbone, "size", int),
            _field(backbone, "pretrained", bool),
            _field(config, "regions", str),
            _field({"layout": "corners"} | config, "layout", str),
            _field(config, "method", str),
            _field(config, "bits", int),
            _field(config, "settings", dict),
            None if policy is None else _field(policy, "width", int),
            _field(config, "sigma", float, int),
            _field(config, "xi", float, int),
            _field({"about": {}} | config, "about", dict),
            _field({"plugins": {}} | config, "plugins", dict),
            None if fine is None else _fine(fine),
            None if words is None else (_names(words), _field(words, "fingerprint", str)),
            _field(config, "fingerprint", str),
        )


def _fine(fine: dict[str, Any]) -> tuple[int, int, str | None]:
    fingerprint = _field({"fingerprint": None} | fine, "fingerprint", str, type(None))
    return _field(fine, "bits", int), _field(fine, "cells", int), fingerprint


_KINDS = {
    dict: "an object",
    list: "a list",
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
}


def _field(config: Mapping[str, Any], name: str, *kinds: type) -> Any:
    """A field of config.json, which must be one of `kinds`."""
    if name not in config:
        raise ValueError(f"its {CONFIG} has no {name!r}")
    value = config[name]
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise ValueError(
            f"{name!r} in its {CONFIG} must be {_KINDS[kinds[0]]}, not {reprlib.repr(value)}"
        )
    return value


def _names(words: Mapping[str, Any]) -> list[str]:
    """The names of words, each of which must be text."""
    names: list[str] = _field(words, "names", list)
    for name in names:
        if not isinstance(name, str):
            raise ValueError(f"a word in its {CONFIG} must be text, not {reprlib.repr(name)}")
    return names


def read_folder(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The settings and the weights of a model. Raises ModelError if they cannot be read.

    The weights stay in the file, which is mapped, until they are used.
    """
    try:
        config = read_config(folder)
    except (FileNotFoundError, NotADirectoryError):
        raise ModelError(
            f"{folder} is not a model: it has no {CONFIG} (models by name: {', '.join(names())})"
        ) from None
    except OSError as error:
        raise ModelError(f"{folder / CONFIG} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise ModelError(f"{folder / CONFIG} is damaged: {error}") from error
    try:
        version = _field(config, "format", int)
        if version < 1:
            raise ValueError(f"there is no format {version}")
    except ValueError as error:
        raise ModelError(f"{folder / CONFIG} is damaged: {error}") from error
    if version > FORMAT:
        raise ModelError(
            f"{folder} was written by a newer mchindex (format {reprlib.repr(version)})"
        )
    try:
        return config, read_tensors(folder / WEIGHTS)
    except (OSError, ValueError) as error:
        raise ModelError(f"{folder / WEIGHTS} cannot be read: {error}") from error


def read_tensors(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The tensors of a safetensors file. Raises OSError or ValueError if they cannot be read."""
    with open_file(path) as stream:
        length = int.from_bytes(stream.read(8), "little")
    if length > LARGEST_HEADER:
        raise ValueError(
            f"its header has {length:,} bytes, and {LARGEST_HEADER:,} are allowed at most"
        )
    try:
        tensors: dict[str, Tensor] = load_file(path)
    except (SafetensorError, RuntimeError, TypeError, OverflowError) as error:
        raise ValueError(str(error)) from error
    return tensors


def build(part: str, make: Callable[[], M], weights: Mapping[str, Tensor]) -> M:
    """A module with these weights, built only once they are known to fit.

    `make` builds a module whose sizes come from config.json, so it is tried without memory first.
    Raises ValueError if the weights do not fit, or are not finite.
    """
    with torch.device("meta"):
        try:
            shapes = make()
        except RuntimeError:  # a plugin that computes something while it is built
            shapes = None
    if shapes is not None:
        check_fit(part, shapes, weights)
    module = make()
    load(part, module, weights)
    return module


def load(part: str, module: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Loads weights into a module. Raises ValueError if they do not fit, or are not finite."""
    check_fit(part, module, weights)
    module.load_state_dict(dict(weights))
    check_finite(part, module)


def check_fit(part: str, module: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Raises ValueError unless the weights have the module's names, shapes and types.

    Single precision may be saved as half, see `MCHModel.save`.
    """
    own: dict[str, Tensor] = module.state_dict()
    for name in sorted(own.keys() ^ weights.keys()):
        problem = "lacks" if name in own else "has a superfluous"
        raise ValueError(f"its {WEIGHTS} {problem} {part}.{reprlib.repr(name)}")
    for name, tensor in own.items():
        saved = weights[name]
        halved = (saved.dtype, tensor.dtype) == (torch.float16, torch.float32)
        if saved.shape != tensor.shape or not (halved or saved.dtype == tensor.dtype):
            raise ValueError(
                f"{part}.{name} in its {WEIGHTS} is {_described(saved)}, but the settings need "
                f"{_described(tensor)}"
            )


def _described(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"


def check_finite(part: str, module: nn.Module) -> None:
    """Raises ValueError if a weight is NaN or infinite: the codes would not depend on the image.

    Only the buffers of a backbone may be infinite, as the masks of an attention layer are.
    """
    parameters = {name for name, _ in module.named_parameters()}
    for name, tensor in module.state_dict().items():
        # A finite sum means finite weights, and is found fast. That of finite weights may overflow.
        if not tensor.is_floating_point() or math.isfinite(float(tensor.sum())):
            continue
        mask = part == "backbone" and name not in parameters
        if bool(tensor.isnan().any()) or (not mask and bool(tensor.isinf().any())):
            raise ValueError(f"{part}.{name} has values that are not finite numbers")
