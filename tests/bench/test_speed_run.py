"""bench/search.py: one small run from the data to the files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from common import Cell, draw_codes
from contenders import OURS, FailedError
from file_codes import ImageCodes, write_codes
from measurements import Row
from race import Race, Settings
from search import run_cell


def test_a_run_measures_every_contender_and_writes_what_it_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cell = Cell(1500, codes_per_image=1.5)
    settings = Settings(k=(5, 20), queries=20, repeats=2, budget=0.01, peers=("flat",))
    lines = run_cell(cell, settings, tmp_path)
    name = "clustered-64bit-1.5k-1.5codes-1t"
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"{name}.json", f"{name}.png"]
    content = json.loads((tmp_path / f"{name}.json").read_text())
    rows: list[Row] = content["rows"]
    assert len(rows) == 2 * (len(OURS) + 3)  # `auto` and Flat have two lines each
    for row in rows:
        assert set(row) == set(Row.__annotations__) - {"to_before"}
        assert row["recall"] == 1
        assert len(row["qps_all"]) == 2
        assert 1 <= row["queries"] <= 20
        assert set(row["bytes_a_code"]) == {"built", "optimized", "searched"}
    assert (content["settings"]["images"], content["settings"]["n"]) == (1000, 1500)
    assert lines[0].endswith("meets        K=5 recall of ours: 1 (at least 1)")
    assert "\nours auto, one query per call  " in capsys.readouterr().out


def test_a_failed_search_leaves_out_larger_k_and_the_others_go_on(tmp_path: Path) -> None:
    race = Race(Cell(1500), Settings(k=(5, 20, 50), queries=4, peers=("flat",)), tmp_path)
    race.kinds = {key: race.kinds[key] for key in ("probe", "flat")}
    try:
        race.build()
        race.set_truth()
        _, middle, largest = (p for p in race.points if p.key == "probe")
        race.workers["probe"].stop(kill=True)
        race.fail(middle, FailedError("stopped: no answer within 60 s"))
        notes = {(p.key, p.k): p.note for p in race.points}
        assert notes["probe", 5] == notes["flat", 20] == notes["scan", 20] == ""
        assert middle.note == "stopped: no answer within 60 s"
        assert largest.note == "left out: K=20 stopped: no answer within 60 s"
        first = next(p for p in race.points if p.key == "probe")
        race.warm_up(first)  # by a new process, built again
        assert first.recall == 1
        with pytest.raises(SystemExit, match="the baseline, faiss Flat, failed at K=5"):
            race.fail(next(p for p in race.points if p.key == "flat"), FailedError("stopped"))
    finally:
        race.stop()


def test_a_file_of_codes_is_measured_under_its_name_and_beside_an_earlier_commit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import mchindex

    rng = np.random.default_rng(0)
    images = np.repeat(np.arange(0, 600, 2), rng.integers(1, 9, 300))  # numbers with gaps
    codes, queries = draw_codes(Cell(len(images)), 7, 0)
    regions = np.zeros(len(images), np.int16)
    file = write_codes(tmp_path / "mine.npz", ImageCodes(codes, images, queries, regions))
    site = tmp_path / "site"
    shutil.copytree(Path(mchindex.__file__).parent, site / "mchindex")
    settings = Settings(
        k=(5, 20), queries=20, repeats=2, budget=0.01, peers=("flat",), against="0123456789abcdef"
    )
    run_cell(Cell.of_file(file), settings, tmp_path / "out", site=str(site))
    content = json.loads((tmp_path / "out" / "mine-1t.json").read_text())
    rows: list[Row] = content["rows"]
    assert (content["settings"]["cell"], content["settings"]["data"]) == ("mine", "codes:mine")
    assert (content["settings"]["n"], content["settings"]["images"]) == (len(images), 300)
    assert str(tmp_path) not in json.dumps(content["settings"])
    assert all(row["recall"] == 1 and row["queries"] <= 7 for row in rows)
    assert {row["contender"] for row in rows} == {*OURS, "before", "flat"}
    assert all(row["to_before"] for row in rows)
    out = capsys.readouterr().out
    assert "ours before: auto at commit 0123456789ab" in out
    assert "times the queries per second of ours before" in out
    assert any("earlier commit" in target["what"] for target in content["targets"])
