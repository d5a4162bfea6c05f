"""bench/paper: the paper's numbers, the tests of its statements, the report, the record."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from helpers.html import check_alone
from paper import figures, plots, report
from paper import statements as said
from paper.records import Record, Row, Statement, from_json, to_json
from paper.runs import MEANS

ROOT = Path(__file__).parents[2]
COMMITTED = ROOT / "docs" / "paper"
BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10**4, 10**6)
# Of every number in the record that commit 4204b1a measured.
NUMBERS = "4fd6fd01115c4880ad99fef6eaf1672878aa4bd6717545f0d8a76ef5f0ecf4f3"

# A record made up for these tests, as JSON: either all statements hold, or none about MCH does.


def way(level: float, anhc: float = 1.0) -> dict[str, Any]:
    """Figures that are all at a level; the curve rises to twice that."""
    curve = [[b, level * (1 + i / len(BUCKETS))] for i, b in enumerate(BUCKETS)]
    out: dict[str, Any] = dict.fromkeys(MEANS, level) | {"anhc": anhc, "f1_buckets": curve}
    return out | {f"{name}_std": 0.01 for name in ("map", "r0", "p0", "f1_own")}


def row(method: str, bits: int, base: float, mch: float | None = None) -> dict[str, Any]:
    out: dict[str, Any] = {"method": method, "bits": bits, "seeds": 3, "base": way(base)}
    if mch is not None:
        out |= {"mch": way(mch, 1.5) | {"f1_own_gain_se": 0.001}, "random_keep": way(base, 1.5)}
        out |= {"keep_all": way(base * 0.9, 6.0)}
    return out


def rows(gain: float) -> list[dict[str, Any]]:
    found = [row(m, b, 0.05) for m in ("lsh", "itq") for b in (16, 32)]
    levels = {"ksh": 0.1, "hashnet": 0.2, "adsh": 0.5, "dch": 0.4, "mmhh": 0.3}
    return found + [row(m, b, v, v * gain) for m, v in levels.items() for b in (16, 32)]


def flat(level: float) -> list[list[float]]:
    return [[b, level] for b in BUCKETS]


def sensitivity(steady: bool) -> dict[str, Any]:
    """Either nothing depends on sigma and xi but through the codes, or everything does."""
    sigmas, xis = ("0.1", "0.3", "0.4", "0.5", "0.6", "0.7", "0.9", "1"), ("0.1", "0.5", "0.9", "1")
    step, groups = 0.001 if steady else 0.05, ("all", "airplane", "bird")

    def lines(values: tuple[str, ...]) -> dict[str, Any]:
        return {v: flat(0.5 - i * step) for i, v in enumerate(values)}

    anhc = {s: {x: 1.0 if s == "1" else 2 - i / 10 for x in xis} for i, s in enumerate(sigmas)}
    sigma, codes = {g: lines(sigmas) for g in groups}, [2 - i / 10 for i in range(len(xis))]
    if not steady:
        anhc["1"] = dict.fromkeys(xis, 1.3)
        sigma["bird"] = dict(zip(sigmas, reversed(sigma["bird"].values()), strict=True))
        codes.reverse()
    return {
        "classes": {"airplane": 60, "bird": 70}, "rule": "as in the paper", "queries": 500,
        "database": 3000, "part": 1000, "sigma": sigma, "xi": {g: lines(xis) for g in groups},
        "anhc": anhc, "anhc_raw": anhc, "xi_anhc": dict(zip(xis, codes, strict=True)),
    }  # fmt: skip


def pairs(good: bool) -> dict[str, Any]:
    def group(at0: float, at0_mch: float, near: float) -> dict[str, Any]:
        distances = {"distance": 8.0, "distance_mch": near}
        return {"pairs": 100, "at0": at0, "at0_mch": at0_mch} | distances

    simple, rich = group(0.4, 0.42, 7.0), group(0.2, 0.3 if good else 0.2, 7.0)
    found = {"base": 3, "mch": 9 if good else 3, "mch_buckets": 6 if good else 0}
    return {
        "by_classes": {"1": simple, "2": None, "3": rich, "4": rich},
        "similar": group(0.3, 0.35, 6.0 if good else 7.9), "other": group(0.0, 0.01, 7.5),
        "several_codes": 0.4, "by_two": found, "images": 1000,
        "both": {"classes": ["airplane", "bird"], "images": 4, "several": 2 * good, "found": found},
    }  # fmt: skip


def timed(fast: bool) -> dict[str, Any]:
    def curve(way: str, engine: str, start: float) -> dict[str, Any]:
        level = 0.3 if way == "base" else 0.33
        points = [{"k": k, "f1": level * (i + 1) / 3, "microseconds": start * (i + 1),
                   "buckets": k, "probed": 1.0} for i, k in enumerate((1, 10, 100))]  # fmt: skip
        return {"cell": "dch-32", "way": way, "engine": engine, "left_out": 1, "points": points}

    ours = 1.0 if fast else 40.0
    engines = (("probe", ours), ("auto", ours), ("faiss", 20.0))
    buckets = [{"cell": "dch-32", "way": "mch", "images": n, "microseconds": t}
               for n, t in ((100, 1.0), (800, 1.2 if fast else 9.0))]  # fmt: skip
    curves = [curve(way, *engine) for way in ("base", "mch") for engine in engines]
    return {"curves": curves, "own_bucket": buckets, "queries": 50, "largest_k": 100}


def record(good: bool = True, settings: dict[str, Any] | None = None, **more: Any) -> Record:
    made: dict[str, Any] = {
        "commit": "0" * 40, "dirty": False, "date": "2026-01-01T00:00:00+00:00",
        "machine": {"cpu": "a <processor>", "cores": 2},
        "settings": {
            "data": "coco", "paper": "coco", "regions": "crops", "size": 160, "sigma": 0.5,
            "xi": 0.5, "crops": 8, "backbone": "efficientnet-lite0, frozen", "seeds": 3,
            "cells": 42, "cells_wanted": 42, "workers": 2, "visual": "data",
        } | (settings or {}),
        "data": {"name": "coco", "classes": ["airplane", "bird"], "query": 500, "database": 3000,
                 "train": 1000, "classes_an_image": 1.5},
        "rows": rows(1.5 if good else 0.8), "seconds": {"features": 60.0, "cells": 3600.0},
        "study": ["dch", 32], "sensitivity": sensitivity(good), "pairs": pairs(good),
        "time": timed(good),
    } | more  # fmt: skip
    found = from_json(Record, made)
    if found.time:
        found.time.against = said.advantages(found.time)
    found.statements = said.statements(found)
    return found


def one(found: Record, words: str) -> Statement:
    return next(s for s in found.statements if words in s.quote)


# The paper's own figures


def test_the_papers_numbers_are_those_of_its_tables() -> None:
    theirs = figures.theirs
    assert theirs("coco", "map", "dch", 32) == (0.5554, 0.5665)
    assert theirs("coco", "r0", "ksh", 64) == (0.01454, 0.0808)  # its legend calls KSH "MCH"
    assert theirs("nuswide", "r0", "mmhh", 16) == (0.4365, 0.4660)
    assert theirs("nuswide", "p0", "dch", 16) == (0.7469, 0.7452)  # where MCH loses
    assert theirs("mirflickr", "p0", "adsh", 48) == (0.7317, 0.7783)
    assert theirs("mirflickr", "map", "itq", 64) == (0.6544, None)
    assert theirs("none", "map", "dch", 32) is None
    assert theirs("coco", "map", "dch", 24) is None
    assert theirs("coco", "f1_own", "dch", 32) is None  # it prints no numbers of its curves
    assert figures.codes_per_image("0.3", "0.5") == 1.62
    assert figures.codes_per_image("0.4", "0.5") is None
    for figure in ("r0", "p0", "map"):
        assert len(list(figures.every_pair(figure))) == 60


@pytest.mark.parametrize(
    ("name", "classes", "expected"),
    [
        ("coco", [], "coco"),
        ("NUS-WIDE", [], "nuswide"),
        ("mirflickr25k", [], "mirflickr"),
        ("photos", ["airplane", "hot dog", "toothbrush", *map(str, range(77))], "coco"),
        ("scenes-400", ["star", "cross"], "none"),
    ],
)
def test_which_of_the_papers_data_sets(name: str, classes: list[str], expected: str) -> None:
    assert figures.guess(name, classes) == expected


# Statements


def test_every_statement_can_hold() -> None:
    found = record().statements
    assert len(found) == 36
    unknown = [s for s in found if s.verdict == said.UNKNOWN]
    assert len(unknown) == 3  # a cause, a claim about the literature, a word without a measure
    assert [s.quote for s in found if s.verdict != said.HOLDS and s not in unknown] == []
    assert all(s.evidence and "{" not in s.evidence + s.test for s in found)


def test_every_statement_about_mch_can_fail() -> None:
    still = [s.quote for s in record(good=False).statements if s.verdict == said.HOLDS]
    # What remains is about base methods, widths and labels, which are the same.
    assert len(still) == 8, still
    assert not any("MCH can" in quote for quote in still)


def test_every_statement_about_base_methods_can_fail() -> None:
    other = [row(m, 32, 0.9) for m in ("lsh", "itq")] + [row("adsh", 32, 0.1, 0.2)]
    other += [row(m, 32, 0.3, 0.4) for m in said.SYMMETRIC]
    for r in other:
        r["base"]["f1_buckets"] = flat(r["base"]["map"])  # everything is in one bucket
    found = pairs(True)
    found["by_classes"]["1"]["at0"] = 0.1
    found["both"]["images"] = 0
    wrong = [s for s in record(rows=other, pairs=found).statements if s.verdict == said.FAILS]
    for words in ("by using one hash code", "As a result", "the best shallow", "In most situations",
                  "Without modeling", "large distinctions", "There also exists"):  # fmt: skip
        assert any(words in s.quote for s in wrong), words


def test_missing_studies_and_cells_are_named() -> None:
    bare = record(sensitivity=None, pairs=None, time=None)
    assert "study of pairs is missing" in one(bare, "There also exists").evidence
    few = record(rows=[row("lsh", 32, 0.1)])
    assert "no cell with MCH was computed" in one(few, "mAP results").evidence
    for found in (bare, few):
        assert all(s.evidence for s in found.statements)
        check_alone(report.render("paper.html.j2", found))
        report.render("paper.md.j2", found)


def test_a_statement_that_holds_in_part_of_the_cells() -> None:
    mixed = rows(1.5)
    mixed[-1]["mch"]["map"] = 0.0
    found = one(record(rows=mixed), "mAP results")
    assert (found.verdict, found.fails) == ("holds in 9 of 10 cells", ["MMHH-32"])
    assert found.paper == "60 of 60 cells"
    text = said.in_paper("p0", lambda x, m: m > x)
    assert text.startswith("57 of 60 cells")
    assert "nuswide DCH-16" in text


@pytest.mark.parametrize("control", ["base", "random_keep"])
def test_regions_must_beat_the_whole_image_and_chance(control: str) -> None:
    mixed = rows(1.5)
    mixed[-1][control]["map"] = 0.9  # above MCH-X
    assert one(record(rows=mixed), "better preserve").fails == ["MMHH-32"]


def test_every_base_method_must_gain_more_than_by_chance() -> None:
    mixed = rows(1.5)
    for r in mixed[-2:]:
        r["random_keep"]["f1_own"] = r["mch"]["f1_own"]
    found = one(record(rows=mixed), "easy integration")
    assert (found.verdict, found.fails) == ("holds in 4 of 5 methods", ["MMHH"])


def test_probing_that_turned_into_a_scan_counts_against_it() -> None:
    found = timed(True)
    probe = next(c for c in found["curves"] if (c["engine"], c["way"]) == ("probe", "mch"))
    probe["points"].pop()
    judged = one(record(time=found), "more practical than Hamming")
    assert judged.fails == ["MCH-DCH-32"]
    assert "1 of 6 points are left out" in judged.evidence
    assert "(auto) 20.00 times" in judged.evidence
    found["curves"] = [c for c in found["curves"] if c["engine"] != "probe"]
    judged = one(record(time=found), "more practical than Hamming")
    assert judged.verdict == said.FAILS
    assert "6 of 6 points" in judged.evidence


def test_figures_that_are_undefined_or_zero() -> None:
    mixed, found, none = rows(1.5), pairs(True), sensitivity(True)
    for r in mixed:
        r["base"]["p0_nonempty"] = None
    found["other"]["distance"] = found["other"]["distance_mch"] = 0.0
    for of in ("sigma", "xi"):
        none[of]["all"] = {v: flat(0.0) for v in none[of]["all"]}
    mixed[-1]["base"]["r0"] = mixed[-1]["mch"]["r0"] = 0.0
    made = record(rows=mixed, pairs=found, sensitivity=none)
    check_alone(report.render("paper.html.j2", made))
    assert one(made, "improve the precision").evidence.endswith("not defined")
    assert not any("nan" in s.evidence or "inf" in s.evidence for s in made.statements)


def test_arithmetic_of_the_tests() -> None:
    points = [(1.0, 0.1), (10.0, 0.2), (1000.0, 0.4), (10000.0, 0.3)]
    assert said.buckets_for(points, 0.05) == 1
    assert said.buckets_for(points, 0.2) == pytest.approx(10)
    assert said.buckets_for(points, 0.3) == pytest.approx(100)
    assert said.buckets_for(points, 0.5) == said.NEVER
    assert said.at_least([said.NEVER, 3.0], 3)
    assert not said.at_least([said.NEVER, 1.0], 3)
    assert said.at_least([said.NEVER], 3)
    assert not said.at_least([], 1)
    assert said.spearman([1, 2, 3], [10, 20, 90]) == pytest.approx(1)
    assert said.spearman([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert said.spearman([1, 1, 1], [1, 2, 3]) == 0


# The report


def test_the_report_is_one_file_that_needs_nothing_else(tmp_path: Path) -> None:
    step: dict[str, Any] = dict.fromkeys(
        ("f1_ratio", "f1_mean_ratio", "map_change", "anhc_change", "anhc_off"), 0.02
    )
    ways = {w: dict.fromkeys(("f1_own", "map", "r0", "p0", "anhc"), 0.5) for w in ("mch", "step")}
    cell = {"method": "dch", "bits": 32, "seeds": 3, "anhc_off": 0.0} | ways
    step |= {"name": "more <regions>", "what": "a grid", "kept": True, "cells": [cell]}
    bare = {"name": "ITQ", "bits": 32} | ways["mch"]
    stream = io.BytesIO()
    Image.new("RGB", (60, 45)).save(stream, "JPEG")
    jpeg = base64.b64encode(stream.getvalue()).decode()
    picture = {"jpeg": jpeg, "width": 60, "height": 45}
    image = {"picture": picture, "classes": ["bird"], "base": 5, "mch": 0, "region": "centre",
             "box": [0.25, 0.25, 0.75, 0.75], "red": True}  # fmt: skip
    query = {"classes": ["bird"], "picture": picture, "moved": 1, "similar": 20,
             "images": [image] * 10}  # fmt: skip
    visual = {"rows": [query], "queries_with_moved": 3, "queries": 4}
    beyond = {"steps": [step], "unsupervised": {"cells": [bare], "holds": True}}
    made = record(beyond=beyond, visual=visual)
    report.write_report(made, tmp_path)
    page, text = (tmp_path / "paper.html").read_text(), (tmp_path / "paper.md").read_text()
    read = check_alone(page)
    assert page.count("<svg") == 7
    for words in ("a <processor>", "more <regions>", "X 5 · MCH-X 0", "paper 0.5665",
                  "Mean of 3 seeds", "MCH-X needs fewer buckets than X in 1 of 1 cells",
                  "Unsupervised MCH beats ITQ", "(2 of them by construction)"):  # fmt: skip
        assert words in read.words, words
    assert "not kept" not in read.words
    assert len([a for a in read.all("div") if a.get("class") == "pic red"]) == 10
    assert "(0.5554 → 0.5665)" in text
    assert "more <regions>** (kept)" in text
    assert b"<svg" in (tmp_path / "f1-32.svg").read_bytes()

    # The record has no pictures, but they can be taken from the page.
    stored = json.loads((tmp_path / "paper.json").read_text())
    assert "jpeg" not in json.dumps(stored)
    again = from_json(Record, stored)
    assert "pictures are not in the record" in report.render("paper.html.j2", again)
    report.add_pictures(again, tmp_path / "paper.html")
    assert report.render("paper.html.j2", again) == page


def test_fewer_buckets_and_less_time_are_distinguished() -> None:
    made = record()
    assert made.time is not None
    probe = {"cell": "dch-32", "engine": "probe", "points": 3, "buckets": 5.0}
    auto = {"cell": "dch-32", "engine": "auto", "points": 3, "buckets": 0.5, "microseconds": 0.9}
    against = [probe | {"microseconds": 2.0}, probe | {"microseconds": 0.9}, auto]
    made.time.against = from_json(type(made.time), {"against": against}).against
    text = report.render("paper.md.j2", made)
    assert "probe, MCH-X needs fewer buckets than X in 2 of 2 cells, and less time in 1 of" in text
    assert "auto, MCH-X needs fewer buckets than X in 0 of 1 cells, and less time in 0 of" in text
    assert "With FAISS" not in text


def test_the_report_fits_the_data() -> None:
    page = check_alone(report.render("paper.html.j2", record(settings={"paper": "none"}))).words
    assert "paper 0." not in page
    assert "none of the paper's three data sets" in page
    alone = record(settings={"seeds": 1, "cells": 40})
    page = check_alone(report.render("paper.html.j2", alone)).words
    assert "One seed." in page
    assert "2 of the 42 cells requested are not computed yet" in page


def test_plots_repeat_no_ids() -> None:
    svg = plots.f1_by_buckets(record(), 32)
    assert svg == plots.f1_by_buckets(record(), 32)
    assert "<g id" not in svg
    assert svg.startswith("<svg")
    assert plots.by_width(record(rows=[row("lsh", 32, 0.1)]), "r0", "R@H=0") == ""


# Records


def test_records_survive_json() -> None:
    made = record()
    text = json.dumps(to_json(made))
    assert from_json(Record, json.loads(text)) == made
    assert type(made.rows[0]) is Row
    assert json.dumps(to_json(from_json(Record, json.loads(text)))) == text


@pytest.mark.parametrize("value", [[], 3, {}, {"method": "dch", "bits": "32", "seeds": 1}])
def test_values_of_another_shape_are_no_record(value: Any) -> None:
    with pytest.raises(ValueError, match="expected"):
        from_json(Row, value)


def numbers(value: Any, path: str = "") -> Iterator[tuple[str, float]]:
    if isinstance(value, dict | list):
        inner = value.items() if isinstance(value, dict) else enumerate(value)
        for key, one in inner:
            yield from numbers(one, f"{path}/{key}")
    elif isinstance(value, int | float):
        yield path, value


def test_the_committed_report_is_drawn_again_from_its_record(tmp_path: Path) -> None:
    words = ["--from", str(COMMITTED / "paper.json"), "--out", str(tmp_path)]
    command = [sys.executable, "bench/paper", *words]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    for name in ("paper.json", "paper.md"):
        assert (tmp_path / name).read_text() == (COMMITTED / name).read_text(), name
    page = check_alone((tmp_path / "paper.html").read_text())
    assert len(page.all("img")) == 44
    stored = json.loads((tmp_path / "paper.json").read_text())
    found = sorted(numbers(stored))
    assert len(found) > 10_000
    assert hashlib.sha256(json.dumps(found).encode()).hexdigest() == NUMBERS
    verdicts = [s["verdict"] for s in stored["statements"]]
    counts = [verdicts.count(v) for v in (said.HOLDS, said.FAILS, said.UNKNOWN)]
    assert (len(verdicts), *counts) == (36, 21, 4, 3)
