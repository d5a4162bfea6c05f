"""One picture found in another by their pixels."""

import io
from collections.abc import Callable

import pytest
from PIL import Image, ImageEnhance, ImageOps

from mchindex.datasets.scenes import SceneSource
from mchindex.index import same_picture
from mchindex.index.same_picture import find_in

SCENES = SceneSource(12, seed=3, size=160)
Edit = Callable[[Image.Image], Image.Image]
WHOLE = (0.0, 0.0, 1.0, 1.0)


def scene(i: int) -> Image.Image:
    return SCENES.image(i)


def jpeg(image: Image.Image) -> Image.Image:
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=30)
    return Image.open(stream)


@pytest.mark.parametrize(
    ("edit", "box", "mirrored"),
    [
        (lambda image: image, WHOLE, False),
        (jpeg, WHOLE, False),
        (lambda image: image.resize((80, 80)), WHOLE, False),
        (lambda image: image.convert("L"), WHOLE, False),
        (lambda image: ImageEnhance.Brightness(image).enhance(1.3), WHOLE, False),
        (ImageOps.mirror, WHOLE, True),
        (lambda image: image.crop((8, 0, 160, 152)), (0.05, 0, 1, 0.95), False),
        (lambda image: image.crop((0, 80, 80, 160)), (0, 0.5, 0.5, 1), False),
        (lambda image: image.crop((40, 40, 120, 120)), (0.25, 0.25, 0.75, 0.75), False),
        (lambda image: image.crop((0, 40, 160, 120)), (0, 0.25, 1, 0.75), False),
    ],
)
def test_a_copy_or_a_part_is_found(edit: Edit, box: tuple[float, ...], mirrored: bool) -> None:
    for i in range(6):
        match = find_in(edit(scene(i)), scene(i))
        if match is None:  # a quarter may be empty
            assert edit(scene(i)).size == (80, 80)
            continue
        assert match.mirrored == mirrored
        assert match.box == pytest.approx(box, abs=0.06)
        assert 0.8 <= match.correlation <= 1.001


def test_large_pictures_are_reduced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    large, sizes = scene(1).resize((2000, 1500)), []
    edges = same_picture._edges

    def note(image: Image.Image, size: tuple[int, int]) -> same_picture.Grey:
        sizes.append(image.size)
        return edges(image, size)

    monkeypatch.setattr(same_picture, "_edges", note)
    match = find_in(large.crop((1000, 0, 2000, 750)), large)
    assert match is not None
    assert match.box == pytest.approx((0.5, 0, 1, 0.5), abs=0.06)
    assert set(sizes) == {(288, 216)}
    assert len(sizes) > 10


def test_most_parts_are_found() -> None:
    corners = [(x, y, x + 80, y + 80) for x in (0, 80) for y in (0, 80)]
    found = [find_in(scene(i).crop(box), scene(i)) for i in range(6) for box in corners]
    assert sum(match is not None for match in found) >= 20


def test_other_pictures_are_not_found() -> None:
    for i in range(6):
        for picture in (scene(i), scene(i).crop((0, 0, 80, 80))):
            assert find_in(picture, scene(i + 6)) is None


@pytest.mark.parametrize("size", [(1, 1), (1, 500), (500, 1), (40, 40)])
def test_pictures_with_nothing_to_compare(size: tuple[int, int]) -> None:
    flat = Image.new("RGB", size, (90, 120, 30))
    assert find_in(flat, scene(0)) is None
    assert find_in(scene(0), flat) is None
    assert find_in(flat, flat) is None
