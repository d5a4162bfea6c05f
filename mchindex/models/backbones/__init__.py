"""Backbones: networks that turn pixels into features. Any other `Backbone` will do as well."""

from __future__ import annotations

from os import PathLike

import torch
from safetensors.torch import load_file
from torch import nn

from mchindex.models.backbones.alexnet import AlexNet
from mchindex.models.backbones.base import Backbone
from mchindex.models.backbones.efficientnet_lite0 import EfficientNetLite0
from mchindex.models.backbones.small import SmallNet
from mchindex.models.backbones.wrapped import Wrapped

BACKBONES: dict[str, type[Backbone]] = {
    backbone.name: backbone for backbone in (EfficientNetLite0, AlexNet, SmallNet)
}

__all__ = [
    "BACKBONES",
    "AlexNet",
    "Backbone",
    "EfficientNetLite0",
    "SmallNet",
    "Wrapped",
    "create_backbone",
    "load_weights",
]


def create_backbone(
    name: str, size: int | None = None, weights: str | PathLike[str] | None = None
) -> Backbone:
    """A backbone by name, with its pretrained weights, a user's file of weights, or none.

    `weights`: a file of public weights (.safetensors, or .pth read without pickle), "pretrained",
    or None for a net that starts from chance.
    """
    if name not in BACKBONES:
        raise ValueError(f"no backbone is called {name!r}: there are {', '.join(BACKBONES)}")
    backbone = BACKBONES[name](size)
    if weights == "pretrained":
        backbone.load_pretrained()
    elif weights is not None:
        load_weights(backbone, weights)
    return backbone


def load_weights(backbone: nn.Module, path: str | PathLike[str]) -> None:
    """Loads a file of weights; what the backbone has no use for (a classifier) is left out."""
    try:
        if str(path).endswith(".safetensors"):
            weights = load_file(path)
        else:
            weights = torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # a file of something else fails in many ways
        raise ValueError(f"{path} is not a file of weights: {error}") from error
    missing = backbone.load_state_dict(
        {k: v for k, v in weights.items() if k in backbone.state_dict()}, strict=False
    ).missing_keys
    if missing:
        few = ", ".join(missing[:3]) + (" …" if len(missing) > 3 else "")
        raise ValueError(f"{path} does not hold this backbone's weights: it lacks {few}")
