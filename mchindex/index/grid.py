"""Draws hits as a picture: the query on the left, its hits in a grid on the right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image, ImageDraw, ImageFont

from mchindex.errors import ImageError
from mchindex.images import read_picture
from mchindex.index.results import Hit
from mchindex.regions import Box, PixelBox, in_fractions

PAPER, EMPTY, INK, FAINT = "white", "#e4e4e4", "#1a1a1a", "#6b6b6b"
FRAME, SHADE = "#ff8c1a", "#1a1a1a"  # a light and a dark line: one is visible on any picture
MISSING = "no picture"

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


@dataclass(frozen=True)
class Tile:
    """A picture with lines of text below it."""

    image: Image.Image | None  # None draws a grey tile
    caption: Sequence[str] = ()  # the first line is darker than the others
    box: Box | None = None  # a part to frame, as fractions of the sides


def draw_grid(
    query: Image.Image | None,
    hits: Sequence[Hit],
    columns: int = 5,
    tile: int = 180,
    *,
    region: PixelBox | None = None,
    title: str = "query",
) -> Image.Image:
    """Draws a query and its hits, each with its score, its distance and its region, which is
    framed.

    Reads the hits' pictures from their paths; a hit whose picture cannot be read gets a grey tile.
    `region` is the part of the query that was searched for, in pixels, and `title` is the text
    below the query. `tile` is the side of a hit's tile in pixels.

    Raises ValueError for less than one column or a tile of less than 32 pixels.
    """
    box = None if region is None or query is None else in_fractions(region, query.size)
    query_tile = Tile(query, (title,) if hits else (title, "nothing found"), box)
    return draw_tiles(query_tile, [_hit_tile(hit, tile) for hit in hits], columns, tile)


def draw_tiles(
    query: Tile, tiles: Sequence[Tile], columns: int = 5, tile: int = 180
) -> Image.Image:
    """Like `draw_grid`, for pictures that are already open."""
    if columns < 1:
        raise ValueError(f"columns must be at least 1, not {columns}")
    if tile < 32:
        raise ValueError(f"tile must be at least 32 pixels, not {tile}")
    size = max(11, tile // 12)
    font = ImageFont.load_default(size)
    gap, line = max(8, tile // 15), round(size * 1.35)
    lines = max(len(t.caption) for t in (query, *tiles))
    across = min(columns, max(1, len(tiles)))
    down = max(1, -(-len(tiles) // columns))
    large = tile * 3 // 2
    step = tile + lines * line + line // 2 + gap
    width = gap + large + (2 * gap + across * (tile + gap) if tiles else gap)
    height = gap + max(down * step, large + lines * line + line // 2 + gap)
    paper = Image.new("RGB", (width, height), PAPER)
    _draw_tile(paper, query, (gap, gap), large, font, line)
    left = 3 * gap + large
    if tiles:
        rule = left - gap - gap // 2
        ImageDraw.Draw(paper).line([(rule, gap), (rule, height - gap)], EMPTY, 2)
    for place, hit in enumerate(tiles):
        corner = left + place % columns * (tile + gap), gap + place // columns * step
        _draw_tile(paper, hit, corner, tile, font, line)
    return paper


def below_each_other(grids: Sequence[Image.Image]) -> Image.Image:
    """Joins several pictures into one, from top to bottom."""
    paper = Image.new("RGB", (max(g.width for g in grids), sum(g.height for g in grids)), PAPER)
    top = 0
    for grid in grids:
        paper.paste(grid, (0, top))
        top += grid.height
    return paper


def _hit_tile(hit: Hit, side: int) -> Tile:
    distance = "" if hit.distance < 0 else f", distance {hit.distance}"  # words have no code
    caption = (f"score {hit.score:.2f}", hit.region + distance)
    if hit.path is None:
        return Tile(None, caption)
    try:
        picture = read_picture(hit.path, side)
    except ImageError:
        return Tile(None, caption)
    box = None if hit.box is None else in_fractions(hit.box, picture.size)
    # Resized here, so that not all pictures are in memory at their full size.
    return Tile(_scaled(picture.image, side), caption, box)


def _scaled(image: Image.Image, side: int) -> Image.Image:
    """The picture in RGB, with a longer side of `side` pixels."""
    scale = side / max(image.size)
    width, height = (max(1, round(s * scale)) for s in image.size)
    return image.convert("RGB").resize((width, height), Image.Resampling.LANCZOS)


def _draw_tile(
    paper: Image.Image, tile: Tile, corner: tuple[int, int], side: int, font: Font, line: int
) -> None:
    """Draws a tile with its top left corner at `corner`. `line` is the height of a text line."""
    draw, (left, top) = ImageDraw.Draw(paper), corner
    if tile.image is None:
        draw.rectangle((left, top, left + side - 1, top + side - 1), EMPTY)
        middle = left + (side - font.getbbox(MISSING)[2]) / 2, top + (side - line) / 2
        draw.text(middle, MISSING, FAINT, font)
    else:
        small = _scaled(tile.image, side)
        width, height = small.size
        x, y = left + (side - width) // 2, top + (side - height) // 2
        paper.paste(small, (x, y))
        if tile.box is not None:
            _draw_frame(draw, tile.box, x, y, width, height, max(2, side // 60))
    for number, text in enumerate(tile.caption):
        where = left, top + side + line // 4 + number * line
        draw.text(where, _shortened(text, font, side), INK if number == 0 else FAINT, font)


def _draw_frame(
    draw: ImageDraw.ImageDraw, box: Box, x: int, y: int, width: int, height: int, thick: int
) -> None:
    """Draws a frame just inside the edges of a box, so that it stays within the picture."""
    x0, x1 = x + round(box[0] * width), x + round(box[2] * width) - 1
    y0, y1 = y + round(box[1] * height), y + round(box[3] * height) - 1
    if x1 - x0 < 2 * thick + 4 or y1 - y0 < 2 * thick + 4:
        draw.rectangle((min(x0, x1), min(y0, y1), max(x0, x1), max(y0, y1)), None, FRAME, 1)
        return
    draw.rectangle((x0, y0, x1, y1), None, SHADE, thick + 2)
    draw.rectangle((x0 + 1, y0 + 1, x1 - 1, y1 - 1), None, FRAME, thick)


def _shortened(text: str, font: Font, width: int) -> str:
    """The text, cut with an ellipsis if it is wider than `width` pixels."""
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(text + "…") > width:
        text = text[:-1]
    return text + "…"


__all__ = ["Tile", "below_each_other", "draw_grid", "draw_tiles"]
