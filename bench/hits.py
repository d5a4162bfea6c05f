"""Draws docs/hits.png from the demo: a picture, a part of one and a word, each with its first hits.

python bench/hits.py --demo DIR   # runs the demo in DIR, unless it is complete, and draws
python bench/hits.py --check      # exit 1 if the picture was drawn from other inputs than today's

Also writes the demo's figures to bench/results/demo.json, from which readme.py takes those in the
README.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont, PngImagePlugin

from common import RESULTS
from mchindex import json_text
from mchindex.datasets import scenes
from mchindex.demo.examples import ExampleHit
from mchindex.demo.scenes import IMAGES, SETTINGS, SHOWN, SIDE, ScenesDemo, scenes_demo
from mchindex.files import write_file
from mchindex.images import open_rgb
from mchindex.index import grid
from mchindex.index.grid import Tile
from mchindex.index.ranking import WEIGHTS
from mchindex.progress import Display

PICTURE = Path(__file__).parents[1] / "docs" / "hits.png"
FIGURES = RESULTS / "demo.json"
TILE = 150  # pixels
STAMP = "inputs"  # the name of the text in the file that says what it was drawn from


def inputs() -> str:
    """A hash of all that the picture depends on: drawings, model, ranking, and how it is drawn."""
    sources = [Path(__file__), Path(str(grid.__file__))]
    about: dict[str, Any] = {
        "scenes": [scenes.VERSION, IMAGES, SIDE],
        "model": asdict(SETTINGS),
        "ranking": [list(weights) for weights in WEIGHTS.values()],
        "drawing": [source.read_text("utf-8") for source in sources],
    }
    return hashlib.sha256(json_text.dumps(about).encode()).hexdigest()


def draw(demo: ScenesDemo) -> Image.Image:
    """Three rows: the demo's first example of a picture, of a part and of a word."""
    query, part, word = demo.examples[0], demo.parts.examples[0], demo.words.examples[0]
    rows = [
        _row(
            Tile(open_rgb(str(query.path)), ("a picture: " + ", ".join(query.classes or ()),)),
            query.answers[SHOWN.index("best")].hits,
        ),
        _row(
            Tile(open_rgb(part.path), ("a part of a picture",), part.box),
            part.answer.hits,
            [("the same picture" if found else "another picture") for found in part.found],
        ),
        _row(Tile(_written(word.word), ("a word",)), word.answer.hits),
    ]
    return grid.below_each_other(rows)


def _row(query: Tile, hits: Sequence[ExampleHit], notes: Sequence[str] = ()) -> Image.Image:
    tiles = []
    for place, example in enumerate(hits):
        shared = ", ".join(example.shared_classes or ())
        note = notes[place] if notes else shared or "wrong: nothing in common"
        caption = (note, f"score {example.hit.score:.2f}")
        box = example.box if example.by_region else None
        tiles.append(Tile(open_rgb(str(example.hit.path)), caption, box))
    return grid.draw_tiles(query, tiles, len(tiles), TILE)


def _written(word: str) -> Image.Image:
    """A word in the middle of a square."""
    picture = Image.new("RGB", (2 * TILE, 2 * TILE), grid.EMPTY)
    font = ImageFont.load_default(TILE // 3)
    ImageDraw.Draw(picture).text((TILE, TILE), word, grid.INK, font, anchor="mm")
    return picture


def write(demo: ScenesDemo) -> None:
    about = PngImagePlugin.PngInfo()
    about.add_text(STAMP, inputs())
    stream = io.BytesIO()
    draw(demo).quantize(256).save(stream, "PNG", optimize=True, pnginfo=about)
    write_file(PICTURE, stream.getvalue())
    write_file(FIGURES, json.dumps({STAMP: inputs()} | demo.to_dict(), indent=1) + "\n")


def out_of_date() -> list[Path]:
    """The files that are missing or were written from other inputs than today's."""
    old = []
    for file in (PICTURE, FIGURES):
        if not file.exists() or _stamp(file) != inputs():
            old.append(file)
    return old


def _stamp(file: Path) -> Any:
    if file.suffix == ".json":
        return json_text.loads(file.read_text("utf-8")).get(STAMP)
    with Image.open(file) as image:
        return image.info.get(STAMP)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--demo", type=Path, default=Path("demo"), metavar="DIR")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    if options.check:
        if old := out_of_date():
            names = " and ".join(file.name for file in old)
            sys.exit(f"out of date: {names}. Run bench/hits.py, then bench/readme.py")
        return
    with Display() as display:
        write(scenes_demo(options.demo, progress=display))


if __name__ == "__main__":
    main()
