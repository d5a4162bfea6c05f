"""A model's graph gives what torch gives, and is refused if it is not what was saved."""

import contextlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.fine_models import fine_model
from helpers.pictures import picture
from helpers.small_model import photo, small_model
from mchindex import MCHIndex, ModelError
from mchindex.catalogue import CONFIG, SHIPPED
from mchindex.datasets.scenes import SceneSource
from mchindex.errors import MissingExtraError, ModelMismatchError
from mchindex.inference import GraphModel, load_model
from mchindex.inference.encoder import Encoder
from mchindex.inference.extract import MODES, Mode
from mchindex.inference.graph import GRAPH, check_graph, providers_of
from mchindex.inference.saved import WEIGHTS
from mchindex.inference.threads import cores, set_threads
from mchindex.models import METHODS, MCHModel, Policy, create_method
from mchindex.models.backbones import SmallNet

PHOTOS = [photo(i) for i in range(24)]


def bits_that_agree(ours: Any, theirs: Any) -> float:
    assert ours.shape == theirs.shape
    return 1 - float(np.unpackbits(ours ^ theirs).mean())


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "small"
    fine_model().save(folder)
    assert fine_model().save_graph(folder)  # a model of torch saves none by itself
    return folder


@pytest.fixture
def copy(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "copy"))


def loaded(folder: Path) -> GraphModel:
    model = load_model(folder)
    assert isinstance(model, GraphModel)
    return model


# What it computes.


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("method", [name for name in METHODS if name != "plugin"])
def test_graphs_of_every_method_agree_with_torch(method: str, mode: Mode, tmp_path: Path) -> None:
    torch.manual_seed(1)
    backbone = SmallNet(32)
    layers = create_method(method, backbone.dim, 16)
    with torch.no_grad():
        for name, tensor in layers.state_dict().items():
            if tensor.is_floating_point() and not name.endswith(("std", "weights")):
                tensor.normal_(0, 0.1)
    model = MCHModel(backbone, layers, Policy(layers.feature_dim, 16, width=8), mode=mode)
    model.save(tmp_path)
    graph = loaded(tmp_path)
    assert graph.fingerprint == model.fingerprint
    ours, theirs = graph.encode_query(PHOTOS), model.encode_query(PHOTOS)
    assert bits_that_agree(ours, theirs) >= 0.999
    features = model.extractor(PHOTOS, model.layout.array())
    found, wanted = graph.regions_of(features), model.regions_of(features)
    assert bits_that_agree(found.codes, wanted.codes) >= 0.999
    np.testing.assert_allclose(found.keep, wanted.keep, atol=1e-4)


@pytest.mark.parametrize("name", ["coco-64", "coco-64-frozen", "coco-32"])
def test_the_graphs_that_ship_agree_with_torch(name: str) -> None:
    pictures = [SceneSource(16, seed=5, size=224).image(i) for i in range(16)]
    graph, model = load_model(name), MCHModel.load(name, device="cpu", engine="torch")
    assert isinstance(graph, GraphModel)
    (ours, fine), (theirs, their_fine) = (
        graph.encode_queries(pictures),
        model.encode_queries(pictures),
    )
    assert bits_that_agree(ours, theirs) >= 0.999
    assert fine is not None
    assert their_fine is not None
    assert ((fine > 0) == (their_fine > 0)).mean() >= 0.999
    assert graph.fine_kind == model.fine_kind
    assert graph.words is not None
    assert model.words is not None
    assert graph.words.fingerprint == model.words.fingerprint
    np.testing.assert_array_equal(
        graph.words.query("dog, -cat").vectors, model.words.query("dog, -cat").vectors
    )


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(rows=st.lists(st.integers(0, 23), min_size=1, max_size=20), threads=st.sampled_from([1, 2]))
def test_codes_do_not_depend_on_the_batch_or_the_threads(
    saved: Path, rows: list[int], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = loaded(saved)
    alone = np.concatenate([model.encode_query([PHOTOS[row]]) for row in rows])
    monkeypatch.setattr("mchindex.inference.extract.cores", lambda: threads)
    together = model.encode_query([PHOTOS[row] for row in rows])
    assert bits_that_agree(alone, together) >= 0.999


def test_xi_and_codes(saved: Path) -> None:
    graph, model = loaded(saved), MCHModel.load(saved)
    for xi in (0.0, 0.4, 1.0):
        ours, theirs = graph.with_xi(xi).encode(PHOTOS), model.with_xi(xi).encode(PHOTOS)
        assert len(ours) == len(theirs)
    few, many = (graph.with_codes(codes, PHOTOS) for codes in (1.1, 3.0))
    assert len(few.encode(PHOTOS)) < len(many.encode(PHOTOS))
    assert graph.xi == model.xi
    with pytest.raises(ValueError, match="xi is a probability between 0 and 1"):
        graph.with_xi(1.5)


def test_a_model_without_a_policy(tmp_path: Path) -> None:
    replace(small_model(), policy=None).save(tmp_path)
    graph = loaded(tmp_path)
    assert not (tmp_path / "policy.onnx").exists()
    assert len(graph.encode(PHOTOS)) == len(PHOTOS)
    with pytest.raises(ValueError, match="without a policy stores one code"):
        graph.check_codes(1.5)


def test_features_that_are_not_finite_have_no_code(saved: Path) -> None:
    graph = loaded(saved)
    features = graph.extractor(PHOTOS[:2], graph.layout.array())
    features[1, 2, 0] = np.inf
    with pytest.raises(ModelError, match="the backbone's features for 1 of"):
        graph.regions_of(features)


def test_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    try:
        set_threads(1)
        assert cores() == torch.get_num_threads() == 1
    finally:
        monkeypatch.setattr("mchindex.inference.threads._most", None)
        torch.set_num_threads(before)


def test_devices() -> None:
    assert providers_of("cpu") == ["CPUExecutionProvider"]
    assert providers_of(None) == providers_of("auto")
    with pytest.raises(ValueError, match="device 'abacus' cannot be used here: ONNX Runtime has"):
        providers_of("abacus")


# What is loaded, and when.


def test_nothing_is_loaded_before_it_is_needed(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with MCHIndex.open(tmp_path / "i", saved) as index:
        index.add(PHOTOS, ids=range(24))

    def refuse(*arguments: Any, **options: Any) -> Any:
        raise AssertionError("a graph was loaded")

    monkeypatch.setattr("mchindex.inference.graph.session", refuse)
    with MCHIndex.open(tmp_path / "i") as index:
        assert len(index.add([photo(3)], ids=[3]).skipped) == 1  # unchanged
        assert len(index.search(id=3, k=2)) == 2
        assert len(index.search_codes(index[3].codes, k=2)[0]) == 2
        index.stats()
        index.remove([5])
        with pytest.raises(AssertionError, match="a graph was loaded"):
            index.search(photo(2))


def test_an_index_remembers_xi(saved: Path, tmp_path: Path) -> None:
    model = loaded(saved).with_codes(3.0, PHOTOS)
    with MCHIndex.open(tmp_path / "i", model) as index:
        index.add(PHOTOS[:12])
        before = index.stats()["codes"]
        wanted = len(model.encode(PHOTOS[:12]))
        assert before == wanted
    with MCHIndex.open(tmp_path / "i") as index:
        assert index.model.xi == model.xi
        index.add(PHOTOS[12:])
        assert index.stats()["codes"] - before == len(model.encode(PHOTOS[12:]))
        index.backup(tmp_path / "copy")
    with MCHIndex.open(tmp_path / "copy") as index:
        assert index.model.xi == model.xi
    with MCHIndex(model) as index:
        index.add(PHOTOS[:3])
        index.backup(tmp_path / "of-memory")
    with MCHIndex.open(tmp_path / "of-memory") as index:
        assert index.model.xi == model.xi


# Folders: old ones, damaged ones, a stranger's.


def test_an_old_folder_gets_its_graph_on_first_use(copy: Path) -> None:
    for name in (GRAPH, "hash.onnx", "policy.onnx", "backbone.onnx"):
        (copy / name).unlink()
    before = (copy / CONFIG).read_bytes()
    assert GraphModel.load(copy) is None
    model = loaded(copy)
    assert (copy / GRAPH).exists()
    assert (copy / CONFIG).read_bytes() == before
    assert bits_that_agree(model.encode_query(PHOTOS), fine_model().encode_query(PHOTOS)) >= 0.999


def test_an_old_folder_that_cannot_be_written_to(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (copy / GRAPH).unlink()

    def refuse(*arguments: Any) -> None:
        raise PermissionError

    monkeypatch.setattr("mchindex.models.graph.write_file", refuse)
    assert isinstance(load_model(copy), MCHModel)


def test_without_torch_an_old_folder_says_what_to_install(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (copy / GRAPH).unlink()
    monkeypatch.setattr("mchindex.inference.model.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'mchindex\[train\]'"):
        load_model(copy)
    with pytest.raises(ModelError, match="is not a model"):
        load_model(tmp_path / "nothing")


def test_a_torch_engine_saves_no_graph(tmp_path: Path) -> None:
    small_model().save(tmp_path)
    replace(small_model(), engine="torch").save(tmp_path)
    assert not (tmp_path / GRAPH).exists()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def test_changed_settings_make_the_graph_stale(copy: Path) -> None:
    config = json.loads((copy / CONFIG).read_text())
    (copy / CONFIG).write_text(json.dumps(config | {"xi": 0.25}))
    assert GraphModel.load(copy) is None
    with pytest.raises(ModelError, match="is damaged: its weights or settings differ"):
        load_model(copy)


@pytest.mark.parametrize("name", ["backbone.onnx", "hash.onnx", "policy.onnx", WEIGHTS])
@pytest.mark.parametrize("damage", [cut, Path.unlink])
def test_damaged_files_are_refused(copy: Path, name: str, damage: Callable[[Path], Any]) -> None:
    damage(copy / name)
    model: Encoder = loaded(copy)
    with pytest.raises(ModelError, match=name):
        model.encode(PHOTOS[:1])
    with pytest.raises(ModelError, match=name):
        loaded(copy).check()
    with pytest.raises(ModelError, match=name):
        loaded(copy).save(copy.parent / "other")
    assert not (copy.parent / "other").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"format": "1"},
        {"files": {}},
        {"files": {"backbone": {"name": "../backbone.onnx", "sha256": ""}}},
        {"dim": None},
        {"weights": 7},
    ],
)
def test_a_damaged_graph_json_is_refused(copy: Path, change: dict[str, Any]) -> None:
    facts = json.loads((copy / GRAPH).read_text())
    (copy / GRAPH).write_text(json.dumps(facts | change))
    with pytest.raises(ModelError, match=rf"{GRAPH} is damaged"):
        load_model(copy)


def test_a_newer_graph_is_not_used(copy: Path) -> None:
    facts = json.loads((copy / GRAPH).read_text())
    (copy / GRAPH).write_text(json.dumps(facts | {"format": 99}))
    assert GraphModel.load(copy) is None


def test_another_models_graph_is_refused(copy: Path, tmp_path: Path) -> None:
    with MCHIndex.open(tmp_path / "i", copy) as index:
        index.add(PHOTOS[:2])
    with pytest.raises(ModelMismatchError):
        MCHIndex.open(tmp_path / "i", "coco-64")


# A stranger's graph.


def onnx_graph(**changes: Any) -> bytes:
    """A graph that adds 1, with something else in it."""
    from onnx import TensorProto, helper, numpy_helper

    one = numpy_helper.from_array(np.ones(1, np.float32), "one")
    node = helper.make_node(
        changes.get("op", "Add"), ["x", "one"], ["y"], **changes.get("more", {})
    )
    if "domain" in changes:
        node.domain = changes["domain"]
    if "location" in changes:
        one.ClearField("raw_data")
        one.data_location = TensorProto.EXTERNAL
        one.external_data.add(key="location", value=changes["location"])
    if "constant" in changes:
        node.attribute.append(helper.make_attribute("value", changes["constant"]))
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1]) for n in "xy")
    graph = helper.make_graph([node], "g", [x], [y], [one])
    content: bytes = helper.make_model(graph).SerializeToString()
    return content


def outside_constant() -> Any:
    from onnx import TensorProto

    tensor = TensorProto(name="c", data_type=1, dims=[1], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=WEIGHTS)
    return tensor


def nested(depth: int) -> Any:
    from onnx import GraphProto, helper

    graph = GraphProto(name="inner")
    for _ in range(depth):
        node = helper.make_node("If", ["x"], ["y"], then_branch=graph)
        graph = GraphProto(name="outer", node=[node])
    return graph


def test_plain_graphs_may_be_run() -> None:
    assert check_graph(onnx_graph()) == []
    assert check_graph(onnx_graph(location=WEIGHTS)) == ["one"]
    assert check_graph(onnx_graph(op="If", more={"then_branch": nested(2)})) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"domain": "com.example"}, "has an operator of b'com.example'"),
        ({"op": "Loop"}, r"it has a loop \(Loop\)"),
        ({"op": "Scan"}, r"it has a loop \(Scan\)"),
        ({"location": "/etc/passwd"}, "reads another file, b'/etc/passwd'"),
        ({"location": f"../{WEIGHTS}"}, "reads another file"),
        ({"op": "Constant", "constant": outside_constant}, "constant from another file"),
        ({"op": "If", "more": {"then_branch": lambda: nested(20)}}, "nested in more than"),
    ],
)
def test_graphs_that_may_not_be_run(changes: dict[str, Any], message: str) -> None:
    if callable(changes.get("constant")):
        changes = changes | {"constant": changes["constant"]()}
    if "more" in changes:
        changes = changes | {"more": {name: make() for name, make in changes["more"].items()}}
    with pytest.raises(ValueError, match=message):
        check_graph(onnx_graph(**changes))


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_whatever_is_in_a_file_it_is_read_or_refused(data: st.DataObject) -> None:
    content = bytearray((SHIPPED / "coco-64" / "policy.onnx").read_bytes())
    for _ in range(data.draw(st.integers(0, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    content = content[: data.draw(st.integers(0, len(content)))]
    with contextlib.suppress(ValueError):
        check_graph(bytes(content))


def test_noise_is_not_a_graph() -> None:
    for seed in range(50):
        with pytest.raises(ValueError, match=r"not an ONNX graph|cut short|it "):
            check_graph(np.random.default_rng(seed).bytes(200))
    with pytest.raises(ValueError, match="not an ONNX graph"):
        check_graph(b"")


def test_a_picture_is_not_a_list_of_pictures(saved: Path) -> None:
    with pytest.raises(TypeError, match="pass a list of images"):
        loaded(saved).encode(picture(1))  # type: ignore[arg-type]
