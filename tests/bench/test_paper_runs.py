"""bench/paper: stages and cells on disk, guards, the command line, the studies."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mchindex.datasets import open_dataset
from mchindex.inference.region_codes import RegionCodes
from mchindex.regions import corners_and_centre
from mchindex.training.measure import Coded
from paper import __main__ as command
from paper import beyond, runs, studies, timing, visual
from paper.experiments import Experiments
from paper.options import Options, parse, slug
from paper.records import CellResult, Figures, MCHRow, StepCell, StepFigures, Timing, to_json
from paper.stages import Stages

Numbers = dict[str, int]


def options(work: Path, *more: str) -> Options:
    return parse("", ["--data", "scenes:40", "--out", "x", "--work", str(work), *more])


def figures(level: float) -> Figures:
    """All at a level; the curve's second point depends on it."""
    plain: dict[str, Any] = dict.fromkeys(runs.MEANS, level) | {"p0_nonempty": None}
    return Figures(f1_buckets=[(1, level), (100 * level, 1.0)], **plain)


def result(method: str, bits: int, seed: int, level: float = 0.1) -> CellResult:
    return CellResult(method, bits, seed, figures(level), {"all": 1.0}, {})


# Stages


def test_stages_resume(tmp_path: Path) -> None:
    calls = []

    def compute() -> Numbers:
        calls.append(1)
        return {"n": len(calls)}

    def stage(key: Any, name: str = "a", fresh: bool = True, only_read: bool = False) -> Any:
        return Stages(tmp_path, only_read)(name, Numbers, key, compute, fresh)

    assert stage({"x": (1, 2)}) == {"n": 1}
    assert stage({"x": (1, 2)}) == {"n": 1}
    assert stage({"x": (1, 3)}) == {"n": 2}  # other settings
    assert stage({"x": (1, 3)}, fresh=False) == {"n": 3}
    assert stage({"x": (1, 3)}, only_read=True) == {"n": 3}
    assert stage({}, "b", only_read=True) is None
    (tmp_path / "a.json").write_text('{"key": ')  # cut short
    assert stage({"x": (1, 3)}) == {"n": 4}


@pytest.mark.parametrize(
    "text",
    ["[]", '{"key": {}}', '{"key": {}, "seconds": "x"}', '{"key": {}, "seconds": 3, "result": []}'],
)
def test_damaged_stages_are_computed_again(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    (tmp_path / "a.seconds").write_text(text.replace(', "result": []', "x"))
    assert Stages(tmp_path, only_read=True)("a", Numbers, {}, dict) is None
    redone = Stages(tmp_path)
    assert redone("a", Numbers, {}, dict) == {}
    assert redone.seconds["a"] < 3


def test_seconds_add_up_over_interrupted_runs(tmp_path: Path) -> None:
    def interrupted() -> Numbers:
        time.sleep(0.2)
        raise KeyboardInterrupt

    def seconds() -> float:
        found = Stages(tmp_path)
        found("a", Numbers, {}, dict)
        return found.seconds["a"]

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            Stages(tmp_path)("a", Numbers, {}, interrupted)
    total = seconds()
    assert 0.4 <= total < 5
    assert seconds() == total
    (tmp_path / "a.json").unlink()
    assert seconds() < 0.4  # computed from the start


def test_studies_of_cells_that_changed_are_not_read(tmp_path: Path) -> None:
    cell = tmp_path / "dch-32-0.json"
    cell.write_text("{}")
    first = Experiments(options(tmp_path))
    first.stage("time-dch-32", Timing, first.of([("dch", 32, 0)]), Timing)
    again = Experiments(options(tmp_path, "--report"))
    assert again._time([("dch", 32, 0)]) is not None
    cell.write_text('{"seconds": 3}')  # computed again
    assert again._time([("dch", 32, 0)]) is None
    cell.unlink()
    assert again._time([("dch", 32, 0)]) is None


# Cells


def test_a_worker_leaves_figures_and_codes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = options(tmp_path, "--methods", "lsh", "--bits", "16", "24", "--seeds", "1")
    monkeypatch.setattr(runs, "run_cell", lambda data, cell: (result(*cell), {"policy": None}))
    monkeypatch.setattr(runs, "_worker", {"data": SimpleNamespace(options=given)})
    assert given.missing == [("lsh", 16, 0), ("lsh", 24, 0)]
    for cell in given.cells:
        assert runs._compute(cell).startswith(f"lsh-{cell[1]}-0: 1 s, mAP 0.1000")
    there = sorted(path.name for path in tmp_path.iterdir())
    assert there == ["lsh-16-0.json", "lsh-16-0.pt", "lsh-24-0.json", "lsh-24-0.pt"]
    assert given.missing == []
    assert runs.read_result(given.path(("lsh", 24, 0))) == result("lsh", 24, 0)
    (tmp_path / "lsh-16-0.pt").unlink()
    assert given.missing == [("lsh", 16, 0)]


@pytest.mark.parametrize("broken", ["json", "pt", "shape"])
def test_damaged_cells_are_removed(tmp_path: Path, broken: str) -> None:
    given, cell = options(tmp_path), ("lsh", 16, 0)
    data: Any = SimpleNamespace(options=given)
    whole = json.dumps(to_json(result(*cell)))
    given.path(cell).write_text({"json": '{"meth', "pt": whole, "shape": "[]"}[broken])
    given.path(cell).with_suffix(".pt").write_bytes(b"PK\x03\x04 cut short")
    with pytest.raises(runs.RunError, match="run again to compute"):
        runs.read_cell(data, cell)
    assert list(tmp_path.iterdir()) == []


def test_rows_are_means_over_the_seeds() -> None:
    seeds = [result("dch", 32, seed, level) for seed, level in enumerate((0.1, 0.2, 0.6))]
    for one, gain in zip(seeds, (0.1, 0.2, 0.3), strict=True):
        one.mch = figures(one.base.map + gain)
        one.random_keep = one.keep_all = one.base
    seeds[0].base.p0_nonempty = seeds[1].base.p0_nonempty = 0.5  # of the third it is not defined
    lsh, dch = runs.mean_rows([*seeds, result("lsh", 16, 0)])
    assert (lsh.method, lsh.bits, lsh.seeds, lsh.base.map_std) == ("lsh", 16, 1, 0.0)
    assert isinstance(dch, MCHRow)
    assert dch.base.map == pytest.approx(0.3)
    assert dch.base.map_std == pytest.approx(np.std([0.1, 0.2, 0.6], ddof=1))
    assert dch.base.p0_nonempty is None
    assert dch.mch.f1_own_gain_se == pytest.approx(0.1 / 3**0.5)
    assert [b for b, _ in dch.mch.f1_buckets] == [1]  # the one budget that all seeds have
    assert dch.mch.f1_buckets[0][1] == pytest.approx(0.5)


# Guards and the command line


def test_a_folder_is_for_one_data_set(tmp_path: Path) -> None:
    for _ in range(2):
        runs.check_data(tmp_path, open_dataset("scenes:40", queries=5, train=20))
    for other in ({"queries": 6, "train": 20}, {"queries": 5, "train": 20, "seed": 1}):
        with pytest.raises(runs.RunError, match="other data"):
            runs.check_data(tmp_path, open_dataset("scenes:40", **other))


def test_one_run_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = options(tmp_path / "new")
    monkeypatch.setattr(command, "parse", lambda _: given)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr(Experiments, "run", lambda _: command.main())  # a run inside a run
    with pytest.raises(SystemExit, match="only one writer at a time"):
        command.main()


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("a/b/Coco", "coco"),
        ("coco:x/coco?queries=5", "coco-queries-5"),
        ("nuswide:x/y", "nuswide-y"),
    ],
)
def test_names_of_data(spec: str, name: str) -> None:
    assert slug(spec) == name
    assert parse("", ["--data", spec]).out == Path(f"paper-{name}")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--data x --seeds 0", "--seeds must be at least 1"),
        ("--data x --bits 32 12", "multiple of 8 from 8 to 256, not 12"),
        ("--out y", "either --data or --from"),
        ("--data x --from y.json", "either --data or --from"),
    ],
)
def test_wrong_options(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse("", words.split())
    assert message in capsys.readouterr().err


def test_folders_of_cells_keep_their_names(tmp_path: Path) -> None:
    cache = ["--data", "coco", "--cache", str(tmp_path)]
    assert parse("", cache).work == tmp_path / "cells-coco-crops-160"
    more = parse("", [*cache, "--sigma", "0.4", "--crops", "6", "--size", "224"])
    assert more.work == tmp_path / "cells-coco-crops-224-sigma0.4-crops6"


def test_wrong_classes_are_found_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(runs.RunError, match=r"no class .*tsar"):
        _ = Experiments(options(tmp_path, "--classes", "star", "tsar")).data


@pytest.mark.parametrize(
    ("error", "shown"), [(ValueError("a bug"), ValueError), (runs.RunError("a typo"), SystemExit)]
)
def test_only_the_users_mistakes_are_shown_without_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, shown: type[BaseException]
) -> None:
    def fail(_: Experiments) -> None:
        raise error

    given = options(tmp_path)
    monkeypatch.setattr(command, "parse", lambda _: given)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr(Experiments, "run", fail)
    with pytest.raises(shown, match=str(error)):
        command.main()


# Studies


def small(seed: int = 0) -> Coded:
    """40 queries and 200 images of 3 classes, 16 bits; a region has the code of some class."""
    rng = np.random.default_rng(seed)
    labels = rng.random((200, 3)) < 0.5
    labels[~labels.any(1), 0] = True
    wanted = np.eye(3, dtype=bool)[rng.integers(0, 3, 40)]
    centres = rng.integers(0, 256, (3, 2), dtype=np.uint8)
    codes = centres[rng.integers(0, 3, (200, 6))]
    keep = np.where(rng.random((200, 6)) < 0.5, 0.9, 0.1).astype(np.float32)
    keep[:, 0] = 1
    found = RegionCodes(codes, keep)
    return Coded(centres[wanted.argmax(1)], found, wanted, labels, ("a", "b", "c"), {})


def study(*classes: str, dataset: Any = None) -> tuple[Any, Any]:
    """What a study reads of the data and of the model, besides codes."""
    method, layout = SimpleNamespace(name="dch"), corners_and_centre(0.5)
    model = SimpleNamespace(method=method, bits=16, xi=0.5, layout=layout)
    return SimpleNamespace(options=SimpleNamespace(classes=classes), dataset=dataset), model


def test_distances_are_those_of_the_nearest_kept_region() -> None:
    coded = small()
    kept = coded.database.kept(0.5)
    apart, region = studies.distances(coded.queries, coded.database, kept, block=7)
    for q in range(0, 40, 9):
        for i in range(0, 200, 37):
            each = [
                (int(np.bitwise_count(coded.queries[q] ^ coded.database.codes[i, r]).sum()), r)
                for r in np.flatnonzero(kept[i]).tolist()
            ]
            assert (apart[q, i], region[q, i]) == min(each)


def test_images_that_queries_of_different_classes_find() -> None:
    coded = small()
    given = study("a", "b")
    found = studies.pairs(*given, coded, block=37)
    assert found == studies.pairs(*given, coded)
    kept = coded.database.kept(0.5)
    apart, _ = studies.distances(coded.queries, coded.database, kept)
    alike = studies.similar(coded.query_labels, coded.labels)
    hits = (apart == 0) & alike
    # Each query has one class, so two classes of finders are two queries without a common one.
    classes = [set(coded.query_labels.argmax(1)[hits[:, i]].tolist()) for i in range(200)]
    assert found.by_two["mch"] == sum(len(c) > 1 for c in classes)
    assert found.by_two["base"] == 0  # one code per image, and every class has its own
    by_both = [hits[coded.query_labels[:, c]].any(0) for c in (0, 1)]
    of_both = coded.labels[:, 0] & coded.labels[:, 1]
    assert found.both is not None
    assert found.both.found["mch"] == int((by_both[0] & by_both[1] & of_both).sum()) > 0
    assert found.both.images == int(of_both.sum())
    assert found.similar is not None
    assert found.other is not None
    assert found.similar.pairs == int(alike.sum()) == 40 * 200 - found.other.pairs
    assert found.similar.distance_mch == pytest.approx(apart[alike].mean())
    assert found.similar.at0_mch == pytest.approx((apart[alike] == 0).mean())
    assert found.similar.distance_mch <= found.similar.distance


def test_equal_codes_are_one_code() -> None:
    coded = small()
    coded.database.codes[:] = coded.database.codes[:, :1]
    assert coded.database.kept(0.5)[:, 1:].any()
    assert studies.pairs(*study(), coded).several_codes == 0


def test_groups_without_a_similar_image_are_left_out() -> None:
    wanted = np.eye(2, dtype=bool)
    groups = {"all": np.ones(2, bool), "a": wanted[:, 0], "b": wanted[:, 1]}
    labels = np.array([[True, False]])
    assert list(studies.answerable(groups, wanted, labels)) == ["all", "a"]
    with pytest.raises(runs.RunError, match="--part"):
        studies.answerable(groups, wanted, ~labels & False)


def test_nothing_is_timed_without_a_usable_query() -> None:
    coded = small()
    coded.labels[:] = False
    found = timing.merged([timing.timing(*study(), coded)])
    assert found.curves == []
    assert "no query has a similar image" in found.missing[0]


def test_classes_are_chosen_by_a_rule() -> None:
    labels = np.zeros((100, 3), bool)
    labels[:50, 0], labels[:6, 1], labels[:4, 2] = True, True, True
    names, rule = studies.choose_classes(("x", "y", "z"), labels, [])
    assert names == ["y", "z"]
    assert "5%" in rule
    assert studies.choose_classes(("airplane", "bird"), labels[:, :2], [])[1] != rule
    with pytest.raises(runs.RunError, match="no class w"):
        studies.choose_classes(("x", "y", "z"), labels, ["w", "x"])


def test_the_visual_study_does_not_depend_on_its_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    near = visual.Near(small(), 0.5)
    able = near.able()
    monkeypatch.setattr(visual, "BLOCK", 7)
    assert near.able().tolist() == able.tolist()
    every, images = near(slice(40)), np.array([3, 150])
    for part, whole in zip(near(able, images), every, strict=True):
        assert (part == whole[np.ix_(able, images)]).all()


def test_the_visual_study_shows_what_it_says() -> None:
    dataset = open_dataset("scenes:240", queries=40, train=100)
    found = visual.visual(*study(dataset=dataset), small())
    assert len(found.rows) == visual.QUERIES
    assert any(i.red for query in found.rows for i in query.images)
    for query in found.rows:
        assert len(query.images) == visual.SIMILAR
        assert all(set(query.classes) & set(i.classes) for i in query.images)
        moved = [i for i in query.images if i.mch == 0 < i.base]
        assert moved
        assert all(i.box is not None for i in moved)


@pytest.mark.parametrize(
    ("f1", "mean_ap", "off", "kept"),
    [
        (1.1, 0.01, 0.02, True),
        (1.1, -0.01, 0.02, False),
        (0.9, 0.01, 0.02, False),
        (1.1, 0.01, 0.2, False),
    ],
)
def test_a_step_is_kept_that_gains_and_loses_nothing(
    f1: float, mean_ap: float, off: float, kept: bool
) -> None:
    def cell(base: float) -> StepCell:
        mch = StepFigures(f1_own=base, map=0.5, r0=0, p0=0, anhc=1.5)
        step = StepFigures(f1_own=base * f1, map=0.5 + mean_ap, r0=0, p0=0, anhc=1.5 + off)
        return StepCell("dch", 32, 1, mch, step, off)

    got = beyond.judged("a step", "what it does", [cell(0.1), cell(0.3)])
    assert got.kept is kept
    assert got.f1_ratio == pytest.approx(f1)
    assert got.f1_mean_ratio == pytest.approx(f1)
    assert got.map_change == pytest.approx(mean_ap)
    assert got.anhc_change == pytest.approx(off)
    assert got.anhc_off == off
