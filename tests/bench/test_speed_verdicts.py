"""bench/verdicts.py: winners, targets and doubts; and how a run is shown."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import plot
from common import RESULTS, Cell
from contenders import BEFORE, OURS, PEERS
from measurements import BytesPerCode, Row
from search import parser, peers, suite
from table import number, table
from verdicts import RATIOS, build_targets, check, doubts, ks, target_lines, targets, winner

ALL = OURS | BEFORE | PEERS
RECORDS = sorted(RESULTS.glob("*-1t.json"))


def row(
    key: str,
    qps: float | None,
    recall: float | None = 1.0,
    k: int = 10,
    setting: int = 0,
    all_: list[float] | None = None,
    share: float = 1.0,
    single: bool = False,
) -> Row:
    kind = ALL[key]
    return {
        "contender": key, "label": kind.label(setting), "title": kind.title, "knob": kind.knob,
        "setting": setting, "ours": kind.ours, "k": k, "queries": 100,
        "batch": "single" if single else "whole",
        "qps": qps, "qps_all": all_ or ([qps] if qps else []), "cpu_qps": qps,
        "cpu_share": share if qps else None, "to_flat": qps / 10 if qps else None,
        "recall": recall, "note": "" if qps else "stopped",
    }  # fmt: skip


@given(
    st.lists(
        st.tuples(
            st.sampled_from(list(ALL)),
            st.none() | st.floats(1, 1e6),
            st.sampled_from([0.5, 0.9799, 0.98, 1.0]),
            st.sampled_from([10, 100]),
            st.booleans(),
        ),
        max_size=12,
    )
)
def test_the_winner_is_the_fastest_peer_or_auto_with_good_recall(
    cases: list[tuple[str, float | None, float, int, bool]],
) -> None:
    rows = [row(key, qps, recall, k, single=single) for key, qps, recall, k, single in cases]
    best: float = 0
    for key, qps, recall, k, single in cases:
        forced = key in ("probe", "substring", "scan", "before")
        if qps and recall >= 0.98 and k == 10 and not forced and not single:
            best = max(best, qps)
    found = winner(rows, 10)
    assert (found["qps"] if found else 0) == best
    assert any(found is r for r in rows) == (found is not None)


def test_targets_hold_at_their_bound_and_fail_beyond_it() -> None:
    assert check("x", 2.0, 2.0, at_least=True)["meets"]
    assert not check("x", math.nextafter(2.0, 0), 2.0, at_least=True)["meets"]
    assert check("x", 2.0, 2.0, at_least=False)["meets"]
    assert not check("x", math.nextafter(2.0, 3), 2.0, at_least=False)["meets"]


def test_targets_compare_auto_with_flat_the_best_peer_and_the_best_strategy() -> None:
    rows = [
        row("auto", 2000),
        row("auto", 9000, single=True),  # one query per call: compared with nothing
        row("flat", 1, single=True),
        row("before", 9000),
        row("probe", 500),
        row("scan", 2600),
        row("flat", 10),
        row("ivf", 400, 0.99, setting=4),
        row("hash", 8000, 0.97),  # too low a recall
        row("usearch", None, None),
    ]
    found = {t["what"]: (t["value"], t["bound"], t["meets"]) for t in targets(Cell(), 1, rows)}
    assert found == {
        "K=10 recall of ours": (1.0, 1.0, True),
        "K=10 QPS ÷ IndexBinaryFlat": (200.0, 170, True),
        "K=10 QPS ÷ best peer (faiss IVF nprobe=4)": (5.0, 1.0, True),
        "K=10 time of auto ÷ ours scan": (1.3, 1.25, False),
    }
    for cell, threads in ((Cell(), 2), (Cell(n=20_000), 1)):  # no ratio is set for these
        assert "K=10 QPS ÷ IndexBinaryFlat" not in [t["what"] for t in targets(cell, threads, rows)]
    assert targets(Cell(), 1, rows[1:]) == []


def test_a_gain_over_the_earlier_commit_is_asked_for_where_one_is_set() -> None:
    def found(cell: Cell, k: int, gain: float, threads: int = 1) -> tuple[float, bool]:
        auto = row("auto", 2000, k=k)
        auto["to_before"] = gain
        (target,) = (t for t in targets(cell, threads, [auto]) if "earlier commit" in t["what"])
        return target["bound"], target["meets"]

    assert found(Cell(), 10, 1.29) == (1.3, False)
    assert found(Cell(), 100, 0.95) == (0.95, True)
    assert found(Cell(bits=128), 10, 1.5) == (1.5, True)
    assert found(Cell(bits=256), 10, 1.7) == (1.8, False)
    assert found(Cell(data="uniform"), 1000, 1.4) == (1.4, True)
    assert found(Cell(bits=32), 10, 0.94) == (0.95, False)
    assert found(Cell(), 10, 1.0, threads=2) == (0.95, True)
    assert not [t for t in targets(Cell(), 1, [row("auto", 1)]) if "earlier" in t["what"]]


def test_wide_codes_must_be_much_faster_than_the_best_peer() -> None:
    rows = [row("auto", 170), row("ivf", 100, 0.99, setting=4), row("flat", 10)]
    for cell, bound in ((Cell(bits=256), 1.8), (Cell(bits=128), 1.0)):
        (target,) = (t for t in targets(cell, 1, rows) if "best peer" in t["what"])
        assert (target["value"], target["bound"]) == (1.7, bound)


def test_build_targets_take_the_largest_count_and_the_growth_once_optimized() -> None:
    def built(key: str, sizes: dict[str, tuple[float, float]], speed: float) -> Row:
        memory = {w: BytesPerCode(rss=a, counted=b) for w, (a, b) in sizes.items()}
        out = row(key, 1.0)
        out["build_codes_per_s"], out["bytes_a_code"] = speed, memory
        return out

    rows = [
        built("auto", {"optimized": (999, 999)}, 3e6),
        built("scan", {"built": (9, 25), "optimized": (24, 10)}, 1.0),
        built("probe", {"optimized": (999, 999)}, 1.0),
        built("substring", {"built": (99, 10), "optimized": (70, 30), "searched": (99, 64)}, 1.0),
    ]
    found = {t["what"]: (t["value"], t["meets"]) for t in build_targets(rows)}
    assert found == {
        "build, codes/s": (3e6, True),
        "bytes per code without the substring index, memory()": (25, False),
        "bytes per code without the substring index, process growth": (24, True),
        "bytes per code with the substring index, memory()": (64, True),
        "bytes per code with the substring index, process growth": (70, False),
    }
    names = {t["what"] for t in targets(Cell(), 1, rows)}
    assert set(found) <= names
    for cell in (Cell(bits=128), Cell(n=999_999)):
        assert not set(found) & {t["what"] for t in targets(cell, 1, rows)}


def test_a_quiet_run_raises_no_doubt() -> None:
    rows = [
        row("flat", 100, all_=[90, 100, 130]),
        row("flat", 999, k=100, single=True),  # compared with nothing
        row("flat", 105, k=100),  # within five percent of the rate at the smaller K
        row("hash", 5, all_=[4, 5, 6], share=0.9),
        row("probe", None),
    ]
    assert doubts(rows, 1) == []


def test_doubts_name_what_was_odd() -> None:
    rows = [
        row("flat", 100),
        row("flat", 106, k=100),
        row("ivf", 10, setting=4, all_=[8, 10, 12.1]),
        row("hash", 10, all_=[5, 10, 15], share=0.85),
    ]
    faster, wide, waited = doubts(rows, 1)
    assert "faster at K=100 than at K=10" in faster
    assert "2 of 4 measurements" in wide
    assert "at worst 3.0 (faiss Hash nflip=0, K=10)" in wide
    assert "1 of 4 measurements" in waited
    assert "at worst 85%" in waited


def test_with_several_threads_only_flat_must_keep_them_busy() -> None:
    idle = [row("flat", 100, share=1.8), row("auto", 100, share=1.0)]
    assert doubts(idle, 2) == []
    (waited,) = doubts([row("flat", 100, share=1.5), row("auto", 100, share=1.0)], 2)
    assert "1 of 1 measurements" in waited
    assert "at worst 75%" in waited


def test_lines_say_which_targets_a_doubt_touches() -> None:
    both = [check("speed", 1.0, 2.0, True), check("size", 1.0, 2.0, False, timed=False)]
    assert target_lines(both, doubted=True) == [
        "FALLS SHORT  speed: 1 (at least 2) - IN DOUBT, measure again",
        "meets        size: 1 (at most 2)",
    ]
    assert not any("DOUBT" in line for line in target_lines(both, doubted=False))


def load(path: Path) -> tuple[Cell, dict[str, Any]]:
    content = json.loads(path.read_text())
    s = content["settings"]
    return Cell(s["n"], s["bits"], s["data"], s["codes_per_image"]), content


@pytest.mark.parametrize("path", RECORDS, ids=lambda p: p.stem)
def test_committed_verdicts_follow_from_their_rows(path: Path) -> None:
    cell, content = load(path)
    assert path.stem == f"{cell.name}-1t"
    found = targets(cell, content["settings"]["threads"], content["rows"])
    keys = ("value", "bound", "at_least", "meets", "timed")
    stored = [[t[key] for key in keys] for t in content["targets"]]
    assert [list(t.values())[1:] for t in found] == stored
    assert len(doubts(content["rows"], 1)) == len(content["doubts"])


def test_the_table_shows_every_figure_and_every_reason() -> None:
    rows = [row("auto", 2000, k=k) for k in (10, 100)] + [
        row("flat", 1234.5),
        row("flat", 3000, k=100),
        row("probe", None, None),
        row("probe", None, None, 100),
    ]
    settings = {"cell": "c", "n": 10, "images": 10, "threads": 1, "repeats": 3}
    doubt = "something else was running"
    text = table(
        {"settings": settings, "rows": rows, "machine": {"cpu": "a cpu"}, "doubts": [doubt]}
    )
    lines = {line.split("|")[0].strip(): line.split("|")[1:] for line in text.splitlines()}
    assert lines["ours auto"][0].split() == ["2,000*", "200", "1.0000"]
    assert lines["ours auto"][1].split() == ["2,000", "200", "1.0000"]
    assert lines["faiss Flat"][0].split() == ["1,234", "123", "1.0000"]
    assert lines["faiss Flat"][1].split() == ["3,000*", "300", "1.0000"]
    assert lines["ours probe"][0].split() == ["-", "-", "-"]
    assert "K=100: a peer wins: faiss Flat, 3,000 QPS" in text
    assert "ours probe, K=10, 100: stopped" in text
    assert f"doubt: {doubt}" in text
    assert "K=10: a peer wins" not in text


@pytest.mark.parametrize("path", RECORDS, ids=lambda p: p.stem)
def test_committed_records_are_shown(path: Path) -> None:
    _, content = load(path)
    text = table(content)
    for r in content["rows"]:
        assert number(r["qps"]) in text
    assert "bytes per code" in text


def test_the_picture_is_drawn_from_a_record(tmp_path: Path) -> None:
    content = json.loads(RECORDS[0].read_text())
    plot.draw(content, tmp_path / "new" / "run.png")
    (file,) = (tmp_path / "new").iterdir()
    assert file.read_bytes().startswith(b"\x89PNG")


def test_each_step_to_the_right_is_ten_times_fewer_misses() -> None:
    assert [plot.across(r) for r in (0, 0.9, 0.99)] == pytest.approx([0, 1, 2])
    assert plot.across(1) == plot.across(0.99999) == 4


def test_the_suite_is_every_cell_that_has_targets_scaled_alike() -> None:
    assert list(suite(None)) == list(RATIOS)
    assert [c.n for c in suite(100_000)] == [c.n // 10 for c in RATIOS]
    assert ks([row("flat", 1, k=100), row("auto", 1, k=10), row("auto", 1, k=100)]) == [10, 100]


def test_flat_always_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert peers("usearch,ivf") == ("flat", "ivf", "usearch")
    assert peers("all") == tuple(PEERS)
    with pytest.raises(SystemExit):
        parser().parse_args(["--peers", "nobody"])
    assert "no peer nobody; there are flat" in capsys.readouterr().err
