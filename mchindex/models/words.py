"""Words: names of things, by which images are found without a picture of the thing.

A word is a direction: how much each bit of a fine code speaks for the thing or against it. The
fine codes of all regions are compared with it, so that a hit also shows where the thing is. There
is no text encoder: a model knows a list of names, and no sentences.
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as nnf
from numpy.typing import NDArray
from torch import Tensor, nn

from mchindex.errors import UnknownWordError
from mchindex.models.fine import FineHash
from mchindex.progress import Progress, Step, part_of, silent

MOST_WORDS = 10_000  # rows in a model
LONGEST = 1_000  # characters of the names of one row
STEPS = 15  # the largest magnitude in a vector: `FineTable` rounds to as many steps
WHOLE_SHARE = 0.3  # of the whole image in an image's score; its best region has the rest
NEAR = 5  # words that a message about an unknown word names
SAMPLE = 20_000  # images, at most, that a fit uses
BATCH = 256
CLASSES = 256  # learnt at a time, which limits the memory
LEAST_STEPS = 300  # of a fit


def normal(name: str) -> str:
    """A name as words are compared: lower case, without commas, a leading minus or extra spaces."""
    plain = name.lower().replace(",", " ").replace("_", " ")
    return " ".join(plain.split()).lstrip("- ")


def read_text(text: str) -> list[tuple[str, bool]]:
    """The words in a text such as "dog, sofa, -person": each with whether it is wanted.

    Raises TypeError if it is no text, and ValueError if it has no words.
    """
    if not isinstance(text, str):
        raise TypeError(f"text must be words separated by commas, not {type(text).__name__}")
    parts = [part.strip() for part in text.split(",")]
    words = [(normal(part), not part.startswith("-")) for part in parts]
    if not (words := [word for word in words if word[0]]):
        raise ValueError('text must name something, such as "dog" or "dog, sofa, -person"')
    return words


@dataclass(frozen=True, eq=False)
class WordQuery:
    """Words as a search takes them, one row each."""

    vectors: NDArray[np.float32]  # (words, fine bits), see `FineTable.rank`
    curves: NDArray[np.float32]  # (words, 2): probability = sigmoid(first * score + second)
    wanted: NDArray[np.bool_]  # (words,) False: images that show it are not wanted
    whole_share: float = WHOLE_SHARE


class Words(nn.Module):
    """The words that a model knows."""

    vectors: Tensor  # (rows, bits) int8, -STEPS to STEPS
    curves: Tensor  # (rows, 2): see `WordQuery`

    def __init__(self, names: Sequence[str], bits: int) -> None:
        """`names` has one text per row: the names of one thing, separated by commas."""
        super().__init__()
        if len(names) > MOST_WORDS or any(len(row) > LONGEST for row in names):
            raise ValueError(
                f"a model has {MOST_WORDS:,} words at most, each of at most {LONGEST:,} characters"
            )
        self.names = tuple(names)
        self.rows: dict[str, int] = {}
        for row, text in enumerate(names):
            for name in text.split(", "):
                if not name or normal(name) != name or name in self.rows:
                    raise ValueError(f"{name!r} is not a word, or is there twice")
                self.rows[name] = row
        self.register_buffer("vectors", torch.zeros(len(names), bits, dtype=torch.int8))
        self.register_buffer("curves", torch.zeros(len(names), 2))

    def check(self) -> None:
        """Raises ValueError for a vector that means nothing."""
        sizes = self.vectors.to(torch.int16).abs()
        if len(sizes) and not (int(sizes.max()) <= STEPS and bool(sizes.any(1).all())):
            raise ValueError(f"words have vectors from {-STEPS} to {STEPS}, none of them zero")

    @property
    def fingerprint(self) -> str:
        """A hash of the words and their vectors."""
        total = hashlib.sha256("\n".join(self.names).encode())
        for tensor in (self.vectors, self.curves):
            total.update(tensor.cpu().contiguous().numpy().tobytes())
        return total.hexdigest()[:32]

    def starting(self, prefix: str = "") -> list[str]:
        """The words that start with `prefix`, in alphabetical order."""
        return sorted(name for name in self.rows if name.startswith(prefix.lower()))

    def row(self, word: str) -> int:
        """The row of a word. Raises UnknownWordError, which names the nearest words."""
        for name in (word, *_singular(word)):
            if name in self.rows:
                return self.rows[name]
        raise UnknownWordError(word, self.near(word))

    def near(self, word: str) -> list[str]:
        """The known words that are spelt most like `word`."""
        found = difflib.get_close_matches(word, self.rows, NEAR, 0.6)
        inside = [name for name in self.starting() if word in name.split()]
        start = self.starting(word) if len(word) > 1 else []
        return list(dict.fromkeys([*found, *inside, *start]))[:NEAR]

    def query(self, text: str) -> WordQuery:
        """The words of a text, see `read_text`. Raises UnknownWordError for one that is unknown."""
        words = read_text(text)
        rows = [self.row(word) for word, _ in words]
        return WordQuery(
            self.vectors[rows].cpu().float().numpy(),
            self.curves[rows].cpu().numpy(),
            np.array([wanted for _, wanted in words]),
        )

    @classmethod
    def of_labels(
        cls,
        features: Tensor,
        labels: Tensor,
        names: Sequence[str],
        fine: FineHash,
        seed: int = 0,
        progress: Progress = silent,
    ) -> Words | None:
        """Learns a word for each label: features (n, views, dim), the whole image first, labels
        (n, classes). Labels that no image or every image has, and names that cannot be words, are
        left out; None if none remains."""
        share = labels.float().mean(0)
        rows: dict[str, int] = {}
        for place in torch.argsort(share, descending=True, stable=True).tolist():
            name = normal(names[place])
            if name and len(name) <= LONGEST and 0 < share[place] < 1 and len(rows) < MOST_WORDS:
                rows.setdefault(name, place)
        if not rows:
            return None
        kept = sorted(rows.items(), key=lambda item: item[1])
        words = cls([name for name, _ in kept], fine.bits)
        chosen = labels[:, [place for _, place in kept]].float()
        words.set_rows(slice(None), *learn(features, chosen, fine, seed, progress))
        return words

    def set_rows(self, rows: slice, directions: Tensor, offsets: Tensor) -> None:
        """Sets the vectors of rows from directions (bits, rows) whose sum over the bits of a code,
        plus an offset, is the logit of the thing."""
        largest = directions.abs().amax(0).clamp_min(1e-12)
        # A few large weights would leave no steps for the others.
        largest = torch.minimum(largest, 3 * directions.square().mean(0).sqrt().clamp_min(1e-12))
        steps = (directions / largest * STEPS).round().clamp(-STEPS, STEPS)
        steps[0, ~steps.any(0)] = 1  # a direction without any weight
        self.vectors[rows] = steps.T.to(torch.int8)
        self.curves[rows, 0] = steps.abs().sum(0) * largest / STEPS
        self.curves[rows, 1] = offsets


def _singular(word: str) -> list[str]:
    """What a word may be the plural of."""
    ends = (("ies", "y"), ("es", ""), ("s", ""))
    return [word.removesuffix(end) + new for end, new in ends if word.endswith(end)]


def learn(
    features: Tensor, targets: Tensor, fine: FineHash, seed: int = 0, progress: Progress = silent
) -> tuple[Tensor, Tensor]:
    """Directions (bits, classes) and offsets (classes,) of classifiers on fine codes.

    `features` (n, views, dim) are of whole images and their views, `targets` (n, classes) of whole
    images. A classifier on the features themselves is learnt first. It says which views show the
    thing, for an image that has it, and so the classifiers on codes learn from every view.
    """
    if len(features) > SAMPLE:
        some = torch.randperm(len(features), generator=torch.Generator().manual_seed(seed))[:SAMPLE]
        features, targets = features[some], targets[some]
    inputs, bits = scaled(features), signs(features, fine)
    learnt = []
    parts = targets.split(CLASSES, 1)
    for i, part in enumerate(parts):
        first, second = (part_of(progress, 2 * i + j, 2 * len(parts)) for j in (0, 1))
        teacher = on_features(features, part, seed, first)
        views = torch.cat(
            [
                (teacher.logits(x).sigmoid() * own[:, None]).half()
                for x, own in zip(inputs.split(BATCH), part.split(BATCH), strict=True)
            ]
        )
        learnt.append(Classifier.fit(bits, part, views, 25, 0.003, 0.3, seed, second))
    return torch.cat([c.weights for c in learnt], 1), torch.cat([c.offsets for c in learnt])


def on_features(
    features: Tensor, targets: Tensor, seed: int = 0, progress: Progress = silent
) -> Classifier:
    """Classifiers on `scaled` features."""
    return Classifier.fit(scaled(features), targets, None, 12, 0.01, 0.1, seed, progress)


def scaled(features: Tensor) -> Tensor:
    """Features as `Classifier` takes them: of one length, each about as large as the others."""
    return (nnf.normalize(features.float(), dim=-1) * 6).half()


def signs(features: Tensor, fine: FineHash) -> Tensor:
    """The bits of the fine codes of (n, views, dim) features, as -1 and 1, in int8."""
    with torch.inference_mode():
        parts = [fine.project(x).cpu() > 0 for x in features.split(BATCH)]
    return (torch.cat(parts).to(torch.int8) * 2 - 1).clone()


@dataclass(frozen=True, eq=False)
class Classifier:
    """Logistic classifiers of images that have several views.

    The logit of an image is a weighted mean of that of the whole image and the largest of all
    views, as `FineTable` ranks images.
    """

    weights: Tensor  # (dim, classes)
    offsets: Tensor  # (classes,)

    def logits(self, x: Tensor) -> Tensor:
        """(n, views, dim) -> (n, views, classes)"""
        return x.float() @ self.weights + self.offsets

    def scores(self, x: Tensor) -> Tensor:
        """(n, views, dim) -> (n, classes): the logits of images."""
        return pooled(self.logits(x))

    @classmethod
    def fit(
        cls,
        x: Tensor,
        targets: Tensor,
        view_targets: Tensor | None,
        epochs: int,
        rate: float,
        decay: float,
        seed: int = 0,
        progress: Progress = silent,
    ) -> Classifier:
        """Fits to x (n, views, dim), targets (n, classes) of images, and those of views
        (n, views, classes), if there are any."""
        rng = torch.Generator().manual_seed(seed)
        classes = targets.shape[1]
        weights = torch.zeros(x.shape[2], classes, requires_grad=True)
        start = torch.logit(targets.mean(0), 1e-4)
        offsets = torch.stack([start, start]).requires_grad_()  # of images, of views
        groups = [
            {"params": [weights], "weight_decay": decay},
            {"params": [offsets], "weight_decay": 0.0},
        ]
        optimizer = torch.optim.AdamW(groups, lr=rate)
        size = min(BATCH, len(x))
        epochs = max(epochs, LEAST_STEPS // (len(x) // size))  # few images need more rounds
        steps = epochs * (len(x) // size)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps + 1)
        for epoch in range(1, epochs + 1):
            for rows in torch.randperm(len(x), generator=rng).split(size):
                if len(rows) < size:
                    continue
                logits = x[rows].float() @ weights
                loss = nnf.binary_cross_entropy_with_logits(
                    pooled(logits) + offsets[0], targets[rows]
                )
                if view_targets is not None:
                    loss = loss + 3 * nnf.binary_cross_entropy_with_logits(
                        logits + offsets[1], view_targets[rows].float()
                    )
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
            progress(Step("words", epoch, epochs))
        return cls(weights.detach(), offsets[0].detach())


def pooled(logits: Tensor) -> Tensor:
    """(n, views, classes) -> (n, classes): see `Classifier`."""
    return WHOLE_SHARE * logits[:, 0] + (1 - WHOLE_SHARE) * logits.amax(1)
