"""Backbones, the networks that turn pixels into features, by name."""

from __future__ import annotations

from os import PathLike
from typing import TypeVar

import torch
from torch import nn

from mchindex.files import open_file
from mchindex.models.backbones.alexnet import AlexNet
from mchindex.models.backbones.base import MIN_SIZE, Backbone
from mchindex.models.backbones.efficientnet_lite0 import EfficientNetLite0
from mchindex.models.backbones.small import SmallNet
from mchindex.models.backbones.tuned import Trunk, Tuned
from mchindex.models.backbones.wrapped import Wrapped
from mchindex.models.registry import Registry
from mchindex.models.saved import check_finite, read_tensors

__all__ = [
    "BACKBONES",
    "AlexNet",
    "Backbone",
    "EfficientNetLite0",
    "SmallNet",
    "Trunk",
    "Tuned",
    "Wrapped",
    "create_backbone",
    "load_weights",
    "register_backbone",
]

B = TypeVar("B", bound=type[Backbone])


def _check(backbone: type[Backbone]) -> None:
    name = backbone.__name__
    for attribute, least in (("dim", 1), ("default_size", MIN_SIZE)):
        value = getattr(backbone, attribute, None)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise TypeError(
                f"{name}.{attribute} is a class attribute, an integer of at least {least}, "
                f"not {value!r}"
            )
    if (backbone.feature_map, backbone.forward) == (Backbone.feature_map, Backbone.forward):
        raise TypeError(f"{name} defines neither feature_map nor forward: it needs one of them")


BACKBONES: Registry[Backbone] = Registry("backbone", Backbone, _check)
for _backbone in (EfficientNetLite0, AlexNet, SmallNet):
    BACKBONES.register(_backbone)


def register_backbone(cls: B) -> B:
    """Makes a backbone available under its `name`; usable as a decorator.

    `cls` is a subclass of `Backbone` with `name`, `dim` and `default_size`, built by `cls(size)`,
    that defines `feature_map` or `forward`. Raises TypeError or ValueError if it cannot be used, or
    if another class has its name.
    """
    BACKBONES.register(cls)
    return cls


def create_backbone(
    name: str, size: int | None = None, weights: str | PathLike[str] | None = None
) -> Backbone:
    """Builds a backbone by name.

    `size` is the side of its input in pixels; None: its default. `weights` is "pretrained", a file
    of weights (.safetensors, or .pth, which is read without pickle), or None for random weights.
    """
    backbone = BACKBONES.find(name)(size)
    if weights == "pretrained":
        backbone.load_pretrained()
    elif weights is not None:
        load_weights(backbone, weights)
    return backbone


def load_weights(backbone: nn.Module, path: str | PathLike[str]) -> None:
    """Loads a file of weights and ignores tensors that the backbone does not have (a classifier).

    Raises ValueError if the file holds no weights, or lacks some of the backbone's.
    """
    try:
        if str(path).endswith(".safetensors"):
            weights = read_tensors(path)
        else:
            with open_file(path) as stream:
                weights = torch.load(stream, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # other files fail in many ways
        raise ValueError(f"{path} is not a file of weights: {error}") from error
    missing = backbone.load_state_dict(
        {k: v for k, v in weights.items() if k in backbone.state_dict()}, strict=False
    ).missing_keys
    if missing:
        few = ", ".join(missing[:3]) + (" …" if len(missing) > 3 else "")
        raise ValueError(f"{path} does not hold this backbone's weights: it lacks {few}")
    try:
        check_finite("backbone", backbone)
    except ValueError as error:
        raise ValueError(f"{path} cannot be used: {error}") from error
