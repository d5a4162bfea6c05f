"""A writer may be killed at any moment: the images it reported are stored, intact and found."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.indexes import assert_as_fresh, codes_for, drawn, tiny_model
from mchindex import MCHIndex
from mchindex.index.verify import verify

State = dict[int, tuple[str, int]]  # id -> how the image was added, and its version


class Zygote:
    """A warmed-up process that forks the writers to kill, so that each one starts quickly."""

    def __init__(self) -> None:
        here = Path(__file__).parents[1]
        path = os.pathsep.join([str(here), *filter(None, [os.environ.get("PYTHONPATH")])])
        self._process = subprocess.Popen(
            [sys.executable, str(here / "helpers/index_worker.py")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        assert self._line() == "ready"

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def start(self, task: dict[str, Any]) -> int:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(task) + "\n")
        self._process.stdin.flush()
        return int(self._line())

    def status(self) -> int:
        """The exit status of the last writer. Fails if it ended with an error of its own."""
        line = self._line()
        assert line.isdigit(), line
        return int(line)

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    process = Zygote()
    yield process
    process.close()


def plan(rng: random.Random, state: State, version: int) -> list[dict[str, Any]]:
    """Operations of every kind, on stored images and on new ones."""
    present, ops = set(state), []
    for _ in range(40):
        kind = rng.choice(["add", "add", "codes", "remove", "update"])
        new = [max(present, default=0) + 1 + i for i in range(rng.randint(1, 12))]
        old = rng.sample(sorted(present), min(len(present), rng.randint(1, 8)))
        ids = {"remove": old, "update": old}.get(kind) or new + old
        rng.shuffle(ids)
        ops.append({"op": kind, "ids": ids, "version": version, "batch": rng.choice([1, 3, 100])})
        version += 1
        present = present - set(ids) if kind == "remove" else present | set(ids)
    return ops


def after(state: State, op: dict[str, Any], ids: list[int]) -> State:
    """The state after an operation has been carried out for these of its ids."""
    if op["op"] == "remove":
        return {i: what for i, what in state.items() if i not in ids}
    if op["op"] == "update":
        ids = [i for i in ids if i in state]
    kind = "codes" if op["op"] == "codes" else "image"
    return state | dict.fromkeys(ids, (kind, op["version"]))


def possible(state: State, op: dict[str, Any], stored: list[int]) -> list[State]:
    """The states that an interrupted operation may have left: some of its batches, in order."""
    size = op["batch"] if op["op"] in ("add", "update") else len(op["ids"])
    ends = [*range(0, len(op["ids"]), max(size, 1)), len(op["ids"])]
    return [after(state, op, op["ids"][:end]) for end in ends if end >= len(stored)]


def read(index: MCHIndex) -> State:
    """The state of the index. Fails if an image does not have the codes of its version."""
    state: State = {}
    model = tiny_model()
    for image in index.images():
        assert isinstance(image.id, int)
        version = image.metadata["version"]
        if image.size is None:
            kind, codes = "codes", codes_for(image.id, version)
        else:
            kind, codes = "image", model.encode([drawn(image.id, version)]).codes
        np.testing.assert_array_equal(image.codes, codes)
        state[image.id] = (kind, version)
    return state


def kill_often(zygote: Zygote, folder: Path, kills: int, seed: int) -> int:
    """Kills this many writers of one index; returns how many had begun and not finished."""
    rng = random.Random(seed)
    path, log = folder / "index.mch", folder / "log"
    state: State = {}
    version = unfinished = 0
    seconds = 0.3  # about as long as a whole task takes
    for kill in range(kills):
        log.unlink(missing_ok=True)
        ops = plan(rng, state, version)
        version += len(ops)
        task = {
            "index": str(path), "log": str(log), "operations": ops,
            "snapshot_after": rng.choice([1, 20, 10**6]), "checkpoint": rng.choice([1, 30, 1000]),
        }  # fmt: skip
        child = zygote.start(task)
        time.sleep(rng.random() * seconds)
        os.kill(child, signal.SIGKILL)
        assert zygote.status() in (0, signal.SIGKILL)
        lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        unfinished += bool(lines) and lines[-1] != "closed"

        stored: list[int] = []
        op = None
        for line in lines:
            if "begin" in line:
                op, stored = ops[line["begin"]], []
            elif "stored" in line:
                stored += line["stored"]
            elif "done" in line:
                assert op is not None
                state, op = after(state, op, op["ids"]), None
        with MCHIndex.open(path, tiny_model()) as index:
            got = read(index)
            assert got in ([state] if op is None else possible(state, op, stored)), (kill, op)
            assert_as_fresh(index, kill)
            if len(got) > 400:
                index.remove(list(got)[::2])
                got = read(index)
        assert verify(path, model=False).problems == []
        state = got
    return unfinished


def test_killed_writers_lose_nothing_they_reported(zygote: Zygote, tmp_path: Path) -> None:
    assert kill_often(zygote, tmp_path, kills=12, seed=0) > 3


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 4))
def test_a_hundred_killed_writers_lose_nothing_they_reported(
    zygote: Zygote, tmp_path: Path, seed: int
) -> None:
    assert kill_often(zygote, tmp_path, kills=100, seed=seed) > 50


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
    with MCHIndex.open(tmp_path / "i", tiny_model()) as index:
        before = len(index)
        assert 0 < before < 10_000
        index.add([drawn(0)], ["another"])
        assert len(index) == before + 1
