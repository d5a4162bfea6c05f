"""The weights of a saved model, as torch reads them.

They must have the names, shapes and types that the settings lead to, and this is checked before any
memory is taken for them.
"""

from __future__ import annotations

import math
import os
import reprlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from mchindex.errors import ModelError
from mchindex.inference.saved import WEIGHTS, check_header, read_settings

M = TypeVar("M", bound=nn.Module)


def read_folder(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The settings and the weights of a model. Raises ModelError if they cannot be read.

    The weights stay in the file, which is mapped, until they are used.
    """
    config = read_settings(folder)
    try:
        return config, read_tensors(folder / WEIGHTS)
    except (OSError, ValueError) as error:
        raise ModelError(f"{folder / WEIGHTS} cannot be read: {error}") from error


def read_tensors(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The tensors of a safetensors file. Raises OSError or ValueError if they cannot be read."""
    check_header(path)
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
