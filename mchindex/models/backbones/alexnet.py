"""AlexNet, with the layer names of the public weights, so that a file of them can be loaded."""

from __future__ import annotations

from torch import Tensor, nn

from mchindex.models.backbones.base import Backbone


class AlexNet(Backbone):
    """4,096 features: fc7 after its ReLU. It has no feature map, so regions must be crops."""

    name = "alexnet"
    dim = 4096
    default_size = 224
    mean = (123.675, 116.28, 103.53)
    std = (58.395, 57.12, 57.375)

    def __init__(self, size: int | None = None) -> None:
        super().__init__(size)
        self.features = nn.Sequential(
            nn.Conv2d(3, 64, 11, stride=4, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(3, 2),
            nn.Conv2d(64, 192, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(3, 2),
            nn.Conv2d(192, 384, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(384, 256, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(256, 256, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(3, 2),
        )
        self.avgpool = nn.AdaptiveAvgPool2d(6)
        # fc6 and fc7 have the indices 1 and 4, as in the public file; its fc8 is not used.
        self.classifier = nn.Sequential(
            nn.Dropout(0.5),
            nn.Linear(256 * 6 * 6, 4096),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(4096, 4096),
            nn.ReLU(),
        )

    def forward(self, pixels: Tensor) -> Tensor:
        maps: Tensor = self.avgpool(self.features(self.normalise(pixels)))
        features: Tensor = self.classifier(maps.flatten(1))
        return features
