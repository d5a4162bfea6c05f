"""All experiments, stage by stage, and the record that they make together."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from common import progress, record
from mchindex.datasets import open_dataset
from mchindex.regions import corners_and_centre
from mchindex.training.measure import Coded
from paper import beyond, records
from paper.figures import SUPERVISED, guess
from paper.records import (
    Beyond,
    DataFacts,
    Pairs,
    Record,
    RunSettings,
    Sensitivity,
    Timing,
    Unsupervised,
    Visual,
    from_json,
    to_json,
)
from paper.runs import (
    XI,
    Data,
    Key,
    Options,
    RunError,
    check_data,
    mean_rows,
    read_cell,
    read_result,
    run_cells,
)
from paper.stages import Stages
from paper.statements import statements
from paper.studies import choose_classes, pairs, sensitivity
from paper.timing import merged, timing
from paper.visual import visual, visual_of_scenes

TIMED = [(method, bits, 0) for method in ("dch", "hashnet") for bits in (32, 64)]
STUDIES = 2  # raised when a study gives other figures for the same cells
SCENES = 4000  # drawn pictures for the visual study


@dataclass(frozen=True)
class Studies:
    """What is studied beyond the cells, and how."""

    paper: str | None = None  # one of the paper's data sets, "none", or None to guess
    part: int = 2000  # database images in the sigma study
    classes: Sequence[str] = ()
    visual: str = "data"  # or scenes, none


class Experiments:
    """The stages. The data is opened only if a stage has to be computed."""

    def __init__(self, options: Options, studies: Studies, only_read: bool = False) -> None:
        self.options, self.studies = options, studies
        self.folder = options.work / "paper"
        self.stage = Stages(self.folder, only_read)
        names = ("name", "regions", "sigma", "crops", "size")
        self.basis = {name: getattr(options, name) for name in names}

    @cached_property
    def data(self) -> Data:
        dataset = open_dataset(self.options.data)
        check_data(self.options.work, dataset)
        # An unknown class is reported now rather than after hours of work.
        queries = dataset.labels[dataset.splits["query"]]
        choose_classes(dataset.classes, queries, self.studies.classes)
        return Data(dataset, self.options)

    @cached_property
    def steps(self) -> beyond.Steps:
        return beyond.Steps(self.data, self.threads)

    @property
    def threads(self) -> int:
        return self.options.workers * self.options.threads

    @property
    def studied(self) -> Key | None:
        """The cell that is studied: DCH with 32 bits as in the paper, or the first possible."""
        able = [(m, b, 0) for m in self.options.methods for b in self.options.bits]
        able = [cell for cell in able if cell[0] in SUPERVISED]
        return ("dch", 32, 0) if ("dch", 32, 0) in able else able[0] if able else None

    def coded(self, cell: Key) -> Coded:
        found = read_cell(self.options, cell, self.data.backbone.dim)
        return self.data.coded(found.queries, found.database)

    def of(self, cells: Sequence[Key], **more: Any) -> dict[str, Any]:
        """The key of a study of these cells, which changes when a cell is computed again."""
        digest = hashlib.sha256()
        for path in map(self.options.path, cells):
            digest.update(path.read_bytes() if path.exists() else b"none")
        names = [self.options.path(cell).stem for cell in cells]
        made = {"studies": STUDIES, "of": names, "sha256": digest.hexdigest()}
        return self.basis | made | more

    def run(self) -> Record:
        """Runs all stages that are not stored yet, one after another."""
        options, stage, cell = self.options, self.stage, self.studied
        wanted = {name: list(getattr(options, name)) for name in ("methods", "bits")}
        wanted_cells = self.basis | wanted | {"seeds": options.seeds}
        data = stage("features", DataFacts, self.basis, self._features)
        cells = stage("cells", dict[str, int], wanted_cells, self._cells,
                      lambda: not options.missing)  # fmt: skip
        found: dict[str, Any] = {"data": data or DataFacts(options.name), "cells": cells}
        if cell:
            key = self.of([cell], classes=list(self.studies.classes))
            found["study"] = cell[:2]
            found["sensitivity"] = stage("sensitivity", Sensitivity,
                                         key | {"part": self.studies.part},
                                         partial(self._sensitivity, cell))  # fmt: skip
            found["pairs"] = stage("pairs", Pairs, key, partial(self._pairs, cell))
            found["time"] = self._time(cell)
            if self.studies.visual == "scenes":
                scenes = {"images": SCENES, "studies": STUDIES}
                draw = partial(visual_of_scenes, self.folder / "scenes", SCENES, 0)
                found["visual"] = stage("visual-scenes", Visual, scenes, draw)
            elif self.studies.visual == "data":
                found["visual"] = stage("visual", Visual, key, partial(self._visual, cell))
        found["beyond"] = self._beyond()
        return self._record(found)

    def _features(self) -> DataFacts:
        dataset = self.data.dataset
        sizes = {split: len(rows) for split, rows in dataset.splits.items()}
        classes = float(self.data.labels("database").sum(1).mean())
        return DataFacts(dataset.name, list(dataset.classes), **sizes, classes_an_image=classes)

    def _cells(self) -> dict[str, int]:
        if self.options.missing:
            _ = self.data  # the features must exist before the workers read them
        run_cells(self.options)
        return {"cells": len(self.options.cells)}

    def _sensitivity(self, cell: Key) -> Sensitivity:
        found = read_cell(self.options, cell, self.data.backbone.dim)
        return sensitivity(found, self.data, self.studies.part, self.studies.classes, self.threads)

    def _pairs(self, cell: Key) -> Pairs:
        coded = self.coded(cell)
        classes, _ = choose_classes(coded.classes, coded.query_labels, self.studies.classes)
        return pairs(coded, XI, classes)

    def _time(self, studied: Key) -> Timing | None:
        """One stage per cell, so that an interruption loses little."""
        cells = [cell for cell in TIMED if cell in self.options.cells] or [studied]
        parts = []
        for cell in cells:
            name = f"{cell[0]}-{cell[1]}"
            part = self.stage(f"time-{name}", Timing, self.of([cell]), partial(self._timed, cell))
            parts += [part] if part else []
        return merged(parts) if parts else None

    def _timed(self, cell: Key) -> Timing:
        return timing(f"{cell[0]}-{cell[1]}", self.coded(cell), XI)

    def _visual(self, cell: Key) -> Visual:
        layout = corners_and_centre(self.options.sigma)
        return visual(self.coded(cell), self.data.dataset, layout, XI, 0)

    def _beyond(self) -> Beyond | None:
        """One stage per step."""
        options, seeds = self.options, range(self.options.seeds)
        widths = [b for b in beyond.BITS if b in options.bits]
        cells = [(m, b, s) for m in beyond.METHODS if m in options.methods
                 for b in widths for s in seeds]  # fmt: skip
        if not cells:
            return None
        found = Beyond()
        steps: dict[str, Callable[[], records.Step]] = {
            "beyond-crop-labels": lambda: self.steps.crop_labels(),
            "beyond-regions": lambda: self.steps.more_regions(),
            "beyond-together": lambda: self.steps.together(),
        }
        for name, compute in steps.items():
            step = self.stage(name, records.Step, self.of(cells), compute)
            found.steps += [step] if step else []
        if "hashnet" in options.methods:
            single = [m for m in ("itq", "pca") if m in options.methods]  # shown beside it
            cells += [(m, b, s) for m in single for b in widths for s in seeds]
            found.unsupervised = self.stage(
                "beyond-unsupervised", Unsupervised, self.of(cells),
                lambda: self.steps.unsupervised(),
            )  # fmt: skip
        return found

    def _record(self, found: dict[str, Any]) -> Record:
        options, cells = self.options, self.options.cells
        results = [r for cell in cells if (r := read_result(options.path(cell)))]
        if not results:
            raise RunError(f"no cells in {options.work}: run without --report first")
        settings = RunSettings(
            data=options.name,
            paper=self.studies.paper or guess(options.name, found["data"].classes),
            regions=options.regions,
            size=options.size,
            sigma=options.sigma,
            xi=XI,
            crops=options.crops,
            backbone="efficientnet-lite0, frozen",
            seeds=max(r.seed for r in results) + 1,
            cells=len(results),
            cells_wanted=len(cells),
            workers=options.workers,
            visual=self.studies.visual,
        )
        header = record(to_json(settings), 0, to_json(mean_rows(results)))
        seconds = dict(self.stage.seconds)
        # Cells may be older than their stage; then they count with the time they took.
        spent = sum(r.seconds["all"] for r in results) / options.workers
        seconds["cells"] = max(seconds.get("cells", 0.0), spent)
        rounded = {name: round(s, 1) for name, s in seconds.items()}
        return with_statements(replace(from_json(Record, header), **found, seconds=rounded))


def with_statements(made: Record) -> Record:
    """The record with the paper's statements judged by its figures."""
    return replace(made, statements=statements(made))


def read_record(path: Path) -> Record:
    """A record from paper.json. Raises RunError if it cannot be read."""
    import json

    from paper.statements import advantages

    try:
        made = from_json(Record, json.loads(path.read_text("utf-8")))
    except (OSError, ValueError) as error:
        raise RunError(f"{path} is not a record of this program: {error}") from error
    if made.time:
        made.time.against = advantages(made.time)
    progress(f"read {path}")
    return with_statements(made)
