"""A model with fine codes that needs no training, and pictures with copies."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import torch
from PIL import Image

from helpers.small_model import photo, small_model
from mchindex.models import MCHModel
from mchindex.models.fine import FineHash


@cache
def fine_model(bits: int = 128) -> MCHModel:
    """The small model, with fine codes fitted to photos and their regions."""
    model = small_model()
    features = torch.from_numpy(
        model._features([photo(i) for i in range(300)], model.layout.array())
    )
    return replace(model, fine=FineHash.fit(features.flatten(0, 1).float(), bits))


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
