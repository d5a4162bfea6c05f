"""Kills writers of an index again and again, and checks what they left.

A warmed-up process forks each writer (helpers/index_worker.py), which carries out operations of
every kind, and searches in another thread; this process reads the index, too. After each kill,
everything the writer had reported must be stored, the index must open and answer as a new one, and
`verify` must be clean. `python -m attack.kills FOLDER WORK KILLS SEED` does this while the disk of
FOLDER is full during every other writer's life.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from attack.faults import RESIZE, WRITE, Faults
from helpers.indexes import assert_as_fresh, codes_for, drawn, tiny_fine_model
from mchindex import MCHIndex
from mchindex.index.verify import verify
from mchindex.storage.store import Store

TESTS = Path(__file__).parents[1]
State = dict[int, tuple[str, int]]  # id -> how the image was added, and its version


class Zygote:
    """A warmed-up process that forks the writers to kill, so that each one starts quickly."""

    def __init__(self) -> None:
        path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
        self._process = subprocess.Popen(
            [sys.executable, str(TESTS / "helpers/index_worker.py")],
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


def possible(state: State, op: dict[str, Any], stored: list[int], full: bool) -> list[State]:
    """The states that an interrupted operation may have left: some of its batches, in order. On a
    full disk, images are removed in steps of any size."""
    size = op["batch"] if op["op"] in ("add", "update") else 1 if full else len(op["ids"])
    ends = [*range(0, len(op["ids"]), max(size, 1)), len(op["ids"])]
    return [after(state, op, op["ids"][:end]) for end in ends if end >= len(stored)]


def read(index: MCHIndex) -> State:
    """The state of the index. Fails if an image does not have the codes of its version."""
    state: State = {}
    fine = 0
    model = tiny_fine_model()
    for image in index.images():
        assert isinstance(image.id, int)
        version = image.metadata["version"]
        if image.size is None:
            kind, codes = "codes", codes_for(image.id, version)
        else:
            kind, codes = "image", model.encode([drawn(image.id, version)]).codes
        np.testing.assert_array_equal(image.codes, codes)
        fine += kind == "image"
        state[image.id] = (kind, version)
    assert index.stats()["fine_images"] == fine
    return state


class FullDisk:
    """Leaves little room: a large file fills a small disk; elsewhere, calls fail."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._filler = folder, folder / "filler"
        self._faults = Faults()

    @contextlib.contextmanager
    def leaving(self, room: int) -> Iterator[None]:
        usage = shutil.disk_usage(self._folder)
        if usage.total > 1 << 26:
            with self._faults.during(WRITE | RESIZE, error=errno.ENOSPC, after=room // 4096):
                yield
            return
        try:
            self._filler.write_bytes(bytes(max(0, usage.free - room)))
            yield
        finally:
            self._filler.unlink()


class Reader:
    """A thread that searches the index all the time, with a connection of its own."""

    def __init__(self, path: Path) -> None:
        self._path, self._over, self.looks = path, threading.Event(), 0
        self._pool = ThreadPoolExecutor(1)
        self._reading = self._pool.submit(self._read)

    def _read(self) -> None:
        while not self._over.is_set():
            if not Store.exists(self._path):
                time.sleep(0.01)
                continue
            with MCHIndex.open(self._path, tiny_fine_model()) as index:
                for _ in range(20):
                    hits = index.search_codes(codes_for(self.looks)[0], 5)
                    assert [hit.distance for hit in hits] == sorted(hits.distances)
                    self.looks += 1
                    time.sleep(0.005)  # leaves the processor to the others

    def close(self) -> None:
        """Ends the thread. Raises what it raised."""
        self._over.set()
        self._reading.result()
        self._pool.shutdown()


def wait_for(log: Path, lines: int) -> None:
    """Waits until a writer has written so much, or nothing more for a while."""
    count, last = -1, time.monotonic()
    while count < lines and time.monotonic() - last < 0.3:
        time.sleep(0.001)
        now = log.read_bytes().count(b"\n") if log.exists() else 0
        if now != count:
            count, last = now, time.monotonic()


def kill_often(
    zygote: Zygote, folder: Path, work: Path, kills: int, seed: int, disk: FullDisk | None = None
) -> tuple[int, int]:
    """Kills this many writers of one index in `folder`; `work` is for other files.

    Returns how many had begun and not finished, and how often the disk was full.
    """
    rng = random.Random(seed)
    path, log = folder / "index.mch", work / "log"
    state: State = {}
    version = unfinished = failed = 0
    # On a full disk, a reader may be unable to open the index.
    reader = Reader(path) if disk is None else None
    full = disk is not None
    for kill in range(kills):
        log.unlink(missing_ok=True)
        ops = plan(rng, state, version)
        version += len(ops)
        task = {
            "index": str(path), "log": str(log), "operations": ops,
            "snapshot_after": rng.choice([1, 20, 10**6]), "checkpoint": rng.choice([1, 30, 1000]),
        }  # fmt: skip
        # The log of an index needs about ten pages before it can be written to.
        room, moment = rng.choice([0, 12, 20, 40]) * 4096, rng.randint(0, 80)
        with contextlib.nullcontext() if disk is None or kill % 2 else disk.leaving(room):
            child = zygote.start(task)
            wait_for(log, moment)
            time.sleep(rng.random() * 0.005)
            with contextlib.suppress(ProcessLookupError):  # it may have finished
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
            elif "error" in line:
                assert disk is not None, line
                failed += 1
            elif "failed" in line:
                assert op is not None
                left = {i: (kind, version) for i, kind, version in line["left"]}
                assert left in possible(state, op, stored, full), (kill, op, line["failed"])
                state, op = left, None
                failed += 1
            elif "done" in line:
                assert op is not None
                state, op = after(state, op, op["ids"]), None
        with MCHIndex.open(path, tiny_fine_model(), wait=10) as index:
            got = read(index)
            assert got in ([state] if op is None else possible(state, op, stored, full)), (kill, op)
            assert_as_fresh(index, kill)
            if len(got) > 400:
                index.remove(list(got)[::2])
                got = read(index)
        assert verify(path, model=False).problems == []
        state = got
    if reader is not None:
        reader.close()
        assert reader.looks > kills
    return unfinished, failed


def main() -> None:
    folder, work, kills, seed = Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:5])
    zygote = Zygote()
    print(*kill_often(zygote, folder, work, kills, seed, FullDisk(folder)))
    zygote.close()


if __name__ == "__main__":
    main()
