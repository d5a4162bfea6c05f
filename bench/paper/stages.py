"""Stages: results kept on disk with the settings they came from and the seconds they took."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, json.dumps(to_json(self)))


def read(path: Path, key: Any, kind: Any = Any) -> Stored | None:
    """What is stored under this key; None if there is nothing, or the file is damaged."""
    try:
        stored = from_json(Stored, json.loads(path.read_text()))
        stored.result = from_json(kind, stored.result)
    except (OSError, ValueError):
        return None
    return stored if stored.key == key else None


@contextmanager
def clock(path: Path, key: Any, before: float = 0.0) -> Iterator[Callable[[], float]]:
    """Counts the seconds spent in its block on top of those noted in a file, or else of `before`.

    They are noted there again and again, so that a run that resumes after a kill adds to them.
    """
    noted, start, over = read(path, key), time.monotonic(), threading.Event()

    def seconds() -> float:
        return (noted.seconds if noted else before) + time.monotonic() - start

    def note() -> None:
        while not over.wait(TICK):
            Stored(key, seconds()).write(path)
        Stored(key, seconds()).write(path)

    thread = threading.Thread(target=note, daemon=True)
    thread.start()
    try:
        yield seconds
    finally:
        over.set()
        thread.join()


class Stages:
    """Computes each stage once, or reads what an earlier run computed."""

    def __init__(self, folder: Path, only_read: bool = False) -> None:
        self.folder, self.only_read = folder, only_read
        self.seconds: dict[str, float] = {}

    def __call__(
        self, name: str, kind: type[T], key: Any, compute: Callable[[], T], fresh: bool = True
    ) -> T | None:
        """The stage's result, which is computed unless it is stored under this key and `fresh`.

        None: nothing is stored, and stages are only read.
        """
        key = json.loads(json.dumps(key))
        path, noted = self.folder / f"{name}.json", self.folder / f"{name}.seconds"
        stored = read(path, key, kind)
        if stored and (self.only_read or fresh):
            progress(f"{name}: already computed")
            self.seconds[name] = stored.seconds
            found: T = stored.result
            return found
        if self.only_read:
            progress(f"{name}: not computed yet, left out")
            return None
        progress(f"{name}: started")
        with clock(noted, key, stored.seconds if stored else 0.0) as seconds:
            result = compute()
        self.seconds[name] = seconds()
        Stored(key, self.seconds[name], result).write(path)
        noted.unlink()
        progress(f"{name}: done, {self.seconds[name]:.0f} s in total")
        return result
