"""Hits drawn as a picture: what is drawn where, and how hits without a picture are drawn."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageColor

from mchindex.index.grid import EMPTY, FRAME, Tile, below_each_other, draw_grid, draw_tiles
from mchindex.index.results import Hit

RED, BLUE = (200, 10, 10), (10, 10, 200)


def count(image: Image.Image, colour: str | tuple[int, int, int]) -> int:
    wanted = ImageColor.getrgb(colour)[:3] if isinstance(colour, str) else colour
    return int((np.asarray(image) == wanted).all(-1).sum())


def flat(colour: tuple[int, int, int], width: int = 80, height: int = 80) -> Image.Image:
    return Image.new("RGB", (width, height), colour)


def hits_in(folder: Path, number: int) -> list[Hit]:
    file = folder / "blue.png"
    flat(BLUE).save(file)
    return [Hit(i, i, "top-left", (0, 0, 40, 40), str(file)) for i in range(number)]


def test_the_query_is_left_of_the_hits(tmp_path: Path) -> None:
    grid = np.asarray(draw_grid(flat(RED), hits_in(tmp_path, 7), columns=3, tile=60))
    red, blue = ((grid == colour).all(-1).nonzero() for colour in (RED, BLUE))
    assert red[1].max() < blue[1].min()
    assert len(red[0]) == 90 * 90  # one and a half times as large as a hit
    rows = np.unique(blue[0])
    assert (np.diff(rows) > 1).sum() == 2  # three rows of hits


@pytest.mark.parametrize("number", [0, 1, 2, 5, 6, 11])
def test_every_hit_has_a_tile(tmp_path: Path, number: int) -> None:
    grid = draw_grid(flat(RED), hits_in(tmp_path, number), tile=64)
    one = count(draw_grid(flat(RED), hits_in(tmp_path, 1), tile=64), BLUE)
    assert count(grid, BLUE) == number * one
    assert (count(grid, FRAME) > 0) == (number > 0)


def test_the_region_is_framed(tmp_path: Path) -> None:
    file = tmp_path / "blue.png"
    flat(BLUE, 200, 100).save(file)
    hit = Hit("a", 3, "bottom-right", (100, 50, 200, 100), str(file))
    grid = np.asarray(draw_grid(flat(RED), [hit], tile=100))
    frame = (grid == ImageColor.getrgb(FRAME)).all(-1).nonzero()
    blue = (grid == BLUE).all(-1).nonzero()
    middle = (blue[1].min() + blue[1].max() + 1) / 2, (blue[0].min() + blue[0].max() + 1) / 2
    assert frame[1].min() >= middle[0]
    assert frame[0].min() >= middle[1]


def test_a_box_beyond_the_picture_is_clipped(tmp_path: Path) -> None:
    """The file may have been replaced with a smaller picture since it was added."""
    flat(BLUE, 20, 20).save(tmp_path / "small.png")
    hit = Hit("a", 0, "bottom-right", (320, 240, 640, 480), str(tmp_path / "small.png"))
    assert count(draw_grid(flat(RED), [hit]), BLUE)


def test_hits_without_a_readable_picture_are_grey(tmp_path: Path) -> None:
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"not a picture")
    hits = [
        Hit("gone", 1, "whole", (0, 0, 9, 9), str(tmp_path / "gone.jpg")),
        Hit("broken", 2, "whole", (0, 0, 9, 9), str(broken)),
        Hit(7, 3, "region 1", None, None),
    ]
    grid = draw_grid(flat(RED), hits, tile=100)
    assert 3 * 8000 < count(grid, EMPTY) <= 3 * 100 * 100 + 1000
    assert count(draw_grid(None, []), EMPTY) > 8000  # the query can be missing too


def test_open_pictures_can_be_drawn(tmp_path: Path) -> None:
    tiles = [Tile(flat(BLUE, 10, 300), ("a line that is much too long for the tile below it",))]
    grid = draw_tiles(Tile(flat(RED, 300, 10).convert("L"), ()), tiles, 4, 50)
    assert grid.width < 250
    assert count(grid, BLUE)
    same = draw_tiles(Tile(flat(RED, 300, 10).convert("L"), ()), tiles, 4, 50)
    assert grid.tobytes() == same.tobytes()


def test_grids_are_joined_from_top_to_bottom(tmp_path: Path) -> None:
    grids = [draw_grid(flat(RED), hits_in(tmp_path, n)) for n in (1, 4)]
    both = below_each_other(grids)
    assert both.size == (grids[1].width, grids[0].height + grids[1].height)
    assert count(both, RED) == 2 * count(grids[0], RED)


@pytest.mark.parametrize(("columns", "tile"), [(0, 180), (5, 31)])
def test_too_few_columns_and_too_small_tiles_are_refused(columns: int, tile: int) -> None:
    with pytest.raises(ValueError, match="at least"):
        draw_grid(flat(RED), [], columns, tile)
