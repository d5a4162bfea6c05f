"""bench/gate.py: which cells pass, why others fail, and one small run."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import gate
import search
from common import Cell
from contenders import FailedError
from gate import GateRow, GateSettings, Ground, Lane, failures, line, row_of, run_gate, summary
from kinds import KINDS


def lane(key: str, us: float | None, count: int = 10, spread: float = 1.0, note: str = "") -> Lane:
    """A lane whose least time per query is `us` microseconds."""
    seconds = [] if us is None else [us * count * spread / 1e6, us * count / 1e6]
    return Lane(key, 10, False, count, seconds, list(seconds), note)


def row(auto: float | None, flat: float, recall: float = 1.0, **forced: float) -> GateRow:
    lanes = [lane("auto", auto, note="" if auto else "died"), lane("flat", flat)]
    return row_of(Cell(), lanes + [lane(key, us) for key, us in forced.items()], recall, 1)


def test_a_cell_passes_at_its_bounds_and_fails_beyond_them() -> None:
    passing = row(10.0, 10.0, scan=8.0, probe=900.0)
    assert passing["meets"]
    assert (passing["to_flat"], passing["best"], passing["auto_to_best"]) == (1, "scan", 1.25)
    assert failures(passing) == []
    slow = row(10.0, 9.99, scan=8.0)
    assert not slow["meets"]
    assert failures(slow) == ["1.00 times as fast as Flat (1.00 by processor time)"]
    behind = row(10.0, 100.0, scan=7.9, substring=7.5)
    assert not behind["meets"]
    assert failures(behind) == [
        "auto takes 1.33 times as long as substring (1.33 by processor time)"
    ]
    wrong = row(1.0, 100.0, recall=0.9, scan=5.0)
    assert not wrong["meets"]
    assert failures(wrong) == ["recall 0.9000"]
    dead = row(None, 100.0, scan=5.0)
    assert not dead["meets"]
    assert failures(dead) == ["auto was not measured: died"]
    assert row(1.0, 2.0)["meets"]  # every forced strategy was left out


def test_times_are_the_least_of_the_repeats_per_query() -> None:
    found = row_of(
        Cell(),
        [lane("auto", 2.0, 100, spread=9.0), lane("flat", 8.0, 5), lane("scan", None)],
        1.0,
        1,
    )
    assert found["us"] == pytest.approx({"auto": 2.0, "flat": 8.0})
    assert found["to_flat"] == pytest.approx(4)
    assert found["best"] is None
    (doubt,) = found["doubts"]
    assert doubt == "the repeats of auto differ by a factor of 9.0"


def test_waiting_for_the_processor_casts_doubt_with_one_thread() -> None:
    waited = lane("flat", 8.0)
    waited.busy = [s / 2 for s in waited.seconds]
    assert row_of(Cell(), [lane("auto", 2.0), waited], 1.0, 1)["cpu_us"]["flat"] == pytest.approx(4)
    for threads, doubts in ((1, ["flat had the processor for 50% of its time"]), (2, [])):
        assert row_of(Cell(), [lane("auto", 2.0), waited], 1.0, threads)["doubts"] == doubts


def test_only_what_is_compared_casts_doubt() -> None:
    lanes = [lane("auto", 2.0), lane("flat", 8.0), lane("scan", 3.0), lane("probe", 9.0, spread=4)]
    assert row_of(Cell(), lanes, 1.0, 1)["doubts"] == []


def test_the_table_and_the_summary_name_what_fails() -> None:
    rows = [row(10.0, 40.0, scan=9.0), row(10.0, 5.0, scan=9.0), row(20.0, 90.0, probe=10.0)]
    marks = ["FAILS" in line(r) for r in rows]
    assert marks == [False, True, True]
    assert line(rows[0]).split() == [
        "clustered-64bit-1M", "10", "whole", "10.0", "40.0", "4.00", "scan", "9.00", "1.11",
    ]  # fmt: skip
    assert summary(rows) == [
        "least x Flat: 0.50 (clustered-64bit-1M, K=10)",
        "largest auto ÷ best forced: 2.00 (clustered-64bit-1M, K=10)",
        "FAILS  clustered-64bit-1M, K=10: 0.50 times as fast as Flat (0.50 by processor time)",
        "FAILS  clustered-64bit-1M, K=10: auto takes 2.00 times as long as probe "
        "(2.00 by processor time)",
        "1 of 3 cells pass",
    ]
    assert line(row(None, 40.0)).split()[3] == "-"


QUICK = GateSettings(k=(5, 20), queries=20, repeats=2, again=1, budget=0.001)


def test_a_run_measures_every_kind_of_codes_and_writes_what_it_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = [Cell(600, 32, "equal"), Cell(600, 64, "far", codes_per_image=1.5)]
    passes = run_gate(cells, QUICK, tmp_path / "gate.json")
    content = json.loads((tmp_path / "gate.json").read_text())
    rows: list[GateRow] = content["rows"]
    assert [(r["cell"], r["k"], r["batch"]) for r in rows] == [
        (cell.name, k, batch) for cell in cells for k in (5, 20) for batch in ("whole", "single")
    ]
    for r in rows:
        assert set(r) == set(GateRow.__annotations__)
        assert r["recall"] == 1
        assert {"auto", "flat"} <= set(r["us"])
        assert set(r["us"]) | set(r["left_out"]) == set(gate.CONTENDERS)
        assert 1 <= r["queries"] <= 20
    failed = [r for r in rows if not r["meets"]]
    assert content["failed"] == len(failed)
    assert passes == (not failed)
    out = capsys.readouterr().out
    assert all(line(r) in out for r in rows)
    assert f"{len(rows) - len(failed)} of {len(rows)} cells pass" in out


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    ground = Ground(Cell(400, 64), QUICK, tmp_path)
    yield ground
    ground.stop()


def test_a_strategy_that_is_stopped_is_left_out_from_that_k_on(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    ground.build()
    follow = ground.follow

    def stops(lane: Lane, auto: Lane) -> None:
        if lane.key == "probe" and lane.k == 20:
            ground.workers["probe"].stop(kill=True)
            raise FailedError("stopped: no answer within 1 s")
        follow(lane, auto)

    monkeypatch.setattr(ground, "follow", stops)
    ground.warm_up()
    first = ground.workers["probe"].process.pid
    notes = {lane.k: lane.note for lane in ground.lanes if lane.key == "probe"}
    assert notes[20] == "stopped: no answer within 1 s"
    assert "stopped" not in notes[5]
    assert ground.workers["probe"].alive  # built again for the smaller K
    ground.measure(ground.lanes)
    assert ground.workers["probe"].process.pid == first
    assert [r["left_out"].get("probe") for r in ground.rows()[2:]] == [notes[20]] * 2


def test_a_strategy_far_slower_than_auto_is_left_out(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    def time(lane: Lane, count: int, limit: float | None = None) -> tuple[float, float]:
        each = {"auto": 0.001, "scan": 0.004, "probe": 0.006}[lane.key]
        return each * count, each * count

    monkeypatch.setattr(ground, "time", time)
    auto, scan, probe = (Lane(key, 5, False) for key in ("auto", "scan", "probe"))
    auto.count = 16
    ground.follow(scan, auto)
    ground.follow(probe, auto)
    assert (scan.count, scan.note) == (16, "")
    assert (probe.count, probe.note) == (0, "takes 6 times as long as auto")


def test_failing_cells_are_measured_again(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ground, "build", lambda: None)
    monkeypatch.setattr(ground, "warm_up", lambda: None)
    asked: list[tuple[str, int, bool]] = []

    def time(lane: Lane, count: int, limit: float | None = None) -> tuple[float, float]:
        asked.append((lane.key, lane.k, lane.single))
        busy = (lane.k, lane.single) == (20, True) and len(asked) <= 40
        spent = 9.0 if busy and lane.key == "auto" else 1.0  # other work, for a while
        return spent, spent

    monkeypatch.setattr(ground, "time", time)
    for one in ground.lanes:
        one.count = 1
        ground.recall[one.k, one.single] = 1.0
    rows = ground.run()
    every = len(ground.lanes) * QUICK.repeats
    assert len(asked) == every + 5 * QUICK.repeats
    assert set(asked[every:]) == {(key, 20, True) for key in gate.CONTENDERS}
    assert all(r["meets"] for r in rows)


def test_every_kind_of_codes_is_measured_at_every_width() -> None:
    cells = gate.grounds(1000)
    assert {(c.data, c.bits) for c in cells} == {
        (kind, bits) for kind in KINDS for bits in (32, 64, 128, 256)
    }
    assert {c.n for c in cells} == {1000}


@pytest.mark.parametrize("passes", [True, False])
def test_the_exit_code_says_whether_the_gate_is_passed(
    passes: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[Cell] = []

    def run(cells: list[Cell], settings: GateSettings, path: Path) -> bool:
        seen.extend(cells)
        assert (settings.k, path) == ((10,), tmp_path / "gate.json")
        return passes

    monkeypatch.setattr(search, "run_gate", run)
    options = ["--gate", "--n", "500", "--k", "10", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["search.py", *options])
    with pytest.raises(SystemExit) as end:
        search.main()
    assert end.value.code == (0 if passes else 1)
    assert seen == gate.grounds(500)
    seen.clear()
    monkeypatch.setattr(sys, "argv", ["search.py", *options, "--cells", "far-*", "ten-32bit-*"])
    with pytest.raises(SystemExit):
        search.main()
    assert [c.name for c in seen] == [
        c.name for c in gate.grounds(500) if c.data == "far" or (c.data, c.bits) == ("ten", 32)
    ]
