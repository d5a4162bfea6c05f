"""Hits as a grid of pictures in a notebook."""

from __future__ import annotations

import base64
import os
from typing import TYPE_CHECKING, Any

from jinja2 import Environment

from mchindex.errors import ImageError
from mchindex.images import thumbnail

if TYPE_CHECKING:
    from mchindex.index.results import Hit, Hits

MOST = 50  # pictures shown
SIDE = 160  # pixels of a picture, at most

_GRID = Environment(autoescape=True).from_string("""\
<div style="font-family:system-ui,sans-serif;font-size:12px">
<p>{{ total }} hit{{ "" if total == 1 else "s" }}, {{ effort }}</p>
<div style="display:flex;flex-wrap:wrap;gap:12px">
{%- for tile in tiles %}
<figure style="margin:0;width:{{ side }}px" title="{{ tile.title }}">
{%- if tile.picture %}
<div style="position:relative;width:{{ tile.width }}px;line-height:0">
<img src="data:image/jpeg;base64,{{ tile.picture }}" alt="{{ tile.name }}" \
width="{{ tile.width }}" height="{{ tile.height }}">
{%- if tile.frame %}
<span style="position:absolute;{{ tile.frame }};border:2px solid #ff8c1a;box-sizing:border-box">\
</span>
{%- endif %}
</div>
{%- else %}
<div style="width:{{ side }}px;height:{{ side }}px;background:#8882;display:grid;\
place-items:center">no picture</div>
{%- endif %}
<figcaption><b>{{ tile.distance }}</b> {{ tile.region }}<br>{{ tile.name }}</figcaption>
</figure>
{%- endfor %}
</div>
{%- if total > tiles|length %}<p>… {{ total - tiles|length }} more</p>{% endif %}
</div>
""")


def hits_html(hits: Hits) -> str:
    """One figure per hit: the picture with its region framed, the distance and the name."""
    tiles = [_tile(hit) for hit in hits[:MOST]]
    return _GRID.render(total=len(hits), effort=hits.effort(), tiles=tiles, side=SIDE)


def _tile(hit: Hit) -> dict[str, Any]:
    tile: dict[str, Any] = {
        "title": str(hit.id),
        "name": os.path.basename(str(hit.id)) or str(hit.id),
        "distance": hit.distance,
        "region": hit.region,
    }
    if hit.path is None:
        return tile
    try:
        picture = thumbnail(hit.path, SIDE)
    except ImageError:
        return tile
    tile |= {"picture": base64.b64encode(picture.jpeg).decode(), "frame": None}
    tile |= {"width": picture.width, "height": picture.height}
    if hit.box is not None and hit.region != "whole":
        tile["frame"] = _frame(hit.box, picture.size)
    return tile


def _frame(box: tuple[int, int, int, int], size: tuple[int, int]) -> str:
    """CSS for a box in pixels of the full picture; clipped, since the file may have changed."""
    x0, y0, x1, y1 = (100 * min(max(v / size[i % 2], 0.0), 1.0) for i, v in enumerate(box))
    return f"left:{x0:.2f}%;top:{y0:.2f}%;width:{x1 - x0:.2f}%;height:{y1 - y0:.2f}%"
