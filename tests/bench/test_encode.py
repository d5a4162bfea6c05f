"""bench/encode.py counts images per second of both versions."""

from pathlib import Path

import pytest

import encode
from mchindex.images import open_rgb


def test_pictures_have_the_size_that_is_asked_for(tmp_path: Path) -> None:
    for side in (640, 1000):
        folder = tmp_path / str(side)
        folder.mkdir()
        encode.draw(folder, 2, side)
        assert [open_rgb(f).size for f in sorted(folder.iterdir())] == [(side, side * 3 // 4)] * 2


def test_images_are_added_and_counted(tmp_path: Path) -> None:
    encode.draw(tmp_path, encode.WARM_UP + 4, 640)
    clock, cpu, network = encode.speed(tmp_path, None, network=True)
    assert min(clock, cpu, network) > 0
    assert encode.speed(tmp_path, None, network=False)[2] == 0
    (tmp_path / "00000.jpg").write_text("no picture")
    (tmp_path / "99999.jpg").write_text("no picture")
    with pytest.raises(SystemExit, match="adding pictures failed"):
        encode.speed(tmp_path, None, network=False)


def test_the_median_counts() -> None:
    rows, ratios = encode.summary(
        {
            ("640 x 480", "this"): [[1, 30, 50], [2, 60, 70], [9, 90, 60]],
            ("640 x 480", "earlier"): [[1, 30, 0], [1, 20, 0], [1, 10, 0]],
        }
    )
    assert ratios == {"640 x 480": 3.0}
    assert rows[0]["images_per_second"] == 2
    assert rows[0]["network_per_cpu_second"] == 60
    assert rows[1]["network_per_cpu_second"] is None
