"""Every table and figure of the paper's experiments, on whatever labelled images are at hand.

Trains and measures eight methods at four widths with three seeds, then studies what they left: the
sensitivity to sigma and xi, pairs, search time, pictures. Writes paper.html (one file, for reading
and printing), paper.md (a summary) and paper.json (everything) to --out, with every statement that
the paper makes about its results and whether it holds here.

    python bench/paper.py --data DIR                                # the report is in paper-NAME
    python bench/paper.py --data DIR --out report --report          # only draw again, elsewhere
    python bench/paper.py --data DIR --out docs/paper --visual scenes
    python bench/paper.py --data scenes:400 --out report --methods lsh dch --bits 32 --seeds 1

It can be stopped at any moment: run it again and it goes on. Features, cells and studies are kept
in --cache; the time that each stage took is added up over interrupted runs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

import beyond
import paper_report
from beyond import Beyond
from cells import (
    SUPERVISED,
    Data,
    RunError,
    add_options,
    all_cells,
    alone,
    beside,
    cells_folder,
    check_data,
    missing,
    read_cell,
    read_rows,
    run_cells,
    slug,
)
from common import progress, record, write_json
from learning import mean_rows
from mchindex.datasets import open_dataset
from mchindex.errors import DatasetError
from mchindex.regions import corners_and_centre
from paper_figures import NAMES, guess
from paper_statements import statements, time_against_buckets
from paper_studies import XI, choose_classes, coded_of, pairs, sensitivity
from paper_time import merged, timing
from paper_visual import visual, visual_of_scenes

Result = dict[str, Any]
TICK = 5.0  # seconds after which the time spent is noted, so that a kill loses no more
TIMED = [(m, b) for m in ("dch", "hashnet") for b in (32, 64)]
STUDIES = 2  # goes up when a study gives other figures of the same cells
SCENES = 4000  # pictures of the visual study on drawn ones


class Clock:
    """Adds the seconds spent in it to those in a file, however it is left."""

    def __init__(self, path: Path, key: Any, before: float = 0.0, tick: float = TICK) -> None:
        self.path, self.key, self.tick = path, key, tick
        stored = read(path, key=object, seconds=(int, float))
        self.before = stored["seconds"] if stored and stored["key"] == key else before

    @property
    def seconds(self) -> float:
        return float(self.before + time.monotonic() - self.start)

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
        write(self.path, {"key": self.key, "seconds": self.seconds})


def read(path: Path, **parts: Any) -> Any:
    """A JSON file's content; None where it is missing, cut short, or lacks one of these parts."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    if not isinstance(content, dict):
        return None
    whole = all(name in content and isinstance(content[name], t) for name, t in parts.items())
    return content if whole else None


def write(path: Path, content: Any) -> None:
    """Beside its place first, so that no half of it is ever read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = beside(path)
    new.write_text(json.dumps(content))
    new.replace(path)


class Stages:
    """Results on disk, each with the settings it came from and the seconds it took."""

    def __init__(self, folder: Path, only_read: bool = False) -> None:
        self.folder, self.only_read = folder, only_read
        self.seconds: dict[str, float] = {}

    def __call__(
        self,
        name: str,
        key: Any,
        compute: Callable[[], Result],
        fresh: Callable[[], bool] = lambda: True,
    ) -> Result | None:
        """What the stage gives: read if it is there and was made from the same settings."""
        key = json.loads(json.dumps(key))
        path = self.folder / f"{name}.json"
        stored = read(path, key=object, seconds=(int, float), result=dict)
        same = stored is not None and stored["key"] == key
        if same and (self.only_read or fresh()):
            progress(f"{name}: there already")
        elif self.only_read:
            progress(f"{name}: not there, left out")
            return None
        else:
            progress(f"{name}: begins")
            before = stored["seconds"] if same else 0.0  # gone stale: there is more to do
            with Clock(self.folder / f"{name}.seconds", key, before) as clock:
                result = compute()
            stored = {"key": key, "seconds": clock.seconds, "result": result}
            write(path, stored)
            clock.path.unlink()
            progress(f"{name}: done, {clock.seconds:.0f} s in all")
        self.seconds[name] = stored["seconds"]
        found: Result = stored["result"]
        return found


class Experiments:
    """The stages, and what they share; data is opened only if a stage has to be computed."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.folder = args.work / "paper"
        self.stage = Stages(self.folder, args.report)
        self.basis = {
            name: getattr(args, name) for name in ("name", "regions", "sigma", "crops")
        } | {"size": args.size or 160}

    @cached_property
    def data(self) -> Data:
        dataset = open_dataset(self.args.data)
        check_data(self.args.work, dataset)
        # A wrong name is found before hours of work, not after.
        choose_classes(dataset.classes, dataset.labels[dataset.splits["query"]], self.args.classes)
        return Data(dataset, self.args)

    @cached_property
    def classes(self) -> list[str]:
        labels = self.data.labels("query")
        return choose_classes(self.data.dataset.classes, labels, self.args.classes)[0]

    @cached_property
    def threads(self) -> int:
        return int(self.args.workers * self.args.threads)

    def coded(self, method: str, bits: int) -> Any:
        kept = read_cell(self.args.work, f"{method}-{bits}-0", self.data.backbone.dim)
        return coded_of(kept, self.data)

    def of(self, cells: Sequence[str], **more: Any) -> Result:
        """What a study of these cells depends on: once they are computed anew, so is it."""
        digest = hashlib.sha256()
        for name in cells:
            path = self.args.work / f"{name}.json"
            digest.update(path.read_bytes() if path.exists() else b"none")
        made = {"studies": STUDIES, "of": list(cells), "sha256": digest.hexdigest()}
        return self.basis | made | more

    @property
    def study(self) -> tuple[str, int] | None:
        """The cell that is studied: DCH with 32 bits as in the paper, or what there is."""
        able = [(m, b) for m in self.args.methods for b in self.args.bits if m in SUPERVISED]
        return ("dch", 32) if ("dch", 32) in able else able[0] if able else None

    def run(self) -> Result:
        """All stages, one after the other. Each is skipped where its result is there."""
        args, stage, study = self.args, self.stage, self.study
        wanted = {name: getattr(args, name) for name in ("methods", "bits", "seeds")}
        content: Result = {
            "data": stage("features", self.basis, self._features),
            "cells": stage("cells", self.basis | wanted, self._cells, lambda: not missing(args)),
        }
        timed = [f"{m}-{b}" for m, b in TIMED if m in args.methods and b in args.bits]
        timed = timed or ([f"{study[0]}-{study[1]}"] if study else [])
        if study:
            of = self.of(["{}-{}-0".format(*study)], classes=args.classes)
            content["study"] = list(study)
            content["sensitivity"] = stage(
                "sensitivity", of | {"part": args.part}, self._sensitivity
            )
            content["pairs"] = stage("pairs", of, self._pairs)
            content["time"] = self._time(timed)
            if args.visual == "scenes":
                content["visual"] = stage(
                    "visual-scenes", {"images": SCENES, "studies": STUDIES}, self._scenes
                )
            elif args.visual == "data":
                content["visual"] = stage("visual", of, self._visual)
        content["beyond"] = self._beyond()
        return content

    @cached_property
    def beyond(self) -> Beyond:
        return Beyond(self.args, self.data, self.threads)

    def _beyond(self) -> Result | None:
        """Steps beyond the paper, each a stage of its own."""
        args = self.args
        cells = [(m, b) for m in beyond.METHODS for b in beyond.BITS]
        cells = [(m, b) for m, b in cells if m in args.methods and b in args.bits]
        if not cells:
            return None
        seeds = range(args.seeds)
        names = [f"{m}-{b}-{s}" for m, b in cells for s in seeds]
        of = self.of(names)
        first = self.stage("beyond-crop-labels", of, lambda: self.beyond.crop_labels())
        content: Result = {}
        if "hashnet" in args.methods:
            # These are shown beside it.
            single = [m for m in ("itq", "pca") if m in args.methods]
            widths = [b for b in beyond.BITS if b in args.bits]
            names += [f"{m}-{b}-{s}" for m in single for b in widths for s in seeds]
            content["unsupervised"] = self.stage(
                "beyond-unsupervised", self.of(names), lambda: self.beyond.unsupervised()
            )
        steps = {
            "beyond-joint": lambda: self.beyond.jointly(),
            "beyond-regions": lambda: self.beyond.more_regions(),
            "beyond-together": lambda: self.beyond.together(),
            "beyond-rewards": lambda: self.beyond.new_rewards(),
        }
        if args.more_steps:
            more = (lambda: self.beyond.peaks(), lambda: self.beyond.in_turn())
            steps |= zip(beyond.MORE_STEPS, more, strict=True)
        others = [self.stage(name, of, compute) for name, compute in steps.items()]
        content["steps"] = [step for step in (first, *others) if step]
        return content

    def _features(self) -> Result:
        dataset = self.data.dataset
        return {
            "name": dataset.name,
            "classes": list(dataset.classes),
            **{split: len(rows) for split, rows in dataset.splits.items()},
            "classes_an_image": float(self.data.labels("database").sum(1).mean()),
        }

    def _cells(self) -> Result:
        if missing(self.args):
            _ = self.data  # features are there before the workers share them
        run_cells(self.args)
        return {"cells": len(all_cells(self.args))}

    def _sensitivity(self) -> Result:
        assert self.study is not None
        name = "{}-{}-0".format(*self.study)
        kept = read_cell(self.args.work, name, self.data.backbone.dim)
        return sensitivity(kept, self.data, self.args, self.args.classes, self.threads)

    def _pairs(self) -> Result:
        assert self.study is not None
        return pairs(self.coded(*self.study), XI, self.classes)

    def _time(self, names: list[str]) -> Result | None:
        """A stage a cell, so that little is lost when it is stopped."""
        found = [
            self.stage(f"time-{n}", self.of([f"{n}-0"]), partial(self._timed, n)) for n in names
        ]
        parts = [part for part in found if part]
        if not parts:
            return None
        one = merged(parts)
        return one | {"against": time_against_buckets(one)}

    def _timed(self, name: str) -> Result:
        method, bits = name.split("-")
        return timing(name, self.coded(method, int(bits)), XI)

    def _visual(self) -> Result:
        assert self.study is not None
        layout = corners_and_centre(self.args.sigma)
        return visual(self.coded(*self.study), self.data.dataset, layout, XI, 0)

    def _scenes(self) -> Result:
        return visual_of_scenes(self.folder / "scenes", SCENES, 0)


def with_gains(rows: list[Result]) -> list[Result]:
    """Means over seeds, and the standard error of the gain in F1 from seed to seed."""
    means = mean_rows(rows)
    for mean in means:
        if "mch" not in mean:
            continue
        gains = [
            r["mch"]["f1_own"] - r["base"]["f1_own"]
            for r in rows
            if (r["method"], r["bits"]) == (mean["method"], mean["bits"])
        ]
        several = len(gains) > 1
        error = float(np.std(gains, ddof=1) / np.sqrt(len(gains))) if several else None
        mean["mch"]["f1_own_gain_se"] = error
    return means


def assemble(args: argparse.Namespace, found: Result, seconds: dict[str, float]) -> Result:
    """Everything that the report shows, and the record of the machine and the commit."""
    wanted = set(all_cells(args))
    rows = [r for r in read_rows(args) if (r["method"], r["bits"], r["seed"]) in wanted]
    if not rows:
        sys.exit(f"no cells in {args.work}: run without --report first")
    spent = sum(r["seconds"]["all"] for r in rows) / args.workers
    # Cells that an earlier run of learning.py left count with the time that they took there.
    seconds = seconds | {"cells": max(seconds.get("cells", 0.0), spent)}
    data = found.get("data") or {"name": args.name, "classes": []}
    paper = args.paper or guess(args.name, tuple(data["classes"]))
    settings = {
        "data": args.name,
        "paper": paper,
        "regions": args.regions,
        "size": args.size or 160,
        "sigma": args.sigma,
        "xi": XI,
        "crops": args.crops,
        "backbone": "efficientnet-lite0, frozen",
        "seeds": max(r["seed"] for r in rows) + 1,
        "cells": len(rows),
        "cells_wanted": len(wanted),
        "workers": args.workers,
        "visual": args.visual,
    }
    content = record(settings, 0, with_gains(rows)) | found
    content["data"] = data
    content["seconds"] = {name: round(s, 1) for name, s in seconds.items()}
    content["statements"] = [s.to_json() for s in statements(content)]
    return content


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, help="folder for the report; else paper-NAME, where the data's is NAME"
    )
    add_options(parser)
    parser.add_argument("--name", help="the data's name; else taken from --data")
    parser.add_argument(
        "--paper",
        choices=(*NAMES, "none"),
        help="which of the paper's data sets this is, to put its figures beside ours; else guessed",
    )
    parser.add_argument(
        "--part", type=int, default=2000, help="database images of the sigma study (%(default)s)"
    )
    parser.add_argument(
        "--classes",
        nargs=2,
        default=[],
        metavar="CLASS",
        help="two whose queries are looked at apart; else airplane and bird, or two of about 5 %%",
    )
    parser.add_argument(
        "--visual",
        choices=("data", "scenes", "none"),
        default="data",
        help="whose pictures the visual study shows: the data's own, or drawn ones",
    )
    parser.add_argument(
        "--more-steps",
        action="store_true",
        help="also regions at peaks of the feature map, and hash layer and policy trained in turn; "
        "some twenty minutes more",
    )
    parser.add_argument("--report", action="store_true", help="compute nothing, draw what is there")
    args = parser.parse_args(words)
    args.name = args.name or slug(args.data)
    args.out = args.out or Path(f"paper-{args.name}")
    args.labels = "images"
    args.work = args.work or cells_folder(args)
    for name in ("seeds", "workers", "threads", "part"):
        if getattr(args, name) < 1:
            parser.error(f"--{name} is at least 1")
    return args


def main() -> None:
    args = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped; run again to go on"))
    args.work.mkdir(parents=True, exist_ok=True)
    experiments = Experiments(args)
    try:
        # Only to draw what is there is no work: it may be done while a run goes on.
        with nullcontext() if args.report else alone(args.work):
            found = experiments.run()
    except (DatasetError, RunError) as error:
        sys.exit(f"bench/paper.py: {error}")
    except KeyboardInterrupt:
        sys.exit("stopped; run again to go on")
    content = assemble(args, found, experiments.stage.seconds)
    args.out.mkdir(parents=True, exist_ok=True)
    for name, text in (
        ("paper.html", paper_report.html(content)),
        ("paper.md", paper_report.markdown(content)),
    ):
        (args.out / name).write_text(text, "utf-8")
        progress(f"wrote {args.out / name}")
    write_json(args.out / "paper.json", paper_report.without_pictures(content))


if __name__ == "__main__":
    main()
