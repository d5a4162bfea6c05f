"""Huge pictures are added, searched for and shown in bounded memory, on any number of cores."""

import struct
import zlib
from pathlib import Path

import pytest

from helpers.script import run_script

WIDTH, HEIGHT = 9400, 9500
LIMIT = 1500  # MB of the whole process, with torch and the model

SCRIPT = """
import sys
import mchindex.inference.extract
import mchindex.inference.graph
from mchindex import MCHIndex
folder, workers, count, limit = sys.argv[1], *map(int, sys.argv[2:])
mchindex.inference.extract.cores = mchindex.inference.graph.cores = lambda: workers
with MCHIndex("coco-64") as index:
    added = index.add(folder, progress=False)
    assert (len(added.added), added.failed) == (count, []), added.failed
    assert index[added[0]].size == (9400, 9500)
    if count > 20:
        from mchindex.index.grid import draw_grid
        hits = index.search(list(added[:8]), 8)[0]
        assert hits[0].distance == 0
        hits._repr_html_()
        draw_grid(None, hits)
status = open("/proc/self/status").read()  # getrusage counts the memory of the parent, too
peak = int(status.split("VmHWM:")[1].split()[0]) // 1024
assert peak < limit, f"{peak} MB"
"""

# Colour type and bits per channel of a PNG, and bytes per pixel.
KINDS = {"RGB": (2, 8, 3), "RGBA": (6, 8, 4), "palette": (3, 8, 1), "16-bit grey": (0, 16, 2)}


def huge_png(kind: str) -> bytes:
    """A picture of 89 million pixels in a small file."""

    def chunk(name: bytes, data: bytes) -> bytes:
        crc = struct.pack(">I", zlib.crc32(name + data))
        return struct.pack(">I", len(data)) + name + data + crc

    colour, bits, each = KINDS[kind]
    head = struct.pack(">IIBBBBB", WIDTH, HEIGHT, bits, colour, 0, 0, 0)
    packer = zlib.compressobj(1)
    row = b"\0" + bytes(x // 50 % 256 for x in range(WIDTH * each))
    data = b"".join(packer.compress(row) for _ in range(HEIGHT)) + packer.flush()
    palette = chunk(b"PLTE", bytes(range(256)) * 3) + chunk(b"tRNS", b"\x80" * 256)
    return b"".join(
        (
            b"\x89PNG\r\n\x1a\n",
            chunk(b"IHDR", head),
            palette if kind == "palette" else b"",
            chunk(b"IDAT", data),
            chunk(b"IEND", b""),
        )
    )


def check(folder: Path, kind: str, count: int, workers: int) -> None:
    data = huge_png(kind)
    (folder / "pictures").mkdir()
    for number in range(count):
        (folder / "pictures" / f"{number:02d}.png").write_bytes(data)
    run_script(SCRIPT, "pictures", str(workers), str(count), str(LIMIT), folder=folder)


def test_four_huge_pictures_at_once(tmp_path: Path) -> None:
    check(tmp_path, "RGB", count=4, workers=4)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 16])
@pytest.mark.parametrize("kind", KINDS)
def test_twenty_four_huge_pictures(tmp_path: Path, kind: str, workers: int) -> None:
    check(tmp_path, kind, count=24, workers=workers)
