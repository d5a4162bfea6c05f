"""Steps beyond the paper, each against the paper's MCH with as many codes an image.

A step changes one thing of MCH and is then held to the paper's number of codes, cell by cell: xi is
set so that the database has as many. It is kept if F1 of the own bucket rises on the mean over
methods and widths, mAP does not fall, and the numbers of codes are indeed the same.

Settings (clarity, centres, worth) were chosen on validation parts of COCO's training images, by
their labels; so were those of training without labels, which itself sees none. Those of peaks and
of training in turn are a first guess. bench/paper.py runs the steps and shows them in its report.
"""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cells import Data, Kept, read_cell, run_cells, tell_features
from common import progress
from mchindex.evaluation import evaluate
from mchindex.models import MCHModel
from mchindex.models.deep import DeepHash
from mchindex.models.extract import Extractor
from mchindex.models.hashing import HashMethod
from mchindex.models.policy import Policy
from mchindex.models.region_codes import MOST_CODES, RegionCodes
from mchindex.models.views import Features
from mchindex.progress import Step
from mchindex.regions import Boxes, Layout, corners_and_centre, grid, overlaps, read_layout
from mchindex.training.agent import agent_settings, train_agent
from mchindex.training.features import SHARD, FeatureCache, Regions
from mchindex.training.measure import as_codes
from mchindex.training.options import TrainingOptions
from mchindex.training.run import fit_from_views
from paper_studies import XI, Parts

Result = dict[str, Any]
Flags = NDArray[np.bool_]
Cell = tuple[str, int, int]  # method, bits, seed

METHODS = ("dch", "hashnet", "adsh")
BITS = (32, 64)
FIGURES = ("f1_own", "map", "r0", "p0", "anhc")
SAME_CODES = 0.05  # two numbers of codes an image count as equal if no further apart
MORE_REGIONS = "grid:3x3+grid:1x1@0.7"
MORE_STEPS = ("beyond-peaks", "beyond-in-turn")  # stages that only --more-steps runs
# Where regions at peaks of a map may lie, and how much of two of them may be shared.
PLACES, SHARED = 9, 1 / 3
# A region counts for less the nearer it is to one kept already: half of it at about so many bits.
NOVELTY = 3.0


class Beyond:
    """The cells that steps start from, and how a step is measured against them."""

    def __init__(self, args: argparse.Namespace, data: Data, threads: int) -> None:
        self.args, self.data, self.threads = args, data, threads
        self.layout = read_layout(MORE_REGIONS, args.sigma)
        self.cells = [
            (m, b, s)
            for m in METHODS
            for b in BITS
            for s in range(args.seeds)
            if m in args.methods and b in args.bits
        ]

    def each(self) -> Iterator[tuple[Cell, Kept]]:
        for cell in self.cells:
            yield cell, self.read(self.args.work, cell)

    def read(self, work: Path, cell: Cell) -> Kept:
        return read_cell(work, "{}-{}-{}".format(*cell), self.data.backbone.dim)

    def model(self, method: HashMethod, policy: Policy | None) -> MCHModel:
        sigma, mode = self.args.sigma, self.args.regions
        return MCHModel(self.data.backbone, method, policy, sigma, mode=mode)

    def coded(self, method: HashMethod, policy: Policy | None) -> Kept:
        """The data in the codes of another method and policy."""
        model = self.model(method, policy)
        queries = model.codes_of(torch.from_numpy(self.data.queries[:, 0]))
        return Kept(method, policy, queries, model.regions_of(self.data.database))

    def over(self, kept: Kept, features: NDArray[np.float16], also: bool = False) -> Kept:
        """The same method and policy over other regions, or over those `also`; the whole image
        stands first in either case."""
        found = self.model(kept.method, kept.policy).regions_of(features)
        if also:
            codes = np.concatenate([kept.database.codes, found.codes[:, 1:]], axis=1)
            keep = np.concatenate([kept.database.keep, found.keep[:, 1:]], axis=1)
            found = RegionCodes(codes, keep)
        return replace(kept, database=found)

    def measured(self, kept: Kept, chosen: Flags) -> dict[str, float]:
        figures = evaluate(
            kept.queries,
            as_codes(kept.database.chosen(chosen)),
            self.data.labels("query"),
            self.data.labels("database"),
            ks=[1],  # no curve is wanted
            budgets=[1],
            threads=self.threads,
        )
        return {name: float(getattr(figures, name)) for name in FIGURES}

    def step(
        self,
        name: str,
        what: str,
        change: Callable[[Cell, Kept], Kept],
        choose: Callable[[RegionCodes, float], Flags] | None = None,
    ) -> Result:
        """A step's figures beside the paper's, at the paper's number of codes in each cell."""
        choose = choose or on_budget
        rows: dict[tuple[str, int], list[tuple[Any, Any]]] = {}
        for cell, kept in self.each():
            paper = self._paper(cell)
            changed = change(cell, kept)
            ours = self.measured(changed, choose(changed.database, paper["anhc"]))
            rows.setdefault(cell[:2], []).append((paper, ours))
            progress(
                f"{name}, {cell[0]}-{cell[1]} seed {cell[2]}: F1 {paper['f1_own']:.4f} -> "
                f"{ours['f1_own']:.4f}, mAP {paper['map']:.4f} -> {ours['map']:.4f}, codes "
                f"{paper['anhc']:.3f} -> {ours['anhc']:.3f}"
            )
        cells = [
            {"method": m, "bits": b, "seeds": len(pairs)}
            | {way: _means([p[i] for p in pairs]) for i, way in enumerate(("mch", "step"))}
            | {"anhc_off": max(abs(ours["anhc"] - paper["anhc"]) for paper, ours in pairs)}
            for (m, b), pairs in rows.items()
        ]
        return {"name": name, "what": what, "cells": cells} | verdict(cells)

    def _paper(self, cell: Cell) -> dict[str, float]:
        path = self.args.work / "{}-{}-{}.json".format(*cell)
        row = json.loads(path.read_text())["mch"]
        return {name: row[name] for name in FIGURES}

    # The steps.

    def more_regions(self) -> Result:
        """The paper's policy over a grid and a second sigma; at most five regions are kept."""
        features = self._new_regions()
        return self.step(
            "more regions",
            f"{len(self.layout) - 1} regions to choose from instead of five ({MORE_REGIONS}); of "
            f"these the policy's {MOST_CODES - 1} likeliest.",
            lambda cell, kept: self.over(kept, features, also=True),
        )

    def together(self) -> Result:
        """Crops that are taught what they show, and more of them to choose from.

        Put together because the queries showed a gain of either: no validation part chose it.
        """
        args = self._other("crops", METHODS, BITS)
        features = self._new_regions()
        return self.step(
            "labels for crops and more regions",
            f"Both at once: the model of labels for crops, over {MORE_REGIONS}.",
            lambda cell, kept: self.over(self.read(args.work, cell), features, also=True),
        )

    def peaks(self) -> Result:
        """As many regions as the paper's, of the same size, where the feature map is strongest."""
        rows, images = self.data.dataset.splits["database"], self.data.dataset.images
        count = len(corners_and_centre(self.args.sigma)) - 1
        extractor = Extractor(self.data.backbone, "pooled")
        whole = torch.zeros(1, 3, self.data.backbone.size, self.data.backbone.size)
        with torch.inference_mode():
            side = self.data.backbone.feature_map(whole).shape[-1]
        cells = grid(side, side, 1 / side).array()[1:]
        places: dict[bytes, Boxes] = {}
        for start in range(0, len(rows), SHARD):
            part = rows[start : start + SHARD].tolist()
            found = extractor([images.image(i) for i in part], cells).astype(np.float32)
            boxes = strongest(found.sum(-1).reshape(-1, side, side), self.args.sigma, count)
            places |= zip((images.key(i) for i in part), boxes, strict=True)
            tell_features("maps")(Step("", start + len(part), len(rows)))
        about = f"{count} peaks of {self.args.sigma} among {PLACES}, sharing {SHARED:.3f}"
        features = self._features("peaks", Places(about, places))
        return self.step(
            "peaks of the feature map",
            f"{count} regions of the same size where the backbone's feature map is strongest, in "
            "place of corners and centre.",
            lambda cell, kept: self.over(kept, features),
        )

    def _new_regions(self) -> NDArray[np.float16]:
        """Of the larger layout, those that are not among the paper's."""
        have = corners_and_centre(self.args.sigma).boxes
        new = tuple(i for i, box in enumerate(self.layout.boxes) if not _near(box, have))
        more = Layout(
            ("whole", *(self.layout.names[i] for i in new)),
            (self.layout.boxes[0], *(self.layout.boxes[i] for i in new)),
        )
        return self._features("more regions", Parts(more))

    def _features(self, name: str, wanted: Regions) -> NDArray[np.float16]:
        """Of the database's whole images, which are at hand, and of these regions of them."""
        rows, images = self.data.dataset.splits["database"], self.data.dataset.images
        extractor = Extractor(self.data.backbone, self.args.regions)
        cache, tell = FeatureCache(self.args.cache), tell_features(name)
        found = cache.features(extractor, images, rows, wanted, tell)
        return np.concatenate([self.data.database[:, :1], found], axis=1)

    def jointly(self) -> Result:
        """Regions one after the other, each weighed against those that are kept."""
        return self.step(
            "joint choice",
            "Regions are chosen one after the other; one whose code is near a kept one counts for "
            f"less (by half at {NOVELTY * np.log(2):.1f} bits).",
            lambda cell, kept: kept,
            joint,
        )

    def new_rewards(self) -> Result:
        """The agent anew, on codes that are as unsure as those of images never seen."""

        def change(cell: Cell, kept: Kept) -> Kept:
            method, bits, seed = cell
            options = TrainingOptions(method, bits, seed=seed)
            views = self.data.views(options)
            assert isinstance(kept.method, DeepHash)
            twin = unsure(kept.method, seed)
            policy, _ = train_agent(twin, views, agent_settings(method), seed)
            return self.coded(kept.method, policy)

        return self.step(
            "rewards on unsure codes",
            "The agent's rewards come from codes computed with dropout: the hash layer knows its "
            "training images by heart, and is as unsure of them then as of new ones.",
            change,
        )

    def in_turn(self) -> Result:
        """The hash layer anew on the crops that the policy keeps, then the agent anew on it."""

        def change(cell: Cell, kept: Kept) -> Kept:
            method, bits, seed = cell
            options = TrainingOptions(method, bits, seed=seed)
            views = self.data.views(options)
            keep = self.model(kept.method, kept.policy).regions_of(self.data.training).keep
            narrow = only_kept(views, torch.from_numpy(keep >= XI))
            base, policy, _ = fit_from_views(narrow, options)
            return self.coded(base, policy)

        return self.step(
            "hash layer and policy in turn",
            "A second round: the hash layer learns from those crops only that the policy would "
            "keep, and the policy then from the codes that result.",
            change,
        )

    def crop_labels(self) -> Result:
        """Base and agent anew, the base on crops that are taught what they show."""
        args = self._other("crops", METHODS, BITS)
        run_cells(args)
        return self.step(
            "labels for crops",
            "The base method learns from crops that have only those of their image's labels that "
            "they show, as a classifier of the same features sees it; the agent's rewards are the "
            "paper's, on the codes that result (mch train --crop-labels).",
            lambda cell, kept: self.read(args.work, cell),
        )

    def unsupervised(self) -> Result:
        """MCH without labels beside single codes without labels."""
        args = self._other("neighbours", ("hashnet",), BITS)
        run_cells(args)
        rows = [
            {"name": name, "bits": bits} | figures
            for bits in args.bits
            for name, figures in (
                *((m.upper(), self._mean(self.args.work, m, bits, "base")) for m in ("itq", "pca")),
                ("unsupervised HashNet", self._mean(args.work, "hashnet", bits, "base")),
                ("unsupervised MCH-HashNet", self._mean(args.work, "hashnet", bits, "mch")),
            )
            if figures
        ]
        ours = {r["bits"]: r for r in rows if r["name"].startswith("unsupervised MCH")}
        others = [r for r in rows if not r["name"].startswith("unsupervised")]
        wins = all(ours[r["bits"]][f] > r[f] for r in others for f in ("map", "r0"))
        what = "beats" if wins else "does not beat"
        verdict = f"Unsupervised MCH {what} ITQ and PCA with a random rotation in both mAP and "
        verdict += "R@H=0 at every width."
        if not others:
            verdict = "ITQ and PCA were not computed beside it."
        return {
            "cells": rows,
            "holds": wins if others else None,
            "verdict": verdict,
            "statement": "Similar is who shares a centre of k-means in the frozen features "
            f"(mch train --unsupervised). {verdict}",
        }

    def _mean(self, work: Path, method: str, bits: int, way: str) -> dict[str, float]:
        paths = [work / f"{method}-{bits}-{seed}.json" for seed in range(self.args.seeds)]
        if not all(path.exists() for path in paths):
            return {}
        rows = [json.loads(path.read_text())[way] for path in paths]
        return _means([{name: row[name] for name in FIGURES} for row in rows])

    def _other(
        self, labels: str, methods: Sequence[str], bits: Sequence[int]
    ) -> argparse.Namespace:
        """The same data, cells of other labels in a folder of their own."""
        args = copy.copy(self.args)
        args.labels, args.work = labels, self.args.work / f"labels-{labels}"
        args.methods = [m for m in methods if m in self.args.methods]
        args.bits = [b for b in bits if b in self.args.bits]
        args.work.mkdir(exist_ok=True)
        return args


@dataclass(frozen=True)
class Places:
    """Regions of each image's own."""

    about: str
    places: Mapping[bytes, Boxes]  # by the image's key

    def boxes(self, key: bytes) -> Boxes:
        return self.places[key]


def strongest(maps: NDArray[np.float32], sigma: float, count: int) -> Boxes:
    """(n, rows, columns) -> (n, count, 4): boxes of a size where a map is strongest on the mean.

    One after the other, none sharing much with an earlier one; where that leaves none, the one that
    shares least.
    """
    boxes = grid(PLACES, PLACES, sigma).array()[1:]
    scores = maps.reshape(len(maps), -1) @ overlaps(boxes, *maps.shape[1:]).T
    shared = overlap(boxes)
    taken = np.zeros(scores.shape)  # how much of a box the boxes chosen so far share with it
    chosen = []
    for _ in range(count):
        free = taken <= SHARED
        value = np.where(free, scores, -np.inf)
        pick = np.where(free.any(1), value.argmax(1), taken.argmin(1))
        chosen.append(pick)
        taken = np.maximum(taken, shared[pick])
    found: Boxes = boxes[np.stack(chosen, axis=1)]
    return found


def overlap(boxes: Boxes) -> NDArray[np.float64]:
    """(boxes, boxes): what two share, of all that they cover."""
    low = np.maximum(boxes[:, None, :2], boxes[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], boxes[None, :, 2:])
    both = np.clip(high - low, 0, None).prod(-1)
    area = (boxes[:, 2:] - boxes[:, :2]).prod(-1)
    out: NDArray[np.float64] = both / (area[:, None] + area[None] - both)
    return out


def only_kept(views: Features, kept: Tensor) -> Features:
    """Views of which a hash layer learns from the whole images and the kept crops, (n, views)."""
    return replace(views, by_view=views.labels[:, None] & kept[..., None])


def unsure(method: DeepHash, seed: int) -> DeepHash:
    """A trained method's twin whose codes are computed with dropout."""
    twin = copy.deepcopy(method)
    generator = torch.Generator().manual_seed(seed)
    share = twin.settings.dropout

    def last(f: Tensor) -> Tensor:
        stays = torch.rand(f.shape, generator=generator) >= share
        z: Tensor = twin.hash(f * stays / (1 - share))
        return z

    twin.last = last  # type: ignore[method-assign]
    return twin


def on_budget(found: RegionCodes, codes: float) -> Flags:
    return found.kept(found.xi_for(codes))


def joint(found: RegionCodes, codes: float) -> Flags:
    """Greedy: the next region is the one of most probability times novelty."""
    n, regions, _ = found.codes.shape
    ones = np.bitwise_count(found.codes[:, :, None] ^ found.codes[:, None]).sum(-1)
    left = found.keep.astype(np.float64)
    left[:, 0] = 0
    worth = np.zeros((n, regions))
    worth[:, 0] = 1  # the whole image's code stands
    rows, near = np.arange(n), ones[:, 0].astype(np.float64)
    for _ in range(regions - 1):
        value = left * _novel(near)
        pick = value.argmax(1)
        worth[rows, pick] = np.maximum(worth[rows, pick], value[rows, pick])
        left[rows, pick] = 0
        near = np.minimum(near, ones[rows, pick])
    return on_budget(RegionCodes(found.codes, worth.astype(np.float32)), codes)


def _novel(near: NDArray[np.float64]) -> NDArray[np.float64]:
    value: NDArray[np.float64] = 1 - np.exp(-near / NOVELTY)
    return value


def verdict(cells: list[Result]) -> Result:
    """What the step changes on the mean over methods and widths, and whether it is kept."""

    def mean(way: str, figure: str) -> float:
        return float(np.mean([c[way][figure] for c in cells]))

    ratio = _over(mean("step", "f1_own"), mean("mch", "f1_own"))
    change = mean("step", "map") - mean("mch", "map")
    each = float(np.mean([_over(c["step"]["f1_own"], c["mch"]["f1_own"]) for c in cells]))
    off = max(c["anhc_off"] for c in cells)
    return {
        "f1_ratio": ratio,  # of the means
        "f1_mean_ratio": each,  # the mean of the ratios
        "map_change": change,
        "anhc_change": mean("step", "anhc") - mean("mch", "anhc"),
        "anhc_off": off,  # where it is furthest off
        "kept": ratio > 1 and change >= 0 and off <= SAME_CODES,
    }


def _over(a: float, b: float) -> float:
    """a / b, and 1 where both are nothing."""
    return (a + 1e-12) / (b + 1e-12)


def _means(rows: list[dict[str, float]]) -> dict[str, float]:
    return {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}


def _near(box: Sequence[float], boxes: Sequence[Sequence[float]]) -> bool:
    return any(np.allclose(box, other) for other in boxes)
