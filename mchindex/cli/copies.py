"""How often a search by an edited copy, or by a part, of an indexed picture finds the picture."""

from __future__ import annotations

import contextlib
from dataclasses import asdict, dataclass

import numpy as np
from PIL import Image

from mchindex.datasets import Dataset
from mchindex.datasets.edits import EDITS
from mchindex.errors import ImageError
from mchindex.index import MCHIndex
from mchindex.models import MCHModel
from mchindex.progress import Progress, Step

TEN = 10
AT_A_TIME = 256  # pictures in memory


@dataclass(frozen=True)
class Found:
    """Shares of the pictures that were looked for."""

    first: float  # they were the first hit
    ten: float  # they were among the first ten hits

    def to_json(self) -> dict[str, float]:
        return asdict(self)


def find_copies(
    model: MCHModel, dataset: Dataset, count: int, seed: int, progress: Progress
) -> tuple[int, dict[str, Found]]:
    """Edits this many pictures of the database and looks for each in the whole database: how many
    there were, and what was found after each kind of edit.

    The searches are those of an index with this model, in its default order.
    """
    rows = dataset.splits["database"].tolist()
    with MCHIndex(model) as index:
        for start in range(0, len(rows), AT_A_TIME):
            pictures = _readable(dataset, rows[start : start + AT_A_TIME])
            index.add(list(pictures.values()), list(pictures), progress=False)
            done = min(start + AT_A_TIME, len(rows))
            progress(Step("index", done, len(rows), unit="images"))
        there = np.array(list(index), np.int64)
        some = np.random.default_rng(seed).permutation(there)[:count].tolist()
        found = {}
        for number, (name, edit) in enumerate(EDITS.items()):
            firsts = tens = 0
            for done, row in enumerate(some, 1):
                ids = [hit.id for hit in index.search(edit(dataset.images.image(row)), TEN)]
                firsts += ids[:1] == [row]
                tens += row in ids
                progress(Step("edited copies", number * len(some) + done, len(EDITS) * len(some)))
            found[name] = Found(firsts / len(some), tens / len(some))
    return len(some), found


def _readable(dataset: Dataset, rows: list[int]) -> dict[int, Image.Image]:
    pictures = {}
    for row in rows:
        with contextlib.suppress(ImageError):
            pictures[row] = dataset.images.image(row)
    return pictures
