"""Hits on a page, each with the reason why it is one."""

import os
from pathlib import Path

import pytest
from PIL import Image, ImageOps

from helpers.html import check_alone
from helpers.pictures import picture
from mchindex import MCHIndex
from mchindex.cli import run
from mchindex.datasets.scenes import SceneSource
from mchindex.index.explain import Reason, explain
from mchindex.index.page import hits_page, shown
from mchindex.index.results import Hit, Hits

SCENES = SceneSource(9, seed=3, size=160)
Capture = pytest.CaptureFixture[str]


def hit(distance: int = 0, similarity: float | None = None, path: str | None = None) -> Hit:
    return Hit("a", distance, "whole", None, path, score=0.5, similarity=similarity)


def test_reasons_without_pictures() -> None:
    assert explain(hit(20, 0.7), 64) == Reason("looks alike")
    assert explain(hit(8, 0.3), 64) == Reason("same kind of thing")
    assert explain(hit(9, 0.3), 64) == Reason("somewhat alike")
    assert explain(hit(4), 32) == Reason("same kind of thing")
    assert explain(hit(4, 0.7), 32, words=("person", "frisbee")) == Reason("person, frisbee")
    assert explain(hit(0, 1.0), 64) == Reason("looks alike")  # only pixels can tell
    assert explain(hit(-1), 64, words=("dog", "sofa")) == Reason("dog, sofa")
    assert "distance" not in explain(hit(-1), 64).text  # words have no code


@pytest.mark.parametrize(
    ("box", "text"),
    [
        ((0, 0, 160, 160), "same picture"),
        ((0, 0, 152, 160), "same picture"),
        ((0, 80, 80, 160), "same picture, bottom-left quadrant"),
        ((80, 0, 160, 80), "same picture, top-right quadrant"),
        ((40, 40, 120, 120), "same picture, centre"),
        ((0, 0, 112, 112), "same picture, top-left part"),
        ((0, 0, 90, 160), "same picture, left part"),
        ((0, 70, 160, 160), "same picture, bottom part"),
        ((0, 16, 136, 160), "same picture, cropped"),
    ],
)
def test_a_part_of_the_picture(box: tuple[int, int, int, int], text: str) -> None:
    whole = SCENES.image(5)
    part = whole.crop(box)
    reason = explain(hit(30, 0.4), 64, part, whole)
    assert (reason.text, reason.same) == (text, True)
    assert (reason.box is None) == (text == "same picture")
    mirrored = explain(hit(30, 0.4), 64, ImageOps.mirror(part), whole)
    assert mirrored.text == f"{text}, mirrored"


def test_the_hit_is_a_part_of_the_query() -> None:
    whole = SCENES.image(5)
    part = whole.crop((0, 80, 80, 160))
    reason = explain(hit(30, 0.4), 64, whole, part)
    assert reason == Reason("part of the query, its bottom-left quadrant", True)
    assert not explain(hit(30, 0.4), 64, whole, SCENES.image(7)).same


def test_names_cannot_change_the_page(tmp_path: Path) -> None:
    file = tmp_path / "<u>&amp;\"'.jpg"
    picture(1, 300, 200).save(file, "JPEG")
    found = Hits(
        (
            Hit(str(file), 3, "top-left", (0, 0, 150, 100), str(file), score=0.25, similarity=0.1),
            Hit(str(tmp_path / "<i>gone"), 9, "whole", None, str(tmp_path / "<i>gone")),
        ),
        1, 0, 2, True, rank="best",
    )  # fmt: skip
    query = picture(2, 300, 200)
    answer = shown(found, 64, query, title="<b>&", region=(150, 0, 300, 200), first=11)
    read = check_alone(hits_page([answer]))
    assert not {"i", "u"} & {name for name, _ in read.seen}
    for text in (
        "<b>& 2 hits, 2 images compared searched by the framed part",
        "11. same kind of thing score 0.25 distance 3, top-left <u>&amp;\"'.jpg",
        "12. somewhat alike score 0.00 distance 9, whole picture <i>gone",
        "no picture",
    ):
        assert text in read.words
    boxes = [a["style"] for a in read.all("span") if a.get("class") == "box"]
    assert boxes == [
        "left:50.00%;top:0.00%;width:50.00%;height:100.00%",
        "left:0.00%;top:0.00%;width:50.00%;height:50.00%",
    ]
    assert read.all("html")[0]["lang"] == "en"


def test_a_search_without_a_picture_or_hits() -> None:
    answer = shown(Hits((), 1, 0, 0, True), 64, None, title="dog", has_picture=False)
    read = check_alone(hits_page([answer, answer]))
    assert not read.all("img")
    assert "Nothing was found." in read.words
    assert "Hits of 2 searches" in read.words


def test_hits_of_words_have_no_distance() -> None:
    found = Hits((hit(-1),), 0, 0, 1, True, rank="fine")
    answer = shown(found, 64, None, title="dog, -sofa", has_picture=False, words={"a": ["dog"]})
    read = check_alone(hits_page([answer]))
    assert "1. dog score 0.50 whole picture a" in read.words
    assert "distance" not in read.words
    assert "-1" not in repr(found)
    assert "-1" not in found._repr_html_()
    assert "distance" not in found._repr_html_()
    assert "cell words" in [a.get("class") for a in read.all("div")]
    assert read.words.count("dog, -sofa") == 2  # in the title of the page and instead of a picture
    with_code = hits_page([shown(Hits((hit(3),), 1, 0, 1, True), 64, None, title="a.jpg")])
    assert "distance 3, whole picture" in check_alone(with_code).words


def test_a_large_query_is_reduced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []

    def note(hit: Hit, bits: int, query: Image.Image | None, *rest: object) -> Reason:
        assert query is not None
        sizes.append(query.size)
        return Reason("")

    monkeypatch.setattr("mchindex.index.page.explain", note)
    query, found = picture(1, 3000, 2000), Hits((hit(), hit()), 1, 0, 2, True)
    shown(found, 64, query, title="")
    shown(found, 64, query, title="", region=(1000, 0, 3000, 1000))
    assert sizes == [(288, 192)] * 2 + [(288, 144)] * 2


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    for i in range(9):
        SCENES.image(i).save(folder / f"{i}.png")
    with MCHIndex.open(folder / "p.mch") as index:
        index.add(folder)
    return folder


def test_command(photos: Path, tmp_path: Path, capsys: Capture) -> None:
    index = ["--index", str(photos / "p.mch")]
    page = tmp_path / "new" / "page.html"
    command = ["search", str(photos / "5.png"), *index, "-k", "3", "--out", str(page)]
    assert run([*command, "--region", "0,80,80,160"]) == 0
    read = check_alone(page.read_text("utf-8"))
    assert "same picture, bottom-left quadrant" in read.words
    assert len(read.all("img")) == 4
    capsys.readouterr()
    assert run(command) == 0
    assert (
        "1. same picture score 1.00 distance 0, whole picture 5.png"
        in check_alone(page.read_text("utf-8")).words
    )
    printed = capsys.readouterr().out.split()
    assert printed[:4] == ["score", "distance", "region", "image"]
    assert ["1", "1.00", "0", "whole", str(photos / "5.png")] == printed[5:10]
    both = ["search", *(str(photos / f"{i}.png") for i in (5, 7)), *index, "--out", str(page)]
    assert run([*both, "--offset", "1", "-k", "2"]) == 0
    words = check_alone(page.read_text("utf-8")).words
    assert "Hits of 2 searches" in words
    assert "2. " in words
    assert "1. " not in words
    assert run(["search", "--id", str(photos / "5.png"), *index, "--out", str(page)]) == 0
    assert "8 hits" in check_alone(page.read_text("utf-8")).words


def test_the_first_picture_of_several_is_drawn(
    photos: Path, tmp_path: Path, capsys: Capture
) -> None:
    other = tmp_path / "other.png"
    SCENES.image(5).crop((0, 80, 80, 160)).save(other)
    index = ["--index", str(photos / "p.mch"), "-k", "2"]
    page, stored = tmp_path / "page.html", str(photos / "7.png")
    for first, second, start in (
        (str(other), stored, "like other.png, 7.png; unlike 1.png"),
        (stored, str(other), "like 7.png, other.png; unlike 1.png"),
    ):
        command = ["search", "--like", first, "--like", second, *index]
        assert run([*command, "--unlike", str(photos / "1.png"), "--out", str(page)]) == 0
        read = check_alone(page.read_text("utf-8"))
        assert start in read.words
        assert len(read.all("img")) == 3
        assert read.all("img")[0]["alt"] == f"query: {start}"
        drawing = tmp_path / "drawing.png"
        assert run([*command, "--out", str(drawing)]) == 0
        with Image.open(drawing) as grid, Image.open(first) as picture:
            middle = grid.convert("RGB").getpixel((grid.width // 6, grid.width // 6))
            assert middle != (228, 228, 228), picture.size  # the grey of a missing picture


def test_a_file_name_that_is_not_utf8(photos: Path, tmp_path: Path, capsys: Capture) -> None:
    file = os.fsdecode(os.fsencode(tmp_path) + b"/query-\xff.png")
    try:
        SCENES.image(5).save(file)
    except OSError:
        pytest.skip("this file system takes only UTF-8")
    page = tmp_path / "page.html"
    index = ["--index", str(photos / "p.mch"), "-k", "2"]
    assert run(["search", file, *index, "--out", str(page)]) == 0
    assert "query-\\udcff.png" in check_alone(page.read_text("utf-8")).words
    assert run(["search", "--like", file, *index, "--out", str(page)]) == 0
    assert "like query-\\udcff.png" in check_alone(page.read_text("utf-8")).words
    assert run(["search", file, *index, "--out", str(tmp_path / "drawing.png")]) == 0


def test_rank(photos: Path, capsys: Capture) -> None:
    query = str(photos / "5.png")
    found = {}
    for rank in ("best", "code", "fine"):
        command = ["search", query, "--index", str(photos / "p.mch"), "--rank", rank, "--json"]
        assert run(command) == 0
        found[rank] = capsys.readouterr().out
        with MCHIndex.open(photos / "p.mch") as index:
            hits = index.search(query, rank=rank)
        for one in hits:
            assert f'"score": {one.score}' in found[rank]
            assert (one.similarity is None) == (rank == "code")
            assert rank != "fine" or one.score == max(0, one.similarity or 0)
    assert len(set(found.values())) == 3
    assert run(["search", query, "--rank", "worst"]) == 2
    assert "worst" in capsys.readouterr().err
