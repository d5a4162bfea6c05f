"""From labelled pictures to a model and its figures, on a few drawn scenes."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor, nn

from helpers.pictures import encoded
from helpers.toys import Harm, Memory, blobs, gap, same, state_of
from mchindex.catalogue import CONFIG
from mchindex.datasets import Dataset, read_folder
from mchindex.datasets.scenes import scenes
from mchindex.errors import (
    DatasetError,
    OutputExistsError,
    TrainingError,
    UnfinishedTrainingError,
)
from mchindex.evaluation import Codes, evaluate
from mchindex.inference.saved import WEIGHTS
from mchindex.models import METHODS, MCHModel, RegionCodes, create_method
from mchindex.models.backbones import SmallNet, Wrapped
from mchindex.models.deep import DeepHash
from mchindex.progress import Step
from mchindex.training import (
    Coded,
    TrainingOptions,
    checkpoints,
    encode_dataset,
    measure,
    train_model,
)
from mchindex.training.backbone import BackboneSettings, train_backbone
from mchindex.training.checkpoints import CheckpointFile
from mchindex.training.features import WithCrops
from mchindex.training.live_views import LiveViews
from mchindex.training.measure import WAYS, kept_by
from mchindex.training.output import CHECKPOINT, REPORT
from mchindex.training.run import fit_from_views

QUICK: dict[str, dict[str, Any]] = {
    "ksh": {"anchors": 10, "steps": 20},
    "adsh": {"epochs": 2, "inner": 1, "sample": 20},
}
DEEP: dict[str, Any] = {"epochs": 2, "batch": 16, "hidden": 16}
AGENT = {"steps": 20, "batch": 16, "width": 8, "every": 10}
SCENES = scenes(60, size=32, train=30)


def quick(method: str = "dch", **changes: Any) -> TrainingOptions:
    own = DEEP if issubclass(METHODS.get(method, DeepHash), DeepHash) else {}
    options = TrainingOptions(
        method=method,
        bits=16,
        backbone="small",
        size=32,
        crops=2,
        settings=own | QUICK.get(method, {}),
        agent_settings=dict(AGENT),
        backbone_settings={"epochs": 2, "batch": 16},
    )
    return replace(options, **changes)


def train(dataset: Dataset, options: TrainingOptions, **more: Any) -> Any:
    return train_model(dataset, options, device="cpu", engine="torch", **more)


# From data to a model.


@pytest.mark.parametrize("method", METHODS)
def test_every_method_from_pictures_to_codes(method: str, weights: str, tmp_path: Path) -> None:
    mode = "crops" if method in ("dch", "ksh", "lsh") else "pooled"
    options = quick(method, weights=weights, regions=mode, sigma=0.6, xi=0.4)
    trained = train(SCENES, options, out=tmp_path / "out")
    model = trained.model
    assert (model.method.name, model.bits, model.mode) == (method, 16, mode)
    assert (model.sigma, model.xi) == (0.6, 0.4)
    assert trained.skipped == {}
    stages = {"features", "base", "agent", "fine codes", "words"}
    assert trained.seconds.keys() == stages
    assert [point["step"] for point in trained.curve] == [10, 20]
    images = [SCENES.images.image(i) for i in range(6)]
    got = model.encode(images)
    assert set(got.images.tolist()) == set(range(6))
    again = MCHModel.load(tmp_path / "out", device="cpu", engine="torch")
    assert again.fingerprint == model.fingerprint
    np.testing.assert_array_equal(again.encode(images).codes, got.codes)


def test_what_a_training_leaves_behind(weights: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    trained = train(SCENES, quick(weights=weights), out=out)
    assert sorted(p.name for p in out.iterdir()) == [CONFIG, WEIGHTS, REPORT]
    report = json.loads((out / REPORT).read_text("utf-8"))
    assert report["curve"] == trained.curve
    assert report["skipped"] == {}
    assert report["options"]["method"] == "dch"
    assert report["options"]["agent_settings"]["steps"] == 20
    about = MCHModel.load(out).about
    assert about == {"data": "scenes", "images": 30, "classes": list(SCENES.classes)}


def test_crops_of_a_range_of_sides(weights: str) -> None:
    ranged = quick(weights=weights, crop_sigma=(0.3, 0.9))
    sides = np.diff(ranged.views().boxes(bytes(32))[1:, [0, 2]])
    assert ((sides >= 0.3) & (sides <= 0.9)).all()
    assert sides.min() < sides.max()
    plain = train(SCENES, quick(weights=weights)).model
    assert train(SCENES, ranged).model.fingerprint != plain.fingerprint


def test_without_an_agent(weights: str) -> None:
    trained = train(SCENES, quick(weights=weights, agent=False))
    assert trained.model.policy is None
    assert trained.curve == []
    assert len(trained.model.encode([SCENES.images.image(0)])) == 1


def test_the_small_net_from_nothing() -> None:
    losses: dict[str, list[float]] = {}

    def listen(step: Step) -> None:
        losses.setdefault(step.stage, []).extend(v for k, v in step.figures.items() if k == "loss")

    options = quick(backbone_settings={"epochs": 4, "batch": 16})
    trained = train(SCENES, options, progress=listen)
    stages = ["backbone", "features", "dch", "rewards", "agent", "fine codes", "words"]
    assert list(losses) == stages
    assert losses["backbone"][-1] < losses["backbone"][0]
    parts = {"backbone", "features", "base", "agent", "fine codes", "words"}
    assert trained.seconds.keys() == parts
    torch.manual_seed(0)
    assert not same(state_of(trained.model.backbone), state_of(SmallNet(32)))


def test_the_seed_decides_about_the_model(weights: str) -> None:
    for options in (quick(), quick(weights=weights, finetune=True)):
        torch.manual_seed(1)
        first = train(SCENES, options).model
        torch.manual_seed(2)
        assert train(SCENES, options).model.fingerprint == first.fingerprint
        other = train(SCENES, replace(options, seed=1)).model
        assert not same(state_of(other.method), state_of(first.method))


@pytest.mark.parametrize("mode", ["crops", "pooled"])
@pytest.mark.parametrize("method", ["dch", "adsh"])
def test_fine_tuning_changes_the_backbone(
    method: str, mode: Any, weights: str, tmp_path: Path
) -> None:
    options = quick(method, weights=weights, regions=mode, finetune=True)
    trained = train(SCENES, options, out=tmp_path)
    given = torch.load(weights, weights_only=True)
    tuned = trained.model.backbone.state_dict()
    assert all(not torch.equal(tuned[k], given[k]) for k in given if k.endswith("weight"))
    assert not trained.model.pretrained
    again = MCHModel.load(tmp_path, device="cpu", engine="torch")
    assert same(state_of(again.backbone), state_of(trained.model.backbone))
    images = [SCENES.images.image(i) for i in range(3)]
    np.testing.assert_array_equal(again.encode_query(images), trained.model.encode_query(images))


def test_fine_tuning_pretrained_weights_saves_them(tmp_path: Path) -> None:
    options = quick(
        backbone="efficientnet-lite0", finetune=True, agent=False, settings=DEEP | {"epochs": 1}
    )
    few = scenes(14, size=32, queries=1, train=10)
    trained = train(few, options, out=tmp_path)
    assert not trained.model.pretrained
    again = MCHModel.load(tmp_path, device="cpu", engine="torch")
    assert again.fingerprint == trained.model.fingerprint
    frozen = train(few, replace(options, finetune=False)).model
    assert frozen.pretrained
    assert not same(state_of(frozen.backbone), state_of(again.backbone))


def test_a_method_and_an_agent_from_features_at_hand() -> None:
    data = blobs(60)
    options = quick(settings=DEEP | {"epochs": 12, "lr": 1e-2, "gamma": 4})
    method, policy, curve = fit_from_views(data, options)
    assert gap(method.codes(data.array[:, 0]), data.labels) > 0.3
    assert policy is not None
    assert len(curve) == 2
    _, nobody, _ = fit_from_views(data, replace(options, agent=False))
    assert nobody is None


# Interruptions.


class Cut:
    """Progress that raises, as on Ctrl-C, after some steps of a stage."""

    def __init__(self, stage: str, after: int) -> None:
        self.stage, self.after = stage, after

    def __call__(self, step: Step) -> None:
        if step.stage == self.stage and step.done >= self.after:
            raise InterruptedError


@pytest.fixture
def _every_state_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "EVERY", 0.0)


@pytest.mark.usefixtures("_every_state_is_kept")
@pytest.mark.parametrize("finetune", [False, True])
@pytest.mark.parametrize(
    ("stage", "after"), [("backbone", 1), ("dch", 2), ("rewards", 30), ("agent", 10)]
)
def test_a_training_cut_off_goes_on_and_ends_the_same(
    stage: str, after: int, finetune: bool, tmp_path: Path
) -> None:
    options = quick(finetune=finetune)
    whole = train(SCENES, options, out=tmp_path / "whole")
    out = tmp_path / "out"
    with pytest.raises(InterruptedError):
        train(SCENES, options, out=out, progress=Cut(stage, after))
    assert (out / CHECKPOINT).is_dir()
    with pytest.raises(UnfinishedTrainingError, match="continue it with resume=True, or start"):
        train(SCENES, options, out=out)
    for other in (replace(options, seed=1), replace(options, settings=DEEP | {"epochs": 3})):
        with pytest.raises(UnfinishedTrainingError, match="with other options or data"):
            train(SCENES, other, out=out, resume=True)
    with pytest.raises(UnfinishedTrainingError, match="with other options or data"):
        train(scenes(60, seed=1, size=32, train=30), options, out=out, resume=True)
    done: set[str] = set()
    again = train(SCENES, options, out=out, resume=True, progress=lambda step: done.add(step.stage))
    assert again.model.fingerprint == whole.model.fingerprint
    assert again.curve == whole.curve
    stages = ["backbone", "dch", "agent"]  # finished stages do not run again
    first = stages.index("agent" if stage == "rewards" else stage)
    assert done & set(stages) == set(stages[first:])
    assert not (out / CHECKPOINT).exists()


def test_a_trained_model_is_not_overwritten_unless_asked(weights: str, tmp_path: Path) -> None:
    options = quick("pca", bits=8, weights=weights, agent=False)
    train(SCENES, options, out=tmp_path)
    with pytest.raises(OutputExistsError, match="holds a trained model: choose another directory"):
        train(SCENES, options, out=tmp_path)
    with pytest.raises(OutputExistsError, match="holds a trained model"):
        train(SCENES, options, out=tmp_path, resume=True)
    train(SCENES, replace(options, seed=1), out=tmp_path, overwrite=True)
    assert MCHModel.load(tmp_path).bits == 8


def test_resuming_where_nothing_was_begun(weights: str, tmp_path: Path) -> None:
    options = quick("lsh", weights=weights, agent=False)
    train(SCENES, options, out=tmp_path / "new", resume=True)
    assert MCHModel.load(tmp_path / "new").method.name == "lsh"


def test_a_checkpoint_is_read_without_running_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "EVERY", 0.0)
    stage = CheckpointFile(tmp_path / "part.pt")
    assert stage.load() is None
    stage.save({"a": torch.ones(2), "curve": [{"b": 1.5}]})
    assert stage.load() == {"a": pytest.approx(torch.ones(2)), "curve": [{"b": 1.5}]}
    torch.save({"a": Harm(tmp_path / "trace")}, tmp_path / "part.pt")
    with pytest.warns(UserWarning, match="damaged"):
        assert stage.load() is None
    assert not (tmp_path / "trace").exists()
    stage.save({"a": 1})
    whole = (tmp_path / "part.pt").read_bytes()
    for cut in (0, 1, len(whole) // 2, len(whole) - 1):
        (tmp_path / "part.pt").write_bytes(whole[:cut])
        with pytest.warns(UserWarning, match="damaged"):
            assert stage.load() is None
    assert CheckpointFile(None).load() is None
    CheckpointFile(None).save({"a": 1}, force=True)


def test_checkpoints_are_written_now_and_then(tmp_path: Path) -> None:
    stage = CheckpointFile(tmp_path / "part.pt")
    stage.save({"a": 1})
    assert stage.load() is None
    stage.save({"a": 2}, force=True)
    assert stage.load() == {"a": 2}


def test_regions_are_pooled_where_there_is_a_map() -> None:
    assert TrainingOptions(backbone="small").mode == "pooled"
    assert TrainingOptions(backbone="alexnet").mode == "crops"
    assert TrainingOptions(backbone="small", regions="crops").mode == "crops"
    TrainingOptions(backbone="alexnet").check()


def test_training_crops_have_the_sizes_of_the_layout() -> None:
    assert TrainingOptions().views() == WithCrops(8, 0.5)
    assert TrainingOptions(sigma=0.3, layout="grid:3x3").views() == WithCrops(8, 0.3)
    several = TrainingOptions(layout="corners@0.4+corners@0.7")
    assert several.views() == WithCrops(8, (0.4, 0.7))
    assert TrainingOptions(crop_sigma=(0.2, 0.9)).views() == WithCrops(8, (0.2, 0.9))


# The backbone's own training.


class Dropping(nn.Module):
    """A network with dropout, batch normalisation and a feature map."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 12, 8, 8), nn.BatchNorm2d(12)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        maps: Tensor = self.dropout(self.norm(self.conv(x)).relu())
        return maps


class Watched(LiveViews):
    """Counts batches in the wrong mode: evaluation with gradients, or training without."""

    caught = 0

    def batch(self, rows: Tensor, view: Tensor | int = 0) -> Tensor:
        self.caught += self.backbone.training != torch.is_grad_enabled()
        return super().batch(rows, view)


def live(seed: int = 0) -> Watched:
    torch.manual_seed(seed)
    backbone = Wrapped(Dropping(), 32)
    rows = SCENES.splits["train"]
    labels = torch.from_numpy(SCENES.labels[rows])
    return Watched(backbone, SCENES.images, rows.tolist(), labels, WithCrops(2, 0.5), "pooled")


def test_a_backbones_training_depends_on_its_seed_and_survives_a_cut() -> None:
    recipe = BackboneSettings(epochs=3, batch=10)

    def trained(seed: int = 0, disturbance: int = 0, memory: Memory | None = None) -> Any:
        data = live()
        torch.manual_seed(disturbance)
        before = torch.get_rng_state()
        try:
            train_backbone(data, recipe, seed, checkpoint=memory)
        finally:
            assert torch.equal(before, torch.get_rng_state())
        assert not data.backbone.training
        return state_of(data.backbone)

    whole = trained()
    assert same(whole, trained(disturbance=1))
    assert not same(whole, trained(seed=1))
    for cut in (1, 2):
        memory = Memory(cut)
        with pytest.raises(InterruptedError):
            trained(memory=memory)
        assert same(whole, trained(memory=memory))
        assert memory.saves == 3


@pytest.mark.parametrize("method", ["dch", "adsh"])
def test_fine_tuning_depends_on_its_seed_and_survives_a_cut(method: str) -> None:
    own: dict[str, Any] = DEEP | {"epochs": 3, "sample": 20, "inner": 2}

    def tuned(disturbance: int = 0, memory: Memory | None = None) -> Any:
        data = live()
        allowed = METHODS[method].settings_type.names()
        base = create_method(method, 12, 16, {k: v for k, v in own.items() if k in allowed})
        torch.manual_seed(disturbance)
        base.fit(data, 4, checkpoint=memory)
        assert data.caught == 0
        assert not data.backbone.training
        return state_of(base) | {f"backbone.{k}": v for k, v in state_of(data.backbone).items()}

    whole = tuned()
    assert same(whole, tuned(disturbance=1))
    memory = Memory(2)
    with pytest.raises(InterruptedError):
        tuned(memory=memory)
    assert same(whole, tuned(disturbance=2, memory=memory))


# What cannot be trained on.


def folder(root: Path, **replaced: bytes) -> Path:
    """24 scenes as files, every sixth a query; `replaced` gives other bytes for some: i3=b"…"."""
    n = 24
    drawn = scenes(n, size=32)
    (root / "images").mkdir(parents=True)
    with (root / "labels.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["file", "split", "labels"])
        for i in range(n):
            data = replaced.get(f"i{i}", encoded(drawn.images.image(i), "JPEG"))
            (root / "images" / f"i{i}.jpg").write_bytes(data)
            names = "|".join(np.array(drawn.classes)[drawn.labels[i]])
            table.writerow([f"i{i}.jpg", "query" if i % 6 == 0 else "train", names])
    return root


def cut_jpeg() -> bytes:
    return encoded(SCENES.images.image(0), "JPEG")[:500]


@pytest.mark.parametrize("way", ["frozen", "from nothing", "fine-tuned"])
def test_broken_training_images_are_counted_and_left_out(
    way: str, weights: str, tmp_path: Path
) -> None:
    dataset = read_folder(folder(tmp_path / "data", i3=cut_jpeg(), i8=b"nothing"))
    options = quick(
        weights=None if way == "from nothing" else weights, finetune=way == "fine-tuned"
    )
    trained = train(dataset, options, out=tmp_path / "out")
    assert trained.skipped == {"unreadable": 2}
    assert trained.model.about["images"] == 18
    assert json.loads((tmp_path / "out" / REPORT).read_text("utf-8"))["skipped"] == {
        "unreadable": 2
    }


@pytest.mark.parametrize("way", ["frozen", "from nothing", "fine-tuned"])
@pytest.mark.parametrize("sound", [0, 1])
def test_when_hardly_an_image_can_be_read(
    way: str, sound: int, weights: str, tmp_path: Path
) -> None:
    broken = {f"i{i}": b"nothing" for i in range(24) if i % 6 and i > sound}
    dataset = read_folder(folder(tmp_path, **broken))
    options = quick(
        weights=None if way == "from nothing" else weights, finetune=way == "fine-tuned"
    )
    message = rf"{sound} training images that can be used.*left out: {20 - sound} unreadable"
    with pytest.raises(DatasetError, match=message):
        train(dataset, options)


def labelled(labels: NDArray[np.bool_]) -> Dataset:
    """Scenes with these labels, all but the last for training."""
    n, classes = labels.shape
    drawn = scenes(n, size=32)
    rows = np.arange(n - 1)
    splits = {"query": np.array([n - 1]), "train": rows, "database": rows}
    names = tuple(f"class {c}" for c in range(classes))
    return Dataset("own", names, labels, drawn.images, splits, {})


@pytest.mark.parametrize("method", METHODS)
def test_labels_that_tell_nothing_apart(method: str, weights: str, tmp_path: Path) -> None:
    options = quick(method, weights=weights)
    with pytest.raises(ValueError, match="all training images share a label"):
        train(labelled(np.ones((20, 2), bool)), options, out=tmp_path)
    with pytest.raises(ValueError, match="no two training images share a label"):
        train(labelled(np.eye(20, dtype=bool)), options, out=tmp_path)
    assert list(tmp_path.iterdir()) == []  # nothing that would get in the way of a second try


WILD: dict[str, dict[str, Any]] = {
    "method": {"settings": {"lr": 1e30, "hidden": 8, "epochs": 2}},
    "agent": {"agent_settings": AGENT | {"lr": 1e30}},
    "backbone": {"weights": None, "backbone_settings": {"epochs": 2, "batch": 16, "lr": 1e30}},
    "fine-tuning": {"finetune": True, "settings": {"lr": 1e30, "hidden": 8, "epochs": 2}},
}


@pytest.mark.parametrize("part", WILD)
def test_a_training_that_diverges_saves_no_model(part: str, weights: str, tmp_path: Path) -> None:
    options = replace(quick(weights=weights), **WILD[part])
    with pytest.raises(TrainingError, match=r"diverged: .* Start over with a lower learning rate"):
        train(SCENES, options, out=tmp_path / "out")
    assert not (tmp_path / "out" / CONFIG).exists()
    assert not (tmp_path / "out" / WEIGHTS).exists()


@pytest.mark.parametrize("method", METHODS)
def test_features_that_are_not_finite_give_no_model(method: str) -> None:
    data = blobs(24, dim=20)
    data.array[5, 0, 2] = np.nan
    own = {"hidden": 8} if issubclass(METHODS[method], DeepHash) else {}
    options = quick(method, settings=own | QUICK.get(method, {}))
    with pytest.raises(TrainingError, match="diverged"):
        fit_from_views(data, options)


def test_no_training_images_or_one(weights: str) -> None:
    for count in (0, 1):
        dataset = scenes(20, size=32, train=count)
        with pytest.raises(DatasetError, match=f"scenes has {count} training images that can"):
            train(dataset, quick(weights=weights))


@pytest.mark.parametrize("method", ["ksh", "adsh", "dch"])
def test_images_without_a_label_are_counted_and_left_out(method: str, weights: str) -> None:
    labels = np.zeros((20, 3), bool)
    labels[np.arange(20), np.arange(20) % 2] = True  # the third class has no images
    labels[[4, 9]] = False
    trained = train(labelled(labels), quick(method, weights=weights))
    assert trained.skipped == {"no label": 2}
    assert trained.model.about["images"] == 17


def test_two_images_are_enough(weights: str) -> None:
    """Two share a label and two do not, which takes three."""
    labels = np.array([[1, 0], [1, 0], [0, 1], [1, 0]], bool)
    for method in ("dch", "adsh", "lsh"):
        trained = train(labelled(labels), quick(method, weights=weights))
        assert len(trained.model.encode([SCENES.images.image(0)])) >= 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "sha"}, "no method is called 'sha'"),
        ({"backbone": "vgg"}, "no backbone is called 'vgg'"),
        ({"regions": "tiles"}, "regions are crops or pooled, not 'tiles'"),
        (
            {"backbone": "alexnet", "regions": "pooled"},
            "alexnet has no feature map: use regions='crops'",
        ),
        ({"layout": "grid"}, "there is no layout 'grid'"),
        ({"layout": "grid:20x20@0.2"}, "at most 256 regions"),
        ({"settings": {"hidden": 10**9}}, "hidden is from 0 to 65,536"),
        ({"agent_settings": {"width": 10**9}}, "width is from 1 to 65,536"),
        ({"settings": {"epochs": 2.5}}, "epochs=2.5: expected a value of type int"),
        ({"settings": {"lr": float("inf")}}, "lr=inf: expected a finite number"),
        ({"bits": 20}, "bits is a multiple of 8"),
        ({"sigma": 0.0}, "sigma is the side of a region"),
        ({"xi": 1.5}, "xi is a probability"),
        ({"crops": 0}, "the agent learns from crops"),
        (
            {"method": "itq", "finetune": True, "settings": {}},
            "itq trains no network: only hashnet",
        ),
        ({"settings": {"sped": 1}}, "no setting is called 'sped'"),
        ({"agent_settings": {"steps": "many"}}, "steps=many: expected a value of type int"),
        ({"agent_settings": {"estimator": "guess"}}, "expected one of exact, reinforce"),
        ({"backbone_settings": {"depth": 1}}, "no setting is called 'depth'"),
        ({"backbone_settings": {"batch": 1}}, "batches of at least 2 images"),
        ({"settings": {"epochs": 0}}, "at least 1 epoch"),
        ({"crop_sigma": (0.6, 0.3)}, "crop_sigma goes from small to large"),
        ({"crop_sigma": (0.0, 0.3)}, "sigma is the side of a region"),
    ],
)
def test_options_that_cannot_be_are_refused_at_once(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        train(SCENES, quick(**changes), out=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_device_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="device 'abacus' cannot be used here"):
        train_model(SCENES, quick(), device="abacus", out=tmp_path)
    assert list(tmp_path.iterdir()) == []


# Figures.


@pytest.fixture(scope="module")
def model(weights: str) -> MCHModel:
    found: MCHModel = train(SCENES, quick(weights=weights, settings=DEEP | {"epochs": 5})).model
    return found


def test_a_data_set_in_codes(model: MCHModel, tmp_path: Path) -> None:
    coded = encode_dataset(model, SCENES, cache=tmp_path)
    query, database = SCENES.splits["query"], SCENES.splits["database"]
    keys = [{SCENES.images.key(int(i)) for i in rows} for rows in (query, database)]
    assert not keys[0] & keys[1]  # a query is never in the database
    assert (len(coded.queries), len(coded.labels)) == (len(query), len(database)) == (6, 54)
    np.testing.assert_array_equal(coded.labels, SCENES.labels[database])
    np.testing.assert_array_equal(coded.query_labels, SCENES.labels[query])
    assert coded.classes == SCENES.classes
    images = [SCENES.images.image(int(i)) for i in (*query, *database)]
    codes = model.encode_query(images)
    np.testing.assert_array_equal(coded.queries, codes[:6])
    np.testing.assert_array_equal(coded.database.codes[:, 0], codes[6:])
    got, want = model.choose(coded.database), model.encode(images[6:])
    np.testing.assert_array_equal(got.codes, want.codes)
    np.testing.assert_array_equal(got.images, want.images)


def test_broken_images_are_left_out_of_the_figures(model: MCHModel, tmp_path: Path) -> None:
    dataset = read_folder(folder(tmp_path / "a", i0=cut_jpeg(), i7=b"nothing", i9=cut_jpeg()))
    coded = encode_dataset(model, dataset)
    assert coded.skipped == {"unreadable": 3}
    assert (len(coded.queries), len(coded.query_labels)) == (3, 3)
    assert (len(coded.database.codes), len(coded.labels)) == (18, 18)
    dataset = read_folder(folder(tmp_path / "b", **{f"i{i}": b"no" for i in range(0, 24, 6)}))
    with pytest.raises(DatasetError, match="none of the query images of b can be read"):
        encode_dataset(model, dataset)


def test_four_ways_of_keeping(model: MCHModel) -> None:
    coded = encode_dataset(model, SCENES)
    xi = float(np.median(coded.database.keep[:, 1:]))  # so that some are kept, some not
    got = measure(coded, xi)
    assert tuple(got) == WAYS
    assert got["base"].anhc == 1
    assert 1 < got["mch"].anhc < got["keep_all"].anhc <= 6
    assert got["random_keep"].anhc == pytest.approx(got["mch"].anhc, abs=0.01)
    assert got["keep_all"].anhc_raw == 6
    assert all(figures.queries == 6 and figures.images == 54 for figures in got.values())
    codes = coded.database.codes[:, 0]
    alone = evaluate(coded.queries, Codes(codes, np.arange(54)), coded.query_labels, coded.labels)
    assert got["base"].map == alone.map
    assert got["base"].f1_own == alone.f1_own
    for way in ("mch", "random_keep", "keep_all"):
        assert got[way].r0 >= got["base"].r0  # more codes, more found
    assert measure(coded, xi, ("mch",))["mch"].map == got["mch"].map


def test_the_figures_of_xi(model: MCHModel) -> None:
    coded = encode_dataset(model, SCENES)
    anhc = [measure(coded, xi, ("mch",))["mch"].anhc for xi in (0.0, 0.3, 0.5, 0.7, 1.0)]
    assert anhc == sorted(anhc, reverse=True)
    assert anhc[0] == measure(coded, 0.5, ("keep_all",))["keep_all"].anhc
    whole = replace(model, sigma=1.0, xi=0.0)
    assert measure(encode_dataset(whole, SCENES), 0.0, ("mch",))["mch"].anhc == 1


@given(st.integers(1, 20), st.integers(1, 9), st.integers(0, 2**31), st.floats(0, 1))
def test_keeping_at_random_keeps_as_many_codes(n: int, kinds: int, seed: int, xi: float) -> None:
    rng = np.random.default_rng(seed)
    keep = rng.random((n, 6)).astype(np.float32)
    keep[:, 0] = 1
    found = RegionCodes(rng.integers(0, kinds, (n, 6, 1), np.uint8), keep)
    kept = {way: kept_by(way, found, xi, seed) for way in WAYS}
    assert all(k[:, 0].all() for k in kept.values())
    assert kept["base"].sum() == n
    assert kept["keep_all"].all()
    np.testing.assert_array_equal(kept["mch"], keep >= xi)
    counts = {way: found.distinct(k).sum() for way, k in kept.items()}
    assert counts["random_keep"] == counts["mch"]
    assert counts["base"] == n
    assert counts["mch"] <= counts["keep_all"]
    slow = sum(len({found.codes[i, r, 0] for r in range(6) if kept["mch"][i, r]}) for i in range(n))
    assert counts["mch"] == slow


def test_keeping_at_random_prefers_no_region() -> None:
    rng = np.random.default_rng(0)
    keep = np.tile(np.array([1, 0.9, 0.9, 0.1, 0.1, 0.1], np.float32), (2000, 1))
    found = RegionCodes(rng.integers(0, 256, (2000, 6, 4), np.uint8), keep)
    first, second = (kept_by("random_keep", found, 0.5, seed) for seed in (0, 1))
    np.testing.assert_allclose(first[:, 1:].mean(0), 0.4, atol=0.04)
    assert (first != second).any()
    assert first.sum() == second.sum() == 6000


def test_a_way_of_keeping_that_is_none() -> None:
    found = RegionCodes(np.zeros((1, 6, 1), np.uint8), np.ones((1, 6), np.float32))
    with pytest.raises(ValueError, match="the way to keep codes is one of base, mch, random_keep"):
        kept_by("some", found, 0.5)


def test_figures_come_with_their_progress(model: MCHModel) -> None:
    coded: Coded = encode_dataset(model, SCENES)
    seen: list[tuple[int, int | None]] = []
    measure(coded, 0.5, progress=lambda step: seen.append((step.done, step.total)))
    assert seen[-1][0] == seen[-1][1]
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


# Devices.


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("finetune", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_on_a_gpu(method: str, finetune: bool, tmp_path: Path) -> None:
    if finetune and not issubclass(METHODS[method], DeepHash):
        pytest.skip("nothing to fine-tune")
    options = quick(method, finetune=finetune)
    trained = train_model(SCENES, options, device="cuda", out=tmp_path)
    model = trained.model
    assert model.device.type == "cuda"
    assert {p.device.type for p in model.backbone.parameters()} == {"cuda"}
    coded = encode_dataset(model, SCENES)
    assert measure(coded, 0.5)["base"].anhc == 1
    images = [SCENES.images.image(i) for i in range(6)]
    here = MCHModel.load(tmp_path, device="cpu", engine="torch").encode_query(images)
    unlike = np.bitwise_count(here ^ model.encode_query(images)).sum()
    assert unlike <= 0.05 * here.size * 8  # mixed precision rounds differently


def test_a_model_learns_the_names_of_its_labels_as_words(weights: str, tmp_path: Path) -> None:
    model = train_model(SCENES, quick(weights=weights), out=tmp_path / "m").model
    assert model.words is not None
    shown = SCENES.labels[SCENES.splits["train"]].mean(0)
    names = {n.lower() for n, share in zip(SCENES.classes, shown, strict=True) if 0 < share < 1}
    assert set(model.words.rows) == names
    assert MCHModel.load(tmp_path / "m").words is not None
    for options in (quick(weights=weights, fine=0), quick(weights=weights, labels="neighbours")):
        assert train_model(SCENES, options).model.words is None
