"""The page of a demo: one file that needs nothing else, whatever the pictures are called."""

from pathlib import Path

import pytest

from helpers.html import Reader, check_alone
from helpers.pictures import picture as noise
from mchindex.demo import Found, PhotosDemo, Reach, Shown
from mchindex.index.adding import Failure
from mchindex.index.results import Hit
from mchindex.page import counted, photos_page, picture, plot, tag, thumbnail

AWKWARD = "<u>&amp;\"'<main>.jpg"


def test_tags_escape_text_and_attributes() -> None:
    assert tag("p", "a < b & c", tag("b", ">"), title='"x"') == (
        '<p title="&quot;x&quot;">a &lt; b &amp; c<b>&gt;</b></p>'
    )
    assert tag("img", alt="a'b", class_="c") == '<img alt="a&#x27;b" class="c">'


def test_names_of_pictures_cannot_change_the_page(tmp_path: Path) -> None:
    folder = tmp_path / "<i>&\"'"
    folder.mkdir()
    path = folder / AWKWARD
    noise(1, 300, 200).save(path, "JPEG")
    hit = Hit(str(path), 3, "top-left", (0, 0, 150, 100), str(path))
    found = [
        Found(hit, 9, (0.0, 0.0, 0.5, 0.5), ("<star>",)),
        Found(hit, 9, (0.0, 0.0, 0.5, 0.5), ()),
        Found(Hit(str(folder / "gone.jpg"), 4, "whole", None, None), 4, None, None),
    ]
    shown = Shown(path.stem, str(path), ("<star>", "a&b"), found, 1, 0)
    stats = {"images": 2, "codes": 3, "bits": 64, "anhc": 1.5, "buckets": 2}
    failed = [Failure("<u>", "bad")]
    demo = PhotosDemo(
        folder, tmp_path / "page.html", tmp_path / "index", f"in {folder}", 1, 1, 0, failed, 20.0,
        stats, [shown], "first & only <rule>", [f"mch search '{path}'"],
    )  # fmt: skip
    read = check_alone(photos_page(demo))
    assert not {"i", "u"} & {name for name, _ in read.seen}
    for text in ("first & only <rule>", "<star>", "a&b", f"in {folder}", path.stem):
        assert text in read.words
    assert "✓ <star>" in read.words
    assert "✗ shares no class" in read.words
    assert "the file is gone" in read.words
    assert "3 by top-left (whole: 9)" in read.words
    boxes = [a["style"] for a in read.all("span") if a.get("class") == "box"]
    assert boxes == ["left:0.00%;top:0.00%;width:50.00%;height:50.00%"] * 2


def test_thumbnails_are_small_and_keep_their_shape(tmp_path: Path) -> None:
    noise(2, 800, 400).save(tmp_path / "wide.png")
    noise(3, 20, 40).save(tmp_path / "tiny.png")
    assert thumbnail(str(tmp_path / "wide.png"))[1] == (200, 100)
    assert thumbnail(str(tmp_path / "tiny.png"))[1] == (20, 40)
    assert "width:50.00%" in picture(str(tmp_path / "tiny.png"), "x")
    assert "the file is gone" in picture(str(tmp_path / "none.png"), "x")
    assert "the file is gone" in picture(None, "x")


def test_the_plot_has_a_log_axis() -> None:
    curves = {"base": [[1, 0.1], [10, 0.2], [1000, 0.4]], "mch": [[1, 0.2], [1000, 0.4]]}
    reaches = [Reach(1, 0.2, 10, 0.4), Reach(10, 0.9, None, 0.4), Reach(100, 0.4, 100, 0.4)]
    read = Reader(plot(curves, reaches))
    paths = {str(a["class"]): str(a["d"]) for a in read.all("path")}
    points = [tuple(map(float, p.split(","))) for p in paths["base"].removeprefix("M").split()]
    (x0, y0), (x1, y1), (x2, y2) = points
    assert x2 - x1 == pytest.approx(2 * (x1 - x0), abs=0.3)  # two decades, one decade
    assert y1 - y2 == pytest.approx(2 * (y0 - y1), abs=0.3)  # upwards
    dotted = [a for a in read.all("line") if a["class"] == "reach"]
    assert len(dotted) == 1  # where the base needs more, and reaches it
    assert (float(str(dotted[0]["x1"])), float(str(dotted[0]["x2"]))) == (x0, x1)
    for label in ("1", "10", "100", "1,000", "0.4", "buckets visited"):
        assert label in read.text


def test_counts_of_buckets() -> None:
    assert counted(1, "bucket") == "1 bucket"
    assert counted(2300, "bucket") == "2,300 buckets"
    assert counted(289_514_854_439_386, "bucket") == "2.9 · 10¹⁴ buckets"


def test_the_plot_of_one_bucket() -> None:
    assert len(Reader(plot({"base": [[1, 0.0]], "mch": [[1, 0.0]]})).all("path")) == 2
