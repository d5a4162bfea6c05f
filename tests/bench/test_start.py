"""bench/start.py measures the CPU time of commands."""

import sys
from pathlib import Path

import pytest

import start


def test_the_cpu_time_of_a_process(tmp_path: Path) -> None:
    busy = "import time\nwhile time.process_time() < 0.5: pass\nprint('done')"
    took, text = start.cpu_seconds([sys.executable, "-c", busy], tmp_path, None)
    assert 0.5 <= took < 5
    assert text == "done\n"
    slept, _ = start.cpu_seconds(
        [sys.executable, "-c", "import time; time.sleep(1)"], tmp_path, None
    )
    assert slept < took
    with pytest.raises(SystemExit, match="failed"):
        start.cpu_seconds([sys.executable, "-c", "raise SystemExit(3)"], tmp_path, None)


def test_another_version_is_imported_from_its_folder(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "mchindex.py").write_text("print('another')")
    command = [sys.executable, "-c", "import mchindex"]
    assert start.cpu_seconds(command, tmp_path, tmp_path / "site")[1] == "another\n"


def test_rows_and_report(capsys: pytest.CaptureFixture[str]) -> None:
    times = {
        (what, version): [9.0, factor * most, factor * most]
        for what, most in start.ALLOWED.items()
        for version, factor in (("this", 0.5), ("earlier", 4.0))
    }
    times["info", "this"] = [0.5, 0.5, 0.5]
    rows = start.rows_of(times)
    assert rows[0]["cpu_seconds"] == 0.4
    start.report(rows)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(start.ALLOWED)
    assert [line for line in lines if "FALLS SHORT" in line] == [
        line for line in lines if line.startswith("info")
    ]
    assert "8.0 times less" in lines[0]


def test_every_command_has_a_limit(tmp_path: Path) -> None:
    assert {*start.arguments(tmp_path), start.FIRST, start.LATER} == set(start.ALLOWED)
