"""How many duplicates does `MCHIndex.duplicates` find, how many are false, and how long it takes.

    python bench/duplicates.py --data DIR           # COCO images, as for `mch train`
    python bench/duplicates.py --data DIR --pseudo 0    # without the time for 100,000 images

Photos that the shipped model was not trained on are indexed as files, together with edits of some
of the queries among them. Precision is the share of the images besides keepers that come from the
same photo as their keeper; what the data set itself has twice counts as false, so the record lists
these pairs: look at them. Recall is the share of the edits that are in the group of their photo.

The time is measured on pseudo images: random windows of the photos and the regions of each window,
whose features are pooled from the feature map of the photo.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common import RESULTS, progress, record, script, verdict, write_json
from mchindex import MCHIndex
from mchindex.catalogue import SHIPPED
from mchindex.datasets import Dataset, open_dataset
from mchindex.datasets.edits import EDITS, jpeg
from mchindex.images import read_picture
from mchindex.index.duplicates import LEVELS, Duplicates, find_groups, mirrored
from mchindex.models import MCHModel
from ship import parts

PHOTOS, EDITED = 3000, 200
PSEUDO = 100_000
MILD = ("JPEG q30", "half size", "crop 90 %", "brighter", "flipped")
PRECISION, RECALL, SECONDS = 0.99, 0.9, 120.0  # to reach: the first two at "copy", over MILD


def unseen(dataset: Dataset, photos: int, seed: int) -> NDArray[np.int64]:
    """Images that the shipped models were not trained on: queries, then, if there are too few,
    images of the database.

    The levels were chosen on images of the database, so only queries may be edited.
    """
    _, rest = parts(dataset, 0)
    rng = np.random.default_rng(seed)
    rows = [rng.permutation(rest.splits[split]) for split in ("query", "database")]
    return np.concatenate(rows)[:photos]


def write_files(dataset: Dataset, rows: NDArray[np.int64], edited: int, folder: Path) -> None:
    """Writes NUMBER.jpg for each photo and NUMBER-EDIT.jpg for each edit of the first ones."""
    for number, row in enumerate(rows.tolist()):
        image = dataset.images.image(row).convert("RGB")
        (folder / f"{number:05d}.jpg").write_bytes(jpeg(image, 95))
        for place, edit in enumerate(EDITS.values() if number < edited else ()):
            (folder / f"{number:05d}-{place}.jpg").write_bytes(jpeg(edit(image), 95))


def judged(found: Duplicates, edited: int) -> dict[str, Any]:
    """Precision, the recall of each edit, and the false pairs."""
    names = list(EDITS)
    right, false = 0, []
    recalled = dict.fromkeys(names, 0)
    for group in found:
        stems = [Path(str(id)).stem for id in group.ids]
        keeper = stems[0].split("-")[0]
        for stem in stems[1:]:
            if stem.split("-")[0] == keeper:
                right += 1
            else:
                false.append([stems[0], stem])
        for stem in stems:
            photo, _, place = stem.partition("-")
            if place and photo in stems:
                recalled[names[int(place)]] += 1
    recall = {name: count / edited for name, count in recalled.items()}
    return {
        "level": found.level,
        "precision": right / max(1, right + len(false)),
        "found": right,
        "false": false,
        "recall": recall,
        "mild recall": float(np.mean([recall[name] for name in MILD])),
    }


def pseudo_codes(
    model: MCHModel, dataset: Dataset, rows: NDArray[np.int64], count: int, seed: int
) -> NDArray[np.uint8]:
    """The fine codes (count, regions, bits // 8) of random windows of photos."""
    assert model.fine is not None
    layout = model.layout.array()
    each = -(-count // len(rows))
    rng = np.random.default_rng(seed)
    sides = rng.uniform(0.4, 1, (len(rows), each, 1, 2))
    corners = rng.uniform(0, 1, sides.shape) * (1 - sides)
    starts = corners + layout[:, :2] * sides
    ends = corners + layout[:, 2:] * sides
    boxes = np.concatenate([starts, ends], -1).reshape(len(rows), -1, 4).clip(0, 1)

    def load(place: int) -> tuple[Any, NDArray[np.float64]]:
        image = dataset.images.image(int(rows[place]))
        return read_picture(image, model.least).image, boxes[place]

    features = model.extractor.collect(range(len(rows)), load, boxes.shape[1])
    codes = [model.fine.codes(part) for part in np.array_split(features, 64) if len(part)]
    return np.concatenate(codes).reshape(-1, len(layout), model.fine.bits // 8)[:count]


def timed(model: MCHModel, codes: NDArray[np.uint8], threads: int) -> list[dict[str, Any]]:
    assert model.fine is not None
    cells = model.fine.cells.cpu().numpy()
    rows = []
    for level in LEVELS:
        began = time.perf_counter()
        groups = find_groups(
            codes, cells, level, np.full(len(codes), np.nan), mirrored(model.layout.boxes),
            threads=threads,
        )  # fmt: skip
        spent = time.perf_counter() - began
        others = sum(map(len, groups)) - len(groups)
        rows.append(
            {"level": level, "images": len(codes), "seconds": spent, "groups": len(groups),
             "others": others}
        )  # fmt: skip
    return rows


def parsed() -> argparse.Namespace:
    parser = script(__doc__)
    add = parser.add_argument
    add("--data", required=True, metavar="DIR", help="the data set, as for `mch train`")
    add("--model", default="coco-64", help="a shipped model (%(default)s)")
    add("--photos", type=int, default=PHOTOS, help="%(default)s")
    add("--edited", type=int, default=EDITED, help="photos that are edited (%(default)s)")
    add("--pseudo", type=int, default=PSEUDO, help="images to time; 0: none (%(default)s)")
    add("--threads", type=int, default=0, help="0: all cores (%(default)s)")
    add("--seed", type=int, default=0, help="%(default)s")
    add("--out", type=Path, default=RESULTS / "duplicates.json", help="%(default)s")
    return parser.parse_args()


def main() -> None:
    args = parsed()
    dataset = open_dataset(args.data)
    model = MCHModel.load(SHIPPED / args.model)
    rows = unseen(dataset, args.photos, args.seed)
    if args.edited > min(len(rows), len(dataset.splits["query"])):
        raise SystemExit("there are fewer queries than photos to edit: give a smaller --edited")
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name, MCHIndex(model) as index:
        progress(f"writing {len(rows):,} photos and {len(EDITS)} edits of {args.edited}")
        write_files(dataset, rows, args.edited, Path(name))
        index.add(name)
        for level in LEVELS:
            found = index.duplicates(level, progress=False, threads=args.threads)
            results.append(judged(found, args.edited))
    for row in results:
        print(f"{row['level']}: precision {row['precision']:.4f}, {len(row['false'])} false")
        for edit, recall in row["recall"].items():
            print(f"  {edit:17} {recall:.3f}{'  mild' if edit in MILD else ''}")
    copy = results[0]
    good = copy["precision"] >= PRECISION and copy["mild recall"] >= RECALL
    print(f"copy: {verdict(good)} precision {PRECISION} at recall {RECALL} over the mild edits")
    if args.pseudo:
        progress(f"pooling {args.pseudo:,} pseudo images")
        times = timed(
            model, pseudo_codes(model, dataset, rows, args.pseudo, args.seed), args.threads
        )
        for row in times:
            print(f"{row['level']}: {row['images']:,} images in {row['seconds']:.1f} s")
        quick = all(row["seconds"] * PSEUDO <= SECONDS * row["images"] for row in times)
        print(f"time: {verdict(quick)} {SECONDS:g} s for {PSEUDO:,} images")
        results += times
    settings = {
        "model": args.model, "photos": len(rows), "edited": args.edited, "mild": MILD,
        "levels": LEVELS, "threads": args.threads,
    }  # fmt: skip
    write_json(args.out, record(settings, args.seed, results))


if __name__ == "__main__":
    main()
