"""Asymmetric deep supervised hashing (Jiang, Li, AAAI 2018).

The training images' codes V are learnt as such, bit by bit, and in turn the network for U, a sample
Ω of them: |UVᵀ - bits * S|² + gamma |U - V_Ω|². A dissimilar pair's target is -r, r = S1 / S0,
which evens out that there are more of them. Every code that is used comes from the network, so that
crops and new images have one.
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
    epochs: int = 20  # outer rounds: a sample, inner epochs of the network, then V
    inner: int = 3
    sample: int = 2000
    batch: int = 128
    # The authors' 200 leaves the network's codes far from V, and here all codes are the network's.
    gamma: float = 2e4
    # The first V is random, and its bits stay apart only if the network learns it at full rate.
    warm_up: float = 0.0


class ADSH(DeepHash):
    name = "adsh"
    settings_type = ADSHSettings
    dissimilar: Tensor  # the target of dissimilar pairs, -r

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
        # S / S0 over S / S1 is S1 / S0. The loss itself has no weights.
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
                    shown, own = data.shown(rows, view).to(device), rows.to(device)
                    fit = ((u @ v.T - self.targets(shown, labels)) ** 2).mean()
                    # A crop that shows less than its image has no code in V: its own signs will do.
                    as_image = (shown == labels[own]).all(1) | (view == 0).to(device)
                    goal = torch.where(as_image[:, None], v[own], sign(u.detach()))
                    near = ((u - goal) ** 2).sum(1).mean() / n
                    loss = (fit + settings.gamma * near) / self.bits**2
                    loop.update(loss)
                    total += float(loss.detach())
            loop.train(False)
            with torch.no_grad():
                parts = [data.batch(rows).to(device) for rows in chosen.split(1024)]
                u = torch.tanh(torch.cat([self.project(x) for x in parts]))
            target = self.targets(labels[chosen.to(device)], labels)
            v = improve_codes(v, u, target, chosen.to(device), settings.gamma)
            loop.extra["v"] = v
            progress(Step(self.name, epoch + 1, settings.epochs, {"loss": total / steps}))

    def targets(self, a: Tensor, b: Tensor) -> Tensor:
        """What inner products are to be: bits for similar pairs, -r * bits for dissimilar ones."""
        return self.bits * torch.where(similar(a, b), 1.0, float(self.dissimilar))


def objective(v: Tensor, u: Tensor, target: Tensor, chosen: Tensor, gamma: float) -> float:
    """|UVᵀ - target|² + gamma |U - V_Ω|², u the outputs of the images `chosen`."""
    return float(((u @ v.T - target) ** 2).sum() + gamma * ((u - v[chosen]) ** 2).sum())


def improve_codes(v: Tensor, u: Tensor, target: Tensor, chosen: Tensor, gamma: float) -> Tensor:
    """The discrete step: each bit of V at its best given the others. The objective never rises.

    Where both signs of a bit are as good, the old one stays.
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
