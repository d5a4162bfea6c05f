"""Stages: results kept on disk with the settings they came from and the seconds they took."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from common import progress
from mchindex.files import write_file
from paper.records import from_json, to_json

TICK = 5.0  # seconds between two notes of the time spent: a killed run loses no more than that
T = TypeVar("T")


@dataclass
class Stored:
    key: Any
    seconds: float
    result: Any = None


def read(path: Path) -> Stored | None:
    """What a stage stored; None if the file is missing, cut short or of another shape."""
    try:
        return from_json(Stored, json.loads(path.read_text()))
    except (OSError, ValueError):
        return None


def write(path: Path, stored: Stored) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, json.dumps(to_json(stored)))


class Clock:
    """Counts the seconds spent in its block, and notes them in a file, also if it is killed.

    A file with the same key adds its seconds: so does an interrupted run that is resumed.
    """

    def __init__(self, path: Path, key: Any, before: float = 0.0, tick: float = TICK) -> None:
        self.path, self.key, self.tick = path, key, tick
        stored = read(path)
        self.before = stored.seconds if stored and stored.key == key else before

    @property
    def seconds(self) -> float:
        return self.before + time.monotonic() - self.start

    def __enter__(self) -> Clock:
        self.start = time.monotonic()
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join()
        self._note()

    def _run(self) -> None:
        while not self.over.wait(self.tick):
            self._note()

    def _note(self) -> None:
        write(self.path, Stored(self.key, self.seconds))


class Stages:
    """Computes each stage once, or reads what an earlier run computed."""

    def __init__(self, folder: Path, only_read: bool = False) -> None:
        self.folder, self.only_read = folder, only_read
        self.seconds: dict[str, float] = {}

    def __call__(
        self,
        name: str,
        kind: type[T],
        key: Any,
        compute: Callable[[], T],
        fresh: Callable[[], bool] = lambda: True,
    ) -> T | None:
        """The stage's result, which is computed unless one with this key is stored and `fresh`.

        None: nothing is stored, and stages are only read.
        """
        key = json.loads(json.dumps(key))
        path = self.folder / f"{name}.json"
        stored, result = read(path), None
        same = stored is not None and stored.key == key
        before = 0.0
        if stored is not None and same:
            before = stored.seconds  # a stale stage has more to do, not everything
            try:
                result = from_json(kind, stored.result)
            except ValueError:
                before = 0.0
        if result is not None and (self.only_read or fresh()):
            progress(f"{name}: already computed")
            self.seconds[name] = before
        elif self.only_read:
            progress(f"{name}: not computed yet, left out")
            result = None
        else:
            progress(f"{name}: started")
            with Clock(self.folder / f"{name}.seconds", key, before) as clock:
                result = compute()
            self.seconds[name] = clock.seconds
            write(path, Stored(key, clock.seconds, to_json(result)))
            clock.path.unlink()
            progress(f"{name}: done, {clock.seconds:.0f} s in total")
        return result
