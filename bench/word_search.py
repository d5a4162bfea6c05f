"""How well words find things, on images that no part of a model was trained on.

    python bench/word_search.py --data DIR              # COCO, as for `mch train`

- mAP and P@10 of COCO's classes: by words on fine codes, and by the classifiers on the features
  themselves (1,280 floats per region) that are learnt in the same way and from which the words
  learn.
- General words, which have classes of COCO below them and are none themselves: mAP and P@10. An
  image is right if it has a label below the word. Things below it that are no class of COCO count
  as wrong, so that these figures are lower bounds.
- Two words: mAP of images that have both labels, or the first without the second.
- Regions: there are no boxes in the data. The parts of a picture are cut out, encoded as pictures
  of their own, and judged by the classifiers on features. Reported is how often the region that a
  hit shows is the one of five that most probably has the thing, and how often it has it (at least
  0.5), beside the mean of all five. Chance is a fifth.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from answer_data import frozen
from common import RESULTS, record, script, write_json
from mchindex._core import FineTable
from mchindex.datasets import Dataset, open_dataset
from mchindex.index.words import ranked_by_words
from mchindex.models import MCHModel
from mchindex.models.words import Classifier, Words, on_features, scaled
from mchindex.regions import WHOLE, in_pixels
from mchindex.training.features import FeatureCache, Fixed, default_cache
from ship import parts
from words import coco_classes, read_table

Figures = dict[str, float]
SHOWN = ("animal", "vehicle", "food", "fruit", "furniture", "sports equipment")
PAIR = 8  # images, at least, that a pair of words must have to be measured
LEAST = 10  # images that a general word must have to be measured
PER_CLASS = 5  # hits per class whose regions are judged


def average_precision(scores: NDArray[np.floating], right: NDArray[np.bool_]) -> float:
    found = right[np.argsort(-scores, kind="stable")]
    return float((found.cumsum() / np.arange(1, len(found) + 1))[found].mean())


def by_class(scores: NDArray[np.floating], labels: NDArray[np.bool_]) -> Figures:
    """mAP and P@10 over classes that have at least three images: scores and labels (n, classes)."""
    columns = np.flatnonzero(labels.sum(0) >= 3)
    first = np.argsort(-scores, axis=0, kind="stable")[:10]
    return {
        "map": float(np.mean([average_precision(scores[:, c], labels[:, c]) for c in columns])),
        "p10": float(np.mean([labels[first[:, c], c].mean() for c in columns])),
    }


def table_of(fine: NDArray[np.uint8]) -> FineTable:
    """A table of images with these fine codes (n, regions, bytes) and the keys 0, 1, 2 …"""
    n, regions, width = fine.shape
    table = FineTable(8, 8 * width, regions)
    table.add(np.arange(n), fine, np.zeros(n, np.int64), np.empty((0, 1), np.uint8))
    return table


def scores_of(table: FineTable, words: Words, text: str) -> NDArray[np.float32]:
    """The score of every image."""
    found = ranked_by_words(table, words.query(text), len(table), None, 0)
    scores = np.empty(len(table), np.float32)
    scores[found.keys[0]] = found.scores[0]
    return scores


def general(table: FineTable, words: Words, names: list[str], labels: NDArray[np.bool_]) -> Figures:
    """mAP and P@10 of general words: the means, and P@10 of some of them."""
    things = read_table()
    found: dict[str, tuple[float, float]] = {}
    for thing, own in zip(things, coco_classes(things, names), strict=True):
        right = np.any(labels[:, own], axis=1)
        if not thing.coco and right.sum() >= LEAST:
            scores = scores_of(table, words, thing.names[0])
            first = np.argsort(-scores, kind="stable")[:10]
            found[thing.names[0]] = average_precision(scores, right), float(right[first].mean())
    return {
        "words": len(found),
        "map": float(np.mean([ap for ap, _ in found.values()])),
        "p10": float(np.mean([p for _, p in found.values()])),
        **{name: found[name][1] for name in SHOWN},
    }


def pairs(table: FineTable, words: Words, names: list[str], labels: NDArray[np.bool_]) -> Figures:
    """mAP of two words, over up to 200 pairs of classes."""
    together = labels.T.astype(int) @ labels
    alone = labels.sum(0)[:, None] - together
    some = np.argwhere(np.triu(together >= PAIR, 1))
    others = np.argwhere((together >= 2 * PAIR) & (alone >= 2 * PAIR))
    rng = np.random.default_rng(0)
    some, others = (rng.permutation(x)[:200] for x in (some, others))

    def mean(pairs: NDArray[np.int64], text: str, second: bool) -> float:
        found = []
        for a, b in pairs:
            scores = scores_of(table, words, text.format(names[a], names[b]))
            right = labels[:, a] & (labels[:, b] if second else ~labels[:, b])
            found.append(average_precision(scores, right))
        return float(np.mean(found))

    return {
        "both": mean(some, "{}, {}", True),
        "both_by_first_word": mean(some, "{}", True),
        "without": mean(others, "{}, -{}", False),
        "without_by_first_word": mean(others, "{}", False),
    }


def regions_of(
    table: FineTable, model: MCHModel, teacher: Classifier, data: Dataset, rows: NDArray[np.int64]
) -> Figures:
    """How often the region that a hit shows has the thing, as said above."""
    assert model.words is not None
    boxes = model.layout.array()[1:]
    best, shown_has, each_has = [], [], []
    for c, name in enumerate(data.classes):
        found = ranked_by_words(table, model.words.query(name), 100, None, 0)
        hits = zip(found.keys[0].tolist(), found.regions[0].tolist(), strict=True)
        right = [(i, region) for i, region in hits if region and data.labels[rows[i], c]]
        for i, region in right[:PER_CLASS]:
            image = data.images.image(int(rows[i]))
            parts = [image.crop(in_pixels(tuple(box), *image.size)) for box in boxes]
            whole = model._features(parts, np.array([WHOLE]))
            p = (
                teacher.logits(scaled(torch.from_numpy(frozen(model, whole))))[:, 0, c]
                .sigmoid()
                .numpy()
            )
            best.append(p.argmax() == region - 1)
            shown_has.append(p[region - 1] >= 0.5)
            each_has.append((p >= 0.5).mean())
    return {
        "hits": len(best),
        "shown_is_most_probable": float(np.mean(best)),
        "shown_has_the_thing": float(np.mean(shown_has)),
        "any_has_the_thing": float(np.mean(each_has)),
    }


@dataclass(frozen=True)
class Unseen:
    """Images that a model was not trained on, and classifiers on the features of others."""

    model: MCHModel
    data: Dataset
    rows: NDArray[np.int64]
    features: NDArray[np.float16]  # (n, regions, dim)
    teacher: Classifier

    @classmethod
    def read(
        cls, model: MCHModel, data: Dataset, cache: FeatureCache, rows: NDArray[np.int64]
    ) -> Unseen:
        known = parts(data, 0)[0].splits["train"]
        learnt, features = (
            cache.features(model.extractor, data.images, part, Fixed(model.layout))
            for part in (known, rows)
        )
        labels = torch.from_numpy(data.labels[known]).float()
        plain = torch.from_numpy(frozen(model, learnt))
        return cls(model, data, rows, features, on_features(plain, labels))

    @property
    def words(self) -> Words:
        assert self.model.words is not None
        return self.model.words

    def table(self) -> FineTable:
        assert self.model.fine is not None
        return table_of(self.model.fine.codes(self.features))

    def classes(self) -> dict[str, Figures]:
        """Of COCO's classes: words, the classifiers on features, and the share of these."""
        labels, table = self.data.labels[self.rows], self.table()
        by_words = np.stack([scores_of(table, self.words, n) for n in self.data.classes], 1)
        on_floats = torch.cat(
            [
                self.teacher.scores(scaled(x))
                for x in torch.from_numpy(frozen(self.model, self.features)).split(256)
            ]
        ).numpy()
        words, floats = by_class(by_words, labels), by_class(on_floats, labels)
        return {
            "words": words,
            "floats": floats,
            "share": {key: words[key] / floats[key] for key in words},
        }

    def all(self) -> dict[str, Figures]:
        """All figures."""
        labels, names, table = self.data.labels[self.rows], list(self.data.classes), self.table()
        return self.classes() | {
            "general": general(table, self.words, names, labels),
            "pairs": pairs(table, self.words, names, labels),
            "regions": regions_of(table, self.model, self.teacher, self.data, self.rows),
        }


def unseen_rows(data: Dataset) -> NDArray[np.int64]:
    _, unseen = parts(data, 0)
    return np.sort(np.r_[unseen.splits["query"], unseen.splits["database"]])


def main() -> None:
    p = script(__doc__)
    p.add_argument("--data", required=True, help="COCO, as for `mch train --data`")
    p.add_argument("--model", default="coco-64", help="%(default)s")
    p.add_argument("--cache", type=Path, default=default_cache(), help="features (%(default)s)")
    p.add_argument("--json", type=Path, default=RESULTS / "words.json", help="%(default)s")
    args = p.parse_args()
    model, data = MCHModel.load(args.model), open_dataset(args.data)
    rows = unseen_rows(data)
    figures = Unseen.read(model, data, FeatureCache(args.cache), rows).all()
    print(json.dumps(figures, indent=1))
    settings = {"data": data.name, "model": args.model, "images": len(rows), "pair": PAIR,
                "least": LEAST, "per_class": PER_CLASS}  # fmt: skip
    whole = record(settings, 0, []) | figures
    del whole["rows"]
    write_json(args.json, whole)


if __name__ == "__main__":
    main()
