"""A small data set and a small model with fine codes, as the scripts about answers take them."""

from __future__ import annotations

from pathlib import Path

import torch

from helpers.small_model import photo, small_model, write_photos
from mchindex.models.fine import FineHash


def write_dataset(folder: Path) -> None:
    """40 pictures of two classes: 10 queries, 24 others, and 6 to train on."""
    write_photos(folder / "images", 40)
    splits = ["query"] * 10 + ["database"] * 24 + ["train"] * 6
    rows = [
        f"{i:03d}.png,{'even' if i % 2 == 0 else 'odd'},{split}" for i, split in enumerate(splits)
    ]
    (folder / "labels.csv").write_text("\n".join(["file,labels,split", *rows]) + "\n")
    (folder / "classes.txt").write_text("even\nodd\n")


def write_model(folder: Path) -> None:
    model = small_model()
    features = model.extractor([photo(i) for i in range(34, 40)], model.layout.array())
    model.fine = FineHash.fit(torch.from_numpy(features).flatten(0, 1), 64)
    model.about = {"seed": 0}
    model.save(folder)
