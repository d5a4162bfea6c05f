"""The page of a demo: one HTML file with its pictures and plot inside, no scripts, no network.

The templates escape every value, whatever the pictures are called.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import Environment

from mchindex.demo.buckets import PER_DECADE
from mchindex.demo.examples import HITS, RANKED
from mchindex.demo.parts import AMONG
from mchindex.demo.plot import description, f1_plot
from mchindex.index.page import page_picture, templates

if TYPE_CHECKING:
    from mchindex.demo.photos import PhotosDemo
    from mchindex.demo.scenes import ScenesDemo


def scenes_page(demo: ScenesDemo) -> str:
    """The page about drawn pictures. Without matplotlib it has no plot, and says so."""
    plot, label = f1_plot(demo.curves, demo.buckets_needed), description(demo.curves)
    template = _templates().get_template("scenes.html")
    return template.render(
        demo=demo,
        plot=plot,
        plot_label=label,
        per_decade=PER_DECADE,
        ranked=RANKED,
        among=AMONG,
    )


def photos_page(demo: PhotosDemo) -> str:
    """The page about a folder of the user's pictures."""
    return _templates().get_template("photos.html").render(demo=demo)


@cache
def _templates() -> Environment:
    own = templates("mchindex.demo")
    own.globals |= {"thumbnail": page_picture, "hits_per_query": HITS}
    own.filters |= {"filename": lambda path: Path(str(path)).name}
    return own
