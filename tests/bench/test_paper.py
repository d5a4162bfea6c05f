"""bench/paper.py: the paper's numbers, the tests of its statements, the report, going on."""

from __future__ import annotations

import base64
import io
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import cells
import paper
import paper_figures
import paper_report
import paper_statements as said
import paper_studies
import paper_time
import paper_visual
from helpers.html import check_alone
from mchindex.datasets import open_dataset
from mchindex.models.region_codes import RegionCodes
from mchindex.regions import corners_and_centre
from mchindex.training.measure import Coded
from paper_plots import Axis, Line, Panel, panels

BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10**4, 10**6)


def figures(level: float, anhc: float = 1.0) -> dict[str, Any]:
    """A way's figures, all at a level; its curve rises to twice that."""
    out: dict[str, Any] = dict.fromkeys(cells.FIGURES, level)
    curve = [[b, level * (1 + i / len(BUCKETS))] for i, b in enumerate(BUCKETS)]
    out |= {"anhc": anhc, "f1_buckets": curve}
    return out | {f"{name}_std": 0.01 for name in ("map", "r0", "p0", "f1_own")}


def row(method: str, bits: int, base: float, mch: float | None = None) -> dict[str, Any]:
    out: dict[str, Any] = {"method": method, "bits": bits, "seeds": 3, "base": figures(base)}
    if mch is not None:
        out |= {"mch": figures(mch, 1.5), "random_keep": figures(base, 1.5)}
        out |= {"keep_all": figures(base * 0.9, 6.0)}
        out["mch"]["f1_own_gain_se"] = 0.001
    return out


def rows(gain: float) -> list[dict[str, Any]]:
    found = [row(m, b, 0.05) for m in ("lsh", "itq") for b in (16, 32)]
    levels = {"ksh": 0.1, "hashnet": 0.2, "adsh": 0.5, "dch": 0.4, "mmhh": 0.3}
    return found + [row(m, b, v, v * gain) for m, v in levels.items() for b in (16, 32)]


def curve(level: float) -> list[list[float]]:
    return [[b, level] for b in BUCKETS]


def sensitivity(steady: bool) -> dict[str, Any]:
    """Either nothing depends on sigma and xi but through the codes, or everything does."""
    sigmas, xis = ("0.1", "0.3", "0.4", "0.5", "0.6", "0.7", "0.9", "1"), ("0.1", "0.5", "0.9", "1")
    step = 0.001 if steady else 0.05

    def lines(values: tuple[str, ...]) -> dict[str, Any]:
        return {v: curve(0.5 - i * step) for i, v in enumerate(values)}

    groups = ("all", "airplane", "bird")
    anhc = {s: {x: 1.0 if s == "1" else 2 - i / 10 for x in xis} for i, s in enumerate(sigmas)}
    if not steady:
        anhc["1"] = dict.fromkeys(xis, 1.3)
    sigma, codes = {g: lines(sigmas) for g in groups}, [2 - i / 10 for i in range(len(xis))]
    if not steady:
        sigma["bird"] = dict(zip(sigmas, reversed(sigma["bird"].values()), strict=True))
        codes.reverse()
    return {
        "classes": {"airplane": 60, "bird": 70},
        "rule": "the paper's two",
        "queries": 500,
        "database": 3000,
        "part": 1000,
        "sigma": sigma,
        "xi": {g: lines(xis) for g in groups},
        "anhc": anhc,
        "anhc_raw": anhc,
        "xi_anhc": dict(zip(xis, codes, strict=True)),
    }


def pairs(good: bool) -> dict[str, Any]:
    def line(at0: float, at0_mch: float, near: float) -> dict[str, Any]:
        return {
            "pairs": 100, "distance": 8.0, "distance_mch": near, "at0": at0, "at0_mch": at0_mch
        }  # fmt: skip

    simple, rich = line(0.4, 0.42, 7.0), line(0.2, 0.3 if good else 0.2, 7.0)
    found = {"base": 3, "mch": 9 if good else 3, "mch_buckets": 6 if good else 0}
    both = {"classes": ["airplane", "bird"], "images": 4, "several": 2 * good, "found": found}
    return {
        "by_classes": {"1": simple, "2": None, "3": rich, "4": rich},
        "similar": line(0.3, 0.35, 6.0 if good else 7.9),
        "other": line(0.0, 0.01, 7.5),
        "several_codes": 0.4,
        "by_two": found,
        "images": 1000,
        "both": both,
    }


def timed(fast: bool) -> dict[str, Any]:
    def points(start: float, level: float) -> list[dict[str, float]]:
        return [
            {"k": k, "f1": level * (i + 1) / 3, "microseconds": start * (i + 1), "buckets": k,
             "probed": 1.0}
            for i, k in enumerate((1, 10, 100))
        ]  # fmt: skip

    curves = [
        {"cell": "dch-32", "way": way, "engine": engine, "left_out": 1,
         "points": points(start * (1 if fast else 40), 0.3 if way == "base" else 0.33)}
        for way in ("base", "mch")
        for engine, start in (("probe", 1.0), ("auto", 1.0))
    ]  # fmt: skip
    curves += [
        {"cell": "dch-32", "way": way, "engine": "faiss", "left_out": 0,
         "points": points(20.0, 0.3 if way == "base" else 0.33)}
        for way in ("base", "mch")
    ]  # fmt: skip
    own = [
        {"cell": "dch-32", "way": "mch", "images": n, "microseconds": t}
        for n, t in ((100, 1.0), (800, 1.2 if fast else 9.0))
    ]
    found = {"curves": curves, "own_bucket": own, "missing": [], "queries": 50, "largest_k": 100}
    return found | {"against": said.time_against_buckets(found)}


def content(good: bool = True, **more: Any) -> dict[str, Any]:
    settings = {
        "data": "coco", "paper": "coco", "regions": "crops", "size": 160, "sigma": 0.5, "xi": 0.5,
        "crops": 8, "backbone": "efficientnet-lite0, frozen", "seeds": 3, "cells": 42,
        "cells_wanted": 42, "workers": 2, "visual": "data",
    }  # fmt: skip
    data = {
        "name": "coco", "classes": ["airplane", "bird"], "query": 500, "database": 3000,
        "train": 1000, "classes_an_image": 1.5,
    }  # fmt: skip
    out: dict[str, Any] = {
        "commit": "0" * 40, "dirty": False, "date": "2026-01-01T00:00:00+00:00",
        "machine": {"cpu": "a <processor>", "cores": 2}, "settings": settings, "data": data,
        "rows": rows(1.5 if good else 0.8), "seconds": {"features": 60.0, "cells": 3600.0},
        "study": ["dch", 32], "sensitivity": sensitivity(good), "pairs": pairs(good),
        "time": timed(good), "visual": None, "beyond": None,
    }  # fmt: skip
    out |= more
    out["statements"] = [s.to_json() for s in said.statements(out)]
    return out


def test_the_papers_numbers_are_those_of_its_tables() -> None:
    theirs = paper_figures.theirs
    assert theirs("coco", "map", "dch", 32) == (0.5554, 0.5665)
    assert theirs("coco", "r0", "ksh", 64) == (0.01454, 0.0808)  # the legend calls KSH "MCH"
    assert theirs("nuswide", "r0", "mmhh", 16) == (0.4365, 0.4660)
    assert theirs("nuswide", "p0", "dch", 16) == (0.7469, 0.7452)  # where MCH loses
    assert theirs("mirflickr", "p0", "adsh", 48) == (0.7317, 0.7783)
    assert theirs("mirflickr", "map", "itq", 64) == (0.6544, None)
    assert theirs("coco", "map", "lsh", 16) == (0.3660, None)
    assert theirs("none", "map", "dch", 32) is None
    assert theirs("coco", "map", "dch", 24) is None
    assert theirs("coco", "f1_own", "dch", 32) is None  # the curves' numbers are not in it
    assert paper_figures.ANHC[0.3][paper_figures.ANHC_XI.index(0.5)] == 1.62
    for name in paper_figures.NAMES:
        for figure in ("r0", "p0", "map"):
            assert list(paper_figures.PAPER[name][figure]) == list(cells.SUPERVISED)


@pytest.mark.parametrize(
    ("name", "classes", "expected"),
    [
        ("coco", (), "coco"),
        ("NUS-WIDE", (), "nuswide"),
        ("mirflickr25k", (), "mirflickr"),
        ("photos", ("airplane", "hot dog", "toothbrush", *map(str, range(77))), "coco"),
        ("scenes-400", ("star", "cross"), "none"),
    ],
)
def test_which_of_the_papers_data_sets(name: str, classes: tuple[str, ...], expected: str) -> None:
    assert paper_figures.guess(name, classes) == expected


def test_every_statement_can_hold() -> None:
    found = said.statements(content())
    open_ones = [s.quote for s in found if s.verdict == said.UNKNOWN]
    assert len(open_ones) == 3  # a cause, a claim about the literature, a word without measure
    wrong = [(s.quote, s.evidence) for s in found if s.verdict not in (said.HOLDS, said.UNKNOWN)]
    # Made-up curves come close to their best F1 late, and X's levels are fixed: all hold.
    assert wrong == []
    assert all(s.evidence for s in found)


def test_every_statement_about_mch_can_fail() -> None:
    found = said.statements(content(good=False))
    still = [s.quote for s in found if s.verdict == said.HOLDS]
    # What remains is about base methods, widths and labels, which are the same.
    assert len(still) == 8, still
    assert not any("MCH can" in quote for quote in still)


def test_every_statement_about_base_methods_can_fail() -> None:
    other = [row(m, 32, 0.9) for m in ("lsh", "itq")] + [row("adsh", 32, 0.1, 0.2)]
    other += [row(m, 32, 0.3, 0.4) for m in said.SYMMETRIC]
    for r in other:
        r["base"]["f1_buckets"] = [[b, r["base"]["map"]] for b in BUCKETS]  # all in one bucket
    found = pairs(True)
    found["by_classes"]["1"]["at0"] = 0.1
    found["both"]["images"] = 0
    wrong = [
        s for s in said.statements(content(rows=other, pairs=found)) if s.verdict == said.FAILS
    ]
    for words in ("by using one hash code", "As a result", "the best shallow", "In most situations",
                  "Without modeling", "large distinctions", "There also exists"):  # fmt: skip
        assert any(words in s.quote for s in wrong), words


def test_without_studies_the_statements_say_so() -> None:
    bare = content(sensitivity=None, pairs=None, time=None)
    for s in bare["statements"]:
        assert s["verdict"] != said.UNKNOWN or s["evidence"]
    few = content(rows=[row("lsh", 32, 0.1)])
    assert any(s["evidence"] == "no cell of the kind was computed" for s in few["statements"])
    for one in (bare, few):
        check_alone(paper_report.html(one))
        paper_report.markdown(one)


def test_a_part_of_the_cells() -> None:
    mixed = rows(1.5)
    mixed[-1]["mch"]["map"] = 0.0
    found = next(s for s in said.statements(content(rows=mixed)) if "mAP results" in s.quote)
    assert found.verdict == "holds in 9 of 10 cells"
    assert found.fails == ["MMHH-32"]
    assert found.paper == "60 of 60 cells"


def test_the_papers_own_figures_are_put_to_the_test() -> None:
    text = said.in_paper("p0", lambda x, m: m > x)
    assert text.startswith("57 of 60 cells")
    assert "nuswide DCH-16" in text


def test_buckets_for_an_f1() -> None:
    points = [[1, 0.1], [10, 0.2], [1000, 0.4], [10000, 0.3]]
    assert said.buckets_for(points, 0.05) == 1
    assert said.buckets_for(points, 0.2) == pytest.approx(10)
    assert said.buckets_for(points, 0.3) == pytest.approx(100)
    assert said.buckets_for(points, 0.5) is None
    assert said.at_least([None, 3.0], 3)
    assert not said.at_least([None, 1.0], 3)
    assert said.at_least([None], 3)
    assert not said.at_least([], 1)


def one(found: list[said.Statement], words: str) -> said.Statement:
    return next(s for s in found if words in s.quote)


def test_regions_are_to_be_better_than_the_whole_and_than_chance() -> None:
    for way in ("base", "random_keep"):
        mixed = rows(1.5)
        mixed[-1][way]["map"] = 0.9  # above MCH-X
        found = one(said.statements(content(rows=mixed)), "better preserve")
        assert found.fails == ["MMHH-32"]


def test_every_base_method_gains_more_than_by_chance() -> None:
    mixed = rows(1.5)
    for r in mixed[-2:]:
        r["random_keep"]["f1_own"] = r["mch"]["f1_own"]
    found = one(said.statements(content(rows=mixed)), "easy integration")
    assert (found.verdict, found.fails) == ("holds in 4 of 5 methods", ["MMHH"])


def test_probing_that_turned_into_a_scan_does_not_count() -> None:
    found = timed(True)
    probe = next(c for c in found["curves"] if (c["engine"], c["way"]) == ("probe", "mch"))
    probe["points"].pop()
    verdict = one(said.statements(content(time=found)), "more practical than Hamming")
    assert verdict.fails == ["MCH-DCH-32"]
    assert "1 of 6 points are left out" in verdict.evidence
    assert "(auto) 20.00 times" in verdict.evidence
    found["curves"] = [c for c in found["curves"] if c["engine"] != "probe"]
    verdict = one(said.statements(content(time=found)), "more practical than Hamming")
    assert verdict.verdict == said.FAILS
    assert "6 of 6 points" in verdict.evidence


def test_what_is_true_by_construction_is_counted_apart() -> None:
    whole = content()
    sure = [s for s in whole["statements"] if s["constructed"]]
    assert len(sure) == 2
    assert all("true by construction" in s["evidence"] for s in sure)
    assert "(of which 2 by construction)" in paper_report.markdown(whole)


def test_figures_that_are_not_defined_or_nothing() -> None:
    mixed = rows(1.5)
    for r in mixed:
        r["base"]["p0_nonempty"] = None
    found = pairs(True)
    found["other"]["distance"] = found["other"]["distance_mch"] = 0.0
    flat = sensitivity(True)
    for of in ("sigma", "xi"):
        flat[of]["all"] = {v: curve(0.0) for v in flat[of]["all"]}
    seen = said.statements(content(rows=mixed, pairs=found, sensitivity=flat))
    assert one(seen, "improve the precision").evidence.endswith("not defined")
    assert not any("nan" in s.evidence or "inf" in s.evidence for s in seen)


def test_xi_is_compared_with_xi_1() -> None:
    found = one(said.statements(content()), "[ξ is meant] ≤ 0.9")
    assert "over ξ = 1," in found.evidence
    assert "over X," in one(said.statements(content()), "in the range 0.3 ≤").evidence


def test_sentences_begin_with_a_capital() -> None:
    whole = content()
    whole["settings"]["seeds"] = 1
    assert "above X. One seed." in check_alone(paper_report.html(whole)).words


def test_rank_correlation() -> None:
    assert said.spearman([1, 2, 3], [10, 20, 90]) == pytest.approx(1)
    assert said.spearman([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert said.spearman([1, 1, 1], [1, 2, 3]) == 0


def test_less_time_and_fewer_buckets_are_told_apart() -> None:
    against = [
        {"cell": "dch-32", "engine": "probe", "buckets": 5.0, "microseconds": 2.0, "points": 3},
        {"cell": "dch-64", "engine": "probe", "buckets": 5.0, "microseconds": 0.9, "points": 3},
        {"cell": "dch-32", "engine": "auto", "buckets": 0.5, "microseconds": 0.9, "points": 3},
    ]
    text = paper_report.time_verdict(against)
    assert "probe MCH-X needs fewer buckets in 2 of 2 cells, and less time in 1 of these" in text
    assert "FAISS" not in text
    assert "auto MCH-X needs fewer buckets in 0 of 1 cells, and less time in 0 of these" in text


def test_the_report_is_one_file_that_needs_nothing_else() -> None:
    beyond = {
        "steps": [
            {
                "name": "more <regions>",
                "what": "a grid",
                "cells": [
                    {"method": "dch", "bits": 32, "seeds": 3}
                    | {w: dict.fromkeys(("f1_own", "map", "r0", "p0", "anhc"), v)
                       for w, v in (("mch", 0.5), ("step", 0.6))}
                ],
                "f1_ratio": 1.2,
                "f1_mean_ratio": 1.3,
                "map_change": 0.01,
                "anhc_change": 0.02,
                "anhc_off": 0.03,
                "kept": True,
            }
        ],
        "unsupervised": {
            "cells": [{"name": "ITQ", "bits": 32, "map": 0.5, "r0": 0.1, "p0": 0.2, "anhc": 1.0}],
            "statement": "MCH without labels is above ITQ",
        },
    }  # fmt: skip
    stream = io.BytesIO()
    Image.new("RGB", (60, 45)).save(stream, "JPEG")
    jpeg = base64.b64encode(stream.getvalue()).decode()
    image = {
        "picture": {"jpeg": jpeg, "width": 60, "height": 45}, "classes": ["bird"], "base": 5,
        "mch": 0, "region": "centre", "box": [0.25, 0.25, 0.75, 0.75], "red": True,
    }  # fmt: skip
    row_ = {
        "classes": ["bird"], "picture": image["picture"], "moved": 1, "similar": 20,
        "images": [image] * 10,
    }  # fmt: skip
    whole = content(beyond=beyond, visual={"rule": "drawn.", "rows": [row_]})
    page = paper_report.html(whole)
    read = check_alone(page)
    for attributes in (a for _, a in read.seen):
        for key in ("src", "href", "xlink:href"):
            assert not (attributes.get(key) or "").startswith(("http", "//"))
    assert "url(" not in page
    assert "@import" not in page
    assert "a <processor>" in read.words
    assert "more <regions>" in read.words
    assert "X 5 · MCH-X 0" in read.words
    assert "paper 0.5665" in read.words  # beside ours
    assert "not kept" not in read.words
    assert len([a for a in read.all("div") if a.get("class") == "pic red"]) == 10
    text = paper_report.markdown(whole)
    assert "(0.5554 → 0.5665)" in text
    assert "more <regions>** (kept)" in text
    bare = paper_report.without_pictures(whole)
    assert "jpeg" not in json.dumps(bare)
    assert "jpeg" in json.dumps(whole)  # which is as it was


def test_no_figures_of_the_paper_beside_other_data() -> None:
    whole = content()
    whole["settings"]["paper"] = "none"
    assert "paper 0." not in check_alone(paper_report.html(whole)).words


def test_plots_stand_on_their_scales() -> None:
    lines = [Line("X", [(1, 0.1), (1000, 0.5)], dashed=True), Line("none", [])]
    svg = panels([Panel("a", lines), Panel("empty")], Axis("x", log=True), Axis("y"))
    assert svg.count("<g ") == 1  # one panel: the other has nothing to show
    assert "stroke-dasharray" in svg
    flat = panels([Panel("a", [Line("X", [(16, 0.2)])])], Axis("bits", ticks=[16]), Axis("y"))
    assert "nan" not in flat
    assert "Nothing to draw" in panels([], Axis("x"), Axis("y"))


def test_stages_go_on_where_they_stopped(tmp_path: Path) -> None:
    calls = []

    def compute() -> dict[str, Any]:
        calls.append(1)
        return {"n": len(calls)}

    assert paper.Stages(tmp_path)("a", {"x": (1, 2)}, compute) == {"n": 1}
    again = paper.Stages(tmp_path)
    assert again("a", {"x": (1, 2)}, compute) == {"n": 1}
    assert again.seconds["a"] >= 0
    assert again("a", {"x": (1, 3)}, compute) == {"n": 2}  # other settings
    assert again("a", {"x": (1, 3)}, compute, lambda: False) == {"n": 3}  # gone stale
    only = paper.Stages(tmp_path, only_read=True)
    assert only("a", {"x": (1, 3)}, compute) == {"n": 3}
    assert only("b", {}, compute) is None
    (tmp_path / "a.json").write_text('{"key": ')  # cut short
    assert again("a", {"x": (1, 3)}, compute) == {"n": 4}


@pytest.mark.parametrize("text", ["[]", "3", '{"key": {}}', '{"key": {}, "seconds": "x"}'])
def test_stages_of_another_shape_are_not_there(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    (tmp_path / "a.seconds").write_text(text)
    assert paper.Stages(tmp_path, only_read=True)("a", {}, dict) is None
    assert paper.Stages(tmp_path)("a", {}, dict) == {}


def arguments(work: Path, *more: str) -> Any:
    return paper.parse(["--data", "scenes:40", "--out", "x", "--work", str(work), *more])


def test_studies_of_other_cells_are_not_there(tmp_path: Path) -> None:
    cell = tmp_path / "dch-32-0.json"
    cell.write_text("{}")
    experiments = paper.Experiments(arguments(tmp_path))
    found: dict[str, Any] = {"curves": [], "own_bucket": [], "missing": []}
    experiments.stage("time-dch-32", experiments.of(["dch-32-0"]), lambda: found)

    again = paper.Experiments(arguments(tmp_path, "--report", "--size", "160"))
    assert again._time(["dch-32"]) is not None
    cell.write_text('{"seconds": 3}')  # computed anew
    assert again._time(["dch-32"]) is None
    cell.unlink()
    assert again._time(["dch-32"]) is None


def test_a_folder_is_for_one_data_set(tmp_path: Path) -> None:
    cells.check_data(tmp_path, open_dataset("scenes:40", queries=5, train=20))
    cells.check_data(tmp_path, open_dataset("scenes:40", queries=5, train=20))
    for other in ({"queries": 6, "train": 20}, {"queries": 5, "train": 20, "seed": 1}):
        with pytest.raises(cells.RunError, match="other data"):
            cells.check_data(tmp_path, open_dataset("scenes:40", **other))


def test_one_run_at_a_time(tmp_path: Path) -> None:
    with (
        cells.alone(tmp_path / "new"),
        pytest.raises(SystemExit, match="another run is at work"),
        cells.alone(tmp_path / "new"),
    ):
        pass
    with cells.alone(tmp_path / "new"):
        pass


def test_a_worker_leaves_nothing_but_its_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = arguments(tmp_path, "--methods", "lsh", "--bits", "16", "24", "--seeds", "1")
    args.worker = 1

    def run_cell(data: Any, args: Any, method: str, bits: int, seed: int) -> Any:
        (tmp_path / f"{method}-{bits}-{seed}.claim").unlink()  # as a second run would
        row_ = {"method": method, "bits": bits, "seed": seed, "base": figures(0.1)}
        return row_ | {"seconds": {"all": 1.0}}, {"policy": None}

    for name in ("die_with", "Data", "open_dataset"):
        monkeypatch.setattr(cells, name, lambda *_: None)
    monkeypatch.setattr("torch.set_num_threads", lambda _: None)
    monkeypatch.setattr(cells, "run_cell", run_cell)
    cells.work(args)
    there = sorted(path.name for path in tmp_path.iterdir())
    assert there == ["lsh-16-0.json", "lsh-16-0.pt", "lsh-24-0.json", "lsh-24-0.pt"]
    assert [r["bits"] for r in cells.read_rows(args)] == [16, 24]


@pytest.mark.parametrize("broken", ["json", "pt", "shape"])
def test_damaged_cells_go_with_their_twins(tmp_path: Path, broken: str) -> None:
    row_ = {"method": "lsh", "bits": 16, "seed": 0, "base": {}, "seconds": {}, "settings": {}}
    path = tmp_path / "lsh-16-0.json"
    path.write_text({"json": '{"meth', "pt": json.dumps(row_), "shape": "[]"}[broken])
    path.with_suffix(".pt").write_bytes(b"PK\x03\x04 cut short")
    args = arguments(tmp_path)
    if broken == "pt":
        assert cells.read_rows(args) == [row_]
    with pytest.raises(cells.RunError, match="compute it anew"):
        cells.read_cell(tmp_path, "lsh-16-0", 8)
    assert list(tmp_path.iterdir()) == []
    path.write_text('{"meth')
    assert cells.read_rows(args) == []
    assert not path.exists()


def test_seconds_add_up_over_interrupted_runs(tmp_path: Path) -> None:
    def interrupted() -> dict[str, Any]:
        time.sleep(0.2)
        raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            paper.Stages(tmp_path)("a", {}, interrupted)
    stages = paper.Stages(tmp_path)
    stages("a", {}, dict)
    assert 0.4 <= stages.seconds["a"] < 5
    last = paper.Stages(tmp_path)
    last("a", {}, dict)
    assert last.seconds["a"] == stages.seconds["a"]
    (tmp_path / "a.json").unlink()
    last("a", {}, dict)
    assert last.seconds["a"] < 0.4  # computed anew, not gone on with


def test_a_killed_run_has_noted_its_seconds(tmp_path: Path) -> None:
    with paper.Clock(tmp_path / "x.seconds", {}, tick=0.01):
        time.sleep(0.2)
        assert paper.read(tmp_path / "x.seconds")["seconds"] > 0.05  # without leaving


def test_cells_that_lack_their_codes_are_missing(tmp_path: Path) -> None:
    words = ["--data", "scenes:9", "--out", "x", "--work", str(tmp_path), "--seeds", "1"]
    args = paper.parse([*words, "--methods", "lsh", "dch", "--bits", "16"])
    assert cells.missing(args) == ["lsh-16-0", "dch-16-0"]
    (tmp_path / "dch-16-0.json").write_text("{}")
    assert "dch-16-0" in cells.missing(args)
    (tmp_path / "dch-16-0.pt").touch()
    assert cells.missing(args) == ["lsh-16-0"]
    assert args.name == "scenes-9"


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("a/b/Coco", "coco"),
        ("coco:x/coco?queries=5", "coco-queries-5"),
        ("nuswide:x/y", "nuswide-y"),
    ],
)
def test_names_of_data(spec: str, name: str) -> None:
    assert cells.slug(spec) == name
    assert paper.parse(["--data", spec]).out == Path(f"paper-{name}")


def small(seed: int = 0) -> Coded:
    """40 queries and 200 images of 3 classes, 16 bits, the regions near the whole's code."""
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


def test_distances_are_those_of_the_nearest_kept_region() -> None:
    coded = small()
    kept = coded.database.kept(0.5)
    apart, region = paper_studies.distances(coded.queries, coded.database, kept, block=7)
    for q in range(0, 40, 9):
        for i in range(0, 200, 37):
            each = [
                (int(np.bitwise_count(coded.queries[q] ^ coded.database.codes[i, r]).sum()), r)
                for r in np.flatnonzero(kept[i]).tolist()
            ]
            assert (apart[q, i], region[q, i]) == min(each)


def test_images_that_queries_of_different_classes_find() -> None:
    coded = small()
    found = paper_studies.pairs(coded, 0.5, ["a", "b"], block=37)
    assert found == paper_studies.pairs(coded, 0.5, ["a", "b"])
    kept = coded.database.kept(0.5)
    apart, _ = paper_studies.distances(coded.queries, coded.database, kept)
    own = (apart == 0) & paper_studies.alike(coded.query_labels, coded.labels)
    expected = 0
    for i in range(200):
        classes = {int(c) for c in coded.query_labels.argmax(1)[own[:, i]]}
        expected += len(classes) > 1  # each query has one class
    assert found["by_two"]["mch"] == expected
    assert found["by_two"]["base"] == 0  # one code, and every class has its own
    by_both = [own[coded.query_labels[:, c]].any(0) for c in (0, 1)]
    of_both = coded.labels[:, 0] & coded.labels[:, 1]
    assert found["both"]["found"]["mch"] == int((by_both[0] & by_both[1] & of_both).sum()) > 0
    assert found["both"]["images"] == int((coded.labels[:, 0] & coded.labels[:, 1]).sum())
    assert found["similar"]["pairs"] + found["other"]["pairs"] == 40 * 200
    assert found["similar"]["distance_mch"] <= found["similar"]["distance"]


def test_equal_codes_are_one_code() -> None:
    coded = small()
    coded.database.codes[:] = coded.database.codes[:, :1]
    assert coded.database.kept(0.5)[:, 1:].any()
    assert paper_studies.pairs(coded, 0.5, [])["several_codes"] == 0


def test_groups_that_find_nothing_in_the_part_are_left_out() -> None:
    wanted = np.eye(2, dtype=bool)
    groups = {"all": np.ones(2, bool), "a": wanted[:, 0], "b": wanted[:, 1]}
    labels = np.array([[True, False]])
    assert list(paper_studies.answerable(groups, wanted, labels)) == ["all", "a"]
    with pytest.raises(cells.RunError, match="--part"):
        paper_studies.answerable(groups, wanted, ~labels & False)


def test_nothing_is_timed_without_a_usable_query() -> None:
    coded = small()
    coded.labels[:] = False
    found = paper_time.merged([paper_time.timing("dch-16", coded, 0.5)])
    assert found["curves"] == []
    found["against"] = said.time_against_buckets(found)
    whole = content(time=found)
    assert "no query has a similar image" in check_alone(paper_report.html(whole)).words


def test_classes_are_chosen_by_a_rule() -> None:
    labels = np.zeros((100, 3), bool)
    labels[:50, 0], labels[:6, 1], labels[:4, 2] = True, True, True
    names, rule = paper_studies.choose_classes(("x", "y", "z"), labels, [])
    assert names == ["y", "z"]
    assert "5 %" in rule
    assert paper_studies.choose_classes(("airplane", "bird"), labels[:, :2], [])[1] != rule
    with pytest.raises(cells.RunError, match="no class w"):
        paper_studies.choose_classes(("x", "y", "z"), labels, ["w", "x"])


def test_the_visual_study_does_not_depend_on_its_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    near = paper_visual.Near(small(), 0.5)
    able = near.able()
    monkeypatch.setattr(paper_visual, "BLOCK", 7)
    assert near.able().tolist() == able.tolist()
    every = near(slice(None))
    for q in (0, 39):
        for part, whole in zip(near.one(q), every, strict=True):
            assert (part == whole[q]).all()
    images = np.array([3, 150])
    own = every[3] & (every[1] == 0)
    assert (near.own(able, images) == own[np.ix_(able, images)]).all()


def test_the_visual_study_shows_what_it_says() -> None:
    dataset = open_dataset("scenes:240", queries=40, train=100)
    found = paper_visual.visual(small(), dataset, corners_and_centre(0.5), 0.5, seed=0)
    assert len(found["rows"]) == paper_visual.QUERIES
    assert any(i["red"] for row_ in found["rows"] for i in row_["images"])
    for row_ in found["rows"]:
        assert len(row_["images"]) == paper_visual.SIMILAR
        moved = [i for i in row_["images"] if i["mch"] == 0 < i["base"]]
        assert len(moved) >= 1
        assert all(set(row_["classes"]) & set(i["classes"]) for i in row_["images"])
        assert all(i["box"] is not None for i in moved)


def test_help_and_errors(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        paper.parse(["--data", "x", "--out", "y", "--seeds", "0"])
    assert "--seeds is at least 1" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        paper.parse(["--help"])
    assert "--visual" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        paper.parse(["--data", "x", "--out", "y", "--bits", "32", "12"])
    assert "multiple of 8 from 8 to 256, not 12" in capsys.readouterr().err


def test_wrong_classes_are_found_before_the_work(tmp_path: Path) -> None:
    args = arguments(tmp_path, "--classes", "star", "tsar")
    with pytest.raises(cells.RunError, match=r"no class .*tsar"):
        _ = paper.Experiments(args).data


def test_faults_of_the_program_are_not_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(error: Exception) -> Any:
        def fail(_: paper.Experiments) -> None:
            raise error

        return fail

    args = arguments(tmp_path)
    monkeypatch.setattr(paper, "parse", lambda: args)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr(paper.Experiments, "run", run(ValueError("a fault")))
    with pytest.raises(ValueError, match="a fault"):
        paper.main()
    monkeypatch.setattr(paper.Experiments, "run", run(cells.RunError("a typo")))
    with pytest.raises(SystemExit, match="a typo"):
        paper.main()
