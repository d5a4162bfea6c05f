"""bench/calls.py, bench/building.py, bench/against.py, and the command that runs everything."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import against
import building
import calls
import search
from common import Cell, draw
from file_codes import ImageCodes, write_codes
from verdicts import RATIOS

TIMES = st.lists(st.floats(1e-2, 100), min_size=1, max_size=9)


@given(TIMES, TIMES)
def test_calls_compare_the_least_times(ours: list[float], faiss: list[float]) -> None:
    row = calls.summary(64, ours, faiss)
    assert row["ratio"] == min(ours) / min(faiss)
    (target,) = calls.targets([row])
    assert target["meets"] == (min(ours) <= 1.3 * min(faiss)) or row["ratio"] == pytest.approx(1.3)


def test_both_calls_give_the_same_distances() -> None:
    data = draw(Cell(100, 64), 10, 0)
    found = []
    for call in (calls.our_call(data), calls.faiss_call(data)):
        ids = np.concatenate([np.asarray(call(data.queries[i : i + 1])) for i in range(10)])
        assert ids.shape == (10, calls.K)
        found.append(np.bitwise_count(data.codes[ids] ^ data.queries[:, None]).sum(-1))
    np.testing.assert_array_equal(*found)


def test_calls_are_measured_in_their_own_processes(tmp_path: Path) -> None:
    lines = calls.run(tmp_path / "calls.json", turns=1, calls=20)
    content = json.loads((tmp_path / "calls.json").read_text())
    assert [row["bits"] for row in content["rows"]] == [64, 256]
    assert all(len(row["ours_all"]) == len(row["faiss_all"]) == 3 for row in content["rows"])
    assert len(content["targets"]) == 2
    assert all(line.startswith("calls: ") for line in lines)


@given(st.lists(st.tuples(TIMES.map(max), st.integers(1, 999), st.integers(1, 99)), min_size=1))
def test_builds_are_summed_up_per_code(builds: list[tuple[float, int, int]]) -> None:
    row = building.summary(Cell(100), builds)
    assert row["codes_per_s"] == pytest.approx(np.median([100 / spent for spent, _, _ in builds]))
    assert row["peak_bytes_per_code"] == max(peak for _, peak, _ in builds) / 100
    assert row["table_bytes_per_code"] == max(size for _, _, size in builds) / 100


def test_builds_have_targets_at_the_sizes_that_are_reported() -> None:
    def found(n: int, spent: float, peak: float) -> list[tuple[float, bool]]:
        row = building.summary(Cell(n), [(spent, int(peak * n), n)])
        return [(target["bound"], target["meets"]) for target in building.targets([row])]

    assert found(1_000_000, 0.125, 45) == [(8e6, True), (45, True)]
    assert found(1_000_000, 0.126, 45.1) == [(8e6, False), (45, False)]
    assert found(10_000_000, 2, 10) == [(5e6, True), (45, True)]
    assert found(2_000_000, 9, 10) == [(45, True)]
    assert found(1000, 9, 999) == []


def test_the_peak_of_a_build_holds_its_table(tmp_path: Path) -> None:
    building.run(tmp_path / "building.json", [200_000], repeats=1)
    (row,) = json.loads((tmp_path / "building.json").read_text())["rows"]
    assert row["n"] == 200_000
    assert row["codes_per_s"] > 0
    assert row["peak_bytes_per_code"] > 0.8 * row["table_bytes_per_code"] > 6


def test_the_peak_is_forgotten_and_counted_anew() -> None:
    """In a process of its own: memory that other tests have freed would be used again."""
    script = """
import building
large = b"1" * 40_000_000
with_it = building.peak_rss()
del large
building.forget_peak()
print(with_it - building.peak_rss())
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=Path(building.__file__).parent, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert int(done.stdout) > 30_000_000


def git_has(revision: str) -> bool:
    command = ["git", "-C", str(against.ROOT), "rev-parse", "--verify", "-q", revision]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not git_has("HEAD"), reason="not a git repository")
def test_the_files_of_a_commit_are_unpacked(tmp_path: Path) -> None:
    commit = against.commit_of("HEAD")
    assert len(commit) == 40
    against.unpack(commit, tmp_path / "tree")
    assert (tmp_path / "tree" / "mchindex" / "__init__.py").exists()
    with pytest.raises(SystemExit, match="no commit nothing-of-this-name"):
        against.commit_of("nothing-of-this-name")


@pytest.mark.slow
@pytest.mark.skipif(not git_has("HEAD"), reason="not a git repository")
def test_an_earlier_commit_is_built_and_searched(tmp_path: Path) -> None:
    from contenders import BEFORE, Run, Worker
    from race import save

    site = against.build_at(against.commit_of("HEAD"), tmp_path / "before")
    data = draw(Cell(500), 4, 0)
    save(data, tmp_path)
    worker = Worker(BEFORE["before"], 64, Run(str(tmp_path), site=str(site)))
    worker.ask("build")
    assert worker.ask("ids", 5, 0, 0, 4, False).shape == (4, 5)
    worker.stop()


def test_a_build_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unpack(commit: str, folder: Path) -> None:
        (folder / "mchindex").mkdir(parents=True)
        (folder / "CMakeLists.txt").write_text('message(FATAL_ERROR "no such thing")\n')

    pytest.importorskip("pybind11")
    monkeypatch.setattr(against, "unpack", unpack)
    with pytest.raises(SystemExit, match="no such thing"):
        against.build_at("0" * 40, tmp_path)


def test_one_command_measures_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    codes = np.arange(8000, dtype=np.uint32).astype(np.uint8).reshape(1000, 8)
    file = write_codes(tmp_path / "real.npz", ImageCodes(codes, np.arange(1000), codes[:5]))
    raced: list[Cell] = []
    others: dict[str, Any] = {}

    def run_cell(cell: Cell, *_: object) -> list[str]:
        raced.append(cell)
        return [f"{cell.name}: a target"]

    def run_gate(cells: list[Cell], *_: object) -> bool:
        others["gate"] = cells
        return True

    def run_calls(path: Path, seed: int) -> list[str]:
        others["calls"] = path
        return ["calls: a target"]

    def run_building(path: Path, sizes: list[int], seed: int) -> list[str]:
        others["building"] = sizes
        return ["building: a target"]

    monkeypatch.setattr(search, "run_cell", run_cell)
    monkeypatch.setattr(search, "run_gate", run_gate)
    monkeypatch.setattr(calls, "run", run_calls)
    monkeypatch.setattr(building, "run", run_building)
    options = ["--all", "--codes", tmp_path, "--out", tmp_path, "--n", 20_000, "--k", "10"]
    monkeypatch.setattr(sys, "argv", ["search.py", *map(str, options)])
    with pytest.raises(SystemExit) as end:
        search.main()
    assert end.value.code == 0
    assert [cell.n for cell in raced[:-1]] == [cell.n // 50 for cell in RATIOS]
    assert raced[-1] == others["gate"][-1] == Cell.of_file(file)
    assert others["calls"] == tmp_path / "calls.json"
    assert others["building"] == [20_000, 200_000]
    out = capsys.readouterr().out
    assert "real: a target" in out
    assert "calls: a target\nbuilding: a target" in out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--gate", "--json", "x.json"], "--json names one file"),
        (["--codes", "x.npz"], "--codes goes with"),
        (["--suite", "--codes", "nowhere.npz"], "nowhere.npz"),
        (["--gate", "--cells", "far-*"], "--cells goes with --suite or --gate, and with --out"),
        (["--cells", "far-*", "--out", "x"], "--cells goes with"),
        (["--gate", "--cells", "near-*", "--out", "x"], "no cell is named near-*"),
        (["--suite", "--gate"], "not allowed with"),
        (["--n", "10", "--k", "20"], "only 10 images"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    options: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["search.py", *options])
    with pytest.raises(SystemExit) as end:
        search.main()
    assert end.value.code == 2
    assert said in capsys.readouterr().err


def test_the_number_of_codes_is_that_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = draw(Cell(20), 2, 0)
    file = write_codes(tmp_path / "few.npz", data)
    monkeypatch.setattr(sys, "argv", ["search.py", "--data", f"codes:{file}", "--n", "5"])
    with pytest.raises(SystemExit):
        search.main()
    assert "those of a file are all measured" in capsys.readouterr().err
