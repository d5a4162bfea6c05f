"""A small convolutional net that learns from scratch in about a minute on two cores."""

from __future__ import annotations

from torch import Tensor, nn

from mchindex.models.backbones.base import Backbone


class SmallNet(Backbone):
    """192 features; at its default input of 64 x 64 pixels, the feature map has 8 x 8 cells."""

    name = "small"
    dim = 192
    default_size = 64

    def __init__(self, size: int | None = None) -> None:
        super().__init__(size)

        def block(inputs: int, outputs: int, stride: int = 1) -> list[nn.Module]:
            conv = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
            return [conv, nn.BatchNorm2d(outputs), nn.ReLU()]

        self.layers = nn.Sequential(
            *block(3, 24, stride=2), *block(24, 48), nn.MaxPool2d(2),
            *block(48, 96), nn.MaxPool2d(2), *block(96, self.dim),
        )  # fmt: skip

    def parts(self) -> list[nn.Module]:
        return [self.layers[:3], self.layers[3:7], self.layers[7:11], self.layers[11:]]

    def feature_map(self, pixels: Tensor) -> Tensor:
        maps: Tensor = self.layers(self.normalise(pixels))
        return maps
