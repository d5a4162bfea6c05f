"""Steps beyond the paper, each compared with the paper's MCH at the same number of codes per image.

A step changes one thing about MCH. README.md says when it is kept and how its settings were chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import fields, replace

import numpy as np

from common import progress
from mchindex.evaluation import Evaluation
from mchindex.inference.region_codes import MOST_CODES, RegionCodes
from mchindex.regions import WHOLE, Layout, corners_and_centre, read_layout
from mchindex.training.features import Fixed
from mchindex.training.measure import Coded, measure
from mchindex.training.options import Labelling
from paper.options import Key, Options
from paper.records import Figures, Step, StepCell, StepFigures, UnlabelledCell, Unsupervised
from paper.runs import Data, RunError, read_cell, read_result, run_cells

METHODS = ("dch", "hashnet", "adsh")
BITS = (32, 64)
SINGLE = ("itq", "pca")  # trained without labels and shown beside MCH without labels
FIGURES = tuple(f.name for f in fields(StepFigures))
SAME_CODES = 0.05  # numbers of codes per image that differ by no more count as equal
MORE_REGIONS = "grid:3x3+grid:1x1@0.7"


def starting_cells(options: Options, methods: Sequence[str] = METHODS) -> list[Key]:
    """The cells that the steps start from, as far as they are among those of the options."""
    able = [(m, b) for m in methods for b in BITS if m in options.methods and b in options.bits]
    return [(method, bits, seed) for method, bits in able for seed in range(options.seeds)]


def crop_labels(data: Data) -> Step:
    """Base method and agent trained again, on crops labelled with what they show."""
    crops = _labelled(data, "crops", METHODS)
    run_cells(crops.options)
    return _step(
        data,
        "labels for crops",
        "The base method learns from crops that carry only those of their image's labels that "
        "they show, according to a classifier on the same features. The agent's rewards are "
        "the paper's, on the resulting codes (mch train --crop-labels).",
        lambda cell: read_cell(crops, cell)[1],
    )


def more_regions(data: Data) -> Step:
    """The paper's policy over a grid and a second sigma; at most five regions are kept."""
    regions = len(read_layout(MORE_REGIONS, data.options.sigma)) - 1
    return _step(
        data,
        "more regions",
        f"{regions} regions to choose from instead of five ({MORE_REGIONS}); the "
        f"policy's {MOST_CODES - 1} most likely ones are kept.",
        _over_more_regions(data),
    )


def together(data: Data) -> Step:
    """Both steps at once: combined because each had gained on the queries."""
    return _step(
        data,
        "labels for crops and more regions",
        f"Both at once: the model of labels for crops, over {MORE_REGIONS}.",
        _over_more_regions(_labelled(data, "crops", METHODS)),
    )


def unsupervised(data: Data) -> Unsupervised:
    """MCH without labels beside single codes without labels."""
    labelled, paper = _labelled(data, "neighbours", ("hashnet",)).options, data.options
    run_cells(labelled)
    rows = []
    for bits in labelled.bits:
        for name, of, method, way in (
            ("ITQ", paper, "itq", "base"),
            ("PCA", paper, "pca", "base"),
            ("unsupervised HashNet", labelled, "hashnet", "base"),
            ("unsupervised MCH-HashNet", labelled, "hashnet", "mch"),
        ):
            if method in of.methods:
                found = [_stored(of, (method, bits, s), way) for s in range(of.seeds)]
                rows.append(UnlabelledCell(**vars(_mean(found)), name=name, bits=bits))
    ours = {r.bits: r for r in rows if r.name.startswith("unsupervised MCH")}
    others = [r for r in rows if not r.name.startswith("unsupervised")]
    beaten = (ours[r.bits].map > r.map and ours[r.bits].r0 > r.r0 for r in others)
    return Unsupervised(rows, all(beaten) if others else None)


def _labelled(data: Data, labels: Labelling, methods: Sequence[str]) -> Data:
    """The same data with other labels, and cells in a folder of their own."""
    work = data.options.work / f"labels-{labels}"
    work.mkdir(exist_ok=True)
    able = [m for m in methods if m in data.options.methods]
    bits = [b for b in BITS if b in data.options.bits]
    labelled = copy(data)
    labelled.options = replace(data.options, labels=labels, work=work, methods=able, bits=bits)
    return labelled


def _over_more_regions(data: Data) -> Callable[[Key], Coded]:
    """Reads cells and adds to their database the regions of MORE_REGIONS that they lack."""
    layout = read_layout(MORE_REGIONS, data.options.sigma)
    have = corners_and_centre(data.options.sigma).boxes
    new = [box for box in zip(layout.names, layout.boxes, strict=True)
           if not any(np.allclose(box[1], other) for other in have)]  # fmt: skip
    names, boxes = zip(("whole", WHOLE), *new, strict=True)
    features = data.features("database", Fixed(Layout(names, boxes)))

    def read(cell: Key) -> Coded:
        model, coded = read_cell(data, cell)
        more, have = model.regions_of(features), coded.database
        codes = np.concatenate([have.codes, more.codes[:, 1:]], axis=1)
        keep = np.concatenate([have.keep, more.keep[:, 1:]], axis=1)
        return replace(coded, database=RegionCodes(codes, keep))

    return read


def _step(data: Data, name: str, what: str, change: Callable[[Key], Coded]) -> Step:
    """The step's figures beside the paper's, at the paper's number of codes in each cell."""
    rows: dict[tuple[str, int], list[tuple[StepFigures, StepFigures]]] = {}
    for cell in starting_cells(data.options):
        paper = _stored(data.options, cell, "mch")
        coded = change(cell)
        xi, threads = coded.database.xi_for(paper.anhc), data.options.workers
        # The curves are not used.
        found = measure(coded, xi, ["mch"], threads=threads, ks=[1], budgets=[1])
        ours = _figures(found["mch"])
        rows.setdefault(cell[:2], []).append((paper, ours))
        progress(
            f"{name}, {cell[0]}-{cell[1]} seed {cell[2]}: F1 {paper.f1_own:.4f} -> "
            f"{ours.f1_own:.4f}, mAP {paper.map:.4f} -> {ours.map:.4f}, codes per image "
            f"{paper.anhc:.3f} -> {ours.anhc:.3f}"
        )
    cells = []
    for (method, bits), seeds in rows.items():
        papers, ours_ = zip(*seeds, strict=True)
        off = max(abs(ours.anhc - paper.anhc) for paper, ours in seeds)
        cells.append(StepCell(method, bits, len(seeds), _mean(papers), _mean(ours_), off))
    return judged(name, what, cells)


def _stored(options: Options, cell: Key, way: str) -> StepFigures:
    figures: Figures | None = getattr(read_result(options.path(cell)), way, None)
    if figures is None:
        raise RunError(f"{options.path(cell)} is missing: run again to compute it")
    return _figures(figures)


def judged(name: str, what: str, cells: list[StepCell]) -> Step:
    """What a step changes on average over methods and widths, and whether it is kept."""
    paper, step = _mean([c.mch for c in cells]), _mean([c.step for c in cells])
    ratio, change = _over(step.f1_own, paper.f1_own), step.map - paper.map
    each = float(np.mean([_over(c.step.f1_own, c.mch.f1_own) for c in cells]))
    off = max(c.anhc_off for c in cells)
    kept = ratio > 1 and change >= 0 and off <= SAME_CODES
    return Step(name, what, cells, ratio, each, change, step.anhc - paper.anhc, off, kept)


def _over(a: float, b: float) -> float:
    """a / b, and 1 where both are 0."""
    return (a + 1e-12) / (b + 1e-12)


def _figures(of: Figures | Evaluation) -> StepFigures:
    return StepFigures(*(float(getattr(of, name)) for name in FIGURES))


def _mean(rows: Sequence[StepFigures]) -> StepFigures:
    return StepFigures(*(float(np.mean([getattr(r, name) for r in rows])) for name in FIGURES))
