"""A small data set and a small model with fine codes, as the scripts about answers take them."""

from __future__ import annotations

from pathlib import Path

import torch

from helpers.small_model import photo, small_model, write_photos
from mchindex.models.fine import FineHash


def write_dataset(folder: Path, queries: int = 10, others: int = 24, train: int = 6) -> None:
    """Pictures of two classes: queries, others of the database, and some to train on."""
    splits = ["query"] * queries + ["database"] * others + ["train"] * train
    write_photos(folder / "images", len(splits))
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
