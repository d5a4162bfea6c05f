"""The page of a demo: one HTML file with its pictures and plot inside, no scripts, no network.

The templates escape every value, whatever the pictures are called.
"""

from __future__ import annotations

import base64
import io
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from PIL import Image

from mchindex.demo.buckets import PER_DECADE
from mchindex.demo.examples import HITS
from mchindex.demo.plot import description, f1_plot
from mchindex.errors import ImageError
from mchindex.images import read_picture
from mchindex.index.grid import FRAME

if TYPE_CHECKING:
    from mchindex.demo.photos import PhotosDemo
    from mchindex.demo.scenes import ScenesDemo

SIDE = 200  # pixels of a picture on the page, at most


def scenes_page(demo: ScenesDemo) -> str:
    """The page about drawn pictures. Without matplotlib it has no plot, and says so."""
    plot, label = f1_plot(demo.curves, demo.buckets_needed), description(demo.curves)
    template = _templates().get_template("scenes.html")
    return template.render(demo=demo, plot=plot, plot_label=label, per_decade=PER_DECADE)


def photos_page(demo: PhotosDemo) -> str:
    """The page about a folder of the user's pictures."""
    return _templates().get_template("photos.html").render(demo=demo)


class Thumbnail(NamedTuple):
    """A small JPEG as a data URL, and its size in pixels."""

    url: str
    width: int
    height: int


def thumbnail(path: str | None) -> Thumbnail | None:
    """A picture of at most 200 pixels per side; None if it cannot be read any more."""
    if path is None:
        return None
    try:
        image = read_picture(path, SIDE).image
    except ImageError:
        return None
    image.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=86, subsampling=0, optimize=True)
    data = base64.b64encode(stream.getvalue()).decode()
    return Thumbnail(f"data:image/jpeg;base64,{data}", *image.size)


@cache
def _templates() -> Environment:
    templates = Environment(
        loader=PackageLoader("mchindex.demo"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    templates.globals |= {"thumbnail": thumbnail, "frame": FRAME, "hits_per_query": HITS}
    templates.filters |= {"filename": lambda path: Path(str(path)).name}
    return templates
