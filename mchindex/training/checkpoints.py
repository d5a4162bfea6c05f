"""The state of each training stage on disk, so that an interrupted training run can resume."""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mchindex.files import open_file, replacing

EVERY = 20.0  # seconds between two saves of a stage that is under way


class CheckpointFile:
    """The state of a stage in a file, read back without pickle."""

    def __init__(self, path: Path | None) -> None:
        """With None for a path, nothing is saved."""
        self._path, self._saved = path, time.monotonic()

    def load(self) -> dict[str, Any] | None:
        """The last state, or None if there is none or its file is damaged."""
        if self._path is None or not self._path.exists():
            return None
        try:
            with open_file(self._path) as stream:
                state: dict[str, Any] = torch.load(stream, map_location="cpu", weights_only=True)
        except Exception:  # a damaged file raises whatever its bytes happen to mean
            warnings.warn(f"{self._path} is damaged: its stage starts over", stacklevel=2)
            return None
        return state

    def save(self, state: dict[str, Any], force: bool = False) -> None:
        """Writes the state, unless the last one is only seconds old and `force` is false."""
        if self._path is None or (not force and time.monotonic() - self._saved < EVERY):
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(self._path) as stream:
            torch.save(state, stream)
        self._saved = time.monotonic()


class Checkpoints:
    """The checkpoints of a training, for stages under way and for finished ones."""

    def __init__(self, folder: Path | None) -> None:
        """With None for a folder, nothing is saved."""
        self._folder = folder

    def under_way(self, stage: str) -> CheckpointFile:
        """Where a stage saves its state while it runs."""
        return self._file(f"{stage}-part")

    def finished(self, stage: str, *modules: nn.Module) -> bool:
        """Loads what a stage ended with into its modules; False if it has not ended yet."""
        state = self._file(stage).load()
        if state is None:
            return False
        for i, module in enumerate(modules):
            module.load_state_dict(state[str(i)])
            module.eval()
        return True

    def finish(self, stage: str, *modules: nn.Module) -> None:
        """Saves what a stage ended with."""
        state = {str(i): module.state_dict() for i, module in enumerate(modules)}
        self._file(stage).save(state, force=True)
        if self._folder is not None:
            (self._folder / f"{stage}-part.pt").unlink(missing_ok=True)

    def _file(self, name: str) -> CheckpointFile:
        return CheckpointFile(None if self._folder is None else self._folder / f"{name}.pt")
