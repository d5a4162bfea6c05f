"""The page of a demo: one HTML file with its pictures and plot inside, no scripts, no network.

The templates escape every value, whatever the pictures are called.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import Environment, PackageLoader, StrictUndefined

from mchindex.demo.buckets import PER_DECADE
from mchindex.demo.examples import HITS
from mchindex.demo.plot import description, f1_plot
from mchindex.errors import ImageError
from mchindex.images import Thumbnail, thumbnail
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


def page_picture(path: str | None) -> Thumbnail | None:
    """A picture for the page; None if there is none or it cannot be read any more."""
    if path is None:
        return None
    try:
        return thumbnail(path, SIDE)
    except ImageError:
        return None


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
    templates.globals |= {"thumbnail": page_picture, "frame": FRAME, "hits_per_query": HITS}
    templates.filters |= {"filename": lambda path: Path(str(path)).name}
    return templates
