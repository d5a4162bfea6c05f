"""The directory that a training writes to: the model, a report, and checkpoints until it ends."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mchindex import json_text
from mchindex.catalogue import CONFIG
from mchindex.datasets import Dataset
from mchindex.errors import OutputExistsError, UnfinishedTrainingError
from mchindex.files import read_file, write_file
from mchindex.models.mch import MCHModel
from mchindex.training.options import TrainingOptions

CHECKPOINT, REPORT = "checkpoint", "training.json"
REQUEST = "options.json"  # in the checkpoint folder: the options and data of the interrupted run


def prepare(
    out: Path, options: TrainingOptions, dataset: Dataset, resume: bool, overwrite: bool
) -> Path:
    """The folder for checkpoints.

    Raises OutputExistsError if the directory holds a model, and UnfinishedTrainingError if it holds
    a run that was interrupted and is not to be resumed, or had other options or data.
    """
    work = out / CHECKPOINT
    rows = dataset.splits["train"]
    images = hashlib.sha256(rows.tobytes() + dataset.labels[rows].tobytes()).hexdigest()
    request = json.dumps(
        {"options": asdict(options), "data": dataset.name, "train": images}, indent=1
    )
    if overwrite:
        shutil.rmtree(work, ignore_errors=True)
        (out / CONFIG).unlink(missing_ok=True)
    if (out / CONFIG).exists():
        raise OutputExistsError(
            f"{out} holds a trained model: choose another directory, or replace it with "
            "overwrite=True"
        )
    if (work / REQUEST).exists():
        if not resume:
            raise UnfinishedTrainingError(
                f"{out} holds an interrupted training: continue it with resume=True, or start over "
                "with overwrite=True"
            )
        if _earlier(work / REQUEST) != json.loads(request):
            raise UnfinishedTrainingError(
                f"{out} holds an interrupted training with other options or data: resume it with "
                "the same ones, or start over with overwrite=True"
            )
    work.mkdir(parents=True, exist_ok=True)
    write_file(work / REQUEST, request)
    return work


def _earlier(path: Path) -> Any:
    """The request of an interrupted run; None if it cannot be read."""
    try:
        return json_text.loads(read_file(path))
    except (OSError, ValueError):
        return None


def finish(out: Path, model: MCHModel, report: Mapping[str, Any]) -> None:
    """Writes the model and the report, and removes the checkpoints."""
    model.save(out)
    write_file(out / REPORT, json.dumps(report, indent=1) + "\n")
    shutil.rmtree(out / CHECKPOINT, ignore_errors=True)
