"""A writer may be killed at any moment: what it reported is stored, intact and found (kills.py)."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from attack.faults import on_small_disk, preloaded, run_module
from attack.kills import Zygote, kill_often
from helpers.indexes import drawn, tiny_fine_model
from mchindex import MCHIndex


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    process = Zygote()
    yield process
    process.close()


def test_killed_writers_lose_nothing_they_reported(zygote: Zygote, tmp_path: Path) -> None:
    assert kill_often(zygote, tmp_path, tmp_path, kills=10, seed=0)[0] > 3


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 4))
def test_a_hundred_killed_writers_lose_nothing_they_reported(
    zygote: Zygote, tmp_path: Path, seed: int
) -> None:
    assert kill_often(zygote, tmp_path, tmp_path, kills=100, seed=seed)[0] > 50


def kill_on_a_full_disk(tmp_path: Path, kills: int, seed: int) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    out = run_module(
        "attack.kills", folder, tmp_path, kills, seed,
        environment=preloaded(folder, tmp_path), prefix=on_small_disk(folder, "4m"),
    )  # fmt: skip
    unfinished, failed = map(int, out.split())
    assert unfinished > kills // 4
    assert failed > kills // 4


def test_killed_writers_on_a_full_disk_lose_nothing_they_reported(tmp_path: Path) -> None:
    kill_on_a_full_disk(tmp_path, kills=10, seed=0)


@pytest.mark.slow
def test_a_hundred_killed_writers_on_a_full_disk_lose_nothing_they_reported(
    tmp_path: Path,
) -> None:
    kill_on_a_full_disk(tmp_path, kills=100, seed=1)


def test_a_killed_writer_leaves_no_lock(zygote: Zygote, tmp_path: Path) -> None:
    log = tmp_path / "log"
    ops = [{"op": "add", "ids": list(range(10_000)), "version": 0, "batch": 1}]
    task = {
        "index": str(tmp_path / "i"), "log": str(log), "operations": ops,
        "snapshot_after": 10**6, "checkpoint": 1000,
    }  # fmt: skip
    child = zygote.start(task)
    while not (log.exists() and "stored" in log.read_text()):
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    zygote.status()
    with MCHIndex.open(tmp_path / "i", tiny_fine_model()) as index:
        before = len(index)
        assert 0 < before < 10_000
        index.add([drawn(0)], ["another"])
        assert len(index) == before + 1
