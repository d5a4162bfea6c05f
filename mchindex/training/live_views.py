"""Views whose features are computed on demand, for a backbone that is being trained."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from mchindex.datasets import ImageSource
from mchindex.images import one_picture
from mchindex.inference.extract import Mode, resized
from mchindex.inference.threads import cores
from mchindex.models.backbones import Backbone
from mchindex.regions import WHOLE, overlaps
from mchindex.training.features import Regions

IN_MEMORY = 1 << 30  # bytes of decoded images to keep; the others are decoded each time


def mixed_precision(device: torch.device) -> torch.autocast:
    """Runs passes on a GPU in bfloat16, whose range needs no scaling of gradients."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


class LiveViews:
    """Training images and their crops, passed through a backbone whose weights may change."""

    def __init__(
        self,
        backbone: Backbone,
        images: ImageSource,
        rows: Sequence[int],
        labels: Tensor,
        regions: Regions,
        mode: Mode,
    ) -> None:
        self.backbone, self.labels, self.mode = backbone, labels, mode
        self._images, self._rows = images, [int(i) for i in rows]
        self._boxes = np.stack([regions.boxes(images.key(i)) for i in self._rows])
        self._decoded: dict[int, Image.Image] = {}
        self._held = 0
        self._pool = ThreadPoolExecutor(cores())

    @property
    def dim(self) -> int:
        return self.backbone.dim

    @property
    def views(self) -> int:
        return int(self._boxes.shape[1])

    def __len__(self) -> int:
        return len(self._rows)

    def parameters(self) -> list[nn.Parameter]:
        """The backbone's weights, which a method trains together with its own."""
        return list(self.backbone.parameters())

    def pixels(self, rows: Tensor, view: Tensor | int = 0) -> Tensor:
        """(n, 3, size, size) bytes; `view` is the same for all rows, or one per row."""
        views = torch.as_tensor(view).expand(len(rows)).tolist()
        boxes = [self._boxes[i, v] for i, v in zip(rows.tolist(), views, strict=True)]
        return self._resized(rows, boxes)

    def view_labels(self, rows: Tensor, view: Tensor | int = 0) -> Tensor:
        return self.labels[rows]

    def batch(self, rows: Tensor, view: Tensor | int = 0) -> Tensor:
        device = next(self.backbone.parameters()).device
        if self.mode == "crops":
            pixels = self.pixels(rows, view).to(device)
            with mixed_precision(device):
                out: Tensor = self.backbone(pixels)
            return out.float()
        pixels = self._resized(rows, [WHOLE] * len(rows)).to(device)
        with mixed_precision(device):
            maps = self.backbone.feature_map(pixels)
        maps = maps.float()
        views = torch.as_tensor(view).expand(len(rows)).numpy()
        weight = overlaps(self._boxes[rows.numpy(), views], *maps.shape[-2:])
        return torch.einsum("ndc,nc->nd", maps.flatten(2), torch.from_numpy(weight).to(device))

    def _resized(self, rows: Tensor, boxes: Sequence[Sequence[float]]) -> Tensor:
        size = self.backbone.size
        jobs = zip(rows.tolist(), boxes, strict=True)

        def part(job: tuple[int, Sequence[float]]) -> NDArray[np.uint8]:
            with one_picture():
                return resized(self._image(job[0]), job[1], size)

        pixels = torch.from_numpy(np.stack(list(self._pool.map(part, jobs))))
        return pixels.contiguous(memory_format=torch.channels_last)  # faster on a CPU

    def _image(self, row: int) -> Image.Image:
        image = self._decoded.get(row)
        if image is None:
            image = self._images.image(self._rows[row])
            if self._held < IN_MEMORY:
                self._held += image.width * image.height * 3
                self._decoded[row] = image
        return image
