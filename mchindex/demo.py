"""What `mch demo` does: one code an image against several, on pictures that we draw or on yours.

`scenes_demo` draws pictures, trains a model on them, keeps them in two indexes and measures both.
`photos_demo` keeps a folder of pictures in an index and looks for some of them. Each leaves a page.
"""

from __future__ import annotations

import contextlib
import csv
import json
import os
import shlex
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mchindex import __version__
from mchindex.datasets import Dataset, open_dataset
from mchindex.datasets.base import FileSource
from mchindex.datasets.scenes import CLASSES, SceneSource, scenes
from mchindex.evaluation import Codes, Evaluation, evaluate
from mchindex.index import MCHIndex
from mchindex.index.adding import Failure
from mchindex.index.results import Hit, Hits
from mchindex.models import MCHModel
from mchindex.models.hashing import Packed
from mchindex.page import photos_page, scenes_page
from mchindex.progress import Progress, Step, part_of, silent
from mchindex.training import TrainingOptions, train_model

IMAGES, LEAST_IMAGES = 4000, 100
SIDE = 128  # pixels of a drawn picture: the net takes in half of it, the rest is for the eye
QUERIES = HITS = 6  # on the page
TRIED = 300  # pictures of the user's that are looked for at most, to find queries worth showing
A_DECADE = 24  # numbers of buckets at which F1 is measured
BUCKETS = (1, 10, 100)  # for which the base's need is told
STAMP, PICTURES, MODEL, PAGE = "demo.json", "pictures", "model", "index.html"
PHOTOS, PHOTOS_PAGE = "photos.mch", "photos.html"
INDEXES = {"base": "base.mch", "mch": "mch.mch"}
SETTINGS = TrainingOptions(method="dch", bits=32, backbone="small")

Curve = list[list[float]]  # [buckets, F1]


@dataclass(frozen=True)
class Reach:
    """How many buckets the base needs for the F1 that MCH has after a number of them."""

    buckets: int
    f1: float
    base: int | None  # None: it never has as much,
    best: float  # this being its most

    def words(self) -> str:
        if self.base is None:
            return f"never: {self.best:.4f} is its most"
        if self.base == self.buckets:
            return f"{self.base:,}, the same"
        factor = self.base / self.buckets
        return f"{self.base:,} ({factor:.{0 if factor >= 10 else 1}f} times as many)"


@dataclass(frozen=True)
class Found:
    """A hit, and what is worth saying of it."""

    hit: Hit
    whole: int | None  # distance of the same image's code as a whole
    box: tuple[float, float, float, float] | None  # of the region, in shares of the sides
    shared: tuple[str, ...] | None  # classes that it shares with the query; None: has no labels

    @property
    def by_region(self) -> bool:
        return self.hit.region != "whole"


@dataclass(frozen=True)
class Shown:
    """A query on the page."""

    name: str
    path: str | None
    classes: tuple[str, ...] | None
    hits: list[Found]
    buckets: int
    radius: int


@dataclass(frozen=True)
class ScenesDemo:
    """Drawn pictures: the base method and MCH, measured on the codes that their indexes hold."""

    FIGURES: ClassVar[dict[str, str]] = {
        "R@H=0": "r0",
        "P@H=0": "p0",
        "mAP": "map",
        "F1 of the own bucket": "f1_own",
        "codes an image (ANHC)": "anhc",
    }

    out: Path
    page: Path
    about: str
    base: Evaluation
    mch: Evaluation
    curves: dict[str, Curve]  # F1 by buckets, of base and mch
    reaches: list[Reach]
    shown: list[Shown]
    rule: str
    commands: list[str]
    seconds: dict[str, float]
    reused: bool  # the model of an earlier run was at hand
    hits: int = HITS
    a_decade: int = A_DECADE

    def verdict(self) -> str:
        """Which figures MCH wins and which it loses, whatever they are."""
        names = {title: name for title, name in self.FIGURES.items() if name != "anhc"}
        change = {t: getattr(self.mch, n) - getattr(self.base, n) for t, n in names.items()}
        parts = [
            f"{word} in {_listed(titles)}"
            for word, titles in (
                ("better", [t for t, c in change.items() if c > 0]),
                ("worse", [t for t, c in change.items() if c < 0]),
                ("the same", [t for t, c in change.items() if c == 0]),
            )
            if titles
        ]
        return (
            f"On {self.mch.queries:,} queries against {self.mch.images:,} images MCH is "
            f"{', '.join(parts)}, for {self.mch.anhc:.2f} codes an image instead of "
            f"{self.base.anhc:.2f}. One model, one seed."
        )


@dataclass(frozen=True)
class PhotosDemo:
    """The user's own pictures."""

    folder: Path
    page: Path
    index: Path
    about: str
    added: int
    replaced: int
    unchanged: int
    failed: list[Failure]
    rate: float | None  # images a second; None where nothing had to be encoded
    stats: Mapping[str, Any]
    shown: list[Shown]
    rule: str
    commands: list[str]
    hits: int = HITS

    def figures(self) -> dict[str, str]:
        stats = self.stats
        rows = {
            "images": f"{stats['images']:,}",
            "codes": f"{stats['codes']:,} of {stats['bits']} bits",
            "codes an image (ANHC)": f"{stats['anhc']:.2f}",
            "buckets in use": f"{stats['buckets']:,}",
            "added now": f"{self.added:,}"
            + (f", and {self.replaced:,} that had changed" if self.replaced else "")
            + (f"; {self.unchanged:,} unchanged" if self.unchanged else ""),
            "images a second": "nothing had to be encoded"
            if self.rate is None
            else f"{self.rate:,.0f}",
        }
        if self.failed:
            rows["could not be read"] = f"{len(self.failed):,}"
        return rows


def scenes_demo(
    out: Path,
    images: int = IMAGES,
    seed: int = 0,
    *,
    settings: TrainingOptions | None = None,
    threads: int = 0,
    progress: Progress = silent,
) -> ScenesDemo:
    """Draws, trains, adds, measures and writes the page. What an earlier run left is gone on with.

    `threads` are those of the evaluation, 0 for all cores.
    """
    if images < LEAST_IMAGES:
        raise ValueError(f"the demo needs at least {LEAST_IMAGES} images, not {images}")
    options = replace(settings or SETTINGS, seed=seed)
    _prepare(out, {"images": images, "seed": seed, "side": SIDE, "options": asdict(options)})
    clock = _Clock()
    dataset = _drawn(out / PICTURES, images, seed, progress)
    clock.lap("pictures")
    reused = (out / MODEL / "config.json").exists()
    if reused:
        model = MCHModel.load(out / MODEL)
    else:
        model = train_model(dataset, options, out=out / MODEL, resume=True, progress=progress).model
    clock.lap("training")
    files = {name: _files(dataset, name) for name in ("query", "database")}
    tags = dict(zip(files["database"], _classes(dataset, "database"), strict=True))
    with contextlib.ExitStack() as stack:
        stored = {}
        for name, one in (("base", replace(model, policy=None)), ("mch", model)):
            index = stack.enter_context(MCHIndex.open(out / INDEXES[name], one))
            index.add(
                files["database"],
                metadata=lambda path: {"classes": list(tags[path])},
                progress=_steps(f"index {name}", progress),
            )
            stored[name] = index
        clock.lap("indexes")
        codes = model.encode_query(files["query"])
        clock.lap("queries")
        results = {
            name: _measured(
                index, codes, dataset, files["database"], threads, part_of(progress, part, 2)
            )
            for part, (name, index) in enumerate(stored.items())
        }
        clock.lap("evaluation")
        base, mch = results["base"], results["mch"]
        shown, rule = _chosen_scenes(stored, codes, dataset, files["query"], tags)
    demo = ScenesDemo(
        out,
        out / PAGE,
        f"{images:,} pictures that mchindex drew (seed {seed}), of 1 to 4 things of {len(CLASSES)} "
        f"classes; {model.method.name.upper()} with {model.bits} bits on a small net, both trained "
        f"from scratch on {model.about['images']:,} of them; {len(codes):,} others are the "
        "queries. Both columns are of the same model: all that differs is how many codes an image "
        "has.",
        base,
        mch,
        {name: _without_tail(result.f1_buckets) for name, result in results.items()},
        [reach(base.f1_buckets, mch.f1_buckets, buckets) for buckets in BUCKETS],
        shown,
        rule,
        _commands(out, shown),
        clock.laps,
        reused,
    )
    demo.page.write_text(scenes_page(demo), "utf-8")
    return demo


def photos_demo(
    folder: Path,
    out: Path,
    *,
    model: str | os.PathLike[str] | MCHModel | None = None,
    seed: int = 0,
    progress: Progress = silent,
) -> PhotosDemo:
    """Adds a folder's pictures to an index, looks for some of them and writes the page."""
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder: --photos takes one with pictures in it")
    out.mkdir(parents=True, exist_ok=True)
    with MCHIndex.open(out / PHOTOS, model) as index:
        chosen = index.model  # loaded before the clock starts
        began = time.monotonic()
        index.prune(folder)
        result = index.add(folder, progress=_steps("adding", progress))
        seconds = time.monotonic() - began
        if len(result) < 2:
            why = f", {len(result.failed)} cannot be read" if result.failed else ""
            raise ValueError(
                f"{folder} has {_pictures(len(result))} that can be used{why}: "
                "the demo needs at least 2"
            )
        encoded = len(result.added) + len(result.replaced)
        shown, rule = _chosen_photos(index, result, seed)
        stats = index.stats()
    name = Path(stats["model"]).name if stats["model"] else "a model"
    about = (
        f"{len(result):,} pictures of {folder.resolve()}, encoded by {name} "
        f"({chosen.method.name.upper()}, {chosen.bits} bits)."
    )
    if stats["images"] > len(result):
        about += f" The index holds {stats['images'] - len(result):,} more, of other folders."
    here = shlex.quote(str(out / PHOTOS))
    demo = PhotosDemo(
        folder,
        out / PHOTOS_PAGE,
        out / PHOTOS,
        about,
        len(result.added),
        len(result.replaced),
        len(result.skipped),
        result.failed,
        encoded / seconds if encoded else None,
        stats,
        shown,
        rule,
        [
            f"mch search {shlex.quote(str(shown[0].path))} --index {here}",
            f"mch add {shlex.quote(str(folder))}",
        ],
    )
    demo.page.write_text(photos_page(demo), "utf-8")
    return demo


def budgets(bits: int, a_decade: int = A_DECADE) -> list[int]:
    """Numbers of buckets, evenly along a log axis, to two digits; 1, 10, 100 … are among them."""
    most = bits * np.log10(2)
    powers = np.arange(int(a_decade * most) + 1) / a_decade
    return sorted({int(float(f"{10**power:.1e}")) for power in powers.tolist()})


def reach(base: Iterable[Sequence[float]], mch: Iterable[Sequence[float]], buckets: int) -> Reach:
    """From two curves: the first number of buckets by which the base has MCH's F1."""
    f1 = next(y for x, y in mch if x == buckets)
    points = list(base)
    first = next((int(x) for x, y in points if y >= f1), None)
    return Reach(buckets, f1, first, max(y for _, y in points))


def _prepare(out: Path, wanted: Mapping[str, object]) -> None:
    """Makes room in `out`, where only what a demo has left is ever removed."""
    wanted = json.loads(json.dumps({**wanted, "version": __version__}))
    stamp = out / STAMP
    out.mkdir(parents=True, exist_ok=True)
    others = [f.name for f in out.iterdir() if f.name not in (PHOTOS, PHOTOS_PAGE)]
    if others and not stamp.exists():
        raise ValueError(f"{out} holds other files: give the demo a folder of its own")
    try:
        if stamp.exists() and json.loads(stamp.read_text("utf-8")) == wanted:
            return
    except ValueError:
        pass  # cut short: as good as none
    for name in (PICTURES, MODEL, *INDEXES.values()):
        shutil.rmtree(out / name, ignore_errors=True)
    stamp.write_text(json.dumps(wanted, indent=1) + "\n", "utf-8")


def _drawn(folder: Path, images: int, seed: int, progress: Progress) -> Dataset:
    """The pictures as files with their labels, in the layout for pictures of one's own."""
    table = folder / "labels.csv"
    if not table.exists():
        drawn = scenes(images, seed, SIDE)
        source = drawn.images
        assert isinstance(source, SceneSource)
        split = np.full(images, "database", "U8")
        for name in ("query", "train"):
            split[drawn.splits[name]] = name
        rows = []
        for i, its in enumerate(split.tolist()):
            file = f"{'query' if its == 'query' else 'database'}/{source.name(i)}.jpg"
            path = folder / "images" / file
            path.parent.mkdir(parents=True, exist_ok=True)
            source.image(i).save(path, "JPEG", quality=90)
            rows.append((file, its, "|".join(CLASSES[c] for c in source.classes(i))))
            if (i + 1) % 100 == 0 or i + 1 == images:
                progress(Step("pictures", i + 1, images))
        new = folder / ".labels.csv"
        with new.open("w", encoding="utf-8", newline="") as file_:
            csv.writer(file_).writerows([("file", "split", "labels"), *rows])
        new.replace(table)  # comes last: with it, the pictures are complete
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


def _steps(stage: str, progress: Progress) -> Progress:
    """Progress under another stage's name."""
    return lambda step: progress(replace(step, stage=stage))


def _measured(
    index: MCHIndex,
    queries: Packed,
    dataset: Dataset,
    files: Sequence[str],
    threads: int,
    progress: Progress,
) -> Evaluation:
    """The index's own codes, ranked for every query."""
    place = {path: i for i, path in enumerate(files)}
    images = [(place[str(image.id)], image.codes) for image in index.images()]
    codes = Codes(
        np.concatenate([c for _, c in images]),
        np.repeat(np.array([i for i, _ in images]), [len(c) for _, c in images]),
    )
    return evaluate(
        queries,
        codes,
        dataset.labels[dataset.splits["query"]],
        dataset.labels[dataset.splits["database"]],
        budgets=budgets(index.bits),
        classes=dataset.classes,
        threads=threads,
        progress=progress,
    )


def _without_tail(curve: Sequence[Sequence[float]]) -> Curve:
    """Up to where everything is found and nothing changes any more, or the next power of ten."""
    last = curve[-1][1]
    end = next(i for i, (_, y) in reversed(list(enumerate(curve))) if y != last or i == 0)
    return [list(point) for point in curve[: end + 2]]


def _chosen_scenes(
    stored: Mapping[str, MCHIndex],
    codes: Packed,
    dataset: Dataset,
    files: Sequence[str],
    tags: Mapping[str, tuple[str, ...]],
) -> tuple[list[Shown], str]:
    """The queries to show, and the rule by which they were chosen, with what it leaves out."""
    answers = {name: index.search_codes(codes, HITS) for name, index in stored.items()}
    wanted = _classes(dataset, "query")

    def shares(hits: Iterable[Hit], query: int) -> list[bool]:
        return [bool(set(wanted[query]) & set(tags[str(hit.id)])) for hit in hits]

    right = {
        name: np.mean([s for q, hits in enumerate(all_) for s in shares(hits, q)])
        for name, all_ in answers.items()
    }
    through = [
        s
        for q, hits in enumerate(answers["mch"])
        for s in shares([h for h in hits if h.region != "whole"], q)
    ]
    chosen, having = _first(list(range(len(codes))), answers["mch"])
    shown = [
        _shown(stored["mch"], answers["mch"][q], codes[q], files[q], wanted[q], tags)
        for q in chosen
    ]
    here = [bool(found.shared) for query in shown for found in query.hits]
    rule = (
        f"{_rule(having, len(codes), 'queries', 'in the order of their names')} Among the hits "
        f"shown {sum(here)} of {len(here)} share a class with their query. Among the first {HITS} "
        f"hits of all {len(codes):,} queries {right['mch']:.1%} do, and {right['base']:.1%} with "
        "one code an image"
    )
    if through:
        rule += f"; of the {len(through):,} that came through a region {np.mean(through):.1%} do"
    return shown, rule + "."


def _chosen_photos(index: MCHIndex, ids: Sequence[str | int], seed: int) -> tuple[list[Shown], str]:
    order = np.random.default_rng(seed).permutation(len(ids))[:TRIED].tolist()
    tried = [ids[i] for i in order]
    answers = [index.search(id=id_, k=HITS) for id_ in tried]
    chosen, having = _first(list(range(len(tried))), answers)
    shown = []
    for q in chosen:
        stored = index[tried[q]]
        shown.append(_shown(index, answers[q], stored.codes[0], stored.path))
    drawn = (
        f"drawn by seed {seed}" if len(ids) > len(tried) else f"in an order drawn by seed {seed}"
    )
    return shown, _rule(having, len(tried), "pictures", drawn)


def _first(queries: Sequence[int], answers: Sequence[Hits]) -> tuple[list[int], int]:
    """The first queries with a hit through a region, filled up with others; how many have one."""
    having = [q for q in queries if any(hit.region != "whole" for hit in answers[q])]
    others = [q for q in queries if q not in set(having)]
    return (having + others)[:QUERIES], len(having)


def _rule(having: int, of: int, what: str, order: str) -> str:
    seen = min(having, QUERIES)
    text = (
        f"Shown are the first {seen} of the {of:,} {what}, {order}, with at least one of their "
        f"{HITS} nearest images found through a region rather than as a whole: {having:,} have one."
        if seen
        else f"None of the {of:,} {what}, {order}, has an image found through a region among its "
        f"{HITS} nearest."
    )
    if seen < QUERIES and having < of:
        text += " The first of the others fill the page up."
    return text + " They were not chosen by how good their hits are."


def _shown(
    index: MCHIndex,
    hits: Hits,
    code: NDArray[np.uint8],
    path: str | None,
    classes: tuple[str, ...] | None = None,
    tags: Mapping[str, tuple[str, ...]] | None = None,
) -> Shown:
    found = []
    for hit in hits:
        stored = index[hit.id]
        whole = None
        if "whole" in stored.regions:
            other = stored.codes[stored.regions.index("whole")]
            whole = int(np.bitwise_count(code ^ other).sum())
        box = None
        if hit.box is not None and stored.size is not None:
            (x0, y0, x1, y1), (width, height) = hit.box, stored.size
            box = x0 / width, y0 / height, x1 / width, y1 / height
        shared = None
        if classes is not None and tags is not None:
            shared = tuple(c for c in classes if c in tags[str(hit.id)])
        found.append(Found(hit, whole, box, shared))
    name = "" if path is None else Path(path).stem
    return Shown(name, path, classes, found, hits.buckets, hits.radius)


def _commands(out: Path, shown: Sequence[Shown]) -> list[str]:
    query = out / PICTURES / "images" / "query" / Path(str(shown[0].path)).name
    index = shlex.quote(str(out / INDEXES["mch"]))
    return [
        f"mch search {shlex.quote(str(query))} --index {index}",
        "mch demo --photos ~/Pictures",
        "mch add ~/Pictures",
    ]


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _pictures(number: int) -> str:
    return "no picture" if number == 0 else "1 picture" if number == 1 else f"{number:,} pictures"


@dataclass
class _Clock:
    laps: dict[str, float] = field(default_factory=dict)
    last: float = field(default_factory=time.monotonic)

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self.laps[name], self.last = now - self.last, now


__all__ = ["PhotosDemo", "Reach", "ScenesDemo", "photos_demo", "reach", "scenes_demo"]
