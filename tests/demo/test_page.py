"""The page of a demo: one file that needs nothing else, whatever the pictures are called."""

import builtins
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from helpers.html import Reader, check_alone
from helpers.pictures import picture
from mchindex.demo.buckets import BucketsNeeded
from mchindex.demo.examples import ExampleAnswer, ExampleHit, ExampleQuery
from mchindex.demo.page import photos_page
from mchindex.demo.photos import PhotosDemo
from mchindex.demo.plot import VARIABLES, f1_plot
from mchindex.index.adding import Failure
from mchindex.index.page import page_picture
from mchindex.index.results import Hit

AWKWARD = "<u>&amp;\"'<main>.jpg"
CURVES = {"base": [[1, 0.1], [10, 0.2], [1000, 0.4]], "mch": [[1, 0.2], [1000, 0.4]]}


def photos(folder: Path, examples: list[ExampleQuery]) -> PhotosDemo:
    return PhotosDemo(
        folder=folder,
        page=folder / "page.html",
        index=folder / "index",
        about=f"in {folder}",
        added=1,
        replaced=1,
        unchanged=0,
        failed=[Failure("<u>", "bad")],
        images_per_second=20.0,
        stats={"images": 2, "codes": 3, "bits": 64, "anhc": 1.5, "buckets": 2},
        examples=examples,
        how_chosen="first & only <rule>",
        commands=[f"mch search '{folder / AWKWARD}'"],
    )


def test_names_of_pictures_cannot_change_the_page(tmp_path: Path) -> None:
    folder = tmp_path / "<i>&\"'"
    folder.mkdir()
    path = folder / AWKWARD
    picture(1, 300, 200).save(path, "JPEG")
    hit = Hit(str(path), 3, "top-left", (0, 0, 150, 100), str(path), score=0.25)
    hits = [
        ExampleHit(hit, 9, (0.0, 0.0, 0.5, 0.5), ("<star>",)),
        ExampleHit(hit, 9, (0.0, 0.0, 0.5, 0.5), ()),
        ExampleHit(Hit(str(folder / "gone.jpg"), 4, "whole", None, None), 4, None, None),
    ]
    answer = ExampleAnswer("by <i>luck</i>", "2,300 buckets", hits)
    query = ExampleQuery(path.stem, str(path), ("<star>", "a&b"), [answer])
    read = check_alone(photos_page(photos(folder, [query])))
    assert not {"i", "u"} & {name for name, _ in read.seen}
    for text in ("first & only <rule>", "<star>", "a&b", f"in {folder}", path.stem):
        assert text in read.words
    assert f"mch search '{path}'" in read.words
    assert "✓ <star>" in read.words
    assert "✗ no common class" in read.words
    assert "no picture" in read.words
    assert "score 0.25, distance 3 top-left (whole image: 9)" in read.words
    assert "score 0.00, distance 4 whole image gone.jpg" in read.words
    assert "by <i>luck</i> (2,300 buckets)" in read.words
    boxes = [a["style"] for a in read.all("span") if a.get("class") == "box"]
    assert boxes == ["left:0.00%;top:0.00%;width:50.00%;height:50.00%"] * 2


def test_pictures_keep_their_shape(tmp_path: Path) -> None:
    picture(3, 20, 40).save(tmp_path / "tall.png")
    query = ExampleQuery("tall", str(tmp_path / "tall.png"), None, [])
    read = check_alone(photos_page(photos(tmp_path, [query])))
    assert [a["style"] for a in read.all("div") if a.get("class") == "picture"] == ["width:50.00%"]


def test_thumbnails_are_small(tmp_path: Path) -> None:
    picture(2, 800, 400).save(tmp_path / "wide.png")
    picture(3, 20, 40).save(tmp_path / "tiny.png")
    sizes = [page_picture(str(tmp_path / name)) for name in ("wide.png", "tiny.png")]
    assert [size and size[1:3] for size in sizes] == [(200, 100), (20, 40)]
    assert page_picture(str(tmp_path / "none.png")) is None
    assert page_picture(None) is None


def drawn(curves: Mapping[str, Any], needed: list[BucketsNeeded] | None = None) -> Reader:
    pytest.importorskip("matplotlib")
    svg = f1_plot(curves, needed or [])
    assert svg is not None
    return Reader(svg)


def lines(read: Reader, name: str) -> list[list[tuple[float, float]]]:
    """The points of the lines whose ids begin with a name."""
    paths = [
        str(read.seen[i + 1][1]["d"])
        for i, (tag, attributes) in enumerate(read.seen)
        if tag == "g" and str(attributes.get("id")).startswith(name)
    ]
    numbers = [[float(word) for word in path.split() if word not in "ML"] for path in paths]
    return [list(zip(n[::2], n[1::2], strict=True)) for n in numbers]


def test_the_plot_has_a_log_axis() -> None:
    needed = [
        BucketsNeeded(1, 0.2, 10, 0.4),
        BucketsNeeded(10, 0.9, None, 0.4),
        BucketsNeeded(100, 0.4, 100, 0.4),
    ]
    read = drawn(CURVES, needed)
    (x0, y0), (x1, y1), (x2, y2) = lines(read, "base")[0]
    assert x2 - x1 == pytest.approx(2 * (x1 - x0))  # two decades, one decade
    assert y1 - y2 == pytest.approx(2 * (y0 - y1))  # upwards
    [[start, end]] = lines(read, "needed")  # only where the base needs more, and reaches it
    assert start == pytest.approx((x0, y1))
    assert end == pytest.approx((x1, y1))
    for label in ("1", "10", "100", "1,000", "0.4", "buckets visited"):
        assert label in read.text


def test_the_plot_takes_its_colours_from_the_page(tmp_path: Path) -> None:
    """So it follows the page into dark mode."""
    pytest.importorskip("matplotlib")
    svg = f1_plot(CURVES) or ""
    page = photos_page(photos(tmp_path, []))
    assert "#" not in svg.replace('href="#', "")
    assert "rgb" not in svg
    for variable in VARIABLES.values():
        assert f"var({variable})" in svg
        assert page.count(f"{variable}:") == 3  # light, dark, print


def test_ids_in_the_plot_are_unique() -> None:
    needed = [BucketsNeeded(n, 0.2, 2 * n, 0.4) for n in (1, 10, 100)]
    ids = [attributes["id"] for _, attributes in drawn(CURVES, needed).seen if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_the_plot_is_the_same_each_time() -> None:
    pytest.importorskip("matplotlib")
    assert f1_plot(CURVES) == f1_plot(CURVES)


def test_the_plot_of_one_bucket() -> None:
    read = drawn({"base": [[1, 0.0]], "mch": [[1, 0.0]]})
    assert [len(lines(read, name)) for name in ("base", "mch")] == [1, 1]


def test_many_decades_have_fewer_labels() -> None:
    read = drawn({"base": [[1, 0.1], [1e19, 0.2]], "mch": [[1, 0.1]]})
    assert "10¹⁸" in read.text
    assert "10¹⁷" not in read.text


def test_without_matplotlib_there_is_no_plot(monkeypatch: pytest.MonkeyPatch) -> None:
    missing(monkeypatch, "matplotlib")
    assert f1_plot(CURVES) is None


def missing(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    """As if a package were not installed."""
    real = builtins.__import__

    def refuse(name: str, *more: Any, **options: Any) -> Any:
        if name.partition(".")[0] == package:
            raise ImportError(name)
        return real(name, *more, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)
