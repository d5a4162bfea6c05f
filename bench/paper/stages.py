"""Stages: results kept on disk with the settings they came from and the seconds they took."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from common import progress
from mchindex.files import write_file
from paper.records import from_json, to_json

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
        before, start = read(noted, key) or stored, time.monotonic()
        try:
            result = compute()
        finally:
            spent = time.monotonic() - start + (before.seconds if before else 0.0)
            Stored(key, spent).write(noted)
        Stored(key, spent, result).write(path)
        noted.unlink()
        self.seconds[name] = spent
        progress(f"{name}: done, {spent:.0f} s in total")
        return result
