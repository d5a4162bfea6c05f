"""Draws docs/hits.png: the first example query of the demo, and its best matches.

python bench/hits.py --demo DIR   # runs the demo in DIR, unless it is complete, and draws
python bench/hits.py --check      # exit 1 if the picture was drawn from other inputs than today's
"""

from __future__ import annotations

import argparse
import hashlib
import io
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from PIL import Image, PngImagePlugin

from mchindex import MCHIndex, json_text
from mchindex.datasets import scenes
from mchindex.demo.scenes import IMAGES, INDEXES, SETTINGS, SIDE, scenes_demo
from mchindex.files import write_file
from mchindex.images import open_rgb
from mchindex.index import grid
from mchindex.index.ranking import WEIGHTS
from mchindex.progress import Display

PICTURE = Path(__file__).parents[1] / "docs" / "hits.png"
HITS, COLUMNS = 10, 5
STAMP = "inputs"  # the name of the text in the file that says what it was drawn from


def inputs() -> str:
    """A hash of all that the picture depends on: drawings, model, ranking, and how it is drawn."""
    about: dict[str, Any] = {
        "scenes": [scenes.VERSION, IMAGES, SIDE],
        "model": asdict(SETTINGS),
        "ranking": list(WEIGHTS["best"]),
        "drawing": [Path(str(grid.__file__)).read_text("utf-8"), HITS, COLUMNS],
    }
    return hashlib.sha256(json_text.dumps(about).encode()).hexdigest()


def draw(demo: Path) -> bytes:
    with Display() as display:
        done = scenes_demo(demo, progress=display)
    query = str(done.examples[0].path)
    with MCHIndex.open(demo / INDEXES["mch"], create=False) as index:
        hits = index.search(query, HITS)
    picture = grid.draw_grid(open_rgb(query), hits, COLUMNS, title=Path(query).name)
    about = PngImagePlugin.PngInfo()
    about.add_text(STAMP, inputs())
    stream = io.BytesIO()
    picture.quantize(256).save(stream, "PNG", optimize=True, pnginfo=about)
    return stream.getvalue()


def is_current(picture: Path) -> bool:
    with Image.open(picture) as image:
        return image.info.get(STAMP) == inputs()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--demo", type=Path, default=Path("demo"), metavar="DIR")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    if options.check:
        if not is_current(PICTURE):
            sys.exit(f"{PICTURE} is out of date: run bench/hits.py")
        return
    write_file(PICTURE, draw(options.demo))


if __name__ == "__main__":
    main()
