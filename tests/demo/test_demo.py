"""The demo: what it measures, what it leaves behind, and what it reports."""

import itertools
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers.html import check_alone
from helpers.pictures import picture, write_pictures
from mchindex import MCHIndex
from mchindex.cli import run
from mchindex.cli.demo import as_called
from mchindex.datasets import open_dataset
from mchindex.datasets.scenes import CLASSES
from mchindex.demo.buckets import BucketsNeeded, bucket_counts, buckets_needed, without_flat_end
from mchindex.demo.examples import HITS, QUERIES, RANKED, choose
from mchindex.demo.page import scenes_page
from mchindex.demo.photos import photos_demo
from mchindex.demo.scenes import SETTINGS, SHOWN, ScenesDemo, scenes_demo
from mchindex.demo.words import has_middle
from mchindex.index.results import Hit, Hits
from mchindex.models import MCHModel
from mchindex.progress import Step

TINY = replace(
    SETTINGS,
    backbone="small",
    size=None,
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


def test_buckets_needed_for_the_same_f1() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        counts = bucket_counts(16)
        base, mch = ([[c, float(y)] for c, y in zip(counts, rng.random(len(counts)), strict=True)]
                     for _ in range(2))  # fmt: skip
        for buckets in (1, 10, 100):
            f1 = next(y for x, y in mch if x == buckets)
            best = max(y for _, y in base)
            expected = BucketsNeeded(buckets, f1, first_with(base, f1), best)
            assert buckets_needed(base, mch, buckets) == expected


def test_words_on_buckets_needed() -> None:
    assert BucketsNeeded(1, 0.5, None, 0.4).words() == "never: its highest F1 is 0.4000"
    assert BucketsNeeded(10, 0.5, 10, 0.6).words() == "10, the same number"
    assert BucketsNeeded(1, 0.5, 9, 0.6).words() == "9 (9 times as many)"
    assert BucketsNeeded(10, 0.5, 4, 0.6).words() == "4 (0.4 times as many)"
    assert BucketsNeeded(1, 0.5, 1600, 0.6).words() == "1,600 (1,600 times as many)"


def test_numbers_of_buckets() -> None:
    counts = bucket_counts(32)
    assert counts == sorted(set(counts))
    assert {10**power for power in range(10)} <= set(counts)
    assert counts[-1] <= 2**32 < 1.2 * counts[-1]


def test_a_curve_ends_where_it_no_longer_changes() -> None:
    assert without_flat_end([[1, 0.1], [2, 0.3], [3, 0.3], [4, 0.3]]) == [[1, 0.1], [2, 0.3]]
    assert without_flat_end([[1, 0.3], [2, 0.1]]) == [[1, 0.3], [2, 0.1]]


def test_figures_are_of_what_the_indexes_hold(done: ScenesDemo) -> None:
    dataset = open_dataset(str(done.out / "pictures"))
    assert len(dataset) == IMAGES
    sizes = {}
    for name, measured in (("base", done.base), ("mch", done.mch)):
        with MCHIndex.open(done.out / f"{name}.mch", create=False) as index:
            stats = index.stats()
            sizes[name] = stats["codes"]
            assert stats["images"] == measured.images == len(dataset.splits["database"])
            assert stats["codes"] == measured.codes
            assert stats["anhc"] == pytest.approx(measured.anhc)
            for image in index.images():
                row = dataset.images.names.index(  # type: ignore[attr-defined]
                    os.path.relpath(str(image.id), done.out / "pictures" / "images")
                )
                names = [dataset.classes[c] for c in np.flatnonzero(dataset.labels[row])]
                assert image.metadata == {"classes": names}
    assert sizes["base"] == done.base.images
    assert sizes["mch"] > sizes["base"]
    for buckets, needed in zip((1, 10, 100), done.buckets_needed, strict=True):
        assert needed == buckets_needed(done.base.f1_buckets, done.mch.f1_buckets, buckets)
    assert done.buckets_needed[0].f1 == pytest.approx(done.mch.f1_own)


def answers_of(done: ScenesDemo) -> tuple[list[str], dict[str, list[Hits]]]:
    """The names of all queries, and what each of them finds, by how hits are ranked."""
    dataset = open_dataset(str(done.out / "pictures"))
    names = [dataset.images.name(i) for i in dataset.splits["query"].tolist()]
    files = [done.out / "pictures" / "images" / name for name in names]
    codes = MCHModel.load(done.out / "model").encode_query(files)
    with (
        MCHIndex.open(done.out / "base.mch") as base,
        MCHIndex.open(done.out / "mch.mch") as index,
    ):
        found = {
            "base": [base.search_codes(code, HITS) for code in codes],
            "code": [index.search_codes(code, HITS) for code in codes],
            "best": [index.search(file, HITS, rank="best") for file in files],
            "fine": [index.search(file, HITS, rank="fine") for file in files],
        }
        return [Path(name).stem for name in names], found


def test_examples_are_chosen_as_the_page_says(done: ScenesDemo) -> None:
    names, found = answers_of(done)
    regional = [any(hit.region != "whole" for hit in hits) for hits in found["best"]]
    order = sorted(range(len(names)), key=lambda q: not regional[q])
    chosen: list[int] = []
    for q in order:
        if all(found[rank][q].ids != found[rank][p].ids for rank in SHOWN for p in chosen):
            chosen.append(q)
    chosen = chosen[:QUERIES]
    assert len(chosen) > 1
    assert [query.name for query in done.examples] == [names[q] for q in chosen]
    assert f"which holds for {sum(regional)} of {len(names)}" in done.how_chosen
    for q, query in zip(chosen, done.examples, strict=True):
        for rank, answer in zip(SHOWN, query.answers, strict=True):
            assert [example.hit.id for example in answer.hits] == found[rank][q].ids


def test_no_list_of_hits_is_shown_twice() -> None:
    def hits(*ids: int) -> Hits:
        return Hits(tuple(Hit(i, 0, "whole", None, None) for i in ids), 1, 0, 1, True)

    lists = [hits(1), hits(1), hits(2), hits(3), hits(2)]
    others = [hits(7), hits(8), hits(9), hits(7), hits(7)]
    assert choose(lists) == ([0, 2, 3], 0)
    assert choose(lists, others) == ([0, 2], 0)


def test_shares_of_the_first_hits(done: ScenesDemo) -> None:
    dataset = open_dataset(str(done.out / "pictures"))
    labels = dataset.labels[dataset.splits["query"]]
    _, found = answers_of(done)
    for rank, every in found.items():
        right = [
            bool(set(np.array(dataset.classes)[row]) & set(hit.metadata["classes"]))
            for row, hits in zip(labels, every, strict=True)
            for hit in hits
        ]
        assert done.first.shares[rank] == pytest.approx(np.mean(right))
        assert done.first.lists[rank] == len({tuple(hits.ids) for hits in every})


def test_parts_find_their_pictures(done: ScenesDemo) -> None:
    """Even a network that has hardly been trained tells one picture's pixels from another's."""
    parts = done.parts
    assert parts.parts == 100
    assert list(parts.first) == list(parts.among) == ["base", "code", "best", "fine"]
    assert parts.first["fine"] > 0.8 > 0.5 > parts.first["code"]
    for rank, share in parts.first.items():
        assert share <= parts.among[rank]
    for part in parts.examples:
        assert part.found == tuple(hit.hit.id == part.path for hit in part.answer.hits)


def test_words_are_searched_among_pictures_that_were_not_trained_on(done: ScenesDemo) -> None:
    dataset = open_dataset(str(done.out / "pictures"))
    images = done.out / "pictures" / "images"
    trained = {str(images / dataset.images.name(i)) for i in dataset.splits["train"].tolist()}
    assert trained
    assert sorted(done.words.shares) == list(done.words.shares) == sorted(CLASSES)
    for example in done.words.examples:
        assert len(example.answer.hits) == HITS
        right = [bool(hit.shared_classes) for hit in example.answer.hits]
        assert done.words.shares[example.word] == pytest.approx(np.mean(right))
        for shown in example.answer.hits:
            assert str(shown.hit.id) not in trained
            assert bool(shown.shared_classes) == (example.word in shown.hit.metadata["classes"])
    assert done.words.share == pytest.approx(np.mean(list(done.words.shares.values())))


def test_the_region_of_a_word_is_compared_with_the_place_of_the_thing() -> None:
    thing = (0.0, 0.0, 0.4, 0.4)
    assert has_middle((0.0, 0.0, 0.5, 0.5), thing)
    assert not has_middle((0.5, 0.0, 1.0, 0.5), thing)


def test_the_base_index_has_the_codes_of_whole_images(done: ScenesDemo) -> None:
    with (
        MCHIndex.open(done.out / "base.mch") as base,
        MCHIndex.open(done.out / "mch.mch") as index,
    ):
        files = list(map(str, base))
        codes = index.model.encode_query(files)
        for file, code in zip(files, codes, strict=True):
            stored = base[file]
            assert stored.regions == ("whole",)
            assert (stored.codes == code).all()
            assert (stored.path, stored.size) == (index[file].path, index[file].size)


def test_figures_as_json(done: ScenesDemo) -> None:
    read = json.loads((done.out / "figures.json").read_text("utf-8"))
    assert read == json.loads(json.dumps(done.to_dict()))
    assert read["first"]["shares"] == done.first.shares
    assert [one["query"] for one in read["shown"]] == [query.name for query in done.examples]
    check_lists_differ(read)


def check_lists_differ(figures: dict[str, Any]) -> None:
    """No two queries of different classes are shown with the same list of hits."""
    for one, other in itertools.combinations(figures["shown"], 2):
        if one["classes"] != other["classes"]:
            for rank in SHOWN:
                assert one["hits"][rank] != other["hits"][rank]


def test_the_recorded_demo_convinces() -> None:
    """bench/hits.py records it, and `make check` tells whether the record is current."""
    record = Path(__file__).parents[2] / "bench" / "results" / "demo.json"
    check_convinces(json.loads(record.read_text("utf-8")))


def check_convinces(figures: dict[str, Any]) -> None:
    assert figures["first"]["shares"]["best"] >= 0.9
    assert figures["first"]["chance"] < 0.5
    assert figures["first"]["lists"]["best"] == figures["queries"]
    assert len(figures["shown"]) == QUERIES
    check_lists_differ(figures)
    assert figures["parts"]["first"]["best"] >= 0.9
    assert figures["words"]["share"] >= 0.9
    assert figures["words"]["inside"] > figures["words"]["chance"]


def test_the_trade_names_losses_and_gains(done: ScenesDemo) -> None:
    for best, text in ((0.7, "10.0 points less often"), (0.9, "10.0 points more often")):
        first = replace(done.first, shares=done.first.shares | {"code": 0.8, "best": best})
        assert text in replace(done, first=first).trade()


def test_hits_on_the_page(done: ScenesDemo) -> None:
    for query in done.examples:
        assert query.classes
        for rank, answer in zip(SHOWN, query.answers, strict=True):
            assert len(answer.hits) == HITS
            for example in answer.hits:
                assert example.whole_distance is not None
                assert example.whole_distance >= example.hit.distance
                if rank != "best":
                    assert example.by_region or example.whole_distance == example.hit.distance
                classes = example.hit.metadata["classes"]
                assert example.shared_classes == tuple(c for c in query.classes if c in classes)
                assert example.box is not None
                if not example.by_region:
                    assert example.box == (0, 0, 1, 1)


def test_page_of_the_scenes(done: ScenesDemo) -> None:
    read = check_alone(done.page.read_text("utf-8"))
    answers = [answer for query in done.examples for answer in query.answers]
    parts = [part.answer for part in done.parts.examples]
    words = [word.answer for word in done.words.examples]
    queries = len(done.examples)
    assert len(answers) == queries * len(SHOWN)
    assert (len(parts), len(words)) == (3, 3)
    every = [*answers, *parts, *words]
    assert len(read.all("img")) == queries + len(parts) + HITS * len(every)
    boxes = [a for a in read.all("span") if a.get("class") == "box"]
    framed = sum(hit.by_region for answer in every for hit in answer.hits)
    assert len(boxes) == framed + len(parts)
    wrong = [h for a in [*answers, *words] for h in a.hits if not h.shared_classes]
    assert wrong
    assert read.words.count("✗ ") == len(wrong)
    assert f"{100 * done.words.share:.1f} % of the first {HITS} hits" in read.words
    assert f"pictures at random {100 * done.first.chance:.1f} %" in read.words
    assert done.trade() in read.words
    for rank, share in done.first.shares.items():
        assert f"{RANKED[rank]} {100 * share:.1f} % {done.first.lists[rank]}" in read.words
    for rank, share in done.parts.first.items():
        assert (
            f"{RANKED[rank]} {100 * share:.0f} % {100 * done.parts.among[rank]:.0f} %" in read.words
        )
    for name in ("r0", "p0", "map", "f1_own", "anhc"):
        assert f"{getattr(done.base, name):.4f}" in read.words
        assert f"{getattr(done.mch, name):.4f}" in read.words
    for figure in done.figures():
        assert figure.meaning in read.words
    for needed in done.buckets_needed:
        assert needed.words() in read.words
    assert done.how_chosen in read.words
    assert done.verdict() in read.words
    assert done.page.stat().st_size < 3e6


def test_page_without_matplotlib(done: ScenesDemo, monkeypatch: pytest.MonkeyPatch) -> None:
    hint = "Install mchindex[plot] to see the curve."
    monkeypatch.setattr("mchindex.demo.page.f1_plot", lambda *given: None)
    without = check_alone(scenes_page(done))
    assert not without.all("svg")
    assert hint in without.words
    assert done.buckets_needed[0].words() in without.words
    pytest.importorskip("matplotlib")
    monkeypatch.undo()
    with_plot = check_alone(scenes_page(done))
    assert len(with_plot.all("svg")) == 1
    assert hint not in with_plot.words


def test_verdict_names_losses_too(done: ScenesDemo) -> None:
    base = replace(done.base, r0=0.1, p0=0.5, map=0.5, f1_own=0.2)
    mch = replace(done.mch, r0=0.2, p0=0.4, map=0.5, f1_own=0.3)
    text = replace(done, base=base, mch=mch).verdict()
    assert (
        "better in R@H=0 and F1 within the query's bucket (H=0), worse in P@H=0, the same" in text
    )


def test_a_second_run_only_writes_the_page(done: ScenesDemo) -> None:
    page = done.page.read_text("utf-8")
    done.page.unlink()
    stages: set[str] = set()

    def progress(step: Step) -> None:
        stages.add(step.stage)

    again = scenes_demo(done.out, IMAGES, seed=1, settings=TINY, progress=progress)
    assert again.reused
    assert again.page.read_text("utf-8") == page
    assert stages == {"index", "evaluation"}


def test_an_interrupted_demo_resumes(done: ScenesDemo, tmp_path: Path) -> None:
    out = tmp_path / "demo"

    def stop(step: Step) -> None:
        if step.stage == "index":
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
    assert first.images_per_second is not None
    read = check_alone(first.page.read_text("utf-8"))
    assert len(read.all("img")) == QUERIES * (1 + 2 * HITS)
    assert "a&b <" in read.words
    assert first.how_chosen in read.words
    assert read.words.count("could not be read") == 1
    for query in first.examples:
        for answer in query.answers:
            assert query.path not in [example.hit.path for example in answer.hits]

    (photos / "deep" / "a&b <7>.jpg").unlink()
    second = photos_demo(photos, out, seed=3)  # the index knows its model
    assert (second.added, second.replaced, second.unchanged) == (0, 0, 39)
    assert second.images_per_second is None
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
    with pytest.raises(ValueError, match=r"1 picture that can be used \(1 could not be read\)"):
        photos_demo(photos, tmp_path / "out", model=model)
    picture(2, 60, 90).save(photos / "2.png")
    found = photos_demo(photos, tmp_path / "out", model=model)
    assert sorted(q.name for q in found.examples) == ["1", "2"]
    assert [len(answer.hits) for q in found.examples for answer in q.answers] == [1, 1, 1, 1]


def test_command(
    done: ScenesDemo, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mchindex.demo.scenes.SETTINGS", TINY)
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    arguments = ["demo", "--images", str(IMAGES), "--seed", "1", "--threads", "1", "--quiet"]
    assert run([*arguments, "--out", str(done.out), "--open"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert opened == [done.page.resolve().as_uri()]
    for text in ("Buckets that the base needs", "for a word", "mch add ~/Pictures"):
        assert text in printed.out
    assert f"at random: {done.first.chance:.1%}" in printed.out
    for share in done.first.shares.values():
        assert f"{share:.1%}" in printed.out
    for needed in done.buckets_needed:
        assert needed.words() in printed.out
    assert "index.html" in printed.out


def test_commands_to_try_can_be_called_where_mch_is_not_on_the_path(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr("sys.argv", ["my env/bin/mch", "demo"])
    assert as_called("mch add ~/Pictures") == "'my env/bin/mch' add ~/Pictures"
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/mch")
    assert as_called("mch add ~/Pictures") == "mch add ~/Pictures"


def test_command_with_photos(
    done: ScenesDemo, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_pictures(tmp_path / "photos", ["1.jpg", "b/2.jpg", "b/3.jpg"])
    (tmp_path / "photos" / "4.jpg").write_bytes(b"x")
    arguments = ["demo", "--photos", str(tmp_path / "photos"), "--out", str(tmp_path / "out")]
    model = ["--model", str(done.out / "model")]
    assert run([*arguments, *model]) == 0
    printed = capsys.readouterr()
    assert "mch: 1 picture could not be read" in printed.err
    assert "photos.html" in "".join(printed.out.split())  # a long path goes over two lines
    assert (tmp_path / "out" / "photos.html").exists()
    assert run([*arguments, "--images", "500"]) == 2
    assert "leave it out with --photos" in capsys.readouterr().err
    assert run(["demo", *model]) == 2
    assert "--model needs --photos" in capsys.readouterr().err
    assert run(["demo", "--photos", str(tmp_path / "none")]) == 2
    assert "does not exist" in capsys.readouterr().err


@pytest.mark.slow
def test_the_whole_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["demo", "--out", str(tmp_path / "demo"), "--quiet"]) == 0
    read = check_alone((tmp_path / "demo" / "index.html").read_text("utf-8"))
    assert json.loads((tmp_path / "demo" / "demo.json").read_text())["images"] == 3000
    printed = " ".join(capsys.readouterr().out.split())
    assert "On 300 queries against 2,700 images, MCH is better in R@H=0" in printed
    assert "On 300 queries against 2,700 images" in read.words
    check_convinces(json.loads((tmp_path / "demo" / "figures.json").read_text("utf-8")))
