"""Pictures of every kind are read as upright RGB, or raise an error that names them."""

import contextlib
import hashlib
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from helpers.pictures import encoded, picture
from mchindex import images
from mchindex.budget import Budget
from mchindex.errors import ImageError
from mchindex.folders import is_image_name
from mchindex.images import digest, one_picture, open_rgb, read_picture, thumbnail


def pixels(image: Image.Image) -> NDArray[np.uint8]:
    assert image.mode == "RGB"
    return np.asarray(image)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF"])
def test_every_kind_of_source_gives_the_same_picture(kind: str, tmp_path: Path) -> None:
    expected = picture(0)
    path = tmp_path / "ein Bild ä 図.bin"
    path.write_bytes(encoded(expected, kind))
    for source in (path, str(path), path.read_bytes(), expected, np.asarray(expected)):
        np.testing.assert_array_equal(pixels(open_rgb(source)), np.asarray(expected))


def test_the_given_image_is_copied() -> None:
    given = picture(0)
    open_rgb(given).putpixel((0, 0), (1, 2, 3))
    np.testing.assert_array_equal(given, picture(0))


# For each EXIF orientation, how the pixels of an upright picture are stored.
STORED = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.transpose(1, 0, 2),
    6: lambda a: np.rot90(a),
    7: lambda a: a[::-1, ::-1].transpose(1, 0, 2),
    8: lambda a: np.rot90(a, -1),
}


@pytest.mark.parametrize("orientation", STORED)
@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_exif_rotation_is_applied_once(orientation: int, kind: str) -> None:
    upright = np.asarray(picture(1))
    stored = Image.fromarray(np.ascontiguousarray(STORED[orientation](upright)))
    exif = Image.Exif()
    exif[0x0112] = orientation
    once = open_rgb(encoded(stored, kind, exif=exif))
    np.testing.assert_array_equal(pixels(once), upright)
    np.testing.assert_array_equal(pixels(open_rgb(once)), upright)  # not rotated twice


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data:UserWarning")
@pytest.mark.parametrize("exif", [b"II*\0\xff\xff\xff\x7f", b"II*\0", b"??*\0\0\0\0\0", b"x"])
def test_damaged_exif_data_is_ignored(exif: bytes) -> None:
    assert open_rgb(encoded(picture(0), "JPEG", exif=b"Exif\0\0" + exif)).size == (8, 6)


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM"])
def test_sixteen_bit_greys_are_scaled(kind: str) -> None:
    grey = np.array([[0, 128, 257, 32896, 65535]], np.uint16)
    rgb = pixels(open_rgb(encoded(Image.fromarray(grey), kind)))
    assert rgb[0].tolist() == [[v] * 3 for v in (0, 0, 1, 128, 255)]


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        (Image.fromarray(np.full((2, 2), 70_000, np.int32)), "16"),
        (Image.fromarray(np.full((2, 2), -1, np.int32)), "16"),
        (Image.fromarray(np.ones((2, 2), np.float32)), "8 bits"),
        (Image.new("RGB", (0, 4)), "no pixels"),
    ],
)
def test_pixels_without_a_known_range_are_refused(image: Image.Image, reason: str) -> None:
    with pytest.raises(ImageError, match=rf"the given image: .*{reason}"):
        open_rgb(image)


def test_cmyk_is_converted() -> None:
    data = encoded(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG", quality=100)
    red, green, blue = pixels(open_rgb(data))[4, 4].tolist()
    assert red > 240
    assert max(green, blue) < 15


def test_transparency_is_composed_on_white() -> None:
    rgba = np.array([[(255, 0, 0, 255), (255, 0, 0, 0), (0, 0, 0, 128)]], np.uint8)
    expected = [[255, 0, 0], [255, 255, 255], [127, 127, 127]]
    assert pixels(open_rgb(rgba))[0].tolist() == expected
    assert pixels(open_rgb(encoded(Image.fromarray(rgba), "PNG")))[0].tolist() == expected


@pytest.mark.parametrize("transparency", [1, b"\xff\x00"], ids=["one colour", "alpha per colour"])
def test_transparent_palette_colours_become_white(transparency: int | bytes) -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 200, 0, 0])
    image.putpixel((1, 0), 1)
    for kind in ("PNG", "GIF") if transparency == 1 else ("PNG",):
        rgb = pixels(open_rgb(encoded(image, kind, transparency=transparency)))
        assert rgb[0].tolist() == [[10, 20, 30], [255, 255, 255]]


@pytest.mark.parametrize("mode", ["1", "L", "LA", "PA", "YCbCr", "HSV", "RGBX"])
def test_other_modes_are_converted(mode: str) -> None:
    assert pixels(open_rgb(Image.new(mode, (3, 2)))).shape == (2, 3, 3)


def test_an_animation_gives_its_first_frame() -> None:
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "lime", "blue")]
    data = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert pixels(open_rgb(data))[0, 0].tolist() == [255, 0, 0]


def test_truncated_files_are_refused() -> None:
    for kind in ("JPEG", "PNG", "GIF", "BMP"):
        data = encoded(picture(0, 64, 64), kind)
        for cut in (1, 8, len(data) // 2):
            with pytest.raises(ImageError, match=f"the given {cut} bytes: "):
                open_rgb(data[:cut])


def test_every_changed_byte_gives_a_picture_or_an_image_error() -> None:
    for kind in ("PNG", "GIF", "TIFF"):
        data = encoded(picture(0, 5, 4), kind)
        for at in range(len(data)):
            with contextlib.suppress(ImageError):
                pixels(open_rgb(data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]))


def test_files_that_are_not_images_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.jpg").write_bytes(b"")
    (tmp_path / "text.jpg").write_bytes(b"not a picture, only words")
    for name, reason in {
        "empty.jpg": "empty",
        "text.jpg": "not an image",
        "none.jpg": "No such file",
        ".": "Is a directory",
    }.items():
        path = os.path.join(tmp_path, name)
        with pytest.raises(ImageError) as caught:
            open_rgb(path)
        assert str(caught.value).startswith(f"{path}: ")
        assert reason in str(caught.value)


# Between its limit and twice its limit, Pillow only warns.
@pytest.mark.parametrize("side", [12, 100])
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_decompression_bombs_are_refused(side: int, monkeypatch: pytest.MonkeyPatch) -> None:
    data = encoded(Image.new("L", (side, side)), "PNG")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(ImageError, match=r"too large.*100"):
        open_rgb(data)


@pytest.mark.parametrize(
    "array",
    [np.zeros((2, 2, 3)), np.zeros((2, 2, 3), np.float32), np.zeros((2, 2), np.bool_)],
)
def test_arrays_of_the_wrong_type_are_refused(array: NDArray[Any]) -> None:
    with pytest.raises(TypeError, match=f"uint8.*{array.dtype}"):
        open_rgb(array)


@pytest.mark.parametrize("shape", [(4,), (2, 2, 1), (2, 2, 2), (3, 2, 2, 2), (0, 2, 3), (0, 0)])
def test_arrays_of_the_wrong_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="shape"):
        open_rgb(np.zeros(shape, np.uint8))


def test_a_source_of_the_wrong_type_is_refused() -> None:
    wrong: Any = 3
    with pytest.raises(TypeError, match=r"an image must be .*, not int"):
        open_rgb(wrong)


def test_a_digest_is_the_sha256_of_the_bytes(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    assert digest(tmp_path / "a") == digest(b"abc") == hashlib.sha256(b"abc").digest()
    with pytest.raises(ImageError, match="none"):
        digest(tmp_path / "none")


# Formats.


EPS = b"""%!PS-Adobe-3.0 EPSF-3.0
%%BoundingBox: 0 0 10 10
%%EndComments
showpage
%%EOF
"""


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that exists once Ghostscript has been started."""
    trace, program = tmp_path / "started", tmp_path / "bin" / "gs"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ntouch '{trace}'\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setattr("PIL.EpsImagePlugin.gs_binary", None)  # looked for once
    return trace


def test_postscript_is_refused_whatever_its_name(tmp_path: Path, started: Path) -> None:
    path = tmp_path / "photo.jpg"
    path.write_bytes(EPS)
    for source in (path, EPS):
        for read in (open_rgb, lambda s: read_picture(s, 100), lambda s: thumbnail(s, 100)):
            with pytest.raises(ImageError, match="not an image of a known format"):
                read(source)
    with Image.open(path) as opened:
        assert opened.format == "EPS"
        for least in (None, 100):
            with pytest.raises(ImageError, match=r"EPS|known format"):
                read_picture(opened, least)
        assert not started.exists()
        with contextlib.suppress(Exception):
            opened.load()  # Pillow itself starts it
    assert started.exists()


def test_only_formats_that_are_read_count_as_images_by_name() -> None:
    for name in ("a.jpg", "A.JPEG", "b.png", "c.gif", "d.webp", "e.tif", "f.bmp", "g.avif"):
        assert is_image_name(name)
    for name in ("a.heic", "A.HEIF", "a.hif", "b.dng", "B.CR2", "c.cr3", "d.nef", "e.arw"):
        assert is_image_name(name)
    for name in ("a.eps", "a.ps", "a.pdf", "a.wmf", "a.emf", "a.fits", "a.mpg", "a.h5", "a.txt"):
        assert not is_image_name(name)


# Files that are not regular files.


def test_pipes_and_devices_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    for path in (tmp_path / "pipe.png", Path("/dev/zero"), Path("/dev/full")):
        for read in (open_rgb, digest, lambda s: read_picture(s, 100), lambda s: thumbnail(s, 9)):
            with pytest.raises(ImageError, match="not a regular file"):
                read(path)


# Memory.


def test_pictures_of_ordinary_size_are_not_reduced() -> None:
    grey = np.random.default_rng(0).integers(0, 256, (4096, 4096), np.uint8)
    image, size = read_picture(grey, 100)
    assert image.size == size == (4096, 4096)
    np.testing.assert_array_equal(pixels(image)[..., 0], grey)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "LA", "L", "P", "I;16", "CMYK"])
@pytest.mark.parametrize("kind", ["TIFF", "given"])
def test_large_pictures_are_reduced_band_by_band(
    mode: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (103, 211, 4), np.uint8)
    if mode == "I;16":
        image = Image.fromarray(noise[..., 0].astype(np.uint16) * 200)
    else:
        image = Image.fromarray(noise).convert("RGB" if mode == "P" else mode).convert(mode)
    source: Any = image if kind == "given" else encoded(image, kind)
    whole = open_rgb(source)
    monkeypatch.setattr(images, "_BAND", 1000)
    np.testing.assert_array_equal(pixels(open_rgb(source)), pixels(whole))
    monkeypatch.setattr(images, "LARGE", 2500)
    for least, factor in ((10, 3), (34, 3), (50, 2), (51, 2), (52, 1), (300, 1)):
        got, size = read_picture(source, least)
        assert size == whole.size
        assert min(got.size) >= min(least, *size)
        np.testing.assert_array_equal(pixels(got), pixels(whole.reduce(factor)))


def test_a_large_picture_is_turned_upright(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "LARGE", 100)
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn
    image, size = read_picture(encoded(picture(0, 40, 30), "PNG", exif=exif), 10)
    assert (image.size, size) == ((10, 14), (30, 40))


def test_threads_decode_within_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encoded(picture(0, 100, 100), "PNG")
    needed = 8 * 100 * 100
    lock, at_once, most = threading.Lock(), 0, 0
    convert = images._upright_rgb

    def counted(*arguments: Any) -> Any:
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
        try:
            threading.Event().wait(0.002)
            return convert(*arguments)
        finally:
            with lock:
                at_once -= 1

    monkeypatch.setattr(images, "_upright_rgb", counted)
    for budget, limit in ((2 * needed, 2), (1, 1)):
        monkeypatch.setattr(images, "_memory", Budget(budget))
        most = 0
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(open_rgb, [data] * 40))
        assert most == limit


def test_a_picture_in_use_counts_until_it_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "_memory", Budget(1))
    data = encoded(picture(0), "PNG")
    read = threading.Event()

    def other() -> None:
        open_rgb(data)
        read.set()

    thread = threading.Thread(target=other)
    with one_picture():
        open_rgb(data)
        open_rgb(data)  # does not wait for the first
        thread.start()
        assert not read.wait(0.05)
    assert read.wait(30)
    thread.join()


# Large JPEG files, decoded at a fraction of their size.


def test_a_large_jpeg_may_be_decoded_smaller_and_keeps_its_size(tmp_path: Path) -> None:
    large = picture(1, 8, 6).resize((800, 600), Image.Resampling.BICUBIC)
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn
    large.save(tmp_path / "upright.jpg", quality=95)
    large.save(tmp_path / "sideways.jpg", quality=95, exif=exif)
    large.save(tmp_path / "upright.png")
    for least, size in ((100, (134, 100)), (150, (200, 150)), (151, (400, 300)), (700, (800, 600))):
        image, full_size = read_picture(tmp_path / "upright.jpg", least)
        if least != 100:  # a size between a quarter and an eighth depends on the decoder
            assert image.size == size
        assert min(image.size) >= min(least, 600)
        assert full_size == (800, 600)
        small = large.resize(image.size, Image.Resampling.BOX)
        assert np.abs(pixels(image).astype(int) - np.asarray(small)).mean() < 3
    image, full_size = read_picture(tmp_path / "sideways.jpg", 150)
    assert (image.size, full_size) == ((150, 200), (600, 800))
    assert read_picture(tmp_path / "upright.png", 100).image.size == (800, 600)


def test_an_image_that_is_not_loaded_is_read_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    picture(2, 8, 6).resize((800, 600)).save(path)
    want = pixels(read_picture(path, 150).image)
    with Image.open(path) as opened:
        np.testing.assert_array_equal(pixels(read_picture(opened, 150).image), want)
        opened.load()
        assert read_picture(opened, 150).image.size == (800, 600)
    changed = Image.open(path)
    changed.putpixel((0, 0), (1, 2, 3))
    assert read_picture(changed, 150).image.getpixel((0, 0)) == (1, 2, 3)
    changed.close()
