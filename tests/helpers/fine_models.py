"""Models whose fine codes need no training, and pictures with copies."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from helpers.small_model import photo, small_model
from mchindex.models import MCHModel
from mchindex.models.fine import FineHash

FINE_BITS = 64


def with_fine(model: MCHModel, bits: int = FINE_BITS, seed: int = 0, photos: int = 40) -> MCHModel:
    """The same model with fine codes, fitted to the regions of a few photos."""
    features = model.extractor([photo(i) for i in range(photos)], model.layout.array())
    flat = torch.from_numpy(features.reshape(-1, features.shape[-1]).astype(np.float32))
    return replace(model, fine=FineHash.fit(flat, bits, seed))


@cache
def fine_model(bits: int = FINE_BITS, photos: int = 40) -> MCHModel:
    return with_fine(small_model(), bits, photos=photos)


def write_copies(folder: Path, photos: int) -> dict[str, Path]:
    """Writes photos as NUMBER.png and, of the first two, a JPEG and a smaller version.

    The PNG is the largest of each.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = {}
    for number in range(photos):
        image = photo(number, 90, 60)
        files[f"{number}.png"] = folder / f"{number}.png"
        image.save(files[f"{number}.png"])
        if number < 2:
            files[f"{number}-saved.jpg"] = folder / f"{number}-saved.jpg"
            image.save(files[f"{number}-saved.jpg"], quality=90)
            files[f"{number}-small.png"] = folder / f"{number}-small.png"
            image.resize((72, 48), Image.Resampling.LANCZOS).save(files[f"{number}-small.png"])
    return files
