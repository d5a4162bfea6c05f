"""HEIC, AVIF and camera RAW are read like other pictures: upright, within limits, by content."""

import io
import math
import os
import pickle
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from helpers.camera_files import difference, dng, drawing, heic
from helpers.pictures import encoded
from helpers.script import run_script
from mchindex import decoders, images
from mchindex.errors import ImageError, MissingDecoderError
from mchindex.folders import is_image_name
from mchindex.images import open_rgb, read_picture, thumbnail
from test_images import STORED

CLOSE = 3.0  # of 255: the mean difference of a decoded picture to the drawing
LARGE = drawing(1280, 960)
TURNS = {1: 0, 6: 270, 8: 90, 3: 180}  # degrees to the left that show a picture upright


def exif(orientation: int) -> Image.Exif:
    tags = Image.Exif()
    tags[0x0112] = orientation
    return tags


def extra_of(data: bytes) -> str | None:
    stream = io.BytesIO(data)
    extra = decoders.extra_of(stream)
    assert stream.tell() == 0
    return extra


# What a file is, by its content.


def tiff(*tags: tuple[int, int], order: str = "<", at: int = 8) -> bytes:
    """A TIFF file without pixels whose tags have these values, of 16 bits."""
    start = {"<": b"II*\0", ">": b"MM\0*"}[order] + struct.pack(order + "I", at)
    entries = [struct.pack(order + "HHIHH", tag, 3, 1, value, 0) for tag, value in tags]
    return start.ljust(at, b"\0") + struct.pack(order + "H", len(tags)) + b"".join(entries)


@pytest.mark.parametrize(
    ("head", "extra"),
    [
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "heic"),
        (b"\0\0\0\x1cftypmif1\0\0\0\0mif1heichevc", "heic"),
        (b"\0\0\0\x18ftypmsf1\0\0\0\0msf1hevc", "heic"),
        (b"\0\0\0\x1cftypmif1\0\0\0\0mif1avifmiaf", None),
        (b"\0\0\0\x1cftypavif\0\0\0\0mif1avifmiaf", None),
        (b"\0\0\0\x14ftypmif1\0\0\0\0mif1....avif", "heic"),  # after the end of the box
        (b"\0\0\0\x18ftypisom\0\0\0\0mp41", None),
        (b"\0\0\0\x18ftypcrx \0\0\0\1crx isom", "raw"),
        (b"FUJIFILMCCD-RAW 0201", "raw"),
        (b"IIRO\x08\0\0\0", "raw"),
        (b"MMOR\0\0\0\x08", "raw"),
        (b"IIU\0\x18\0\0\0", "raw"),
        (b"\0MRM\0\0\x0a\x0c", "raw"),
        (b"FOVb\2\0\2\0", "raw"),
        (b"II\x1a\0\0\0HEAPCCDR", "raw"),
        (b"II*\0\x10\0\0\0CR\2\0", "raw"),
        (b"II*\0\x08\0\0\0IIII", "raw"),
        (tiff((50706, 1)), "raw"),
        (tiff((254, 1), (271, 9), (330, 9)), "raw"),
        (tiff((254, 1), (330, 9), order=">", at=64), "raw"),
        (tiff((271, 9), (330, 9)), "raw"),
        (tiff((259, 65535), (254, 0)), "raw"),
        (tiff((254, 0), (271, 9), (330, 9)), None),  # the first picture is the whole one
        (tiff((254, 1), (271, 9)), None),
        (tiff((330, 9)), None),
        (tiff((50706, 1))[:-1], None),  # cut short
        (tiff(), None),
        (b"II*\0\xff\xff\xff\xff", None),
        (b"II*\0", None),
        (b"", None),
        (b"\xff\xd8\xff\xe0", None),
    ],
)
def test_a_file_is_known_by_its_content(head: bytes, extra: str | None) -> None:
    assert extra_of(head) == extra


def test_ordinary_pictures_need_no_extra() -> None:
    Image.init()
    for kind in ("PNG", "JPEG", "TIFF", "WEBP", "GIF", "AVIF"):
        assert extra_of(encoded(drawing(), kind, exif=exif(6))) is None


@given(st.binary(max_size=80), st.sampled_from([b"", b"II*\0", b"MM\0*", b"\0\0\0\x18ftyp"]))
def test_any_bytes_are_of_some_kind_or_none(data: bytes, start: bytes) -> None:
    assert extra_of(start + data) in (None, "heic", "raw")


def test_a_decoder_is_imported_when_it_is_needed(tmp_path: Path) -> None:
    """Nor is one registered with Pillow, where other code would meet it."""
    for name, data in {"a.heic": heic(), "b.dng": dng(LARGE, LARGE)}.items():
        (tmp_path / name).write_bytes(data)
    drawing().save(tmp_path / "c.tif")
    script = """
import sys
from PIL import Image
from mchindex import folders, images
assert folders.is_image_name("a.heic") and folders.is_image_name("b.dng")
images.open_rgb("c.tif")
loaded = lambda: {"pi_heif", "rawpy"} & set(sys.modules)
assert loaded() == set(), loaded()
images.open_rgb("a.heic")
assert loaded() == {"pi_heif"}, loaded()
assert "HEIF" not in Image.OPEN and ".heic" not in Image.EXTENSION
images.open_rgb("b.dng")
assert loaded() == {"pi_heif", "rawpy"}, loaded()
"""
    run_script(script, folder=tmp_path)


def test_every_kind_of_source_gives_the_same_picture(tmp_path: Path) -> None:
    for data in (heic(), dng(LARGE), dng(LARGE, LARGE)):
        path = tmp_path / "any name.jpg"
        path.write_bytes(data)
        want = np.asarray(open_rgb(data))
        for source in (path, str(path), bytearray(data), memoryview(data), io.BytesIO(data)):
            np.testing.assert_array_equal(open_rgb(source), want)
        small = Image.open(io.BytesIO(thumbnail(path, 64).jpeg))
        assert difference(small, drawing().resize(small.size)) < 8  # the edges are smooth


# HEIC and AVIF.


@pytest.mark.parametrize("orientation", [None, 1, 6, 8])
@pytest.mark.parametrize("quarters", range(4))
@pytest.mark.parametrize("mirror", [None, 0, 1])
def test_heic_is_turned_once(quarters: int, mirror: int | None, orientation: int | None) -> None:
    """By what its own boxes say. EXIF data repeats that, or is left over from another format."""
    tags = None if orientation is None else exif(orientation)
    want = drawing().rotate(90 * quarters, expand=True)
    if mirror is not None:
        over = Image.Transpose.FLIP_TOP_BOTTOM, Image.Transpose.FLIP_LEFT_RIGHT
        want = want.transpose(over[mirror])
    picture = read_picture(heic(quarters=quarters, mirror=mirror, exif=tags))
    assert picture.size == want.size
    assert difference(picture.image, want) < CLOSE
    assert difference(open_rgb(picture.image), want) < CLOSE


@pytest.mark.parametrize("orientation", STORED)
def test_avif_is_turned_once(orientation: int) -> None:
    upright = np.asarray(drawing())
    stored = Image.fromarray(np.ascontiguousarray(STORED[orientation](upright)))
    data = encoded(stored, "AVIF", quality=95, subsampling="4:4:4", exif=exif(orientation))
    picture = read_picture(data, 48)
    assert picture.size == drawing().size
    assert difference(picture.image, drawing()) < CLOSE


def test_the_decoder_that_a_user_registered_reads_heic(monkeypatch: pytest.MonkeyPatch) -> None:
    from pi_heif.as_plugin import HeifImageFile, _is_supported_heif

    Image.init()
    monkeypatch.setattr(Image, "ID", [*Image.ID, "HEIF"])
    monkeypatch.setitem(Image.OPEN, "HEIF", (HeifImageFile, _is_supported_heif))
    monkeypatch.setattr(decoders, "open_heif", None)
    monkeypatch.setitem(sys.modules, "pi_heif", None)
    assert difference(open_rgb(heic(quarters=1)), drawing().rotate(90, expand=True)) < CLOSE


@pytest.mark.parametrize("size", [(16, 16), (64, 96), (1280, 960), (9000, 9000)])
def test_heic_that_states_a_wrong_size_is_refused(size: tuple[int, int]) -> None:
    """So its memory is what was set aside for the size that it states."""
    with pytest.raises(ImageError, match="size"):
        open_rgb(heic(size=size))


@pytest.mark.parametrize("size", [(128, 96), (60_000, 60_000)])
def test_heic_and_raw_of_too_many_pixels_are_refused(
    size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    if size == (128, 96):
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 128 * 96 - 1)
    small = drawing(64, 48)
    for data in (heic(size=size), dng(small, size=size), dng(small, small, size=size)):
        with pytest.raises(ImageError, match=r"too large.*MAX_IMAGE_PIXELS"):
            open_rgb(data)


def test_a_preview_of_too_many_pixels_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 400 * 400)
    with pytest.raises(ImageError, match="too large"):
        open_rgb(dng(drawing(64, 48), drawing(500, 400)))


# Camera RAW.


@pytest.fixture
def developed(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each RAW file that was developed was so in half its size."""
    calls: list[bool] = []
    develop = decoders.Raw.develop

    def counted(raw: decoders.Raw, half: bool) -> Any:
        calls.append(half)
        return develop(raw, half)

    monkeypatch.setattr(decoders.Raw, "develop", counted)
    return calls


@pytest.mark.parametrize("orientation", TURNS)
@pytest.mark.parametrize(
    ("least", "want"), [(None, (1280, 960)), (100, None), (400, None), (600, (800, 600))]
)
def test_raw_gives_its_preview_in_the_size_of_what_was_recorded(
    orientation: int,
    least: int | None,
    want: tuple[int, int] | None,
    developed: list[bool],
) -> None:
    data = dng(LARGE, drawing(640, 480), orientation=orientation)
    image, size = read_picture(data, least)
    upright = LARGE.rotate(TURNS[orientation], expand=True)
    assert size == upright.size
    assert min(image.size) >= (960 if least is None else least)
    if want is not None:
        assert sorted(image.size) == sorted(want)
    assert image.width / image.height == size[0] / size[1]
    assert difference(image, upright.resize(image.size)) < CLOSE
    assert developed == []


def test_a_preview_in_about_full_size_is_the_picture(developed: list[bool]) -> None:
    image, size = read_picture(dng(LARGE, drawing(1240, 930)))
    assert image.size == size == (1240, 930)
    assert developed == []


def test_a_preview_of_another_shape_is_not_distorted() -> None:
    image, size = read_picture(dng(LARGE, drawing(640, 360)))
    assert image.size == size == (1280, 720)
    assert difference(image, drawing(1280, 720)) < CLOSE


def test_the_exif_data_of_a_preview_goes_before_that_of_its_file() -> None:
    """A preview that is stored upright is not turned again."""
    turned = LARGE.rotate(90, expand=True)
    image, size = read_picture(dng(turned, LARGE, orientation=6, preview_exif=exif(1)))
    assert size == LARGE.size
    assert difference(image, LARGE) < CLOSE


@pytest.mark.parametrize("orientation", TURNS)
@pytest.mark.parametrize("preview", [None, (160, 120), (426, 319)])
@pytest.mark.parametrize(("least", "half"), [(None, False), (100, True), (480, True), (481, False)])
def test_raw_without_a_usable_preview_is_developed(
    orientation: int,
    preview: tuple[int, int] | None,
    least: int | None,
    half: bool,
    developed: list[bool],
) -> None:
    small = None if preview is None else drawing(*preview)
    image, size = read_picture(dng(LARGE, small, orientation=orientation), least)
    upright = LARGE.rotate(TURNS[orientation], expand=True)
    assert size == upright.size
    assert image.size == ((size[0] // 2, size[1] // 2) if half else size)
    assert difference(image, upright.resize(image.size)) < CLOSE
    assert developed == [half]


def test_a_small_preview_of_a_small_picture_is_used(developed: list[bool]) -> None:
    assert difference(open_rgb(dng(drawing(), drawing())), drawing()) < CLOSE
    assert developed == []


@given(
    st.tuples(st.integers(1, 3000), st.integers(1, 3000)),
    st.tuples(st.integers(1, 3000), st.integers(1, 3000)),
    st.none() | st.integers(1, 1000),
)
@settings(max_examples=60, deadline=None)
def test_an_enlarged_preview_keeps_its_shape_and_is_large_enough(
    shown: tuple[int, int], full: tuple[int, int], least: int | None
) -> None:
    small = images.Picture(Image.new("L", shown), shown)
    image, size = images._enlarged(small, full, least)
    if size == shown:
        assert min(full[0] / shown[0], full[1] / shown[1]) < 1.1
        assert image.size == shown
        return
    assert all(a <= b for a, b in zip(size, full, strict=True))
    assert any(a == b for a, b in zip(size, full, strict=True))
    scale = size[0] / shown[0]
    assert abs(size[1] - scale * shown[1]) <= 1 + shown[1] / shown[0]
    if least is None:
        assert image.size == size
    else:
        assert min(image.size) >= min(least, *size)
        assert image.size == shown or min(image.size) <= least


# Memory.


def asked_for(data: bytes, least: int | None, monkeypatch: pytest.MonkeyPatch) -> int:
    """The bytes that are set aside to read a picture."""
    amounts: list[int] = []
    held = images._held

    def noted(bytes: int) -> Any:
        amounts.append(bytes)
        return held(bytes)

    with monkeypatch.context() as patch:
        patch.setattr(images, "_held", noted)
        read_picture(data, least)
    assert len(amounts) == 1
    return amounts[0]


def test_memory_is_set_aside_once_for_each_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = math.prod(LARGE.size)
    assert asked_for(heic(), None, monkeypatch) == 11 * 128 * 96
    assert asked_for(dng(LARGE), None, monkeypatch) == 18 * pixels
    assert asked_for(dng(LARGE), 100, monkeypatch) == 6 * pixels
    small = dng(LARGE, drawing(640, 480))
    preview = len(small) - len(dng(LARGE))  # and some tags
    whole, quarter = (8 * 640 * 480 // share + preview for share in (1, 16))
    assert asked_for(small, None, monkeypatch) == pytest.approx(whole + 4 * pixels, abs=2000)
    assert asked_for(small, 100, monkeypatch) == pytest.approx(quarter, abs=2000)


def test_a_file_of_too_many_bytes_is_not_read(tmp_path: Path) -> None:
    for name, data in {"a.heic": heic(), "b.dng": dng(drawing()), "c.png": b"\x89PNG"}.items():
        (tmp_path / name).write_bytes(data)
        os.truncate(tmp_path / name, (1 << 30) + 1)
        with pytest.raises(ImageError, match=r"too large: the file has 1,073,741,825 bytes"):
            open_rgb(tmp_path / name)


# Damaged files.


@pytest.mark.parametrize("make", [heic, lambda: dng(drawing(32, 24), drawing(16, 12))])
def test_damaged_files_give_a_picture_or_an_image_error(make: Callable[[], bytes]) -> None:
    data, rng = make(), np.random.default_rng(0)
    refused = 0
    for cut in (12, 40, 200, len(data) // 2):
        with pytest.raises(ImageError, match=f"the given {cut} bytes: "):
            open_rgb(data[:cut])
    for at in rng.permutation(min(len(data), 800))[:300].tolist():
        spoilt = data[:at] + bytes([data[at] ^ int(rng.integers(1, 256))]) + data[at + 1 :]
        try:
            assert open_rgb(spoilt).mode == "RGB"
        except ImageError:
            refused += 1
    assert refused >= 3


def test_plain_pixels_of_a_wrong_size_are_not_read(developed: list[bool]) -> None:
    """rawpy would read beyond their end, which ends the process."""
    data = bytearray(dng(drawing(), drawing(), bitmap=True))
    at = data.index(struct.pack("<HHII", 257, 4, 1, 96))  # the height of the preview comes first
    data[at + 8 : at + 12] = struct.pack("<I", 20_000)
    assert difference(open_rgb(bytes(data)), drawing()) < CLOSE
    assert developed == [False]


def test_what_is_wrong_with_a_file_is_said_in_words() -> None:
    for data in (b"FUJIFILMCCD-RAW 0201" + bytes(500), heic()[:300]):
        with pytest.raises(ImageError, match=r"bytes: [A-Z][\w '():,-]+"):
            open_rgb(data)


# Without the extras.


@pytest.mark.parametrize(
    ("data", "extra", "package"), [(heic(), "heic", "pi_heif"), (dng(drawing()), "raw", "rawpy")]
)
def test_a_missing_extra_is_named(
    data: bytes, extra: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    path = tmp_path / "a.jpg"
    path.write_bytes(data)
    for source, name in ((path, str(path)), (data, f"the given {len(data)} bytes")):
        with pytest.raises(MissingDecoderError) as caught:
            open_rgb(source)
        assert str(caught.value) == (
            f'{name}: its format needs an extra: pip install "mchindex[{extra}]"'
        )
        assert caught.value.extra == extra
        again = pickle.loads(pickle.dumps(caught.value))
        assert (str(again), again.extra) == (str(caught.value), extra)
    assert is_image_name(f"a.{'heic' if extra == 'heic' else 'nef'}")
    drawing().save(tmp_path / "b.tif")
    open_rgb(tmp_path / "b.tif")
