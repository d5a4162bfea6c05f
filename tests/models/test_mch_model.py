"""The whole model: which codes an image gets, and that a saved model gives the same ones."""

import json
import os
import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from helpers.pictures import encoded, picture
from helpers.toys import Harm, state_of
from mchindex.catalogue import CONFIG
from mchindex.errors import ImageError, ModelError
from mchindex.images import open_rgb
from mchindex.inference.extract import MODES, Mode
from mchindex.inference.region_codes import first_of_equals
from mchindex.inference.saved import WEIGHTS
from mchindex.models import METHODS, Encoded, MCHModel, Policy, RegionCodes, create_method
from mchindex.models.backbones import SmallNet, Wrapped, create_backbone
from mchindex.models.deep import DeepHash
from mchindex.models.hashing import pack
from mchindex.models.linear import LinearHash
from mchindex.regions import WHOLE, corners_and_centre, read_layout

CPU = torch.device("cpu")
PICTURES = [picture(i, 5, 4).resize((60, 40), Image.Resampling.BICUBIC) for i in range(9)]
SMALL: dict[str, dict[str, Any]] = {"ksh": {"anchors": 6}}
modes = pytest.mark.parametrize("mode", MODES)


def small_net() -> SmallNet:
    torch.manual_seed(0)
    return SmallNet(32)


def make(
    name: str = "dch",
    mode: Mode = "pooled",
    bits: int = 16,
    policy: bool = True,
    backbone: Any = None,
    **options: Any,
) -> MCHModel:
    """A model like a trained one: regions differ in their codes, and some are kept."""
    backbone = backbone or small_net()
    torch.manual_seed(1)
    deep = {"hidden": 20} if issubclass(METHODS[name], DeepHash) else {}
    settings = SMALL.get(name, deep)
    method = create_method(name, backbone.dim, bits, settings)
    base = MCHModel(backbone, method, None, mode=mode, device=CPU, engine="torch")
    x = torch.from_numpy(base.extractor(PICTURES, corners_and_centre(0.5).array())).float()
    flat = x.flatten(0, 1)
    for buffer, value in {"mean": flat.mean(0), "std": flat.std(0).clamp(min=1e-3)}.items():
        if hasattr(method, buffer):
            getattr(method, buffer).copy_(value)
    if isinstance(method, LinearHash):
        method.map.copy_(torch.randn(method.map.shape))
    elif name == "ksh":
        table: Any = method
        table.anchors.copy_(flat[::9][:6])
        table.width.copy_((torch.cdist(flat, table.anchors) ** 2).mean())
        table.centre.copy_(table.features(flat).mean(0))
        table.map.copy_(torch.randn(table.map.shape))
    agent = None
    if policy:
        agent = Policy(method.feature_dim, bits, width=8).eval()
        with torch.no_grad():
            f, b = method.features(flat), method.codes(flat)
            agent.fit_scale(f)
            whole = torch.arange(len(flat)) // 6 * 6
            logits = agent.layers(agent.state(f[whole], f, b[whole], b))
            last: Any = agent.layers[-1]
            last.bias -= logits.median(0).values  # one half is kept
            last.weight *= 10  # and probabilities are near 0 or 1
            last.bias *= 10
    return replace(base, policy=agent, **options)


def slow_encode(model: MCHModel) -> list[dict[bytes, int]]:
    """Image by image and region by region: code -> the first region that has it."""
    out = []
    for image in PICTURES:
        features = torch.from_numpy(model.extractor([image], model.layout.array())[0]).float()
        f, b = model.method.features(features), model.method.codes(features)
        kept: dict[bytes, int] = {}
        for r in range(len(model.layout)):
            if r and model.policy is not None:
                one = slice(0, 1), slice(r, r + 1)
                probability = model.policy.keep(f[one[0]], f[one[1]], b[one[0]], b[one[1]])
                if float(probability.detach()) < model.xi:
                    continue
            elif r:
                continue
            kept.setdefault(pack(b[r : r + 1]).tobytes(), r)
        out.append(kept)
    return out


def as_dicts(got: Encoded, n: int) -> list[dict[bytes, int]]:
    out: list[dict[bytes, int]] = [{} for _ in range(n)]
    for code, image, region in zip(got.codes, got.images, got.regions, strict=True):
        assert code.tobytes() not in out[image]
        out[image][code.tobytes()] = int(region)
    return out


# Codes.


@modes
@pytest.mark.parametrize("name", METHODS)
def test_an_image_has_its_own_code_and_those_of_the_regions_kept(name: str, mode: Mode) -> None:
    model = make(name, mode)
    got = model.encode(PICTURES)
    want = slow_encode(model)
    assert as_dicts(got, 9) == want
    assert 9 < len(got) < 9 * 6  # some are kept, and some are not
    assert (np.diff(got.images) >= 0).all()
    assert got.keep.shape == (9, 6)
    assert (got.keep[:, 0] == 1).all()
    np.testing.assert_array_equal(got.kept, (got.keep >= 0.5).sum(1))
    assert (got.codes.shape, got.codes.dtype) == ((len(got), 2), np.dtype(np.uint8))


@modes
@pytest.mark.parametrize("name", METHODS)
def test_at_sigma_one_an_image_has_exactly_its_querys_code(name: str, mode: Mode) -> None:
    model = make(name, mode, sigma=1, xi=0)
    got = model.encode(PICTURES)
    assert got.images.tolist() == list(range(9))
    assert got.regions.tolist() == [0] * 9
    assert got.kept.tolist() == [6] * 9  # counting equal codes
    np.testing.assert_array_equal(got.codes, model.encode_query(PICTURES))


@modes
def test_a_query_is_the_whole_image_only(mode: Mode) -> None:
    model = make(mode=mode)
    queries = model.encode_query(PICTURES)
    got = model.encode(PICTURES)
    assert queries.shape == (9, 2)
    np.testing.assert_array_equal(got.codes[got.regions == 0], queries)
    np.testing.assert_array_equal(make(mode=mode, sigma=0.3).encode_query(PICTURES), queries)
    assert len(np.unique(queries, axis=0)) > 3


def test_without_a_policy_an_image_has_one_code() -> None:
    for xi in (0.0, 0.5, 1.0):
        model = make(policy=False, xi=xi)
        got = model.encode(PICTURES)
        assert got.images.tolist() == list(range(9))
        np.testing.assert_array_equal(got.codes, model.encode_query(PICTURES))


def test_the_policy_reads_the_whole_image_first_and_the_regions_in_their_order() -> None:
    model = make()
    seen: list[tuple[Tensor, ...]] = []

    class Recorder(Policy):
        def keep(self, *state: Tensor) -> Tensor:
            seen.append(state)
            return torch.arange(len(state[0])) / 100

    model.policy = Recorder(model.method.feature_dim, 16)
    features = model.extractor(PICTURES, model.layout.array())
    found = model.regions_of(features)
    x = torch.from_numpy(features).float()
    ((f, f_region, b, b_region),) = (tuple(s.unflatten(0, (9, 5)) for s in part) for part in seen)
    for r in range(1, 6):
        assert torch.allclose(f[:, r - 1], model.method.features(x[:, 0]), atol=1e-5)
        assert torch.equal(b[:, r - 1], model.method.codes(x[:, 0]))
        assert torch.allclose(f_region[:, r - 1], model.method.features(x[:, r]), atol=1e-5)
        assert torch.equal(b_region[:, r - 1], model.method.codes(x[:, r]))
        np.testing.assert_array_equal(found.codes[:, r], pack(b_region[:, r - 1]))
    np.testing.assert_allclose(found.keep[:, 1:].ravel(), np.arange(45) / 100, rtol=1e-6)
    assert (found.keep[:, 0] == 1).all()


def test_the_policy_is_set_to_use() -> None:
    model = make()
    assert model.policy is not None
    model = replace(model, policy=model.policy.train(), method=model.method.train())
    assert not any(
        module.training for module in (model.policy, model.method, model.backbone) if module
    )
    features = model.extractor(PICTURES, model.layout.array())
    together = model.regions_of(features).keep
    alone = np.concatenate([model.regions_of(features[i : i + 1]).keep for i in range(9)])
    np.testing.assert_allclose(together, alone, atol=1e-5)


def test_fewer_codes_as_xi_grows() -> None:
    model = make()
    found = model.regions_of(model.extractor(PICTURES, model.layout.array()))
    counts = []
    for xi in np.linspace(0, 1, 21):
        model.xi = float(xi)
        counts.append(len(model.choose(found)))
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > counts[10] > counts[-1] >= 9


def regions(n: int, kinds: int, seed: int, xi: float) -> tuple[RegionCodes, NDArray[np.bool_]]:
    """Codes, several of them equal, and which are kept."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, kinds, (n, 6, 1)).repeat(2, axis=2).astype(np.uint8)
    keep = (rng.integers(0, 5, (n, 6)) / 4).astype(np.float32)
    keep[:, 0] = 1
    return RegionCodes(codes, keep), keep >= xi


@given(
    st.integers(0, 6),
    st.integers(1, 5),
    st.integers(0, 2**31),
    st.sampled_from([0.0, 0.25, 0.5, 0.6, 1.0]),
)
def test_equal_codes_of_an_image_stand_once_under_their_first_region(
    n: int, kinds: int, seed: int, xi: float
) -> None:
    found, kept = regions(n, kinds, seed, xi)
    got = found.chosen(kept)
    want = []
    for i in range(n):
        seen: set[bytes] = set()
        for r in range(6):
            code = found.codes[i, r].tobytes()
            if found.keep[i, r] >= xi and code not in seen:  # P = xi is kept
                seen.add(code)
                want.append((i, r, code))
    rows = zip(got.images.tolist(), got.regions.tolist(), got.codes, strict=True)
    assert [(i, r, code.tobytes()) for i, r, code in rows] == want
    assert got.kept.tolist() == kept.sum(1).tolist()


@given(
    hnp.arrays(
        np.uint8,
        st.tuples(st.integers(1, 5), st.integers(1, 5), st.just(1)),
        elements=st.integers(0, 2),
    ),
    st.integers(0, 2**31),
)
def test_first_of_equals_by_a_set(codes: NDArray[np.uint8], seed: int) -> None:
    kept = np.random.default_rng(seed).random(codes.shape[:2]) < 0.6
    got = first_of_equals(codes, kept)
    for i, row in enumerate(codes[:, :, 0].tolist()):
        seen: set[int] = set()
        for r, code in enumerate(row):
            assert got[i, r] == (code not in seen)
            if kept[i, r]:
                seen.add(code)


# Inputs.


def test_images_from_anywhere(tmp_path: Path) -> None:
    model = make()
    path = tmp_path / "a.png"
    path.write_bytes(encoded(PICTURES[0], "PNG"))
    forms: list[Any] = [PICTURES[0], path, str(path), path.read_bytes(), np.asarray(PICTURES[0])]
    codes = model.encode_query(iter(forms))
    assert len(np.unique(codes, axis=0)) == 1
    got = model.encode(tuple(forms))
    assert len({tuple(sorted(d.items())) for d in as_dicts(got, 5)}) == 1


def test_a_query_may_be_a_part_of_each_image(tmp_path: Path) -> None:
    model = make()
    path = tmp_path / "large.jpg"
    large = picture(3, 5, 4).resize((480, 320), Image.Resampling.BICUBIC)
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: upright, it is 320 x 480
    large.save(path, exif=exif, quality=95)
    upright = open_rgb(path)
    assert upright.size == (320, 480)
    box = (17, 40, 213, 301)
    np.testing.assert_array_equal(
        model.encode_query([path, upright], region=box),
        model.encode_query([upright.crop(box)] * 2),
    )
    assert not np.array_equal(
        model.encode_query([upright], region=box), model.encode_query([upright])
    )
    np.testing.assert_array_equal(
        model.encode_query([upright], region=(0, 0, 320, 480)), model.encode_query([upright])
    )
    np.testing.assert_array_equal(  # parts of pixels are rounded
        model.encode_query([upright], region=(16.6, 40.2, 213.4, 300.9)),
        model.encode_query([upright], region=box),
    )


@pytest.mark.parametrize(
    "region", [(0, 0, 61, 40), (-1, 0, 5, 5), (5, 5, 5, 9), (9, 0, 5, 9), (0, float("nan"), 5, 9)]
)
def test_a_region_that_is_not_within_the_picture(region: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match=r"is not within the picture of 60 x 40 pixels"):
        make().encode_query(PICTURES, region=region)
    with pytest.raises(ValueError, match=r"a region is a box \(x0, y0, x1, y1\) in pixels, not"):
        make().encode_query(PICTURES, region=region[:3])


def test_no_images_have_no_codes() -> None:
    model = make()
    assert model.encode_query([]).shape == (0, 2)
    got = model.encode([])
    assert (len(got), got.keep.shape, got.kept.shape) == (0, (0, 6), (0,))


def test_one_image_must_stand_in_a_list() -> None:
    model = make()
    ones: list[Any] = ["a.png", b"123", Path("a.png"), PICTURES[0]]
    for one in ones:
        with pytest.raises(TypeError, match=r"pass a list of images: \[image\] for one"):
            model.encode(one)
        with pytest.raises(TypeError, match="pass a list"):
            model.encode_query(one)


def test_a_broken_image_is_named(tmp_path: Path) -> None:
    path = tmp_path / "cut.jpg"
    path.write_bytes(encoded(PICTURES[0], "JPEG")[:300])
    with pytest.raises(ImageError, match=r"cut\.jpg"):
        make().encode([PICTURES[0], path])


@pytest.mark.parametrize("layout", ["corners", "grid:2x3", "corners@0.4+grid:2x2@0.7"])
def test_other_layouts_through_the_same_interface(layout: str, tmp_path: Path) -> None:
    model = make(layout_name=layout, xi=0.0)
    regions = len(read_layout(layout, 0.5))
    assert model.encode(PICTURES).keep.shape == (len(PICTURES), regions)
    model.save(tmp_path)
    again = MCHModel.load(tmp_path, device="cpu", engine="torch")
    assert again.layout == model.layout
    assert again.fingerprint == model.fingerprint
    np.testing.assert_array_equal(again.encode(PICTURES).codes, model.encode(PICTURES).codes)


def test_without_a_policy_no_region_is_kept_even_at_xi_0() -> None:
    model = make(policy=False, xi=0.0)
    found = model.regions_of(model.extractor(PICTURES, model.layout.array()))
    assert found.kept(0.0).sum(1).tolist() == [1] * len(PICTURES)


@modes
def test_many_images_are_taken_in_parts(mode: Mode, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make(mode=mode)
    whole, queries = model.encode(PICTURES), model.encode_query(PICTURES)
    monkeypatch.setattr("mchindex.inference.graph.BATCH", 3)
    monkeypatch.setattr("mchindex.models.mch.ROWS", 2)
    parts = model.encode(PICTURES)
    assert as_dicts(parts, 9) == as_dicts(whole, 9)
    np.testing.assert_allclose(parts.keep, whole.keep, atol=1e-5)
    np.testing.assert_array_equal(model.encode_query(PICTURES), queries)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"xi": 1.1}, "xi is a probability between 0 and 1"),
        ({"xi": float("nan")}, "xi is a probability between 0 and 1"),
        ({"sigma": 0.0}, "sigma is the side of a region"),
        ({"layout_name": "grid:20x20@0.2", "xi": 0.0}, "at most 256 regions"),
    ],
)
def test_a_model_that_cannot_be(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**changes)


# Saving and loading.


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "dch"
    make(about={"data": "Größe"}).save(folder)
    return folder


@pytest.fixture
def copy(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "copy"))


@modes
@pytest.mark.parametrize("name", METHODS)
def test_a_saved_model_gives_the_same_codes(name: str, mode: Mode, tmp_path: Path) -> None:
    model = make(name, mode, sigma=0.4, xi=0.6, about={"classes": ["Zürich", "b"]})
    model.save(tmp_path / "model")
    assert sorted(os.listdir(tmp_path / "model")) == [CONFIG, WEIGHTS]
    again = MCHModel.load(tmp_path / "model", device="cpu", engine="torch")
    assert again.fingerprint == model.fingerprint
    assert again.config() == model.config()
    assert (again.sigma, again.xi, again.mode, again.about) == (0.4, 0.6, mode, model.about)
    for field in ("codes", "images", "regions", "keep", "kept"):
        one, other = (getattr(m.encode(PICTURES), field) for m in (model, again))
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(again.encode_query(PICTURES), model.encode_query(PICTURES))


def test_a_model_without_a_policy_is_saved_too(tmp_path: Path) -> None:
    model = make(policy=False)
    model.save(tmp_path)
    again = MCHModel.load(tmp_path, device="cpu", engine="torch")
    assert again.policy is None
    np.testing.assert_array_equal(again.encode(PICTURES).codes, model.encode(PICTURES).codes)


def test_saving_replaces_what_was_there(copy: Path) -> None:
    other = make("hashnet", bits=24)
    other.save(copy)
    assert sorted(os.listdir(copy)) == [CONFIG, WEIGHTS]
    assert MCHModel.load(copy).fingerprint == other.fingerprint


def test_sigma_and_xi_can_be_others(saved: Path) -> None:
    for sigma, xi in ((None, 0.9), (0.3, None), (0.7, 0.1)):
        loaded = MCHModel.load(saved, sigma=sigma, xi=xi, device="cpu", engine="torch")
        built = make(sigma=0.5 if sigma is None else sigma, xi=0.5 if xi is None else xi)
        assert (loaded.sigma, loaded.xi) == (built.sigma, built.xi)
        assert as_dicts(loaded.encode(PICTURES), 9) == as_dicts(built.encode(PICTURES), 9)
        assert loaded.fingerprint == built.fingerprint
        np.testing.assert_array_equal(loaded.encode_query(PICTURES), make().encode_query(PICTURES))


def test_what_the_caller_got_wrong_is_not_the_models_fault(saved: Path) -> None:
    with pytest.raises(ValueError, match="xi is a probability"):
        MCHModel.load(saved, xi=2)
    with pytest.raises(ValueError, match="sigma is the side of a region"):
        MCHModel.load(saved, sigma=0)
    with pytest.raises(ValueError, match="device 'abacus' cannot be used here"):
        MCHModel.load(saved, device="abacus")


def test_pretrained_weights_stay_where_they_come_from(tmp_path: Path) -> None:
    backbone = create_backbone("efficientnet-lite0", 64, "pretrained")
    model = make(backbone=backbone, pretrained=True)
    model.save(tmp_path)
    assert not any(name.startswith("backbone") for name in load_file(tmp_path / WEIGHTS))
    again = MCHModel.load(tmp_path, device="cpu", engine="torch")
    assert again.fingerprint == model.fingerprint
    np.testing.assert_array_equal(
        again.encode_query(PICTURES[:2]), model.encode_query(PICTURES[:2])
    )


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 40, 4, 4)

    def forward(self, x: Tensor) -> Tensor:
        maps: Tensor = self.conv(x)
        return maps


def test_a_model_on_a_network_of_the_users_own(tmp_path: Path) -> None:
    torch.manual_seed(5)
    model = make(backbone=Wrapped(Own(), 32))
    model.save(tmp_path)
    again = MCHModel.load(tmp_path, device="cpu", engine="torch", backbone=Wrapped(Own(), 32))
    assert as_dicts(again.encode(PICTURES), 9) == as_dicts(model.encode(PICTURES), 9)
    with pytest.raises(ModelError, match="saved with a Wrapped backbone: pass it"):
        MCHModel.load(tmp_path)
    for other in (Wrapped(Own(), 16), Wrapped(Own(), 32, mean=0.0)):
        with pytest.raises(ModelError, match="is damaged: its weights or settings differ"):
            MCHModel.load(tmp_path, backbone=other)


def test_a_fingerprint_is_of_all_that_decides_about_codes() -> None:
    model = make()
    changed = [
        make(mode="crops"),
        make("hashnet"),
        make(bits=24),
        make(policy=False),
        make(sigma=0.4),
        make(xi=0.4),
        make(backbone=SmallNet(40)),
    ]
    for part in ("backbone.layers.0.weight", "method.hash.bias", "policy.layers.0.weight"):
        other = make()
        module, name = part.split(".", 1)
        getattr(other, module).state_dict()[name][0] += 1e-3
        changed.append(other)
    prints = [m.fingerprint for m in (model, *changed)]
    assert len(set(prints)) == len(prints)
    assert make(about={"a": 1}).fingerprint == model.fingerprint
    model.encode(PICTURES)
    assert model.fingerprint == prints[0]


# Damaged files.


def test_directories_that_are_no_models(copy: Path, tmp_path: Path) -> None:
    for folder in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(ModelError, match=r"is not a model: it has no config\.json"):
            MCHModel.load(folder)
    (copy / WEIGHTS).unlink()
    with pytest.raises(ModelError, match=r"model\.safetensors cannot be read"):
        MCHModel.load(copy)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "7", '{"bits": 8}', "\x00\xff"])
def test_a_config_that_is_none(copy: Path, text: str) -> None:
    (copy / CONFIG).write_bytes(text.encode("latin-1"))
    with pytest.raises(ModelError, match=r"config\.json is damaged"):
        MCHModel.load(copy)


@pytest.mark.parametrize("version", [4, 99])
def test_a_model_of_a_newer_program(copy: Path, version: object) -> None:
    edit(copy, lambda config: config.update(format=version))
    with pytest.raises(ModelError, match=f"written by a newer mchindex .format {version}."):
        MCHModel.load(copy)


@pytest.mark.parametrize("version", ["1", 0, -1, True, None, 1.0, []])
def test_a_model_of_no_known_format(copy: Path, version: object) -> None:
    edit(copy, lambda config: config.update(format=version))
    with pytest.raises(ModelError, match=r"config\.json is damaged: .*format"):
        MCHModel.load(copy)


def edit(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    config = json.loads((folder / CONFIG).read_text("utf-8"))
    change(config)
    (folder / CONFIG).write_text(json.dumps(config), "utf-8")


EDITS: dict[str, Any] = {
    "xi": 0.4,
    "sigma": 0.4,
    "bits": 24,
    "regions": "crops",
    "method": "hashnet",
    "policy": None,
    "fingerprint": "0" * 32,
    "settings": {},
    "backbone": {"name": "small", "size": 64, "pretrained": False},
}


@pytest.mark.parametrize("loading", [{}, {"xi": 0.5}, {"sigma": 0.5}])
@pytest.mark.parametrize("key", EDITS)
def test_an_edited_config(copy: Path, key: str, loading: dict[str, Any]) -> None:
    edit(copy, lambda config: config.update({key: EDITS[key]}))
    with pytest.raises(ModelError, match=r"is damaged|does not hold a usable model"):
        MCHModel.load(copy, **loading)


@pytest.mark.parametrize(
    "key", ["backbone", "regions", "method", "bits", "settings", "policy", "sigma", "xi"]
)
def test_a_config_that_lacks_something_or_holds_nonsense(copy: Path, key: str) -> None:
    whole = (copy / CONFIG).read_bytes()
    values: list[Any] = ["?", 17.5, [], {}, -1]
    for nonsense in values:
        (copy / CONFIG).write_bytes(whole)
        edit(copy, partial(dict.update, **{key: nonsense}))
        with pytest.raises(ModelError):
            MCHModel.load(copy)
    edit(copy, lambda config: config.pop(key))
    with pytest.raises(
        ModelError, match=f"does not hold a usable model: its config.json has no '{key}'"
    ):
        MCHModel.load(copy)


def test_cut_weights(copy: Path) -> None:
    whole = (copy / WEIGHTS).read_bytes()
    for length in (0, 4, 8, 100, len(whole) // 2, len(whole) - 1):
        (copy / WEIGHTS).write_bytes(whole[:length])
        with pytest.raises(ModelError, match=r"model\.safetensors cannot be read"):
            MCHModel.load(copy)


@pytest.mark.parametrize("loading", [{}, {"xi": 0.3}, {"sigma": 0.3}])
def test_a_flipped_bit(copy: Path, loading: dict[str, Any]) -> None:
    data = bytearray((copy / WEIGHTS).read_bytes())
    for place in (len(data) // 3, len(data) // 2, len(data) - 1):
        data[place] ^= 1
        (copy / WEIGHTS).write_bytes(data)
        with pytest.raises(
            ModelError, match="is damaged: its weights or settings differ from those"
        ):
            MCHModel.load(copy, **loading)
        data[place] ^= 1


def test_weights_of_another_model_or_of_too_few_layers(copy: Path) -> None:
    tensors = load_file(copy / WEIGHTS)
    save_file({k: v for k, v in tensors.items() if k != "method.hash.bias"}, copy / WEIGHTS)
    with pytest.raises(ModelError, match=r"does not hold a usable model.*\n?.*hash\.bias"):
        MCHModel.load(copy)
    save_file(tensors | {"method.more": torch.ones(1)}, copy / WEIGHTS)
    with pytest.raises(ModelError, match="does not hold a usable model"):
        MCHModel.load(copy)
    save_file(state_of(make("hashnet").method), copy / WEIGHTS)
    with pytest.raises(ModelError, match="does not hold a usable model"):
        MCHModel.load(copy)


def test_a_pickle_in_place_of_the_weights_is_not_believed(copy: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    harm = pickle.dumps(Harm(trace))
    (copy / WEIGHTS).write_bytes(harm)
    with pytest.raises(ModelError, match="cannot be read"):
        MCHModel.load(copy)
    torch.save({"method.hash.bias": Harm(trace)}, copy / WEIGHTS)
    with pytest.raises(ModelError, match="cannot be read"):
        MCHModel.load(copy)
    assert not trace.exists()
    pickle.loads(harm)
    assert trace.exists()  # the pickle works


def test_a_saving_cut_off_leaves_the_old_model_or_says_so(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = make().fingerprint
    other = make(bits=24)

    def fails_at(name: str) -> None:
        def replace(source: Path, target: Path) -> None:
            if Path(target).name == name:
                raise OSError("no space left on device")
            move(source, target)

        move = os.rename
        monkeypatch.setattr(os, "replace", replace)

    fails_at(WEIGHTS)
    with pytest.raises(OSError, match="no space"):
        other.save(copy)
    assert sorted(os.listdir(copy)) == [CONFIG, WEIGHTS]
    assert MCHModel.load(copy).fingerprint == old
    fails_at(CONFIG)
    with pytest.raises(OSError, match="no space"):
        other.save(copy)  # new weights, old config
    assert sorted(os.listdir(copy)) == [CONFIG, WEIGHTS]
    with pytest.raises(ModelError):
        MCHModel.load(copy)


def test_the_regions_of_a_model_are_the_papers() -> None:
    layout = make(sigma=0.4).layout
    assert layout == corners_and_centre(0.4)
    assert layout.boxes[0] == WHOLE
