"""Features of regions: cropped or pooled, by torch or ONNX, for one image or many."""

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

import mchindex
from helpers.pictures import picture
from mchindex.errors import MissingExtraError
from mchindex.inference.extract import MODES, Mode, resized
from mchindex.inference.threads import cores
from mchindex.models.backbones import Backbone, SmallNet, Wrapped, create_backbone
from mchindex.models.extract import ENGINES, Engine, Extractor, choose_device
from mchindex.models.mch import digest
from mchindex.regions import WHOLE, corners_and_centre, overlaps, random_boxes

CPU = torch.device("cpu")
HAS_ONNX = find_spec("onnxruntime") is not None and find_spec("onnx") is not None
needs_onnx = pytest.mark.skipif(not HAS_ONNX, reason="ONNX Runtime is not installed")
engines = pytest.mark.parametrize("engine", ["torch", pytest.param("onnx", marks=needs_onnx)])
modes = pytest.mark.parametrize("mode", MODES)

PICTURES = [
    picture(i, width, height) for i, (width, height) in enumerate([(64, 64), (50, 70), (9, 5)])
]


def smooth(seed: int, width: int = 96, height: int = 80) -> Image.Image:
    return picture(seed, 6, 5).resize((width, height), Image.Resampling.BICUBIC)


@pytest.fixture(scope="module")
def net() -> Backbone:
    torch.manual_seed(0)
    net = SmallNet(32)
    for name, tensor in net.state_dict().items():
        if name.endswith("running_mean"):
            tensor.normal_(0, 0.1)
    return net.eval()


def as_float(features: NDArray[np.float16]) -> NDArray[np.float32]:
    return features.astype(np.float32)


def assert_close(got: NDArray[np.float16], want: NDArray[Any] | Tensor) -> None:
    """Equal up to the rounding to float16."""
    np.testing.assert_allclose(as_float(got), np.asarray(want), rtol=2e-3, atol=2e-3)


# Pixels.


def test_the_whole_image_is_resized_as_it_is() -> None:
    for image in PICTURES:
        want = np.asarray(image.resize((32, 32), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
        np.testing.assert_array_equal(resized(image, WHOLE, 32), want)


def test_a_region_is_cut_out_and_then_resized() -> None:
    image = picture(3, 64, 48)
    for box, pixels in (
        ((0.25, 0.5, 0.75, 1.0), (16, 24, 48, 48)),
        ((0.0, 0.0, 0.33, 0.33), (0, 0, 21, 16)),
    ):
        want = np.asarray(image.crop(pixels).resize((16, 16), Image.Resampling.BILINEAR))
        np.testing.assert_array_equal(resized(image, box, 16), want.transpose(2, 0, 1))


def test_a_region_of_less_than_a_pixel() -> None:
    for image in PICTURES:
        for box in ((0.999, 0.999, 1.0, 1.0), (0.0, 0.0, 1e-4, 1e-4), (0.5, 0.5, 0.501, 1.0)):
            assert resized(image, box, 8).shape == (3, 8, 8)
    corner = resized(
        Image.fromarray(np.arange(27, dtype=np.uint8).reshape(3, 3, 3)), (0.99, 0.99, 1.0, 1.0), 4
    )
    assert (corner.max((1, 2)) <= [24, 25, 26]).all()
    assert (corner[:, -1, -1] == [24, 25, 26]).all()


# Features.


@engines
def test_crops_are_passed_through_the_backbone_one_by_one(net: Backbone, engine: Engine) -> None:
    extractor = Extractor(net, "crops", CPU, engine)
    assert extractor.engine == engine
    boxes = corners_and_centre(0.5).array()
    got = extractor(PICTURES, boxes)
    assert got.shape == (3, 6, net.dim)
    assert got.dtype == np.float16
    with torch.inference_mode():
        for image, features in zip(PICTURES, got, strict=True):
            pixels = np.stack([resized(image, box, net.size) for box in boxes])
            assert_close(features, net(torch.from_numpy(pixels)))


@engines
def test_a_regions_features_are_nearly_those_of_the_image_cut_out(
    net: Backbone, engine: Engine
) -> None:
    extractor = Extractor(net, "crops", CPU, engine)
    image = smooth(1)
    region = as_float(extractor([image], np.array([(0.5, 0.0, 1.0, 0.5)]))[0, 0])
    cut = as_float(extractor([image.crop((48, 0, 96, 40))], np.array([WHOLE]))[0, 0])
    other = as_float(extractor([image.crop((0, 40, 48, 80))], np.array([WHOLE]))[0, 0])
    assert np.linalg.norm(region - cut) < 0.1 * np.linalg.norm(region - other)


@engines
def test_pooled_features_are_means_of_the_map(net: Backbone, engine: Engine) -> None:
    extractor = Extractor(net, "pooled", CPU, engine)
    boxes = np.concatenate([corners_and_centre(0.5).array(), random_boxes(4, 0.4, 0, b"")])
    got = extractor(PICTURES, boxes)
    assert got.shape == (3, 10, net.dim)
    assert got.dtype == np.float16
    pixels = torch.from_numpy(np.stack([resized(image, WHOLE, net.size) for image in PICTURES]))
    with torch.inference_mode():
        maps, whole = net.feature_map(pixels), net(pixels)
    assert maps.shape[2:] == (4, 4)
    assert_close(got[:, 0], whole)
    for place, quadrant in enumerate(
        [maps[:, :, :2, :2], maps[:, :, :2, 2:], maps[:, :, 2:, :2], maps[:, :, 2:, 2:]], 1
    ):
        assert_close(got[:, place], quadrant.mean((2, 3)))
    assert_close(got[:, 5], maps[:, :, 1:3, 1:3].mean((2, 3)))
    cells = np.einsum("rc,ndc->nrd", overlaps(boxes, 4, 4), maps.flatten(2).numpy())
    assert_close(got, cells)


@modes
@engines
def test_equal_boxes_have_equal_features_bit_for_bit(
    net: Backbone, engine: Engine, mode: Mode
) -> None:
    extractor = Extractor(net, mode, CPU, engine)
    same = extractor(PICTURES, corners_and_centre(1).array())
    np.testing.assert_array_equal(same, np.repeat(same[:, :1], 6, axis=1))
    np.testing.assert_array_equal(same[:, :1], extractor(PICTURES, np.array([WHOLE])))
    boxes = random_boxes(3, 0.5, 0, b"")[[0, 1, 2, 1, 0]]
    twice = extractor(PICTURES, boxes)
    np.testing.assert_array_equal(twice[:, :2], twice[:, [4, 3]])
    assert (twice[:, 0] != twice[:, 1]).any()


@modes
@engines
def test_images_do_not_depend_on_their_company(net: Backbone, engine: Engine, mode: Mode) -> None:
    extractor = Extractor(net, mode, CPU, engine)
    boxes = corners_and_centre(0.5).array()
    many = [smooth(i) for i in range(11)]  # more than a batch, and not a multiple of one
    together = extractor(many, boxes)
    alone = np.concatenate([extractor([image], boxes) for image in many])
    assert_close(together, as_float(alone))
    if engine == "onnx":
        np.testing.assert_array_equal(together, alone)


@modes
def test_boxes_of_each_image_its_own(net: Backbone, mode: Mode) -> None:
    extractor = Extractor(net, mode, CPU, "torch")
    boxes = np.stack([random_boxes(3, 0.5, 0, bytes([i])) for i in range(3)])
    together = extractor(PICTURES, boxes)
    for i in range(3):
        assert_close(together[i], as_float(extractor(PICTURES[i : i + 1], boxes[i])[0]))


@modes
def test_several_images_in_one_pass_as_on_a_gpu(net: Backbone, mode: Mode) -> None:
    extractor = Extractor(net, mode, CPU, "torch")
    boxes = np.stack([random_boxes(3, 0.5, 0, bytes([i]))[[0, 1, 0, 2]] for i in range(3)])
    one_by_one = as_float(extractor(PICTURES, boxes))
    extractor.device = torch.device("cuda")  # decides how many images a pass takes
    assert_close(extractor(PICTURES, boxes), one_by_one)


@modes
def test_no_images_have_no_features(net: Backbone, mode: Mode) -> None:
    got = Extractor(net, mode, CPU, "torch")([], corners_and_centre(0.5).array())
    assert got.shape == (0, 6, net.dim)


def test_the_backbone_is_set_to_use_and_its_weights_are_left() -> None:
    net = SmallNet(32).train()
    before = digest({}, net.state_dict())
    extractor = Extractor(net, "crops", CPU)
    extractor(PICTURES, np.array([WHOLE]))
    assert not net.training
    assert digest({}, net.state_dict()) == before


def test_a_backbone_without_a_map_cannot_be_pooled() -> None:
    class Mean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 4)

        def forward(self, x: Tensor) -> Tensor:
            features: Tensor = self.layer(x.mean((2, 3)))
            return features

    wrapped = Wrapped(Mean(), 16)
    assert Extractor(wrapped, "crops", CPU)(PICTURES, np.array([WHOLE])).shape == (3, 1, 4)
    with pytest.raises(NotImplementedError, match="use regions='crops'"):
        Extractor(wrapped, "pooled", CPU)


# Engines and devices.


@needs_onnx
@modes
@pytest.mark.parametrize("size", [96, 100])  # 100: some maps have an odd number of rows
def test_onnx_and_torch_agree_on_real_weights(mode: Mode, size: int) -> None:
    lite = create_backbone("efficientnet-lite0", size, "pretrained")
    boxes = corners_and_centre(0.5).array()
    images = [smooth(1), smooth(2)]
    one, other = (as_float(Extractor(lite, mode, CPU, e)(images, boxes)) for e in ("torch", "onnx"))
    assert np.abs(one).max() > 0.5
    np.testing.assert_allclose(one, other, rtol=5e-3, atol=5e-3)


@needs_onnx
def test_onnx_sessions_are_built_once(net: Backbone, monkeypatch: pytest.MonkeyPatch) -> None:
    import onnxruntime

    build, built = onnxruntime.InferenceSession, []

    def counted(*arguments: Any, **options: Any) -> Any:
        built.append(arguments)
        return build(*arguments, **options)

    monkeypatch.setattr(onnxruntime, "InferenceSession", counted)
    extractor = Extractor(net, "crops", CPU, "onnx")
    for _ in range(4 * cores()):
        extractor(PICTURES, np.array([WHOLE]))
    assert len(built) == 1


@needs_onnx
def test_a_network_that_onnx_cannot_run_is_run_by_torch() -> None:
    class Fourier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, x: Tensor) -> Tensor:
            spectrum: Tensor = torch.fft.fft2(x).abs().log1p()
            return spectrum.flatten(1)[:, :5] * self.scale

    wrapped = Wrapped(Fourier(), 16)
    with pytest.warns(UserWarning, match="ONNX Runtime cannot run this backbone: torch is used"):
        extractor = Extractor(wrapped, "crops", CPU)
    assert extractor.engine == "torch"
    assert extractor(PICTURES, np.array([WHOLE])).shape == (3, 1, 5)
    with pytest.raises(ValueError, match="ONNX Runtime cannot run this backbone"):
        Extractor(wrapped, "crops", CPU, "onnx")


@needs_onnx
def test_a_network_that_onnx_gets_wrong_is_run_by_torch() -> None:
    class Moody(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.calls = nn.Parameter(torch.ones(1)), 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1  # a tracer records only one call
            return x.mean((2, 3)) * self.scale * self.calls

    with pytest.warns(UserWarning, match="other features than torch: torch is used"):
        assert Extractor(Wrapped(Moody(), 16), "crops", CPU).engine == "torch"
    with pytest.raises(ValueError, match="other features than torch"):
        Extractor(Wrapped(Moody(), 16), "crops", CPU, "onnx")


@needs_onnx
def test_a_network_to_which_onnx_gives_another_shape_is_run_by_torch() -> None:
    class Uneven(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, x: Tensor) -> Tensor:
            rows = -(-x.shape[2] // 2)  # 8 of 15: ONNX rounds towards 0 and takes 7
            return x[:, :, :rows] * self.scale

    with pytest.warns(UserWarning, match="other features than torch: torch is used"):
        assert Extractor(Wrapped(Uneven(), 15), "pooled", CPU).engine == "torch"


def test_without_onnx(net: Backbone, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mchindex.models.onnx_export.find_spec", lambda name: None)
    assert Extractor(net, "crops", CPU).engine == "torch"
    with pytest.raises(MissingExtraError, match="the package onnx is needed: run pip install"):
        Extractor(net, "crops", CPU, "onnx")


def test_modes_and_engines_that_are_none(net: Backbone) -> None:
    wrong: Any = "tiles"
    with pytest.raises(ValueError, match="regions are crops or pooled, not 'tiles'"):
        Extractor(net, wrong)
    with pytest.raises(ValueError, match=f"engine is one of {', '.join(ENGINES)}, not 'tiles'"):
        Extractor(net, "crops", CPU, wrong)


def test_devices() -> None:
    best = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    assert choose_device() == choose_device("auto") == best
    assert choose_device("cpu") == CPU
    with pytest.raises(ValueError, match="device 'abacus' cannot be used here"):
        choose_device("abacus")
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="device 'cuda' cannot be used here"):
            choose_device("cuda")


def test_no_device_is_written_into_the_package() -> None:
    found = [
        f"{path.name}: {line.strip()}"
        for path in Path(mchindex.__file__).parent.rglob("*.py")
        for line in path.read_text("utf-8").splitlines()
        if re.search(r"\.cuda\(|cuda:0|\.to\(\s*['\"]|device=['\"]", line)
    ]
    assert found == []
