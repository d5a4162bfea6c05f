"""bench/measurements.py: queries per second, ratios to Flat, bytes per code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common import RESULTS
from contenders import BEFORE, OURS, PEERS, Build, Memory
from measurements import Point, Row, TimedRow, build_figures, queries_within, to_rows

ALL = OURS | BEFORE | PEERS
RECORDS = sorted(RESULTS.glob("*-1t.json"))


def middle(values: list[float]) -> float:
    return float(np.median(values))


def point(
    key: str,
    k: int,
    count: int,
    seconds: list[float],
    busy: list[float],
    setting: int = 0,
    single: bool = False,
) -> Point:
    return Point(key, ALL[key], setting, k, single, count, 1.0, seconds, busy)


TIMES = st.lists(st.floats(1e-4, 100), min_size=1, max_size=7)


@given(st.integers(1, 10_000), TIMES, st.integers(1, 10_000), TIMES, st.floats(0.1, 2))
def test_rates_are_medians_and_ratios_are_of_medians(
    count: int, seconds: list[float], flat_count: int, flat_seconds: list[float], share: float
) -> None:
    busy = [share * s for s in seconds]
    flat = point("flat", 10, flat_count, flat_seconds, flat_seconds)
    ours, base = to_rows([point("auto", 10, count, seconds, busy), flat], {}, 1)
    assert ours["qps"] == pytest.approx(middle([count / s for s in seconds]))
    assert ours["qps_all"] == pytest.approx([count / s for s in seconds], abs=0.06)
    assert ours["cpu_qps"] == pytest.approx(middle([count / b for b in busy]))
    assert ours["cpu_share"] == pytest.approx(share)
    wanted = middle([count / s for s in seconds]) / middle([flat_count / s for s in flat_seconds])
    assert ours["to_flat"] == pytest.approx(wanted)
    assert base["to_flat"] == 1


def test_each_k_is_compared_with_flat_at_the_same_k() -> None:
    points = [
        point("auto", 10, 100, [1.0, 2.0, 4.0], [1.0, 1.0, 1.0]),
        point("auto", 100, 100, [10.0, 10.0, 10.0], [1.0, 1.0, 1.0]),
        point("flat", 10, 50, [10.0, 5.0, 1.0], [1.0, 1.0, 1.0]),
        point("flat", 100, 50, [50.0, 25.0, 100.0], [1.0, 1.0, 1.0]),
    ]
    rows = to_rows(points, {}, 1)
    assert [r["qps"] for r in rows] == [50, 10, 10, 1]
    assert [r["to_flat"] for r in rows] == [5, 10, 1, 1]
    assert rows[0]["cpu_share"] == pytest.approx(3 / 7)


def test_one_query_per_call_is_compared_with_flat_asked_the_same_way() -> None:
    points = [
        point("auto", 10, 100, [1.0], [1.0]),
        point("auto", 10, 100, [2.0], [1.0], single=True),
        point("flat", 10, 100, [4.0], [1.0]),
        point("flat", 10, 100, [20.0], [1.0], single=True),
    ]
    assert [r["to_flat"] for r in to_rows(points, {}, 1)] == [4, 10, 1, 1]


def test_ours_is_compared_with_the_earlier_commit_if_that_was_measured() -> None:
    points = [
        point("auto", 10, 100, [1.0, 2.0, 3.0], [1.0]),
        point("auto", 10, 100, [6.0], [1.0], single=True),
        point("before", 10, 100, [5.0, 3.0, 4.0], [1.0]),
        point("before", 10, 100, [3.0], [1.0], single=True),
        point("flat", 10, 100, [8.0], [1.0]),
        point("flat", 10, 100, [8.0], [1.0], single=True),
    ]
    rows = to_rows(points, {}, 1)
    assert [r.get("to_before") for r in rows[:4]] == [2, 0.5, 1, 1]
    alone = to_rows([p for p in points if p.key != "before"], {}, 1)
    assert all("to_before" not in r for r in alone)
    points[2].note = points[3].note = "died with exit code -9"
    assert all("to_before" not in r for r in to_rows(points, {}, 1))


def test_a_point_that_was_left_out_has_no_figures_but_keeps_its_reason() -> None:
    flat = point("flat", 10, 1, [1.0], [1.0])
    failed = Point("probe", OURS["probe"], 0, 10, note="stopped: no answer within 60 s")
    halfway = point("scan", 10, 8, [2.0], [1.0])
    halfway.note = "died with exit code -9"
    _, never, late = to_rows([flat, failed, halfway], {}, 1)
    for row in (never, late):
        assert row["qps"] is None
        assert row["to_flat"] is None
    assert (never["qps_all"], never["cpu_qps"], never["recall"]) == ([], None, None)
    assert (late["qps_all"], late["note"]) == ([4.0], "died with exit code -9")
    assert "build_codes_per_s" not in never


def test_rows_are_named_after_their_contender_and_setting() -> None:
    points = [
        point("auto", 10, 1, [1.0], [1.0]),
        point("auto", 10, 1, [1.0], [1.0], single=True),
        point("ivf", 10, 1, [1.0], [1.0], setting=4),
        point("flat", 10, 1, [1.0], [1.0]),
        point("flat", 10, 1, [1.0], [1.0], single=True),
    ]
    whole, single, ivf, *_ = to_rows(points, {}, 1)
    assert (whole["label"], single["label"]) == ("ours auto", "ours auto, one query per call")
    assert (whole["batch"], single["batch"], ivf["batch"]) == ("whole", "single", "whole")
    assert (whole["ours"], ivf["ours"]) == (True, False)
    assert (ivf["label"], ivf["knob"], ivf["setting"]) == ("faiss IVF nprobe=4", "nprobe", 4)
    assert str(points[2]) == "faiss IVF nprobe=4, K=10"


def test_build_figures_are_per_code_and_per_second() -> None:
    build = Build(2.0, 999, Memory(4000, 3000), 0.5, Memory(8000, 6000), Memory(9000, None))
    assert build_figures(build, 1000) == {
        "build_codes_per_s": 500,
        "optimize_s": 0.5,
        "bytes_a_code": {
            "built": {"rss": 4, "counted": 3},
            "optimized": {"rss": 8, "counted": 6},
            "searched": {"rss": 9, "counted": None},
        },
    }
    build.searched = None
    assert list(build_figures(build, 1000)["bytes_a_code"]) == ["built", "optimized"]
    (row,) = to_rows([point("flat", 10, 1, [1.0], [1.0])], {"flat": build}, 1000)
    assert row["build_codes_per_s"] == 500


@given(st.floats(0.01, 10), st.floats(1e-6, 100), st.integers(1, 10_000), st.integers(1, 10_000))
def test_as_many_queries_are_asked_as_fit_the_budget(
    budget: float, seconds: float, count: int, most: int
) -> None:
    fit = queries_within(budget, seconds, count, most)
    each = seconds / count
    assert 1 <= fit <= most
    assert fit == 1 or (fit - 0.5) * each <= budget * (1 + 1e-9)
    assert fit == most or (fit + 0.5) * each >= budget * (1 - 1e-9)


@pytest.mark.parametrize("path", RECORDS, ids=lambda p: p.stem)
def test_committed_figures_follow_from_their_repeats(path: Path) -> None:
    content: dict[str, Any] = json.loads(path.read_text())
    rows: list[Row] = content["rows"]
    flat = {(r["k"], r["batch"]): r["qps"] for r in rows if r["contender"] == "flat"}
    for row in rows:
        assert set(Row.__required_keys__) <= set(row) <= set(Row.__annotations__)
        if row["qps"] is None:
            assert row["note"]
            continue
        assert row["qps"] == pytest.approx(middle(row["qps_all"]), abs=0.06)
        assert len(row["qps_all"]) == content["settings"]["repeats"]
        base = flat.get((row["k"], row["batch"])) or flat[row["k"], "whole"]
        assert row["to_flat"] == row["qps"] / (base or 0)
    assert len(RECORDS) >= 7


def test_measured_rows_have_the_same_keys() -> None:
    assert set(Row.__annotations__) == set(TimedRow.__annotations__)
