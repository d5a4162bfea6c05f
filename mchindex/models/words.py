"""Learns words: directions in fine codes that say whether an image shows a thing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as nnf
from numpy.typing import NDArray
from torch import Tensor, nn

from mchindex.inference.words import (
    LONGEST,
    MOST_WORDS,
    STEPS,
    WHOLE_SHARE,
    KnownWords,
    normal,
)
from mchindex.models.fine import FineHash
from mchindex.progress import Progress, Step, part_of, silent

SAMPLE = 20_000  # images, at most, that a fit uses
BATCH = 256
CLASSES = 256  # learnt at a time, which limits the memory
LEAST_STEPS = 300  # of a fit


class Words(nn.Module, KnownWords):
    """The words that a model knows."""

    vectors: Tensor  # (rows, bits) int8, -STEPS to STEPS
    curves: Tensor  # (rows, 2): see `WordQuery`

    def __init__(self, names: Sequence[str], bits: int) -> None:
        """`names` has one text per row: the names of one thing, separated by commas."""
        super().__init__()
        self._set_names(names)
        self.register_buffer("vectors", torch.zeros(len(names), bits, dtype=torch.int8))
        self.register_buffer("curves", torch.zeros(len(names), 2))

    def arrays(self) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
        return self.vectors.cpu().numpy(), self.curves.cpu().numpy()

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
