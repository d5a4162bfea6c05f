"""The demo: what it measures, what it leaves, and what it tells of it."""

import json
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import mchindex.demo as demo_file
from helpers.html import check_alone
from helpers.pictures import picture, write_pictures
from mchindex import MCHIndex
from mchindex.cli import run
from mchindex.datasets import open_dataset
from mchindex.demo import (
    HITS,
    QUERIES,
    SETTINGS,
    Reach,
    ScenesDemo,
    budgets,
    photos_demo,
    reach,
    scenes_demo,
)
from mchindex.models import MCHModel
from mchindex.progress import Step

TINY = replace(
    SETTINGS,
    crops=2,
    backbone_settings={"epochs": 2},
    settings={"epochs": 3},
    agent_settings={"steps": 60, "width": 32, "bonus": 0.5},
)
IMAGES = 150


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> ScenesDemo:
    out = tmp_path_factory.mktemp("demo") / "new" / "demo"
    return scenes_demo(out, IMAGES, seed=1, settings=TINY)


def first_with(base: list[list[float]], f1: float) -> int | None:
    for buckets, value in base:
        if value >= f1:
            return int(buckets)
    return None


def test_buckets_to_reach_the_same_f1() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        counts = budgets(16)
        base, mch = ([[c, float(y)] for c, y in zip(counts, rng.random(len(counts)), strict=True)]
                     for _ in range(2))  # fmt: skip
        for buckets in (1, 10, 100):
            found = reach(base, mch, buckets)
            f1 = next(y for x, y in mch if x == buckets)
            assert found == Reach(buckets, f1, first_with(base, f1), max(y for _, y in base))


def test_words_on_buckets_to_reach() -> None:
    assert Reach(1, 0.5, None, 0.4).words() == "never: 0.4000 is its most"
    assert Reach(10, 0.5, 10, 0.6).words() == "10, the same"
    assert Reach(10, 0.5, 4, 0.6).words() == "4 (0.4 times as many)"
    assert Reach(1, 0.5, 1600, 0.6).words() == "1,600 (1600 times as many)"


def test_numbers_of_buckets() -> None:
    counts = budgets(32)
    assert counts == sorted(set(counts))
    assert {10**power for power in range(10)} <= set(counts)
    assert counts[-1] <= 2**32 < 1.2 * counts[-1]


def test_figures_are_of_what_the_indexes_hold(done: ScenesDemo) -> None:
    dataset = open_dataset(str(done.out / "pictures"))
    assert len(dataset) == IMAGES
    sizes = {}
    for name, found in (("base", done.base), ("mch", done.mch)):
        with MCHIndex.open(done.out / f"{name}.mch", create=False) as index:
            stats = index.stats()
            sizes[name] = stats["codes"]
            assert stats["images"] == found.images == len(dataset.splits["database"])
            assert stats["codes"] == found.codes
            assert stats["anhc"] == pytest.approx(found.anhc)
            for image in index.images():
                row = dataset.images.names.index(  # type: ignore[attr-defined]
                    os.path.relpath(str(image.id), done.out / "pictures" / "images")
                )
                names = [dataset.classes[c] for c in np.flatnonzero(dataset.labels[row])]
                assert image.metadata == {"classes": names}
    assert sizes["base"] == done.base.images
    assert sizes["mch"] > sizes["base"]
    for buckets, told in zip((1, 10, 100), done.reaches, strict=True):
        assert told == reach(done.base.f1_buckets, done.mch.f1_buckets, buckets)
    assert done.reaches[0].f1 == pytest.approx(done.mch.f1_own)


def test_queries_are_chosen_by_the_rule_told(done: ScenesDemo) -> None:
    dataset = open_dataset(str(done.out / "pictures"))
    names = [dataset.images.name(i) for i in dataset.splits["query"].tolist()]
    model = MCHModel.load(done.out / "model")
    having = []
    with MCHIndex.open(done.out / "mch.mch") as index:
        for name in names:
            path = done.out / "pictures" / "images" / name
            hits = index.search_codes(model.encode_query([path])[0], HITS)
            if any(hit.region != "whole" for hit in hits):
                having.append(Path(name).stem)
    assert having
    assert [q.name for q in done.shown][: len(having)] == having[:QUERIES]
    assert len(done.shown) == QUERIES
    assert f"{len(having)} have one" in done.rule
    assert f"of the {len(names)} queries" in done.rule


def test_hits_on_the_page(done: ScenesDemo) -> None:
    for query in done.shown:
        assert len(query.hits) == HITS
        assert query.classes
        for found in query.hits:
            assert found.whole is not None
            assert found.whole >= found.hit.distance
            assert found.by_region or found.whole == found.hit.distance
            classes = found.hit.metadata["classes"]
            assert found.shared == tuple(c for c in query.classes if c in classes)
            assert found.box is not None
            if not found.by_region:
                assert found.box == (0, 0, 1, 1)


def test_page_of_the_scenes(done: ScenesDemo) -> None:
    read = check_alone(done.page.read_text("utf-8"))
    assert len(read.all("img")) == QUERIES * (1 + HITS)
    boxes = [a for a in read.all("span") if a.get("class") == "box"]
    assert len(boxes) == sum(found.by_region for query in done.shown for found in query.hits)
    for name in ("r0", "p0", "map", "f1_own", "anhc"):
        assert f"{getattr(done.base, name):.4f}" in read.words
        assert f"{getattr(done.mch, name):.4f}" in read.words
    for told in done.reaches:
        assert told.words() in read.words
    assert done.rule in read.words
    assert done.verdict() in read.words
    assert done.page.stat().st_size < 3e6


def test_verdict_tells_what_is_lost_too(done: ScenesDemo) -> None:
    base = replace(done.base, r0=0.1, p0=0.5, map=0.5, f1_own=0.2)
    mch = replace(done.mch, r0=0.2, p0=0.4, map=0.5, f1_own=0.3)
    text = replace(done, base=base, mch=mch).verdict()
    assert "better in R@H=0 and F1 of the own bucket, worse in P@H=0, the same in mAP" in text


def test_a_second_run_only_writes_the_page(done: ScenesDemo) -> None:
    page = done.page.read_text("utf-8")
    done.page.unlink()
    stages: set[str] = set()

    def progress(step: Step) -> None:
        stages.add(step.stage)

    again = scenes_demo(done.out, IMAGES, seed=1, settings=TINY, progress=progress)
    assert again.reused
    assert again.page.read_text("utf-8") == page
    assert stages == {"index base", "index mch", "evaluation"}


def test_an_interrupted_demo_goes_on(done: ScenesDemo, tmp_path: Path) -> None:
    out = tmp_path / "demo"

    def stop(step: Step) -> None:
        if step.stage == "index mch":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        scenes_demo(out, IMAGES, seed=1, settings=TINY, progress=stop)
    assert not (out / "index.html").exists()
    again = scenes_demo(out, IMAGES, seed=1, settings=TINY)
    assert again.base.map == done.base.map
    assert again.mch.f1_buckets == done.mch.f1_buckets


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "mine.jpg").write_bytes(b"mine")
    with pytest.raises(ValueError, match="holds other files"):
        scenes_demo(tmp_path, IMAGES, settings=TINY)
    assert [f.name for f in tmp_path.iterdir()] == ["pictures"]
    assert (tmp_path / "pictures" / "mine.jpg").read_bytes() == b"mine"
    with pytest.raises(ValueError, match="at least 100 images"):
        scenes_demo(tmp_path / "new", 20)
    assert not (tmp_path / "new").exists()


def test_photos(done: ScenesDemo, tmp_path: Path) -> None:
    photos, out = tmp_path / "my <photos>", tmp_path / "out"
    source = done.out / "pictures" / "images" / "database"
    (photos / "deep").mkdir(parents=True)
    for i, file in enumerate(sorted(source.iterdir())[:40]):
        shutil.copy(file, photos / "deep" / f"a&b <{i}>.jpg")
    (photos / "broken.jpg").write_bytes(b"no picture")
    (photos / "notes.txt").write_text("none")
    first = photos_demo(photos, out, model=done.out / "model", seed=3)
    assert (first.added, first.unchanged, len(first.failed)) == (40, 0, 1)
    assert first.rate is not None
    read = check_alone(first.page.read_text("utf-8"))
    assert len(read.all("img")) == QUERIES * (1 + HITS)
    assert "a&b <" in read.words
    assert first.rule in read.words
    assert read.words.count("could not be read") == 1
    for query in first.shown:
        assert query.path not in [found.hit.path for found in query.hits]

    (photos / "deep" / "a&b <7>.jpg").unlink()
    second = photos_demo(photos, out, seed=3)  # the index knows its model
    assert (second.added, second.replaced, second.unchanged) == (0, 0, 39)
    assert second.rate is None
    assert second.stats["images"] == 39
    check_alone(second.page.read_text("utf-8"))


def test_two_photos_are_enough_and_one_is_not(done: ScenesDemo, tmp_path: Path) -> None:
    model, photos = done.out / "model", tmp_path / "photos"
    with pytest.raises(ValueError, match="is not a folder"):
        photos_demo(photos, tmp_path / "out", model=model)
    assert not (tmp_path / "out").exists()
    photos.mkdir()
    with pytest.raises(ValueError, match="no picture that can be used: the demo needs at least 2"):
        photos_demo(photos, tmp_path / "out", model=model)
    picture(1, 90, 60).save(photos / "1.png")
    (photos / "2.png").write_bytes(b"x")
    with pytest.raises(ValueError, match="1 picture that can be used, 1 cannot be read"):
        photos_demo(photos, tmp_path / "out", model=model)
    picture(2, 60, 90).save(photos / "2.png")
    found = photos_demo(photos, tmp_path / "out", model=model)
    assert sorted(q.name for q in found.shown) == ["1", "2"]
    assert [len(q.hits) for q in found.shown] == [1, 1]


def test_command(
    done: ScenesDemo, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_file, "SETTINGS", TINY)
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    arguments = ["demo", "--images", str(IMAGES), "--seed", "1", "--threads", "1", "--quiet"]
    assert run([*arguments, "--out", str(done.out), "--open"]) == 0
    told = capsys.readouterr()
    assert told.err == ""
    assert opened == [done.page.resolve().as_uri()]
    for text in ("Buckets to reach the same F1", "codes an image (ANHC)", "mch add ~/Pictures"):
        assert text in told.out
    for told_reach in done.reaches:
        assert told_reach.words() in told.out
    assert "index.html" in told.out


def test_command_with_photos(
    done: ScenesDemo, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_pictures(tmp_path / "photos", ["1.jpg", "b/2.jpg", "b/3.jpg"])
    (tmp_path / "photos" / "4.jpg").write_bytes(b"x")
    arguments = ["demo", "--photos", str(tmp_path / "photos"), "--out", str(tmp_path / "out")]
    model = ["--model", str(done.out / "model")]
    assert run([*arguments, *model]) == 0
    told = capsys.readouterr()
    assert "mch: 1 could not be read" in told.err
    assert "photos.html" in told.out
    assert (tmp_path / "out" / "photos.html").exists()
    assert run([*arguments, "--images", "500"]) == 2
    assert "leave it out with --photos" in capsys.readouterr().err
    assert run(["demo", *model]) == 2
    assert "--model is for --photos" in capsys.readouterr().err
    assert run(["demo", "--photos", str(tmp_path / "none")]) == 2
    assert "is not a folder" in capsys.readouterr().err


@pytest.mark.slow
def test_the_whole_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    began = time.process_time()  # of one thread: several would spin while they wait for a core
    assert run(["demo", "--out", str(tmp_path / "demo"), "--quiet"]) == 0
    assert time.process_time() - began < 2 * 300  # five minutes on two cores
    read = check_alone((tmp_path / "demo" / "index.html").read_text("utf-8"))
    assert json.loads((tmp_path / "demo" / "demo.json").read_text())["images"] == 4000
    told = " ".join(capsys.readouterr().out.split())
    assert "On 400 queries against 3,600 images MCH is better in R@H=0" in told
    assert "On 400 queries against 3,600 images" in read.words
