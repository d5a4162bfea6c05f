"""A backbone whose last blocks are there twice: as they were, and tuned to labels.

Tuned features say more about the things that have labels, those of the blocks as they were about
everything else: copies, parts, and things without a label. Codes, fine codes and words are computed
from both, and all come from one pass through the blocks before.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from mchindex.models.backbones.base import Backbone

TUNED_WEIGHT = (
    0.5  # of tuned features in fine codes, where that of the others is 1: see docs/learning.md
)


def folded(module: nn.Module) -> nn.Module:
    """The same module, in which convolutions took over the normalisation that follows them.

    The statistics of the normalisation are those of the training before: what a small data set
    would make of them is worse. A module in which a normalisation is registered right after a
    convolution must also run them one right after the other.
    """
    before = ""
    for name, part in list(module.named_children()):
        conv = getattr(module, before, None)
        if isinstance(part, nn.BatchNorm2d) and isinstance(conv, nn.Conv2d):
            setattr(module, before, fuse_conv_bn_eval(conv.eval(), part.eval()))
            setattr(module, name, nn.Identity())
        else:
            folded(part)
        before = name
    return module


class Trunk(Backbone):
    """The blocks before those that are tuned, which stay as they are."""

    name = "trunk"
    default_size = 224

    def __init__(self, base: Backbone, blocks: int) -> None:
        super().__init__(base.size)
        parts = all_blocks(base, blocks)
        self.mean, self.std, self.about = base.mean, base.std, base.identity
        self.net = nn.Sequential(*parts[:-blocks])
        with torch.no_grad():
            pixels = torch.zeros(1, 3, base.size, base.size, device=next(base.parameters()).device)
            self.dim, rows, columns = self.eval().feature_map(pixels).shape[1:]
        self.cells = rows, columns  # of the map

    @property
    def identity(self) -> dict[str, Any]:
        return self.about | {"blocks": len(self.net)}

    def feature_map(self, pixels: Tensor) -> Tensor:
        maps: Tensor = self.net(self.normalise(pixels))
        return maps


class Tuned(Backbone):
    """Features of the tuned blocks, followed by those of the backbone as it was."""

    name = "tuned"
    default_size = 224

    def __init__(self, base: Backbone, blocks: int) -> None:
        """`blocks` is how many blocks, the last ones, are there twice. They start out the same.
        Raises ValueError if the backbone has no more blocks than that, or none that are known."""
        super().__init__(base.size)
        parts = all_blocks(base, blocks)
        self.base, self.blocks, self.dim = base.eval(), blocks, 2 * base.dim
        tail = folded(deepcopy(nn.Sequential(*parts[-blocks:])).eval())
        self.tail = tail.requires_grad_(True)

    @property
    def branches(self) -> tuple[float, ...]:
        return TUNED_WEIGHT, 1.0

    @property
    def identity(self) -> dict[str, Any]:
        return self.base.identity | {"tuned": self.blocks}

    def normalise(self, pixels: Tensor) -> Tensor:
        return self.base.normalise(pixels)

    def feature_map(self, pixels: Tensor) -> Tensor:
        parts = self.base.parts()
        x = self.base.normalise(pixels)
        for part in parts[: -self.blocks]:
            x = part(x)
        frozen = x
        for part in parts[-self.blocks :]:
            frozen = part(frozen)
        return torch.cat([self.tail(x), frozen], 1)


def all_blocks(base: Backbone, blocks: int) -> list[nn.Module]:
    """All blocks of a backbone. Raises ValueError if so many of them cannot be tuned."""
    parts = base.parts()
    if not parts:
        raise ValueError(f"the blocks of {base.name} are not known: none can be tuned")
    if not 1 <= blocks < len(parts):
        raise ValueError(
            f"from 1 to {len(parts) - 1} blocks of {base.name} can be tuned, not {blocks}"
        )
    return parts
