"""Whether docs/hits.png and the demo's figures are current."""

import json
import sys
from pathlib import Path

import pytest
from PIL import Image, PngImagePlugin

import hits


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    picture, figures = tmp_path / "hits.png", tmp_path / "demo.json"
    monkeypatch.setattr(hits, "PICTURE", picture)
    monkeypatch.setattr(hits, "FIGURES", figures)
    about = PngImagePlugin.PngInfo()
    about.add_text(hits.STAMP, hits.inputs())
    Image.new("RGB", (4, 4)).save(picture, pnginfo=about)
    figures.write_text(json.dumps({hits.STAMP: hits.inputs()}))
    return picture, figures


def test_files_from_todays_inputs_are_current(files: tuple[Path, Path]) -> None:
    assert hits.out_of_date() == []


def test_another_ranking_or_model_makes_them_out_of_date(
    files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("IMAGES", 17), ("WEIGHTS", {"best": (1.0,)}), ("SIDE", 9)):
        with monkeypatch.context() as change:
            change.setattr(hits, name, value)
            assert hits.out_of_date() == list(files)
    assert hits.out_of_date() == []


def test_a_missing_file_or_one_without_a_stamp_is_out_of_date(files: tuple[Path, Path]) -> None:
    picture, figures = files
    Image.new("RGB", (4, 4)).save(picture)
    assert hits.out_of_date() == [picture]
    figures.unlink()
    assert hits.out_of_date() == [picture, figures]


def test_the_check_says_what_to_do(
    files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["hits.py", "--check"])
    hits.main()
    files[0].unlink()
    with pytest.raises(SystemExit, match=r"out of date: hits\.png\. Run bench/hits\.py"):
        hits.main()
