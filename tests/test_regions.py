"""Regions: layouts, random boxes, boxes in pixels, and their overlaps with the cells of a map."""

import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mchindex._core import BucketTable
from mchindex.regions import (
    MOST_REGIONS,
    MOST_TEXT,
    WHOLE,
    Boxes,
    Layout,
    corners_and_centre,
    grid,
    in_pixels,
    overlaps,
    random_boxes,
    read_layout,
)

sigmas = st.floats(0.01, 1)
sides = st.integers(1, 4000)
keys = st.binary(min_size=32, max_size=32)


@st.composite
def boxes_within(draw: st.DrawFn) -> tuple[float, float, float, float]:
    """Any box inside the image that is not empty."""
    along = st.tuples(st.floats(0, 1), st.floats(0, 1)).filter(lambda p: abs(p[0] - p[1]) > 1e-6)
    (x0, x1), (y0, y1) = (sorted(draw(along)) for _ in range(2))
    return x0, y0, x1, y1


def assert_within(boxes: Boxes, sigma: float) -> None:
    assert boxes.min() >= 0
    assert boxes.max() <= 1
    np.testing.assert_allclose(boxes[:, 2:] - boxes[:, :2], sigma, atol=1e-12)


@given(sigmas)
def test_corners_and_centre_are_where_their_names_say(sigma: float) -> None:
    layout = corners_and_centre(sigma)
    boxes = layout.array()
    assert layout.boxes[0] == WHOLE
    assert_within(boxes[1:], sigma)
    named = dict(zip(layout.names, boxes, strict=True))
    for name, corner in {
        "top-left": (0, 0),
        "top-right": (1, 0),
        "bottom-left": (0, 1),
        "bottom-right": (1, 1),
    }.items():
        x0, y0, x1, y1 = named[name]
        assert (x1 if corner[0] else x0, y1 if corner[1] else y0) == corner
    np.testing.assert_allclose(named["centre"].reshape(2, 2).mean(0), 0.5, atol=1e-12)
    assert len(layout) == 6


def test_at_sigma_one_every_region_is_the_whole_image() -> None:
    assert set(corners_and_centre(1).boxes) == {WHOLE}
    assert set(grid(3, 2, 1).boxes) == {WHOLE}
    np.testing.assert_array_equal(random_boxes(9, 1.0, 0, bytes(32)), [WHOLE] * 9)


def test_at_sigma_one_half_the_corners_tile_the_image() -> None:
    """Each point of a grid that avoids the edges is in exactly one corner."""
    x, y = np.meshgrid((np.arange(64) + 0.5) / 64, (np.arange(64) + 0.5) / 64)
    times = sum(
        ((x0 < x) & (x < x1) & (y0 < y) & (y < y1)).astype(int)
        for x0, y0, x1, y1 in corners_and_centre(0.5).boxes[1:5]
    )
    np.testing.assert_array_equal(times, 1)


@given(st.integers(1, 6), st.integers(1, 6), sigmas)
def test_a_grid_is_evenly_spread_from_edge_to_edge(rows: int, columns: int, sigma: float) -> None:
    layout = grid(rows, columns, sigma)
    assert layout.boxes[0] == WHOLE
    assert len(layout) == len(set(layout.names)) == rows * columns + 1
    boxes = layout.array()[1:]
    assert_within(boxes, sigma)
    cells = boxes.reshape(rows, columns, 4)
    for starts, stops, n in (
        (cells[0, :, 0], cells[0, :, 2], columns),
        (cells[:, 0, 1], cells[:, 0, 3], rows),
    ):
        if n == 1:
            assert starts[0] == pytest.approx(1 - stops[0], abs=1e-12)  # in the middle
        else:
            assert (starts[0], stops[-1]) == (0, pytest.approx(1))
            np.testing.assert_allclose(np.diff(starts), (1 - sigma) / (n - 1), atol=1e-12)
    np.testing.assert_array_equal(cells[:, :, 0], np.tile(cells[0, :, 0], (rows, 1)))


def test_joined_layouts_have_the_whole_image_once() -> None:
    small, large = corners_and_centre(0.3), corners_and_centre(0.5)
    both = large + small + grid(2, 2, 0.5) + grid(3, 3, 0.5)
    assert len(both) == 6 + 5 + 4 + 9
    assert both.boxes[0] == WHOLE
    assert both.boxes[1:11] == large.boxes[1:] + small.boxes[1:]
    assert len(set(both.names)) == len(both)
    assert both.names[:6] == large.names
    assert all(name.startswith("top-left") for name in (both.names[1], both.names[6]))


@pytest.mark.parametrize(
    ("names", "boxes", "message"),
    [
        ((), (), "first region of a layout must be the whole"),
        (("half",), ((0.0, 0.0, 0.5, 1.0),), "first region of a layout must be the whole"),
        (("whole", "whole"), (WHOLE, (0.0, 0.0, 0.5, 0.5)), "one distinct name per box"),
        (("whole",), (WHOLE, (0.0, 0.0, 0.5, 0.5)), "one distinct name per box"),
        (("whole", "a"), (WHOLE, (0.5, 0.0, 0.5, 1.0)), "'a' is not inside"),
        (("whole", "a"), (WHOLE, (0.0, -0.1, 0.5, 1.0)), "'a' is not inside"),
        (("whole", "a"), (WHOLE, (0.0, 0.0, 1.01, 1.0)), "'a' is not inside"),
        (("whole", "a"), (WHOLE, (0.0, float("nan"), 1.0, 1.0)), "'a' is not inside"),
    ],
)
def test_invalid_layouts_are_refused(
    names: tuple[str, ...], boxes: tuple[tuple[float, float, float, float], ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Layout(names, boxes)


@pytest.mark.parametrize("sigma", [0, -0.5, 1.001, float("nan")])
def test_sigma_must_be_above_0_and_at_most_1(sigma: float) -> None:
    for make in (corners_and_centre, lambda s: grid(2, 2, s), lambda s: random_boxes(1, s, 0, b"")):
        with pytest.raises(ValueError, match="sigma is the side of a region"):
            make(sigma)


def test_an_empty_grid_and_a_reversed_range_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one row and one column, not 0 x 2"):
        grid(0, 2, 0.5)
    with pytest.raises(ValueError, match="from small to large"):
        random_boxes(1, (0.6, 0.4), 0, b"")


@given(st.integers(0, 40), st.tuples(sigmas, sigmas).map(sorted), st.integers(0, 2**31), keys)
def test_random_boxes_are_inside_the_image_and_have_the_given_sides(
    count: int, sigma: list[float], seed: int, key: bytes
) -> None:
    low, high = sigma
    boxes = random_boxes(count, (low, high), seed, key)
    assert boxes.shape == (count, 4)
    if count:
        assert boxes.min() >= 0
        assert boxes.max() <= 1
        side = boxes[:, 2:] - boxes[:, :2]
        np.testing.assert_allclose(side[:, 0], side[:, 1], atol=1e-12)
        assert side.min() >= low - 1e-12
        assert side.max() <= high + 1e-12
        assert_within(random_boxes(count, low, seed, key), low)


@given(st.integers(0, 2**31), keys, keys)
def test_random_boxes_depend_only_on_seed_and_key(seed: int, key: bytes, other: bytes) -> None:
    np.random.seed(seed)
    boxes = random_boxes(3, 0.5, seed, key)
    np.random.seed(0)
    np.testing.assert_array_equal(boxes, random_boxes(3, 0.5, seed, key))
    assert (boxes != random_boxes(3, 0.5, seed + 1, key)).any()
    assert (boxes != random_boxes(3, 0.5, seed, other)).any() or key == other


def test_random_boxes_are_spread_evenly() -> None:
    boxes = random_boxes(4000, (0.2, 0.8), 0, bytes(32))
    side = boxes[:, 2] - boxes[:, 0]
    free = boxes[:, :2] / (1 - side[:, None])  # position as a share of the free space
    for even in (free[:, 0], free[:, 1], (side - 0.2) / 0.6):
        np.testing.assert_allclose(np.quantile(even, [0.1, 0.5, 0.9]), [0.1, 0.5, 0.9], atol=0.03)
    assert abs(np.mean((free[:, 0] - 0.5) * (free[:, 1] - 0.5))) < 0.004  # x and y are independent


@given(boxes_within(), sides, sides)
@example((0.9999999, 0.9999998, 1.0, 1.0), 1, 3)
@example((0.0, 0.0, 1e-6, 1.0), 4000, 1)
def test_a_box_in_pixels_is_inside_the_image_and_not_empty(
    box: tuple[float, float, float, float], width: int, height: int
) -> None:
    left, top, right, bottom = in_pixels(box, width, height)
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height
    wanted = np.array(box) * [width, height, width, height]
    assert np.abs(np.array([left, top, right, bottom]) - wanted).max() <= 1
    assert in_pixels(WHOLE, width, height) == (0, 0, width, height)


def test_boxes_in_pixels_match_values_worked_out_by_hand() -> None:
    assert in_pixels((0.0, 0.0, 0.5, 0.5), 640, 480) == (0, 0, 320, 240)
    assert in_pixels((0.25, 0.5, 0.75, 1.0), 8, 6) == (2, 3, 6, 6)


@given(st.lists(boxes_within(), min_size=1, max_size=4), st.integers(1, 9), st.integers(1, 9))
def test_the_shares_of_a_box_in_all_cells_sum_to_one(
    boxes: list[tuple[float, float, float, float]], rows: int, columns: int
) -> None:
    share = overlaps(np.array(boxes), rows, columns)
    assert share.shape == (len(boxes), rows * columns)
    assert share.min() >= 0
    np.testing.assert_allclose(share.sum(-1), 1, atol=1e-5)
    np.testing.assert_allclose(
        overlaps(np.array([WHOLE]), rows, columns), 1 / (rows * columns), rtol=1e-6
    )


@given(boxes_within(), st.integers(1, 6), st.integers(1, 6))
def test_a_share_is_the_area_of_the_box_in_the_cell(
    box: tuple[float, float, float, float], rows: int, columns: int
) -> None:
    """Cell by cell, as the intersection of two rectangles."""
    x0, y0, x1, y1 = box
    share = overlaps(np.array([box]), rows, columns).reshape(rows, columns)
    for r in range(rows):
        for c in range(columns):
            across = max(0.0, min(x1, (c + 1) / columns) - max(x0, c / columns))
            down = max(0.0, min(y1, (r + 1) / rows) - max(y0, r / rows))
            want = across * down / ((x1 - x0) * (y1 - y0))
            assert share[r, c] == pytest.approx(want, abs=1e-5)


def test_shares_agree_with_counting_points() -> None:
    boxes = random_boxes(5, (0.2, 0.9), 3, bytes(32))
    x, y = np.meshgrid((np.arange(1500) + 0.5) / 1500, (np.arange(1500) + 0.5) / 1500)
    cell = (y * 5).astype(int) * 7 + (x * 7).astype(int)  # 5 rows, 7 columns
    for box, share in zip(boxes, overlaps(boxes, 5, 7), strict=True):
        inside = (box[0] <= x) & (x < box[2]) & (box[1] <= y) & (y < box[3])
        counted = np.bincount(cell[inside], minlength=35) / inside.sum()
        np.testing.assert_allclose(share, counted, atol=3e-3)


def test_shares_of_several_images_can_be_computed_at_once() -> None:
    boxes = np.stack([random_boxes(3, 0.5, 0, bytes([i])) for i in range(4)])
    together = overlaps(boxes, 3, 5)
    assert together.shape == (4, 3, 15)
    for one, alone in zip(together, boxes, strict=True):
        np.testing.assert_array_equal(one, overlaps(alone, 3, 5))


# Layouts by name.


def test_layouts_are_read_by_name() -> None:
    assert read_layout("corners", 0.4) == corners_and_centre(0.4)
    assert read_layout("grid:2x3", 0.4) == grid(2, 3, 0.4)
    assert read_layout("grid:2x3@0.6", 0.4) == grid(2, 3, 0.6)
    joined = read_layout("corners + grid:2x2@0.7", 0.5)
    assert joined == corners_and_centre(0.5) + grid(2, 2, 0.7)
    assert len(joined) == 1 + 5 + 4


@pytest.mark.parametrize("name", ["", "corner", "grid", "grid:3", "grid:0x2", "corners@", "a+b"])
def test_unknown_layout_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"there is no layout|at least one row"):
        read_layout(name)


# The largest layouts, and larger ones.


def test_a_layout_has_at_most_as_many_regions_as_the_table_can_number() -> None:
    table = BucketTable(8)
    code = np.zeros((1, 1), np.uint8)
    table.add([0], code, [MOST_REGIONS - 1])
    with pytest.raises(ValueError, match="regions must be from 0 to 255"):
        table.add([0], code, [MOST_REGIONS])
    assert len(grid(5, 51, 0.5)) == len(read_layout("grid:5x51")) == MOST_REGIONS
    assert len(read_layout("+".join(["corners"] * 51))) == MOST_REGIONS


@pytest.mark.parametrize(
    ("make", "regions"),
    [
        (lambda: grid(16, 16, 0.2), "257"),
        (lambda: grid(20, 20, 0.2), "401"),
        (lambda: grid(10**9, 10**9, 0.2), "1,000,000,000,000,000,001"),
        (lambda: grid(10, 20, 0.2) + grid(10, 20, 0.3), "401"),
        (lambda: Layout(tuple(map(str, range(257))), (WHOLE,) * 257), "257"),
        (lambda: read_layout("grid:20x20@0.2"), "401"),
        (lambda: read_layout("grid:3000x3000"), "9,000,001"),
        (lambda: read_layout("grid:999999999x999999999"), "999,999,998,000,000,002"),
        (lambda: read_layout("corners+grid:1x251"), "257"),
        (lambda: read_layout("+".join(["grid:1x1"] * 256)), "257"),
        (lambda: read_layout("+".join(["corners"] * 1000)), "5,001"),
    ],
)
def test_a_layout_with_too_many_regions_is_refused(
    make: Callable[[], Layout], regions: str
) -> None:
    with pytest.raises(ValueError, match=f"at most 256 regions, .*, not {regions}:"):
        make()


@pytest.mark.parametrize(
    "text",
    [
        "grid:99999999999x1",  # more digits than any layout needs
        "grid:\u0663x\u0663",  # digits, but not ASCII
        "corners@\u0660.5",
        "corners@nan",
        "corners@inf",
        "corners@-0.5",
        "corners@1e-1",
        "grid:-2x3",
        "grid:2.5x3",
        "grid:2x3\n\0",
        "+" * MOST_TEXT,
        "corners+",
        "9" * MOST_TEXT,
        "corners+" * 3000,
        "grid:1x" + "1" * 10**6,
    ],
)
def test_absurd_layouts_are_refused_in_a_short_message(text: str) -> None:
    with pytest.raises(ValueError, match=r"there is no layout|at most 10,000 characters") as caught:
        read_layout(text)
    assert len(str(caught.value)) < 250


def test_no_region_is_computed_for_a_layout_that_is_refused() -> None:
    tracemalloc.start()
    for text in ("grid:3000x3000", "grid:999999999x9", "grid:9x9+" * 900 + "grid:9x9"):
        with pytest.raises(ValueError, match="at most 256 regions"):
            read_layout(text)
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


@given(st.text(alphabet="cornersgid:x@.+0123456789 ²٣-en", max_size=40), st.floats())
@example("grid:0x0", 0.5)
@example("corners@.", 0.5)
def test_any_text_is_a_layout_or_a_valueerror(text: str, sigma: float) -> None:
    try:
        layout = read_layout(text, sigma)
    except ValueError:
        return
    assert 2 <= len(layout) <= MOST_REGIONS


def test_an_invalid_sigma_in_a_layout_name_is_refused() -> None:
    with pytest.raises(ValueError, match="sigma is the side of a region"):
        read_layout("corners@1.5")
