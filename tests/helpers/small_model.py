"""A model that needs no training: random weights, LSH, and a policy that keeps some regions."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from helpers.pictures import picture
from mchindex.models import MCHModel, Policy, create_method
from mchindex.models.backbones import SmallNet


def small_model(seed: int = 0, bits: int = 16) -> MCHModel:
    torch.manual_seed(seed)
    backbone = SmallNet(32)
    method = create_method("lsh", backbone.dim, bits, {})
    with torch.no_grad():
        for name, buffer in method.named_buffers():
            if name == "map":
                buffer.copy_(torch.randn(buffer.shape))
    policy = Policy(method.feature_dim, bits, width=8)
    model = MCHModel(
        backbone, method, policy, mode="pooled", device=torch.device("cpu"), engine="torch"
    )
    keep = model.encode([photo(i) for i in range(8)]).keep[:, 1:]
    return replace(model, xi=float(np.median(keep)))  # half of the regions are kept


def photo(seed: int, width: int = 60, height: int = 40) -> Image.Image:
    """A picture with large, smooth areas, like a photo."""
    return picture(seed, 5, 4).resize((width, height), Image.Resampling.BICUBIC)


def write_photos(folder: Path, count: int, first: int = 0) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{i:03d}.png" for i in range(first, first + count)]
    for seed, file in enumerate(files, first):
        photo(seed).save(file)
    return files
