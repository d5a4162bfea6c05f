"""The demo on drawn pictures: draw, train, index, measure, write a page."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import shlex
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from mchindex import __version__, json_text
from mchindex.datasets import Dataset, open_dataset
from mchindex.datasets.base import FileSource
from mchindex.datasets.scenes import CLASSES, SceneSource, scenes
from mchindex.demo.buckets import (
    BucketsNeeded,
    bucket_counts,
    buckets_needed,
    without_flat_end,
)
from mchindex.demo.examples import (
    HITS,
    RANKED,
    ExampleQuery,
    by_region,
    choose,
    example_answer,
    how_chosen,
    name_of,
)
from mchindex.demo.page import scenes_page
from mchindex.demo.parts import AMONG, PartsFound, find_parts
from mchindex.demo.photos import PHOTOS_INDEX, PHOTOS_PAGE
from mchindex.demo.words import Things, WordsFound, find_words
from mchindex.evaluation import Codes, Evaluation, evaluate
from mchindex.files import read_file, write_file
from mchindex.index import MCHIndex, Stored
from mchindex.index.results import Hit
from mchindex.inference.region_codes import Packed
from mchindex.models import MCHModel
from mchindex.progress import Progress, Step, part_of, silent
from mchindex.regions import in_fractions
from mchindex.storage.records import Row, code_type
from mchindex.training import TrainingOptions, train_model

IMAGES, LEAST_IMAGES = 3000, 100
SIDE = 128  # pixels of a drawn picture
COMPARED = (1, 10, 100)  # buckets visited with MCH, for which the base method's need is reported
STAMP, PICTURES, MODEL, PAGE = "demo.json", "pictures", "model", "index.html"
FIGURES = "figures.json"  # what the page shows, for programs
INDEXES = {"base": "base.mch", "mch": "mch.mch"}
SHOWN = ("best", "fine", "code", "base")  # for each example query
# Regions are crops, so that a part of a picture as a query has the features of the stored region:
# features pooled from the map of a whole drawing depend too much on its scale. The settings were
# compared on pictures drawn with seed 7, not with the demo's seed 0.
SETTINGS = TrainingOptions(
    method="hashnet",
    bits=16,  # few images: longer codes would leave nearly each in a bucket of its own
    backbone="efficientnet-lite0",
    size=128,
    regions="crops",
    crops=2,
    labels="crops",  # a quarter of a drawing lacks most of what the drawing shows
    settings={"epochs": 60, "alpha": 20.0},
    agent_settings={"reward": "loss", "steps": 300},
)


@dataclass(frozen=True)
class Figure:
    """One measurement of both indexes."""

    name: str
    meaning: str
    base: float
    mch: float
    is_quality: bool = True  # more is better

    @property
    def change(self) -> float:
        return self.mch - self.base


@dataclass(frozen=True)
class FirstHits:
    """The first hits of all queries, by how they are ranked; see `RANKED`."""

    shares: dict[str, float]  # of the hits, those that have a class in common with the query
    lists: dict[str, int]  # how many different lists the queries get
    chance: float  # the share of all pictures that have a class in common with a query


@dataclass(frozen=True)
class ScenesDemo:
    """What the demo measured on drawn pictures: one code per image (base) and several (MCH)."""

    out: Path
    page: Path
    about: str  # how pictures, model and queries came about
    base: Evaluation
    mch: Evaluation
    curves: dict[str, list[list[float]]]  # [buckets visited, F1], of "base" and "mch"
    buckets_needed: list[BucketsNeeded]
    first: FirstHits
    examples: list[ExampleQuery]
    how_chosen: str  # the examples
    parts: PartsFound
    words: WordsFound
    commands: list[str]  # worth trying next
    seconds: dict[str, float]  # by stage
    reused: bool  # whether the model is from an earlier run

    def figures(self) -> list[Figure]:
        base, mch = self.base, self.mch
        return [
            Figure(
                "R@H=0",
                "recall: the share of all relevant images that are in the query's bucket, where "
                "the Hamming distance H is 0",
                base.r0,
                mch.r0,
            ),
            Figure(
                "P@H=0",
                "precision: the share of the images in the query's bucket that are relevant; 0 if "
                "the bucket is empty",
                base.p0,
                mch.p0,
            ),
            Figure(
                "F1 within the query's bucket (H=0)",
                "the harmonic mean of this recall and precision",
                base.f1_own,
                mch.f1_own,
            ),
            Figure(
                "mAP",
                "mean average precision of the whole database ranked by distance; 1 if all "
                "relevant images come first",
                base.map,
                mch.map,
            ),
            Figure(
                "codes per image (ANHC)",
                "the average number of hash codes; more codes take more memory",
                base.anhc,
                mch.anhc,
                is_quality=False,
            ),
        ]

    def to_dict(self) -> dict[str, Any]:
        """The figures about hits as JSON-compatible values."""
        return {
            "queries": self.mch.queries,
            "images": self.mch.images,
            "hits": HITS,
            "first": asdict(self.first),
            "shown": [
                {
                    "query": query.name,
                    "classes": query.classes,
                    "hits": {
                        rank: [name_of(str(example.hit.id)) for example in answer.hits]
                        for rank, answer in zip(SHOWN, query.answers, strict=True)
                    },
                }
                for query in self.examples
            ],
            "parts": {
                "number": self.parts.parts,
                "first": self.parts.first,
                "among": self.parts.among,
                "most": AMONG,
            },
            "words": {
                "share": self.words.share,
                "shares": self.words.shares,
                "regions": self.words.regions,
                "inside": self.words.inside,
                "chance": self.words.chance,
            },
            "map": {"base": self.base.map, "mch": self.mch.map},
            "anhc": self.mch.anhc,
        }

    def trade(self) -> str:
        """What fine codes cost and bring, compared with the order of codes."""
        first, parts = self.first.shares, self.parts.first
        change = 100 * (first["best"] - first["code"])
        if round(change, 1) < 0:
            text = f"The best matches share a class {-change:.1f} points less often than those with"
            text += " the nearest codes, because they are also those that look most alike."
        else:
            text = f"The best matches share a class {change:.1f} points more often than those with"
            text += " the nearest codes."
        return (
            f"{text} A part of a picture finds its picture first in {parts['best']:.0%} of cases "
            f"instead of {parts['code']:.0%}."
        )

    @property
    def index(self) -> Path:
        """The index with several codes per image."""
        return self.out / INDEXES["mch"]

    def verdict(self) -> str:
        """Where MCH is better, worse and the same."""
        changes = [(figure.name, figure.change) for figure in self.figures() if figure.is_quality]
        groups = {
            "better": [name for name, change in changes if change > 0],
            "worse": [name for name, change in changes if change < 0],
            "the same": [name for name, change in changes if change == 0],
        }
        parts = [f"{word} in {_listed(names)}" for word, names in groups.items() if names]
        return (
            f"On {self.mch.queries:,} queries against {self.mch.images:,} images, MCH is "
            f"{', '.join(parts)}. It stores {self.mch.anhc:.3f} codes per image instead of "
            f"{self.base.anhc:g}. This is one model with one seed."
        )


def scenes_demo(
    out: Path,
    images: int = IMAGES,
    seed: int = 0,
    *,
    settings: TrainingOptions | None = None,
    threads: int = 0,
    progress: Progress = silent,
) -> ScenesDemo:
    """Draws pictures, trains a model, fills two indexes, measures them and writes a page to `out`.

    A run with the same arguments resumes from where the last one stopped; other arguments start
    from scratch. `settings` replaces the training options, except for their seed. `threads` are
    those of the evaluation, 0 for all cores.

    Raises ValueError for fewer than 100 images, or if `out` holds files that no demo wrote.
    """
    if images < LEAST_IMAGES:
        raise ValueError(f"the demo needs at least {LEAST_IMAGES} images, not {images}")
    options = replace(settings or SETTINGS, seed=seed)
    _prepare(out, {"images": images, "seed": seed, "side": SIDE, "options": asdict(options)})
    clock = _Stopwatch()
    dataset = _pictures(out / PICTURES, images, seed, progress)
    clock.lap("pictures")
    reused = (out / MODEL / "config.json").exists()
    if reused:
        model = MCHModel.load(out / MODEL)
    else:
        model = train_model(dataset, options, out=out / MODEL, resume=True, progress=progress).model
    clock.lap("training")
    files = {name: _files(dataset, name) for name in ("query", "database")}
    classes_of = dict(zip(files["database"], _classes(dataset, "database"), strict=True))
    with contextlib.ExitStack() as stack:
        indexes = {}
        one_code = replace(model, policy=None, fine=None, words=None)
        for name, one in (("base", one_code), ("mch", model)):
            indexes[name] = stack.enter_context(MCHIndex.open(out / INDEXES[name], one))
        indexes["mch"].add(
            files["database"],
            metadata=lambda path: {"classes": list(classes_of[path])},
            progress=_as_stage("index", progress),
        )
        _copy_whole_codes(indexes["mch"], indexes["base"])
        clock.lap("indexes")
        codes = model.encode_query(files["query"])
        clock.lap("queries")
        results = {
            name: _evaluate(
                index, codes, dataset, files["database"], threads, part_of(progress, part, 2)
            )
            for part, (name, index) in enumerate(indexes.items())
        }
        clock.lap("evaluation")
        first, examples, chosen = _examples(indexes, codes, dataset, files["query"], classes_of)
        parts = find_parts(indexes["mch"], indexes["base"], files["database"], seed)
        trained = set(_files(dataset, "train"))
        unseen = [file for file in files["database"] if file not in trained]
        things = _things(unseen, images, seed)
        words = find_words(indexes["mch"], indexes["mch"].words(), things)
        clock.lap("examples")
    base, mch = results["base"], results["mch"]
    demo = ScenesDemo(
        out=out,
        page=out / PAGE,
        about=(
            f"mchindex drew {images:,} pictures (seed {seed}), each with one to four shapes "
            f"from {len(CLASSES)} classes, and trained a hashing method "
            f"({type(model.method).__name__}, {model.bits}-bit codes) on {model.about['images']:,} "
            f"of them, with the features of the network {model.backbone.name}"
            f"{', which was trained on photographs' if model.pretrained else ''}. Another "
            f"{len(codes):,} serve as queries; all others are stored, those that it was trained on "
            "too. The same model fills two indexes: the base index "
            "with one code per image, the MCH index with several."
        ),
        base=base,
        mch=mch,
        curves={name: without_flat_end(result.f1_buckets) for name, result in results.items()},
        buckets_needed=[buckets_needed(base.f1_buckets, mch.f1_buckets, n) for n in COMPARED],
        first=first,
        examples=examples,
        how_chosen=chosen,
        parts=parts,
        words=words,
        commands=_commands(out, examples[0], words),
        seconds=clock.laps,
        reused=reused,
    )
    write_file(out / FIGURES, json_text.dumps(demo.to_dict()) + "\n")
    write_file(demo.page, scenes_page(demo))
    return demo


def _prepare(out: Path, wanted: Mapping[str, object]) -> None:
    """Creates `out`, and removes the results of a run with other arguments than `wanted`.

    Removes nothing from a folder without the stamp that a demo leaves.
    """
    wanted = json.loads(json.dumps({**wanted, "version": __version__}))
    stamp = out / STAMP
    out.mkdir(parents=True, exist_ok=True)
    others = [f.name for f in out.iterdir() if f.name not in (PHOTOS_INDEX, PHOTOS_PAGE)]
    if others and not stamp.exists():
        raise ValueError(f"{out} holds other files: give the demo a new or empty folder")
    try:
        if stamp.exists() and json_text.loads(read_file(stamp)) == wanted:
            return
    except (ValueError, OSError):
        pass  # damaged: start from scratch
    for name in (PICTURES, MODEL, *INDEXES.values()):
        shutil.rmtree(out / name, ignore_errors=True)
    write_file(stamp, json.dumps(wanted, indent=1) + "\n")


def _pictures(folder: Path, images: int, seed: int, progress: Progress) -> Dataset:
    """The drawn pictures, as files and a table of labels that `open_dataset` reads."""
    table = folder / "labels.csv"
    if not table.exists():
        drawn = scenes(images, seed, SIDE)
        source = drawn.images
        assert isinstance(source, SceneSource)
        splits = np.full(images, "database", "U8")
        for name in ("query", "train"):
            splits[drawn.splits[name]] = name
        lines = io.StringIO(newline="")
        writer = csv.writer(lines)
        writer.writerow(("file", "split", "labels"))
        for i, split in enumerate(splits.tolist()):
            file = f"{'query' if split == 'query' else 'database'}/{source.name(i)}.jpg"
            path = folder / "images" / file
            path.parent.mkdir(parents=True, exist_ok=True)
            source.image(i).save(path, "JPEG", quality=90)
            writer.writerow((file, split, "|".join(CLASSES[c] for c in source.classes(i))))
            if (i + 1) % 100 == 0 or i + 1 == images:
                progress(Step("pictures", i + 1, images))
        write_file(table, lines.getvalue())  # last: it marks the pictures as complete
    return open_dataset(str(folder), seed=seed)


def _files(dataset: Dataset, split: str) -> list[str]:
    images = dataset.images
    assert isinstance(images, FileSource)
    return [os.path.abspath(images.path(i)) for i in dataset.splits[split].tolist()]


def _classes(dataset: Dataset, split: str) -> list[tuple[str, ...]]:
    return [
        tuple(dataset.classes[c] for c in np.flatnonzero(row))
        for row in dataset.labels[dataset.splits[split]]
    ]


def _as_stage(stage: str, progress: Progress) -> Progress:
    """Reports every step under this stage's name."""
    return lambda step: progress(replace(step, stage=stage))


def _copy_whole_codes(source: MCHIndex, target: MCHIndex) -> None:
    """Fills the base index: the model without its policy would give each image the code that the
    whole image has in the MCH index. Encoding all images again would take as long as that one."""
    if len(target) == len(source):
        return

    def row(image: Stored) -> Row:
        place = image.regions.index("whole")
        entry = np.zeros(1, code_type(source.bits))
        entry["keep"], entry["code"] = 1, image.codes[place]
        width, height = image.size or (None, None)
        metadata = json_text.dumps(image.metadata)
        return Row(
            image.id, entry.tobytes(), image.path, width=width, height=height, metadata=metadata
        )

    target.add_records(map(row, source.images()))


def _things(files: Sequence[str], images: int, seed: int) -> Things:
    """Where the things are that each picture shows, by its file and their classes."""
    source = SceneSource(images, seed, SIDE)
    return {
        file: {
            CLASSES[kind]: in_fractions(box, (SIDE, SIDE))
            for kind, box in source.boxes(int(name_of(file).rpartition("-")[2]))
        }
        for file in files
    }


def _evaluate(
    index: MCHIndex,
    queries: Packed,
    dataset: Dataset,
    files: Sequence[str],
    threads: int,
    progress: Progress,
) -> Evaluation:
    """Measures the codes that the index holds. `files` are the database, in the labels' order."""
    row_of = {path: i for i, path in enumerate(files)}
    images = [(row_of[str(image.id)], image.codes) for image in index.images()]
    codes = Codes(
        np.concatenate([c for _, c in images]),
        np.repeat(np.array([i for i, _ in images]), [len(c) for _, c in images]),
    )
    return evaluate(
        queries,
        codes,
        dataset.labels[dataset.splits["query"]],
        dataset.labels[dataset.splits["database"]],
        budgets=bucket_counts(index.bits),
        classes=dataset.classes,
        threads=threads,
        progress=progress,
    )


def _examples(
    indexes: Mapping[str, MCHIndex],
    codes: Packed,
    dataset: Dataset,
    files: Sequence[str],
    classes_of: Mapping[str, tuple[str, ...]],
) -> tuple[FirstHits, list[ExampleQuery], str]:
    """The first hits of all queries, the example queries, and how these were chosen."""
    answers = {
        "base": indexes["base"].search_codes(codes, HITS),
        "code": indexes["mch"].search_codes(codes, HITS),
        "best": indexes["mch"].search(files, HITS, rank="best"),
        "fine": indexes["mch"].search(files, HITS, rank="fine"),
    }
    classes = _classes(dataset, "query")

    def relevant(hits: Iterable[Hit], query: int) -> list[bool]:
        return [bool(set(classes[query]) & set(classes_of[str(hit.id)])) for hit in hits]

    share = {
        name: float(np.mean([r for q, hits in enumerate(every) for r in relevant(hits, q)]))
        for name, every in answers.items()
    }
    of_regions = [
        r for q, hits in enumerate(answers["best"]) for r in relevant(filter(by_region, hits), q)
    ]
    others = [answers[name] for name in SHOWN if name != "best"]
    chosen, with_region = choose(answers["best"], *others)
    examples = [
        ExampleQuery(
            name_of(files[q]),
            files[q],
            classes[q],
            [
                example_answer(
                    RANKED[name], indexes["base" if name == "base" else "mch"], answers[name][q],
                    codes[q], classes[q], classes_of,
                )
                for name in SHOWN
            ],
        )
        for q in chosen
    ]  # fmt: skip
    best = SHOWN.index("best")
    here = [bool(hit.shared_classes) for query in examples for hit in query.answers[best].hits]
    text = (
        f"{how_chosen(len(chosen), with_region, len(codes), 'queries', 'in order of their names')} "
        f"{sum(here)} of the {len(here)} hits shown as best matches share a class with their query"
    )
    if of_regions:
        text += (
            f". Over all queries, {np.mean(of_regions):.1%} of the {len(of_regions):,} best "
            "matches found by a region do"
        )
    lists = {name: len({tuple(hits.ids) for hits in every}) for name, every in answers.items()}
    return FirstHits(share, lists, _chance(dataset)), examples, text + "."


def _chance(dataset: Dataset) -> float:
    """The share of pairs of a query and a picture that have a class in common."""
    queries, others = (
        dataset.labels[dataset.splits[name]].astype(np.float32) for name in ("query", "database")
    )
    return float((queries @ others.T > 0).mean())


def _commands(out: Path, example: ExampleQuery, words: WordsFound) -> list[str]:
    query = out / PICTURES / "images" / "query" / Path(str(example.path)).name
    index = shlex.quote(str(out / INDEXES["mch"]))
    return [
        f"mch search {shlex.quote(str(query))} --index {index} --out hits.html",
        f"mch search --text {words.examples[0].word} --index {index} --out word.html",
        "mch demo --photos ~/Pictures",
        "mch add ~/Pictures",
    ]


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


@dataclass
class _Stopwatch:
    laps: dict[str, float] = field(default_factory=dict)
    last: float = field(default_factory=time.monotonic)

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self.laps[name], self.last = now - self.last, now
