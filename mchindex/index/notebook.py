"""Hits as a grid of pictures in a notebook."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from jinja2 import Environment

from mchindex.errors import ImageError
from mchindex.images import thumbnail
from mchindex.index.grid import FRAME
from mchindex.regions import in_fractions

if TYPE_CHECKING:
    from mchindex.index.results import Hit, Hits

MOST = 50  # pictures shown, at most
SIDE = 160  # pixels of a picture, at most

_GRID = Environment(autoescape=True).from_string("""\
<div style="font-family:system-ui,sans-serif;font-size:12px">
<p>{{ total }} hit{{ "" if total == 1 else "s" }}, {{ effort }}</p>
<div style="display:flex;flex-wrap:wrap;gap:12px">
{%- for tile in tiles %}
<figure style="margin:0;width:{{ side }}px" title="{{ tile.title }}">
{%- if tile.picture %}
<div style="position:relative;width:{{ tile.width }}px;line-height:0">
<img src="{{ tile.picture }}" alt="{{ tile.name }}" \
width="{{ tile.width }}" height="{{ tile.height }}">
{%- if tile.frame %}
<span style="position:absolute;{{ tile.frame }};box-sizing:border-box"></span>
{%- endif %}
</div>
{%- else %}
<div style="width:{{ side }}px;height:{{ side }}px;background:#8882;display:grid;\
place-items:center">no picture</div>
{%- endif %}
<figcaption><b>{{ tile.score }}</b> {{ tile.region }}\
{% if tile.distance >= 0 %}, distance {{ tile.distance }}{% endif %}<br>{{ tile.name }}</figcaption>
</figure>
{%- endfor %}
</div>
{%- if total > tiles|length %}<p>… {{ total - tiles|length }} more</p>{% endif %}
</div>
""")


def hits_html(hits: Hits) -> str:
    """One figure per hit: the picture with its region framed, the score and the name."""
    tiles = [_tile(hit) for hit in hits[:MOST]]
    return _GRID.render(total=len(hits), effort=hits.effort(), tiles=tiles, side=SIDE)


def _tile(hit: Hit) -> dict[str, Any]:
    tile: dict[str, Any] = {
        "title": str(hit.id),
        "name": os.path.basename(str(hit.id)) or str(hit.id),
        "score": f"{hit.score:.2f}",
        "distance": hit.distance,
        "region": hit.region,
    }
    if hit.path is None:
        return tile
    try:
        picture = thumbnail(hit.path, SIDE)
    except ImageError:
        return tile
    tile |= {"picture": picture.url, "width": picture.width, "height": picture.height}
    if hit.box is not None and hit.region != "whole":
        x0, y0, x1, y1 = (100 * share for share in in_fractions(hit.box, picture.size))
        tile["frame"] = (
            f"left:{x0:.2f}%;top:{y0:.2f}%;width:{x1 - x0:.2f}%;height:{y1 - y0:.2f}%;"
            f"border:2px solid {FRAME}"
        )
    return tile
