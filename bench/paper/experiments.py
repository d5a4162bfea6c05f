"""All experiments, stage by stage, and the record that they make together."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from common import record
from mchindex.datasets import open_dataset
from paper import beyond, records, runs
from paper.figures import SUPERVISED, guess
from paper.options import Key, Options
from paper.records import Record, from_json
from paper.runs import XI, Data, RunError, read_cell
from paper.stages import Stages
from paper.statements import advantages, statements
from paper.studies import choose_classes, pairs, sensitivity
from paper.timing import merged, timing
from paper.visual import visual, visual_of_scenes

TIMED = [(method, bits, 0) for method in ("dch", "hashnet") for bits in (32, 64)]
STUDIES = 2  # raised when a study gives other figures for the same cells
SCENES = 4000  # drawn pictures for the visual study
T = TypeVar("T")


class Experiments:
    """The stages. The data is opened only if a stage has to be computed."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.stage = Stages(options.work / "paper", options.report)
        names = ("name", "regions", "sigma", "crops", "size")
        self.basis = {name: getattr(options, name) for name in names}

    @cached_property
    def data(self) -> Data:
        dataset = open_dataset(self.options.data)
        runs.check_data(self.options.work, dataset)
        # An unknown class is reported now rather than after hours of work.
        queries = dataset.labels[dataset.splits["query"]]
        choose_classes(dataset.classes, queries, self.options.classes)
        return Data(dataset, self.options)

    @property
    def studied(self) -> Key | None:
        """The cell that is studied: DCH with 32 bits as in the paper, or the first possible."""
        able = [(m, b, 0) for m in self.options.methods for b in self.options.bits]
        able = [cell for cell in able if cell[0] in SUPERVISED]
        return ("dch", 32, 0) if ("dch", 32, 0) in able else able[0] if able else None

    def of(self, cells: Sequence[Key], **more: Any) -> dict[str, Any]:
        """The key of a study of these cells, which changes when a cell is computed again."""
        paths = [self.options.path(cell) for cell in cells]
        content = b"".join(p.read_bytes() if p.exists() else b"none" for p in paths)
        digest = hashlib.sha256(content).hexdigest()
        made = {"studies": STUDIES, "of": [p.stem for p in paths], "sha256": digest}
        return self.basis | made | more

    def study(
        self, name: str, key: dict[str, Any], study: Callable[..., T], cell: Key | None = None
    ) -> T | None:
        """The stage of a function of the data and, if one is given, of a cell's model and codes."""

        def compute() -> T:
            return study(self.data, *(read_cell(self.data, cell) if cell else ()))

        return self.stage(name, get_type_hints(study)["return"], key, compute)

    def run(self) -> Record:
        """Runs all stages that are not stored yet, one after another."""
        options, stage = self.options, self.stage
        key = self.basis | {name: getattr(options, name) for name in ("methods", "bits", "seeds")}
        data = stage("features", records.DataFacts, self.basis, self._features)
        cells = stage("cells", dict[str, int], key, self._cells, fresh=not options.missing)
        found = {"data": data or records.DataFacts(options.name), "cells": cells}
        if self.studied:
            found |= self._studies(self.studied)
        return self._record(found | {"beyond": self._beyond()})

    def _features(self) -> records.DataFacts:
        data = self.data.dataset
        sizes = {split: len(rows) for split, rows in data.splits.items()}
        mean = float(self.data.labels("database").sum(1).mean())
        return records.DataFacts(data.name, list(data.classes), **sizes, classes_an_image=mean)

    def _cells(self) -> dict[str, int]:
        if self.options.missing:
            _ = self.data  # the features must exist before the workers read them
        runs.run_cells(self.options)
        return {"cells": len(self.options.cells)}

    def _studies(self, cell: Key) -> dict[str, Any]:
        options = self.options
        key = self.of([cell], classes=options.classes)
        part = key | {"part": options.part}
        found: dict[str, Any] = {
            "study": cell[:2],
            "sensitivity": self.study("sensitivity", part, sensitivity, cell),
            "pairs": self.study("pairs", key, pairs, cell),
            "time": self._time([c for c in TIMED if c in options.cells] or [cell]),
        }
        if options.visual == "data":
            found["visual"] = self.study("visual", key, visual, cell)
        elif options.visual == "scenes":
            drawn, folder = {"images": SCENES, "studies": STUDIES}, self.stage.folder / "scenes"
            found["visual"] = self.stage(
                "visual-scenes", records.Visual, drawn, lambda: visual_of_scenes(folder, SCENES)
            )
        return found

    def _time(self, cells: Sequence[Key]) -> records.Timing | None:
        """One stage per cell, so that an interruption loses little."""
        parts = [self.study(f"time-{c[0]}-{c[1]}", self.of([c]), timing, c) for c in cells]
        found = [part for part in parts if part]
        return merged(found) if found else None

    def _beyond(self) -> records.Beyond | None:
        """One stage per step."""
        options, cells = self.options, beyond.starting_cells(self.options)
        if not cells:
            return None
        key = self.of(cells)
        steps = [
            self.study("beyond-crop-labels", key, beyond.crop_labels),
            self.study("beyond-regions", key, beyond.more_regions),
            self.study("beyond-together", key, beyond.together),
        ]
        found = records.Beyond([step for step in steps if step])
        if "hashnet" in options.methods:
            key = self.of(cells + beyond.starting_cells(options, beyond.SINGLE))
            found.unsupervised = self.study("beyond-unsupervised", key, beyond.unsupervised)
        return found

    def _record(self, found: dict[str, Any]) -> Record:
        options, cells = self.options, self.options.cells
        results = [r for cell in cells if (r := runs.read_result(options.path(cell)))]
        if not results:
            raise RunError(f"no cells in {options.work}: run without --report first")
        names = ("regions", "size", "sigma", "crops", "workers", "visual")
        settings = records.RunSettings(
            data=options.name,
            paper=guess(options.name, found["data"].classes),
            xi=XI,
            backbone="efficientnet-lite0, frozen",
            seeds=max(r.seed for r in results) + 1,
            cells=len(results),
            cells_wanted=len(cells),
            **{name: getattr(options, name) for name in names},
        )
        # Cells may be older than their stage; then they count with the time they took.
        spent = sum(r.seconds["all"] for r in results) / options.workers
        seconds = self.stage.seconds | {"cells": max(self.stage.seconds.get("cells", 0), spent)}
        found["seconds"] = {name: round(s, 1) for name, s in seconds.items()}
        found |= {"settings": settings, "rows": runs.mean_rows(results)}
        return judged(Record(**record({}, 0, []) | found))


def judged(made: Record) -> Record:
    """The record with all that is computed from its figures: the verdicts above all."""
    if made.time:
        made.time.against = advantages(made.time)
    return replace(made, statements=statements(made))


def read_record(path: Path) -> Record:
    """A record from paper.json, judged again. Raises RunError if it cannot be read."""
    try:
        return judged(from_json(Record, json.loads(path.read_text("utf-8"))))
    except (OSError, ValueError) as error:
        raise RunError(f"{path} is not a record of this program: {error}") from error
