"""Asymmetric deep supervised hashing (Jiang, Li, AAAI 2018).

Two steps alternate: the network is trained so that its outputs U for a sample Ω of the images fit
the codes V of all training images, and V is improved bit by bit. Both reduce
|UVᵀ - bits * S|² + gamma |U - V_Ω|². The target S of a dissimilar pair is -r, with r = S1 / S0, to
balance that dissimilar pairs are more frequent. V serves training only: every code that is stored
comes from the network, which can also encode crops and new images.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mchindex.models.deep import DeepHash, DeepSettings, Loop, batches, mixed_views
from mchindex.models.hashing import Checkpoint, sign, squared_pair_loss
from mchindex.models.settings import Settings
from mchindex.models.views import Views, similar
from mchindex.progress import Progress, Step, silent


@dataclass(frozen=True)
class ADSHSettings(DeepSettings):
    epochs: int = 20  # rounds: draw a sample, train the network on it, improve V
    inner: int = 3  # passes over the sample in each round
    sample: int = 2000
    batch: int = 128
    # At the authors' 200 the network's codes, which are the ones we store, stay far from V.
    gamma: float = 2e4
    # V starts at random, and its bits stay different only if the network fits it at full rate.
    warm_up: float = 0.0


class ADSH(DeepHash):
    name = "adsh"
    settings_type = ADSHSettings
    dissimilar: Tensor  # -r, the target of dissimilar pairs

    def __init__(self, dim: int, bits: int, settings: Settings | None = None) -> None:
        super().__init__(dim, bits, settings)
        self.register_buffer("dissimilar", torch.tensor(-1.0))

    def pair_loss(self, d: Tensor, s: Tensor) -> Tensor:
        return squared_pair_loss(d, s, self.bits, float(self.dissimilar))

    def fit(
        self,
        data: Views,
        seed: int = 0,
        progress: Progress = silent,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        settings = self.settings
        self.start(data, seed)
        device, n = self.mean.device, len(data)
        # The weights are S / S1 and S / S0, whose ratio is r. ADSH has no weights in its loss.
        self.dissimilar.fill_(-float(self.weights[1] / self.weights[0]))
        self.weights.fill_(1.0)
        labels = data.labels.to(device)
        first = torch.Generator().manual_seed(seed)
        v = sign(torch.randn(n, self.bits, generator=first)).to(device)
        sample = min(settings.sample, n)
        size = min(settings.batch, sample)
        steps = settings.inner * sum(1 for _ in batches(sample, size, torch.Generator()))
        loop = Loop(self, data, settings.epochs, steps, seed, checkpoint)
        for epoch, generator in loop:
            v = loop.extra.get("v", v).to(device)
            chosen = torch.randperm(n, generator=generator)[:sample]
            total = 0.0
            for _ in range(settings.inner):
                for part in batches(sample, size, generator):
                    rows = chosen[part]
                    view = mixed_views(rows, data, settings.crop_share, generator)
                    u = torch.tanh(self.project(data.batch(rows, view).to(device)))
                    view_labels = data.view_labels(rows, view).to(device)
                    place = rows.to(device)
                    fit = ((u @ v.T - self.targets(view_labels, labels)) ** 2).mean()
                    # A crop with fewer labels than its image has no code in V: its signs serve.
                    as_image = (view_labels == labels[place]).all(1) | (view == 0).to(device)
                    goal = torch.where(as_image[:, None], v[place], sign(u.detach()))
                    near = ((u - goal) ** 2).sum(1).mean() / n
                    loss = (fit + settings.gamma * near) / self.bits**2
                    total += loop.update(loss)
            loop.train(False)
            with torch.no_grad():
                parts = [data.batch(rows).to(device) for rows in chosen.split(1024)]
                u = torch.tanh(torch.cat([self.project(x) for x in parts]))
            target = self.targets(labels[chosen.to(device)], labels)
            v = improve_codes(v, u, target, chosen.to(device), settings.gamma)
            loop.extra["v"] = v
            progress(Step(self.name, epoch + 1, settings.epochs, {"loss": total / steps}))

    def targets(self, a: Tensor, b: Tensor) -> Tensor:
        """The inner products to fit: bits for similar pairs, -r * bits for dissimilar ones."""
        return self.bits * torch.where(similar(a, b), 1.0, float(self.dissimilar))


def objective(v: Tensor, u: Tensor, target: Tensor, chosen: Tensor, gamma: float) -> float:
    """|UVᵀ - target|² + gamma |U - V_Ω|², where u are the outputs for the images `chosen`."""
    return float(((u @ v.T - target) ** 2).sum() + gamma * ((u - v[chosen]) ** 2).sum())


def improve_codes(v: Tensor, u: Tensor, target: Tensor, chosen: Tensor, gamma: float) -> Tensor:
    """Sets each bit of V in turn to its best value given the others. The objective never rises.

    A bit for which both values are equally good stays as it is.
    """
    v = v.clone()
    linear = -2 * target.T @ u  # (n, bits)
    linear[chosen] -= 2 * gamma * u
    inner = u.T @ u
    for bit in range(v.shape[1]):
        others = inner[:, bit].clone()
        others[bit] = 0
        slope = 2 * v @ others + linear[:, bit]
        v[:, bit] = torch.where(slope == 0, v[:, bit], -sign(slope))
    return v
