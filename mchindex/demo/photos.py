"""The demo on a folder of the user's own pictures."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mchindex.demo.examples import (
    HITS,
    RANKED,
    ExampleQuery,
    choose,
    example_answer,
    how_chosen,
    name_of,
)
from mchindex.demo.page import photos_page
from mchindex.files import write_file
from mchindex.index import MCHIndex
from mchindex.index.adding import Failure
from mchindex.progress import Progress, silent

if TYPE_CHECKING:
    from mchindex.models import MCHModel

PHOTOS_INDEX, PHOTOS_PAGE = "photos.mch", "photos.html"
TRIED = 300  # pictures searched for, at most, to find queries worth showing


@dataclass(frozen=True)
class PhotosDemo:
    """What the demo did with a folder of pictures."""

    folder: Path
    page: Path
    index: Path
    about: str  # which pictures, which model
    added: int
    replaced: int  # pictures that had changed since the last run
    unchanged: int
    failed: list[Failure]
    images_per_second: float | None  # None: no picture had to be encoded
    stats: Mapping[str, Any]  # of the index
    examples: list[ExampleQuery]
    how_chosen: str  # the examples
    commands: list[str]  # worth trying next

    def figures(self) -> dict[str, str]:
        """Names and values for a table about the index and this run."""
        stats, speed = self.stats, self.images_per_second
        added = f"{self.added:,}"
        if self.replaced:
            added += f", and {self.replaced:,} that had changed"
        if self.unchanged:
            added += f"; {self.unchanged:,} unchanged"
        rows = {
            "images": f"{stats['images']:,}",
            "codes": f"{stats['codes']:,}, {stats['bits']} bits each",
            "codes per image (ANHC)": f"{stats['anhc']:.2f}",
            "buckets in use": f"{stats['buckets']:,}",
            "added in this run": added,
            "images per second": "nothing to encode" if speed is None else f"{speed:,.0f}",
        }
        if self.failed:
            rows["could not be read"] = f"{len(self.failed):,}"
        return rows


def photos_demo(
    folder: Path,
    out: Path,
    *,
    model: str | os.PathLike[str] | MCHModel | None = None,
    seed: int = 0,
    progress: Progress = silent,
) -> PhotosDemo:
    """Indexes the pictures of a folder, searches for some of them, and writes a page to `out`.

    The index in `out` is kept: another run adds what is new, and removes pictures whose files no
    longer exist. `model` is a shipped model's name, a model's folder or a model; by default the
    index keeps the model it has, and a new index gets the default model. `seed` decides which
    pictures become queries.

    Raises ValueError if `folder` is not a folder or has fewer than two pictures that can be read.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder")
    out.mkdir(parents=True, exist_ok=True)
    with MCHIndex.open(out / PHOTOS_INDEX, model) as index:
        used = index.model  # loads it before the clock starts
        began = time.monotonic()
        index.prune(folder)
        result = index.add(folder, progress=progress)
        seconds = time.monotonic() - began
        if len(result) < 2:
            unreadable = f" ({len(result.failed)} could not be read)" if result.failed else ""
            raise ValueError(
                f"{folder} has {_pictures(len(result))} that can be used{unreadable}: "
                "the demo needs at least 2"
            )
        encoded = len(result.added) + len(result.replaced)
        examples, chosen = _examples(index, result, seed)
        stats = index.stats()
    name = Path(stats["model"]).name if stats["model"] else "your model"
    about = (
        f"{len(result):,} pictures from {folder.resolve()}, encoded with the model {name} "
        f"({used.method_name.upper()}, {used.bits}-bit codes)."
    )
    if stats["images"] > len(result):
        about += f" The index also holds {stats['images'] - len(result):,} from other folders."
    demo = PhotosDemo(
        folder=folder,
        page=out / PHOTOS_PAGE,
        index=out / PHOTOS_INDEX,
        about=about,
        added=len(result.added),
        replaced=len(result.replaced),
        unchanged=len(result.skipped),
        failed=result.failed,
        images_per_second=encoded / seconds if encoded else None,
        stats=stats,
        examples=examples,
        how_chosen=chosen,
        commands=[
            f"mch search {shlex.quote(str(examples[0].path))} "
            f"--index {shlex.quote(str(out / PHOTOS_INDEX))}",
            f"mch add {shlex.quote(str(folder))}",
        ],
    )
    write_file(demo.page, photos_page(demo))
    return demo


def _examples(
    index: MCHIndex, ids: Sequence[str | int], seed: int
) -> tuple[list[ExampleQuery], str]:
    order = np.random.default_rng(seed).permutation(len(ids))[:TRIED].tolist()
    tried = [ids[i] for i in order]
    answers = [index.search(id=id_, k=HITS) for id_ in tried]
    chosen, with_region = choose(answers)
    examples = []
    for q in chosen:
        stored = index[tried[q]]
        rows = [(RANKED[answers[q].rank], answers[q])]
        if answers[q].rank != "code":
            rows.append((RANKED["code"], index.search(id=tried[q], k=HITS, rank="code")))
        every = [example_answer(title, index, hits, stored.codes[0]) for title, hits in rows]
        examples.append(ExampleQuery(name_of(stored.path), stored.path, None, every))
    order_words = f"in random order (seed {seed})"
    return examples, how_chosen(len(chosen), with_region, len(tried), "pictures", order_words)


def _pictures(number: int) -> str:
    return "no picture" if number == 0 else "1 picture" if number == 1 else f"{number:,} pictures"
