"""Models from strangers: whatever their folder holds, loading ends quickly with a ModelError."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from helpers.memory import peak
from helpers.small_model import photo, small_model
from mchindex import MCHIndex, catalogue
from mchindex.catalogue import CONFIG, LARGEST_CONFIG, find, listed, own_models, read_config
from mchindex.errors import MCHError, ModelError
from mchindex.inference.saved import LARGEST_HEADER, WEIGHTS
from mchindex.models import MCHModel, Policy, create_method
from mchindex.models.backbones import SmallNet, load_weights


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a layer of every kind whose size its settings decide."""
    torch.manual_seed(0)
    backbone = SmallNet(16)
    method = create_method("dch", backbone.dim, 16, {"hidden": 8})
    model = MCHModel(backbone, method, Policy(8, 16, width=4), device=torch.device("cpu"))
    folder = tmp_path_factory.mktemp("model") / "dch"
    model.save(folder)
    return folder


@pytest.fixture
def copy(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "copy"))


def rewrite(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / CONFIG).read_text("utf-8"))
    (folder / CONFIG).write_text(json.dumps(config | changes), "utf-8")


def load(folder: Path) -> MCHModel:
    return MCHModel.load(folder, device="cpu", engine="torch")


# Files.


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS])
def test_a_named_pipe_or_a_folder_in_place_of_a_file(copy: Path, name: str) -> None:
    (copy / name).unlink()
    os.mkfifo(copy / name)
    with pytest.raises(ModelError, match=f"{name} cannot be read: .*not a regular file"):
        load(copy)
    (copy / name).unlink()
    (copy / name).mkdir()
    with pytest.raises(ModelError, match=f"{name} cannot be read"):
        load(copy)
    (copy / name).rmdir()
    (copy / name).symlink_to("/dev/zero")
    with pytest.raises(ModelError, match=f"{name} cannot be read: .*not a regular file"):
        load(copy)


def test_models_are_listed_past_a_named_pipe(
    copy: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MCH_MODELS", str(tmp_path))
    bad = {
        "deep": "[" * 10**6,
        "text": '"fingerprint method"',
        "number": '{"method": 5, "fingerprint": 7}',
        "wide": '{"method": "dch", "fingerprint": "x", "about": "' + "x" * LARGEST_CONFIG + '"}',
    }
    for name, text in bad.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / CONFIG).write_text(text)
        with pytest.raises(ModelError):
            load(tmp_path / name)
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / CONFIG)
    assert [m.name for m in listed() if not m.ships] == ["copy"]
    assert find("copy") == copy
    assert find("pipe") == Path("pipe")  # a name without a model
    with pytest.raises(ModelError, match="is not a model: it has no"):
        load(Path("pipe"))


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b", "..", ""])
def test_names_that_no_folder_can_have(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError):
        MCHModel.load(name)


# The user's folders.


def test_a_user_without_a_home_folder_has_the_models_that_ship(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("MCH_MODELS", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", nowhere)
    assert own_models() is None
    assert catalogue.names() == ["coco-32", "coco-64", "coco-64-frozen"]
    assert find("coco-64") == catalogue.SHIPPED / "coco-64"
    assert find("other") == Path("other")


def test_without_home_and_passwd_entry_models_are_listed() -> None:
    """As a user id that the system does not know; only the superuser can become one."""
    if os.geteuid() != 0:
        pytest.skip("needs to change the user id")
    code = (
        "import os; os.environ.pop('HOME', None)\n"
        "from mchindex.catalogue import names\n"
        "from mchindex.training.features import default_cache\n"
        "os.setuid(54321)\n"
        "print(names(), default_cache())"
    )
    names = ("MCH_MODELS", "MCH_CACHE", "XDG_DATA_HOME", "XDG_CACHE_HOME")
    env = {name: value for name, value in os.environ.items() if name not in names}
    # In another folder: Python would import the sources, which may not be compiled.
    run = subprocess.run(
        [sys.executable, "-c", code], cwd="/", env=env, capture_output=True, text=True
    )
    shipped = ["coco-32", "coco-64", "coco-64-frozen"]
    assert (run.stdout, run.returncode) == (f"{shipped} None\n", 0), run.stderr


# Settings.


DEEP: Any = []
for _ in range(90):
    DEEP = [DEEP]
WRONG = [None, True, "", "?", "x" * 10**5, 0, -1, 17.5, 1e300, 10**9, 10**4000, [], [[]], {}, DEEP]
FIELDS = [
    ("backbone",),
    ("backbone", "name"),
    ("backbone", "size"),
    ("backbone", "pretrained"),
    ("regions",),
    ("layout",),
    ("method",),
    ("bits",),
    ("settings",),
    ("settings", "hidden"),
    ("settings", "dropout"),
    ("settings", "power"),
    ("settings", "epochs"),
    ("policy",),
    ("policy", "width"),
    ("sigma",),
    ("xi",),
    ("about",),
    ("plugins",),
    ("format",),
    ("fingerprint",),
]


@pytest.mark.parametrize("field", FIELDS, ids=".".join)
def test_any_wrong_value_in_any_field(copy: Path, field: tuple[str, ...]) -> None:
    whole = json.loads((copy / CONFIG).read_text("utf-8"))
    for wrong in WRONG:
        config = json.loads(json.dumps(whole))
        place = config
        for name in field[:-1]:
            place = place[name]
        if wrong == {} and field[-1] in ("about", "plugins"):
            continue  # any object will do
        place[field[-1]] = wrong
        (copy / CONFIG).write_text(json.dumps(config), "utf-8")
        with pytest.raises(ModelError) as caught:
            load(copy)
        assert len(str(caught.value)) < 1000


HUGE: list[dict[str, Any]] = [
    {"bits": 10**9},
    {"settings": {"hidden": 10**9}},
    {"settings": {"hidden": 65_536}},
    {"method": "ksh", "settings": {"anchors": 10**9}},
    {"method": "ksh", "settings": {"anchors": 65_536}},
    {"method": "itq", "settings": {}, "bits": 256},
    {"policy": {"width": 10**9}},
    {"policy": {"width": 65_536}},
    {"backbone": {"name": "small", "size": 10**6, "pretrained": False}},
    {"backbone": {"name": "alexnet", "size": 10**6, "pretrained": False}},
    {"layout": "grid:3000x3000"},
    {"layout": "+".join(["corners"] * 3000)},
    {"layout": "grid:20x20@0.2"},
]


@pytest.mark.parametrize("changes", HUGE, ids=lambda changes: str(changes)[:60])
def test_huge_sizes_are_refused_before_memory_is_taken(
    copy: Path, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    rewrite(copy, **changes)
    made = torch.empty
    largest = 0

    def watched(*size: Any, **options: Any) -> torch.Tensor:
        nonlocal largest
        tensor = made(*size, **options)
        if tensor.device.type != "meta":
            largest = max(largest, tensor.nbytes)
        return tensor

    monkeypatch.setattr(torch, "empty", watched)  # what layers take their memory with
    before = peak()
    with pytest.raises(ModelError, match="does not hold a usable model"):
        load(copy)
    assert peak() - before < 500 << 20
    assert largest < 2**25


@pytest.mark.parametrize(
    "text",
    [
        "[" * 10**5,
        '{"a":' * 10**5,
        '{"format": 1, "xi": NaN}',
        '{"format": 1, "xi": Infinity}',
        '{"format": 1, "xi": 1e999}',
        '{"format": 1, "about": ' + "[" * 200 + "]" * 200 + "}",
        "\ufeff{}",
        '{"format": 1, "bits": ' + "9" * 5000 + "}",
        " " * (LARGEST_CONFIG + 1),
    ],
    ids=lambda text: text[:24],
)
def test_json_that_is_too_deep_too_large_or_not_finite(copy: Path, text: str) -> None:
    (copy / CONFIG).write_text(text, "utf-8")
    with pytest.raises(ModelError, match=r"config\.json (is damaged|cannot be read)"):
        load(copy)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["dch", "lsh", "small", "corners", "pooled", "grid:2x2", "16", "1" * 30]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([f[-1] for f in FIELDS]) | st.text(), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(
    max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(st.lists(st.tuples(st.sampled_from(FIELDS), JSON), min_size=1, max_size=3), st.data())
def test_a_mutated_config_loads_or_raises_a_modelerror(
    copy: Path, saved: Path, changes: list[tuple[tuple[str, ...], Any]], data: st.DataObject
) -> None:
    config = json.loads((saved / CONFIG).read_text("utf-8"))
    for field, value in changes:
        place = config
        for name in field[:-1]:
            place = place.get(name) if isinstance(place, dict) else None
        if isinstance(place, dict):
            place[field[-1]] = value
            if data.draw(st.booleans()):
                del place[field[-1]]
    (copy / CONFIG).write_bytes(json.dumps(config).encode("utf-8", "surrogatepass"))
    with contextlib.suppress(MCHError):
        load(copy)


@settings(
    max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(st.data())
def test_mutated_weights_raise_a_modelerror(copy: Path, saved: Path, data: st.DataObject) -> None:
    content = bytearray((saved / WEIGHTS).read_bytes())
    header = 8 + int.from_bytes(content[:8], "little")
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, header - 1) | st.integers(0, len(content) - 1))
        content[place] ^= data.draw(st.integers(1, 255))
    (copy / WEIGHTS).write_bytes(content)
    try:
        load(copy)
    except ModelError:
        return
    assert bytes(content) == (saved / WEIGHTS).read_bytes()  # two changes of one byte


# Weights.


def change_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = {name: tensor.clone() for name, tensor in load_file(folder / WEIGHTS).items()}
    change(tensors)
    save_file(tensors, folder / WEIGHTS)


def test_a_header_that_is_too_large(copy: Path) -> None:
    length = LARGEST_HEADER + 1
    (copy / WEIGHTS).write_bytes(length.to_bytes(8, "little") + b" " * length)
    with pytest.raises(ModelError, match=r"its header has 8,388,609 bytes, and 8,388,608 are"):
        load(copy)
    (copy / WEIGHTS).write_bytes(b"\xff" * 8)
    with pytest.raises(ModelError, match="its header has"):
        load(copy)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(8, 193),
        torch.zeros(0),
        torch.zeros(()),
        torch.zeros(8, 192, dtype=torch.float64),
        torch.zeros(8, 192, dtype=torch.int64),
        torch.zeros(8, 192, dtype=torch.complex64),
        torch.zeros(8, 192, dtype=torch.bool),
        torch.zeros(8, 192, 1),
        torch.zeros(192, 8),
    ],
    ids=lambda tensor: f"{tensor.dtype} {tuple(tensor.shape)}",
)
def test_weights_of_the_wrong_shape_or_type(copy: Path, tensor: torch.Tensor) -> None:
    change_weights(copy, lambda weights: weights.update({"method.hidden.weight": tensor}))
    with pytest.raises(ModelError, match=r"method\.hidden\.weight in its .* but the settings need"):
        load(copy)
    change_weights(copy, lambda w: w.update({"policy.layers.1.num_batches_tracked": tensor}))
    with pytest.raises(ModelError, match="does not hold a usable model"):
        load(copy)


PLACES = [
    "backbone.layers.0.weight",
    "method.mean",
    "method.hash.bias",
    "policy.mean",
    "policy.layers.0.weight",
]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", PLACES)
def test_weights_that_are_not_finite_are_refused(copy: Path, place: str, value: float) -> None:
    """Also with a matching fingerprint, which a stranger can compute."""
    change_weights(copy, lambda weights: weights[place].view(-1)[-1:].fill_(value))
    with pytest.raises(ModelError, match=rf"{place} has values that are not finite numbers"):
        load(copy)
    with pytest.raises(ModelError, match=r"not finite|not the one that its graph was made of"):
        MCHIndex.open(copy.parent / "index.mch", model=copy)
    assert not (copy.parent / "index.mch" / "model").exists()


def test_a_buffer_of_a_backbone_may_be_infinite_but_not_nan(copy: Path) -> None:
    """The masks of attention layers are infinite."""
    place = "backbone.layers.1.running_mean"
    change_weights(copy, lambda weights: weights[place][0].fill_(np.nan))
    with pytest.raises(ModelError, match=f"{place} has values that are not finite numbers"):
        load(copy)
    change_weights(copy, lambda weights: weights[place][0].fill_(np.inf))
    with pytest.raises(ModelError, match="is damaged: its weights or settings differ from those"):
        load(copy)


def test_a_model_that_could_not_be_loaded_is_not_saved(copy: Path, tmp_path: Path) -> None:
    model = load(copy)
    model.method.state_dict()["hash.weight"][0, 0] = np.nan
    with pytest.raises(ModelError, match=r"cannot be saved: method\.hash\.weight has values that"):
        model.save(tmp_path / "new")
    for about in ({"loss": np.nan}, {"x": "y" * LARGEST_CONFIG}, {"x": {1, 2}}):
        other = load(copy)
        other.about = about
        with pytest.raises(ModelError, match="this model cannot be saved"):
            other.save(tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_file_of_weights_for_a_backbone(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    os.mkfifo(path)
    os.mkfifo(tmp_path / "weights.pth")
    for name in ("weights.safetensors", "weights.pth"):
        with pytest.raises(OSError, match="not a regular file"):
            load_weights(SmallNet(16), tmp_path / name)
    path.unlink()
    weights = {name: tensor.clone() for name, tensor in SmallNet(16).state_dict().items()}
    weights["layers.0.weight"][0] = np.nan
    save_file(weights, path)
    with pytest.raises(ValueError, match=r"cannot be used: backbone\.layers\.0\.weight has values"):
        load_weights(SmallNet(16), path)


# Codes.


def poisoned(part: str) -> MCHModel:
    """A model whose weights were finite when it was made, but whose numbers overflow."""
    model = small_model()
    if part == "policy":
        assert model.policy is not None
        model.policy.std.zero_()
    elif part == "method":
        model.method.state_dict()["map"].fill_(3e38)
    else:
        model.backbone.state_dict()["layers.0.weight"].fill_(1e30)
    return model


@pytest.mark.filterwarnings("ignore:overflow encountered in cast:RuntimeWarning")
@pytest.mark.parametrize("part", ["backbone", "method", "policy"])
def test_numbers_that_are_not_finite_give_an_error_and_no_code(part: str, tmp_path: Path) -> None:
    model = poisoned(part)
    pictures = [photo(0), photo(1)]
    with pytest.raises(ModelError, match="not finite numbers, so that no code can be computed"):
        model.encode(pictures)
    if part != "policy":
        with pytest.raises(ModelError, match="not finite"):
            model.encode_query(pictures)
    with MCHIndex.open(tmp_path / "index.mch", model=model) as index:
        with pytest.raises(ModelError, match="not finite"):
            index.add(pictures)
        assert len(index) == 0


def test_features_that_are_not_finite_give_an_error() -> None:
    model = small_model()
    for value in (np.nan, np.inf):
        features = np.ones((5, len(model.layout), model.backbone.dim), np.float16)
        features[3, 2, 1] = value
        with pytest.raises(ModelError, match="features for 1 of 30 regions have values that are"):
            model.regions_of(features)
        with pytest.raises(ModelError, match="features for 1 of 5 regions"):
            model.codes_of(torch.from_numpy(features[:, 2]))


def test_a_layout_of_a_million_joined_parts(copy: Path) -> None:
    began = time.monotonic()
    (copy / CONFIG).write_text('{"format": 1, "layout": "' + "+" * 10**6 + '"}')
    with pytest.raises(ModelError):
        load(copy)
    assert read_config(copy)["format"] == 1
    assert time.monotonic() - began < 30
