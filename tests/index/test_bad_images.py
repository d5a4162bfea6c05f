"""Real folders: each file is decoded correctly or reported by name, and all others are added."""

import os
import socket
import struct
import subprocess
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import mchindex.index.inputs
from helpers.indexes import assert_as_fresh, drawn, painted, tiny_model
from helpers.pictures import encoded
from mchindex import Added, MCHIndex
from mchindex.errors import ImageError
from mchindex.images import open_rgb, read_picture
from mchindex.index.grid import draw_grid
from mchindex.index.page import page_picture
from mchindex.regions import in_pixels
from test_images import STORED

GOOD = encoded(painted(0), "PNG")


@pytest.fixture
def index() -> Iterator[MCHIndex]:
    with MCHIndex(tiny_model()) as made:
        yield made


def reasons(added: Added) -> dict[str, str]:
    return {os.path.basename(failure.name): failure.reason for failure in added.failed}


def bomb(side: int) -> bytes:
    """A PNG file of a few bytes that claims to have side x side pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    data = zlib.compress(bytes(1000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def bad_files() -> dict[str, bytes]:
    large = encoded(painted(0).resize((200, 150)), "JPEG")
    return {
        "empty.jpg": b"",
        "one byte.png": b"\x89",
        "text.png": b"only words",
        "html.jpg": b"<html><body>404 Not Found</body></html>",
        "zeros.gif": bytes(5000),
        "cut.jpg": large[: len(large) // 2],
        "cut.png": encoded(painted(0).resize((200, 150)), "PNG")[:300],
        "cut.webp": encoded(painted(0).resize((200, 150)), "WEBP")[:80],
        "cut.tif": encoded(painted(0).resize((200, 150)), "TIFF")[:1000],
        "cut.gif": encoded(painted(0).resize((200, 150)), "GIF")[:900],
        "bomb.png": bomb(60_000),
        "half a bomb.png": bomb(10_000),  # Pillow itself would only warn
        "float.tif": encoded(Image.fromarray(np.ones((4, 4), np.float32)), "TIFF"),
        "pickle.png": b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x07builtins\x94.",
        "sqlite.bmp": b"SQLite format 3\0" + bytes(1000),
    }


def good_files() -> dict[str, tuple[bytes, tuple[int, int]]]:
    """Unusual but valid files, each with the width and height of the upright picture."""
    colours = Image.new("P", (9, 5))
    colours.putpalette([10, 20, 30, 200, 0, 0])
    frames = [Image.new("RGB", (11, 4), colour) for colour in ("red", "lime", "blue")]
    turned = Image.Exif()
    turned[0x0112] = 6
    noise = np.random.default_rng(0)
    return {
        "1x1.png": (encoded(Image.new("RGB", (1, 1)), "PNG"), (1, 1)),
        "long.png": (encoded(Image.new("RGB", (30_000, 20)), "PNG"), (30_000, 20)),
        "high.jpg": (encoded(Image.new("RGB", (3, 9000)), "JPEG"), (3, 9000)),
        "cmyk.jpg": (encoded(Image.new("CMYK", (8, 7), (0, 255, 255, 0)), "JPEG"), (8, 7)),
        "16 bits.png": (
            encoded(Image.fromarray(noise.integers(0, 65536, (7, 9), np.uint16)), "PNG"), (9, 7),
        ),
        "bits.png": (encoded(Image.new("1", (10, 6), 1), "PNG"), (10, 6)),
        "grey and alpha.png": (encoded(Image.new("LA", (4, 3)), "PNG"), (4, 3)),
        "palette.png": (encoded(colours, "PNG", transparency=1), (9, 5)),
        "palette.gif": (encoded(colours, "GIF", transparency=0), (9, 5)),
        "animated.gif": (
            encoded(frames[0], "GIF", save_all=True, append_images=frames[1:]), (11, 4),
        ),
        "animated.webp": (
            encoded(frames[0], "WEBP", save_all=True, append_images=frames[1:]), (11, 4),
        ),
        "turned.jpg": (encoded(painted(0).resize((40, 20)), "JPEG", exif=turned), (20, 40)),
        "turned and large.jpg": (
            encoded(painted(0).resize((1600, 1200)), "JPEG", exif=turned), (1200, 1600),
        ),
        "WRONG.JPG": (GOOD, (8, 6)),  # a PNG by its content
        "no colour.tiff": (encoded(Image.new("L", (3, 3), 9), "TIFF"), (3, 3)),
    }  # fmt: skip


def test_a_folder_of_good_and_bad_files(index: MCHIndex, tmp_path: Path) -> None:
    good, bad = good_files(), bad_files()
    for name, data in (bad | {name: data for name, (data, _) in good.items()}).items():
        (tmp_path / name).write_bytes(data)
    added = index.add(tmp_path)
    assert sorted(os.path.basename(str(i)) for i in added) == sorted(good)
    assert set(reasons(added)) == set(bad)
    assert all(reason and str(tmp_path) not in reason for reason in reasons(added).values())
    assert "too large" in reasons(added)["bomb.png"]
    assert "too large" in reasons(added)["half a bomb.png"]
    assert "empty" in reasons(added)["empty.jpg"]
    for name, (data, size) in good.items():
        stored = index[str(tmp_path / name)]
        assert stored.size == size, name
        assert stored.boxes[0] == (0, 0, *size), name
        layout = tiny_model().layout
        for region, box in zip(stored.regions, stored.boxes, strict=True):
            assert box == in_pixels(layout.boxes[layout.names.index(region)], *size)
        if max(size) < 1000:  # a large JPEG may have been decoded at a fraction of its size
            want = tiny_model().encode([open_rgb(data)])
            np.testing.assert_array_equal(stored.codes, want.codes)
    assert_as_fresh(index)
    # Only the files that failed are read again.
    again = index.add(tmp_path)
    assert set(again.skipped) == set(added)
    assert reasons(again) == reasons(added)


@pytest.mark.parametrize("orientation", STORED)
def test_rotated_pictures_are_found_by_their_upright_regions(
    index: MCHIndex, orientation: int, tmp_path: Path
) -> None:
    """The codes, the size and the boxes are those of the upright picture."""
    upright = np.asarray(painted(5).resize((32, 16), Image.Resampling.NEAREST))
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = Image.fromarray(np.ascontiguousarray(STORED[orientation](upright)))
    path = tmp_path / "turned.png"
    path.write_bytes(encoded(stored, "PNG", exif=exif))
    index.add([path, upright], ["turned", "upright"])
    a, b = index["turned"], index["upright"]
    assert (a.size, a.regions, a.boxes) == (b.size, b.regions, b.boxes)
    np.testing.assert_array_equal(a.codes, b.codes)
    assert a.size == (32, 16)
    # The region of a query is a region of the upright query, too.
    box = (16, 0, 32, 8)
    assert index.search(path, 2).distances == [0, 0]
    for query in (path, upright):
        hits = index.search(query, 2, region=box)
        code = tiny_model().encode_query([upright[0:8, 16:32]])[0]
        assert hits.distances == [h.distance for h in index.search_codes(code, 2)]


# Names.


def test_file_names_may_contain_any_characters(index: MCHIndex, tmp_path: Path) -> None:
    names = ["with space.png", "ä 図 🖼.png", "new\nline.png", "'quo\"te`$(x).png", "-rf.png"]
    names += ["a" * 240 + ".png", "x.PNG", "two..dots.png", "[a-z]*?.png", "\t.png", "~.png"]
    for number, name in enumerate(names):
        (tmp_path / name).write_bytes(encoded(painted(number), "PNG"))
    added = index.add(tmp_path)
    assert sorted(added) == sorted(str(tmp_path / name) for name in names)
    for number, name in enumerate(names):
        hit = index.search(drawn(number), 1)[0]
        assert hit.id == hit.path == str(tmp_path / name)
    paths = [str(tmp_path / name) for name in names]
    assert index.add(paths).skipped == paths


def test_file_names_that_are_not_valid_text_are_reported(index: MCHIndex, tmp_path: Path) -> None:
    raw = os.path.join(os.fsencode(tmp_path), b"caf\xe9.png")
    try:
        with open(raw, "wb") as file:
            file.write(GOOD)
    except OSError:
        pytest.skip("this file system allows only text as names")
    (tmp_path / "fine.png").write_bytes(GOOD)
    for images in (tmp_path, [os.fsdecode(raw), tmp_path / "fine.png"]):
        added = index.add(images)
        assert list(added) == [str(tmp_path / "fine.png")]
        assert [os.fsencode(failure.name) for failure in added.failed] == [raw]
        assert "Unicode" in added.failed[0].reason
        assert "caf" in str(added.failed[0]).encode().decode()  # it can be printed
    failed = index.add(["a\0b.png", tmp_path / "fine.png"]).failed
    assert "null" in failed[0].reason


# Things in a folder that are not regular files.


def test_pipes_sockets_devices_and_broken_links_are_reported(
    index: MCHIndex, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "good.png").write_bytes(GOOD)
    os.mkfifo(root / "pipe.png")
    (root / "zero.png").symlink_to("/dev/zero")
    (root / "loop.png").symlink_to(root / "loop.png")
    (root / "dangling.png").symlink_to(root / "nowhere.png")
    (root / "folder.png").mkdir()
    (root / "folder.png" / "inside.png").write_bytes(encoded(painted(1), "PNG"))
    (root / "link.png").symlink_to(root / "good.png")
    (root / "folder.png" / "up").symlink_to(root, target_is_directory=True)
    (root / "self").symlink_to(root / "self")
    expected = {"pipe.png", "zero.png", "loop.png", "dangling.png"}
    with socket.socket(socket.AF_UNIX) as server:
        place = os.getcwd()
        os.chdir(root)  # the path of a socket must be short
        try:
            server.bind("socket.png")
        finally:
            os.chdir(place)
        added = index.add(root)
    assert set(reasons(added)) == expected | {"socket.png"}
    assert reasons(added)["pipe.png"] == reasons(added)["zero.png"] == "not a regular file"
    names = [os.path.relpath(str(i), root) for i in added]
    assert sorted(names) == ["folder.png/inside.png", "good.png", "link.png"]


def test_a_pipe_in_the_place_of_a_picture_blocks_nothing(index: MCHIndex, tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(GOOD)
    index.add(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ImageError, match="not a regular file"):
        index.add(path)
    for search in (index.search, index.within, lambda p: index.search([p, p])):
        with pytest.raises(ImageError, match="not a regular file"):
            search(path)
    with pytest.raises(ImageError, match="not a regular file"):
        index.search(path, region=(0, 0, 4, 4))
    hits = index.search(drawn(0))
    assert "no picture" in hits._repr_html_()
    grey, white = (228, 228, 228), (255, 255, 255)
    colours = {colour for _, colour in draw_grid(None, hits).getcolors(1 << 20) or []}
    assert {grey, white} <= colours
    assert page_picture(str(path)) is None


def test_linked_folders_are_walked_once(index: MCHIndex, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.png").write_bytes(GOOD)
    (tmp_path / "b").symlink_to(tmp_path / "a", target_is_directory=True)
    (tmp_path / "a" / "back").symlink_to(tmp_path, target_is_directory=True)
    assert index.add(tmp_path) == [str(tmp_path / "a" / "x.png")]
    assert index.add(tmp_path / "b" / "back" / "b").added == [
        str(tmp_path / "b" / "back" / "b" / "x.png")
    ]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_files_and_folders_without_permission_are_reported(index: MCHIndex, tmp_path: Path) -> None:
    (tmp_path / "good.png").write_bytes(GOOD)
    (tmp_path / "secret.png").write_bytes(GOOD)
    (tmp_path / "secret.png").chmod(0)
    (tmp_path / "locked").mkdir(0)
    try:
        added = index.add(tmp_path)
    finally:
        (tmp_path / "locked").chmod(0o700)
    assert reasons(added) == {"secret.png": "Permission denied", "locked": "Permission denied"}
    assert len(added) == 1


def test_a_folder_that_cannot_be_listed_is_reported(
    index: MCHIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "good.png").write_bytes(GOOD)
    (tmp_path / "locked").mkdir()
    list_folder = os.scandir

    def scandir(path: Any) -> Any:
        if os.path.basename(path) == "locked":
            raise PermissionError(13, "Permission denied", path)
        return list_folder(path)

    monkeypatch.setattr(os, "scandir", scandir)
    added = index.add(tmp_path)
    assert reasons(added) == {"locked": "Permission denied"}
    assert len(added) == 1


def test_indexes_in_a_folder_are_not_walked(index: MCHIndex, tmp_path: Path) -> None:
    (tmp_path / "good.png").write_bytes(GOOD)
    MCHIndex.open(tmp_path / "photos.mch", bits=8).close()
    (tmp_path / "photos.mch" / "x.png").write_bytes(GOOD)
    added = index.add(tmp_path)
    assert (list(added), added.ignored) == ([str(tmp_path / "good.png")], [])


def test_folders_nested_more_deeply_than_python_calls(index: MCHIndex, tmp_path: Path) -> None:
    """Also more deeply than a path may be long: what lies there is reported."""
    place = os.getcwd()
    os.chdir(tmp_path)
    try:
        for depth in range(1, 2501):
            os.mkdir("d")
            os.chdir("d")
            if depth in (1, 1500, 2499):
                Path("x.png").write_bytes(encoded(painted(depth), "PNG"))
    finally:
        os.chdir(place)
    (tmp_path / "z.png").write_bytes(GOOD)
    try:
        for images in (tmp_path, str(tmp_path / "**/*.png"), str(tmp_path / "*" / "**" / "x.png")):
            added = index.add(images)
            assert len(added) == (2 if str(images).endswith("x.png") else 3)
            assert [failure.reason for failure in added.failed] == ["File name too long"]
            assert len(index) == 3
    finally:  # pytest could not delete it
        subprocess.run(["rm", "-rf", str(tmp_path / "d")], check=True)


def test_patterns_with_any_number_of_folders(index: MCHIndex, tmp_path: Path) -> None:
    names = ["a.png", "b/a.png", "b/c/a.png", "b/c/d.jpg", "e/c/f.png", ".h/a.png", "b/.i.png"]
    for number, name in enumerate(names):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(encoded(painted(number), "PNG"))
    for pattern, want in {
        "**": names[:5],
        "**/*.png": [names[i] for i in (0, 1, 2, 4)],
        "**/a.png": names[:3],
        "**/c/*": names[2:5],
        "b/**/*.png": names[1:3],
        "*/**/f.png": [names[4]],
        "**/b/**/d.*": [names[3]],
        "[be]/**/**/*.png": [names[1], names[2], names[4]],
        "**/none/*.png": [],
    }.items():
        added = index.add(str(tmp_path / pattern))
        assert sorted(added) == sorted(str(tmp_path / name) for name in want), pattern
        assert len(added.failed) == (not want)


# Files with odd dates.


def test_a_file_of_any_date_is_added(
    index: MCHIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a.png", "future.png", "past.png", "z.png"):
        (tmp_path / name).write_bytes(encoded(painted(len(name)), "PNG"))
        os.utime(tmp_path / name, ns=(0, 10**18))
    # Not every file system can store such dates, so they are made up.
    dates = {"future.png": 2**63, "past.png": -(2**80)}

    class Status:
        def __init__(self, real: os.stat_result, date: int) -> None:
            self.real, self.st_mtime_ns = real, date

        def __getattr__(self, name: str) -> Any:
            return getattr(self.real, name)

    def odd(inner: Any) -> Any:
        def stat(path: Any, **options: Any) -> Any:
            status = inner(path, **options)
            for name, date in dates.items():
                if os.path.samestat(status, os_stat(tmp_path / name)):
                    return Status(status, date)
            return status

        return stat

    os_stat = os.stat
    monkeypatch.setattr(os, "stat", odd(os.stat))
    monkeypatch.setattr(os, "fstat", odd(os.fstat))
    added = index.add(tmp_path)
    assert (len(added.added), added.failed) == (4, [])
    assert len(index.add(tmp_path).skipped) == 4
    (tmp_path / "future.png").write_bytes(encoded(painted(50), "PNG"))
    assert index.add(tmp_path).replaced == [str(tmp_path / "future.png")]
    assert_as_fresh(index)


def test_a_file_dated_after_2262_is_added(index: MCHIndex, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(GOOD)
    (tmp_path / "b.png").write_bytes(encoded(painted(1), "PNG"))
    try:
        os.utime(tmp_path / "a.png", ns=(0, 2**63 + 10**9))
    except OSError:
        pytest.skip("this file system has no such dates")
    assert len(index.add(tmp_path).added) == 2
    assert len(index.add(tmp_path)) == 2


# Files that change, and files that decoders fail on.


def test_a_file_deleted_before_it_is_read_is_reported(index: MCHIndex, tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / f"{name}.png").write_bytes(GOOD)

    def delete_one(path: str) -> dict[str, Any]:
        if path.endswith("b.png"):
            os.unlink(path)
        return {}

    added = index.add(tmp_path, metadata=delete_one)
    assert reasons(added) == {"b.png": "No such file or directory"}
    assert len(added) == 2
    # An image in the index whose file no longer exists stays until it is pruned.
    index.add(tmp_path)
    os.unlink(tmp_path / "a.png")
    assert reasons(index.add([tmp_path / "a.png"])) == {"a.png": "No such file or directory"}
    assert len(index) == 2


def test_a_file_that_changes_while_it_is_being_read_is_read_again(
    index: MCHIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(GOOD)
    real_fstat = os.fstat
    writes = 0

    def changing(times: int) -> Any:
        def fstat(file: int) -> os.stat_result:
            nonlocal writes
            status = real_fstat(file)
            if os.path.samestat(status, os.stat(path)) and writes < times:
                writes += 1
                path.write_bytes(encoded(painted(writes), "PNG") + bytes(writes))
            return status

        return fstat

    with monkeypatch.context() as patch:
        patch.setattr(os, "fstat", changing(2))
        index.add(path)
    np.testing.assert_array_equal(index[str(path)].codes, tiny_model().encode([drawn(2)]).codes)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fstat", changing(10**6))
        with pytest.raises(ImageError, match=r"a\.png: the file changed while it was being read"):
            index.add(path)


def test_a_huge_file_is_reported_and_not_read(
    index: MCHIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open(tmp_path / "hole.png", "wb") as file:
        file.truncate(1 << 40)  # takes no space on disk, but reading it would take all memory
    (tmp_path / "good.png").write_bytes(GOOD)
    added = index.add(tmp_path)
    assert "too large" in reasons(added)["hole.png"]
    assert len(added) == 1


def test_any_exception_of_a_decoder_fails_only_its_image(
    index: MCHIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a decoder raises, all other images are added."""
    for name in ("a.png", "b.png", "c.png"):
        (tmp_path / name).write_bytes(GOOD)
    read = read_picture

    def breaks(error: BaseException) -> Any:
        turns = iter([0, 1])
        return lambda *a: read(*a) if next(turns, None) is None else (_ for _ in ()).throw(error)

    for error in (MemoryError(), RecursionError("deep"), struct.error("x"), SystemError("y")):
        index.remove(list(index))
        with monkeypatch.context() as patch:
            patch.setattr(mchindex.index.inputs, "read_picture", breaks(error))
            added = index.add(tmp_path)
        assert (len(added), len(added.failed)) == (1, 2)
        assert added.failed[0].reason


def test_a_changed_byte_fails_only_its_image(index: MCHIndex) -> None:
    rng = np.random.default_rng(0)
    files = []
    for kind in ("PNG", "JPEG", "GIF", "WEBP", "TIFF", "BMP"):
        data = np.frombuffer(encoded(painted(1), kind), np.uint8)
        for at in rng.integers(0, len(data), 15):
            spoilt = data.copy()
            spoilt[at] ^= rng.integers(1, 256, dtype=np.uint8)
            files.append(spoilt.tobytes())
    added = index.add(files)
    assert len(added) + len(added.failed) == len(files)
    assert len(added.failed) > 5
    assert len(added) > 5
    assert_as_fresh(index)
