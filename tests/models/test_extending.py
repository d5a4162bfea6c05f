"""Backbones and methods of the user's own: registered, saved, and found again by a new process."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import mchindex
from helpers.pictures import picture
from mchindex.catalogue import CONFIG
from mchindex.datasets.scenes import scenes
from mchindex.errors import ModelError
from mchindex.inference.saved import WEIGHTS
from mchindex.models import (
    BACKBONES,
    METHODS,
    Backbone,
    HashMethod,
    MCHModel,
    create_backbone,
    create_method,
    register_backbone,
    register_method,
)
from mchindex.models.backbones import SmallNet
from mchindex.models.lsh import LSH
from mchindex.training import TrainingOptions, train_model

PAGE = (Path(__file__).parents[2] / "docs" / "extending.md").read_text("utf-8")
PLUGINS, TRAINING = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
(COMMANDS,) = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
(PACKAGING,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
HOME = Path(mchindex.__file__).resolve().parents[1]
PICTURES = [picture(i, 5, 4).resize((60, 40)) for i in range(4)]


def run(
    *command: str, folder: Path, plugins: str | None = None, path: tuple[Path, ...] = ()
) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "MCH_PLUGINS"}
    environment["PYTHONPATH"] = os.pathsep.join(map(str, (HOME, *path)))
    environment |= {"MCH_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    if plugins is not None:
        environment["MCH_PLUGINS"] = plugins
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the documentation's example, with the model that it trains."""
    folder = tmp_path_factory.mktemp("example")
    (folder / "my_plugins.py").write_text(PLUGINS, "utf-8")
    (folder / "train.py").write_text(TRAINING, "utf-8")
    done = run(sys.executable, "train.py", folder=folder)
    assert done.returncode == 0, done.stderr
    fingerprint = json.loads((folder / "model" / CONFIG).read_text("utf-8"))["fingerprint"]
    assert done.stdout.split() == [fingerprint]
    return folder


# The documentation's example.


def test_the_commands_of_the_example_run(example: Path) -> None:
    words = COMMANDS.replace("\nmch ", f"\n{sys.executable} -m mchindex.cli ")
    assert words.count(sys.executable) == 3
    done = run("sh", "-e", "-c", words, folder=example)
    assert done.returncode == 0, done.stderr
    assert "samples=1000" in done.stdout  # mch methods
    report = json.loads((example / "another" / "training.json").read_text("utf-8"))
    assert report["options"]["method"] == "median"
    assert report["options"]["settings"] == {"samples": 100}


def test_all_methods_include_the_registered_one(example: Path) -> None:
    command = (sys.executable, "-m", "mchindex.cli", "methods")
    done = run(*command, folder=example, plugins="my_plugins", path=(example,))
    assert done.returncode == 0, done.stderr
    assert "median" in done.stdout
    assert "tiny-net" in done.stdout


def test_what_is_saved(example: Path) -> None:
    config = json.loads((example / "model" / CONFIG).read_text("utf-8"))
    assert config["backbone"] == {"name": "tiny-net", "size": 32, "pretrained": False}
    assert config["method"] == "median"
    assert config["plugins"] == {
        "backbone": "my_plugins:TinyNet",
        "method": "my_plugins:MedianHash",
    }
    assert "backbone.layers.0.weight" in load_file(example / "model" / WEIGHTS)


def test_a_model_whose_classes_are_not_registered_says_where_they_are_from(example: Path) -> None:
    with pytest.raises(
        ModelError,
        match=r"uses the backbone 'tiny-net' from my_plugins:TinyNet, which is not registered: "
        r"install its package, or set MCH_PLUGINS=my_plugins, or import my_plugins before loading",
    ):
        MCHModel.load(example / "model")


LOADING = """
import sys
from mchindex.models import MCHModel
print(MCHModel.load(sys.argv[1], device="cpu").fingerprint)
"""


def test_a_models_file_never_causes_an_import(example: Path, tmp_path: Path) -> None:
    (tmp_path / "trap.py").write_text("open('sprung', 'w')")
    (tmp_path / CONFIG).write_text(
        (example / "model" / CONFIG).read_text("utf-8").replace("my_plugins", "trap"), "utf-8"
    )
    (tmp_path / WEIGHTS).write_bytes((example / "model" / WEIGHTS).read_bytes())
    done = run(sys.executable, "-c", LOADING, ".", folder=tmp_path, path=(tmp_path,))
    assert done.returncode == 1
    assert "from trap:TinyNet, which is not registered" in done.stderr
    assert not (tmp_path / "sprung").exists()
    done = run(sys.executable, "-c", LOADING, ".", folder=tmp_path, plugins="trap")
    assert (tmp_path / "sprung").exists()  # unless the user asks for it


def test_modules_listed_as_plugins(example: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MCH_PLUGINS", "my_plugins, no_such_module")
    monkeypatch.syspath_prepend(str(example))
    assert "dch" in METHODS  # for a name that is known, nothing is imported
    with pytest.raises(ModelError, match="MCH_PLUGINS lists the module 'no_such_module', which"):
        MCHModel.load(example / "model")
    monkeypatch.delitem(sys.modules, "my_plugins")
    BACKBONES.unregister("tiny-net")
    METHODS.unregister("median")
    monkeypatch.setenv("MCH_PLUGINS", " my_plugins, ")
    assert MCHModel.load(example / "model").method.name == "median"
    monkeypatch.delitem(sys.modules, "my_plugins")


# Entry points.


@pytest.fixture
def package(example: Path, tmp_path: Path) -> Path:
    """A folder with an installed package that offers the example's classes as the page says."""
    (tmp_path / "my_plugins.py").write_text(PLUGINS, "utf-8")
    info = tmp_path / "my_plugins-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-plugins\nVersion: 1.0\n")
    points = PACKAGING.replace('project.entry-points."', "").replace('"', "")
    (info / "entry_points.txt").write_text(points)
    return tmp_path


def test_an_installed_package_is_found_by_itself(example: Path, package: Path) -> None:
    script = LOADING + "from mchindex.models import *; print(*METHODS, *BACKBONES)"
    done = run(sys.executable, "-c", script, str(example / "model"), folder=package)
    assert done.returncode == 0, done.stderr
    names = done.stdout.splitlines()[1].split()
    assert {"median", "tiny-net", "dch", "small"} <= set(names)
    assert len(names) == len(set(names))


def test_a_broken_package_is_named_and_the_others_are_listed(package: Path) -> None:
    with (package / "my_plugins-1.0.dist-info" / "entry_points.txt").open("a") as file:
        file.write("gone = my_plugins:Gone\n")
    script = "from mchindex.models import *; print(*METHODS); create_method('gone', 8, 8)"
    done = run(sys.executable, "-c", script, folder=package)
    assert "median" in done.stdout.split()
    assert "gone" not in done.stdout.split()
    assert "UserWarning: the method 'gone' (my_plugins:Gone) cannot be used" in done.stderr
    assert "ModelError: the method 'gone' (my_plugins:Gone) cannot be used" in done.stderr


# Registration.


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    backbones, methods = set(BACKBONES), set(METHODS)
    yield
    for name in set(BACKBONES) - backbones:
        BACKBONES.unregister(name)
    for name in set(METHODS) - methods:
        METHODS.unregister(name)


def net(class_name: str = "Net", **attributes: Any) -> type[Backbone]:
    def feature_map(self: Any, pixels: Tensor) -> Tensor:
        maps: Tensor = self.conv(self.normalise(pixels))
        return maps

    def init(self: Any, size: int | None = None) -> None:
        Backbone.__init__(self, size)
        self.conv = nn.Conv2d(3, 8, 4, 4)

    usual = {"name": "net", "dim": 8, "default_size": 16}
    members = usual | {"__init__": init, "feature_map": feature_map} | attributes
    return type(class_name, (Backbone,), {k: v for k, v in members.items() if v is not None})


class Planes(LSH):
    name = "planes"


def test_a_registered_backbone_is_built_by_its_name() -> None:
    kind = net()
    assert register_backbone(kind) is kind
    assert BACKBONES["net"] is kind
    assert "net" in BACKBONES
    assert isinstance(create_backbone("net", 24), kind)
    register_backbone(kind)  # again does no harm
    again = net()  # a cell of a notebook that ran twice
    register_backbone(again)
    assert BACKBONES["net"] is again


def test_a_registered_method_is_built_by_its_name() -> None:
    assert register_method(Planes) is Planes
    method = create_method("planes", 8, 16, {"centre": "no"})
    assert isinstance(method, Planes)
    assert not method.settings.centre
    TrainingOptions(method="planes").check()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": None}, "what the backbone is called: text without spaces, not None"),
        ({"name": ""}, "text without spaces, not ''"),
        ({"name": "my net"}, "text without spaces, not 'my net'"),
        ({"name": 7}, "text without spaces, not 7"),
        ({"name": "small"}, r"'small' already belongs to the backbone mchindex.*:SmallNet"),
        ({"dim": None}, r"Net\.dim is a class attribute, an integer of at least 1, not None"),
        ({"dim": 0}, "at least 1, not 0"),
        ({"dim": "8"}, "at least 1, not '8'"),
        ({"default_size": None}, r"Net\.default_size is a class attribute.*at least 8, not None"),
        ({"default_size": 4}, "at least 8, not 4"),
        ({"feature_map": None}, "Net defines neither feature_map nor forward"),
    ],
)
def test_backbones_that_cannot_be_registered(changes: dict[str, Any], message: str) -> None:
    before = list(BACKBONES)
    with pytest.raises((TypeError, ValueError), match=message):
        register_backbone(net(**changes))
    assert list(BACKBONES) == before


def test_methods_that_cannot_be_registered() -> None:
    class Unfinished(HashMethod):
        name = "unfinished"

    class Unset(Planes):
        name = "unset"
        settings_type: ClassVar[Any] = dict

    class Unnamed(LSH):
        pass

    for cls, message in (
        (Unfinished, "Unfinished does not define fit, last"),
        (Unset, "Unset.settings_type is a subclass of Settings, not <class 'dict'>"),
        (Unnamed, "the name 'lsh' already belongs to the method mchindex.models.lsh:LSH: give"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            register_method(cls)


def test_only_classes_of_the_right_kind_can_be_registered() -> None:
    anything: list[Any] = ["net", SmallNet(16), nn.Linear, Planes, None]
    for wrong in anything:
        with pytest.raises(TypeError, match="a backbone is registered as a subclass of Backbone"):
            register_backbone(wrong)
    with pytest.raises(TypeError, match="a method is registered as a subclass of HashMethod"):
        register_method(SmallNet)  # type: ignore[type-var]


def test_names_that_nobody_has() -> None:
    with pytest.raises(ValueError, match="no backbone is called 'vgg': there are efficientnet"):
        create_backbone("vgg")
    with pytest.raises(ValueError, match="no method is called 'sha': there are lsh"):
        create_method("sha", 8, 8)
    with pytest.raises(KeyError):
        METHODS["sha"]
    unhashable: Any = ["dch"]
    assert unhashable not in METHODS


# Models on registered classes.


QUICK = TrainingOptions(
    backbone="net",
    method="planes",
    bits=16,
    crops=2,
    agent_settings={"steps": 10, "batch": 8, "width": 8, "every": 5},
    backbone_settings={"epochs": 1},
)


def test_a_model_on_registered_classes_is_trained_saved_and_loaded(tmp_path: Path) -> None:
    register_backbone(net())
    register_method(Planes)
    trained = train_model(scenes(40, size=32), QUICK, out=tmp_path, device="cpu", engine="torch")
    again = MCHModel.load(tmp_path, device="cpu", engine="torch")
    assert again.fingerprint == trained.model.fingerprint
    got, want = again.encode(PICTURES), trained.model.encode(PICTURES)
    np.testing.assert_array_equal(got.codes, want.codes)
    METHODS.unregister("planes")
    with pytest.raises(ModelError, match=r"uses the method 'planes' from .*test_extending:Planes"):
        MCHModel.load(tmp_path)


def test_a_registered_backbones_pretrained_weights_are_saved(tmp_path: Path) -> None:
    def load_pretrained(self: Any) -> None:
        self.conv.weight.data.fill_(0.01)

    register_backbone(net(load_pretrained=load_pretrained))
    register_method(Planes)
    trained = train_model(scenes(40, size=32), QUICK, out=tmp_path, device="cpu", engine="torch")
    assert "backbone" not in trained.seconds  # nothing from scratch
    assert not trained.model.pretrained
    BACKBONES.unregister("net")
    register_backbone(net())  # the weights come from the file
    again = MCHModel.load(tmp_path, device="cpu", engine="torch")
    assert torch.equal(again.backbone.state_dict()["conv.weight"], torch.full((8, 3, 4, 4), 0.01))


def test_the_fingerprint_does_not_depend_on_where_a_class_is_from(tmp_path: Path) -> None:
    register_method(Planes)
    torch.manual_seed(0)
    backbone, device = SmallNet(16), torch.device("cpu")
    model = MCHModel(backbone, create_method("planes", 192, 16), None, device=device)
    assert model.config()["plugins"] == {"method": f"{Planes.__module__}:Planes"}
    here = model.fingerprint
    Planes.__module__, module = "elsewhere", Planes.__module__
    try:
        assert model.config()["plugins"] == {"method": "elsewhere:Planes"}
        assert model.fingerprint == here
    finally:
        Planes.__module__ = module
    assert "plugins" not in MCHModel(backbone, create_method("lsh", 192, 16), None).config()


def test_a_class_from_a_script_must_be_moved_to_a_module(tmp_path: Path) -> None:
    register_method(Planes)
    MCHModel(SmallNet(16), create_method("planes", 192, 16), None).save(tmp_path)
    METHODS.unregister("planes")
    text = (tmp_path / CONFIG).read_text("utf-8")
    (tmp_path / CONFIG).write_text(text.replace(f"{Planes.__module__}:", "__main__:"), "utf-8")
    with pytest.raises(ModelError, match=r"defined in a script \(__main__:Planes\).*move it to a"):
        MCHModel.load(tmp_path)


def test_settings_of_a_registered_method_are_checked() -> None:
    register_method(Planes)
    with pytest.raises(ValueError, match="no setting is called 'speed': there are centre"):
        TrainingOptions(method="planes", settings={"speed": 1}).check()
