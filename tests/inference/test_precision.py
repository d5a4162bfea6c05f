"""An index remembers with which precision it was filled, and int8 gives nearly the same codes."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

from helpers.fine_models import fine_model
from mchindex import MCHIndex, ModelError, ModelMismatchError
from mchindex.catalogue import SHIPPED, Precision
from mchindex.datasets.scenes import SceneSource
from mchindex.files import read_file
from mchindex.index.export import export_index
from mchindex.index.identity import Identity
from mchindex.index.importing import import_index
from mchindex.index.verify import verify
from mchindex.inference import Encoder, GraphModel, load_model
from mchindex.inference.graph import GRAPH, INT8, SHARED, SHARED_NAMES, session
from mchindex.models import MCHModel
from mchindex.models.backbones import EfficientNetLite0

PICTURES = [SceneSource(12, seed=3, size=224).image(i) for i in range(12)]
WHOLE = load_model("coco-64", precision="int8")
ALONE = np.concatenate([WHOLE.encode_query([picture]) for picture in PICTURES])


def differ(ours: np.ndarray, theirs: np.ndarray) -> float:
    return float(np.unpackbits(ours ^ theirs).mean())


@pytest.mark.parametrize("name", ["coco-64", "coco-64-frozen", "coco-32"])
def test_int8_gives_nearly_the_codes_of_floats(name: str) -> None:
    model, whole = load_model(name), load_model(name, precision="int8")
    assert (model.precision, whole.precision) == ("float", "int8")
    assert model.fingerprint == whole.fingerprint
    (codes, fine), (others, other_fine) = (m.encode_queries(PICTURES) for m in (model, whole))
    assert fine is not None
    assert other_fine is not None
    assert 0 < differ(codes, others) < 0.04
    assert ((fine > 0) != (other_fine > 0)).mean() < 0.05


@settings(max_examples=10, deadline=None)
@given(st.lists(st.integers(0, len(PICTURES) - 1), min_size=1, max_size=11))
def test_int8_codes_do_not_depend_on_the_batch(places: list[int]) -> None:
    np.testing.assert_array_equal(WHOLE.encode_query([PICTURES[i] for i in places]), ALONE[places])


def test_sums_of_int8_products_cannot_overflow() -> None:
    # Without VNNI, two products are added in 16 bits: 2 * 255 * 64 fits, with sign.
    graph = onnx.load_from_string(read_file(SHARED / INT8)).graph
    values = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    layers = [node for node in graph.node if node.op_type == "QLinearConv"]
    assert len(layers) == 49
    assert not [node for node in graph.node if node.op_type in ("Conv", "Gemm", "MatMul")]
    for node in layers:
        groups = {a.name: a.i for a in node.attribute}["group"]
        assert groups > 1 or np.abs(values[node.input[3]].astype(int)).max() <= 64


@pytest.mark.parametrize("size", [64, 160])
def test_the_shared_graph_takes_other_sizes(size: int) -> None:
    backbone = EfficientNetLite0(size)
    backbone.load_pretrained()
    pixels = np.random.default_rng(0).integers(0, 256, (2, 3, size, size), np.uint8)
    with torch.inference_mode():
        wanted = backbone.eval().feature_map(torch.from_numpy(pixels)).numpy()
    run = session(read_file(SHARED / SHARED_NAMES[0])).run
    np.testing.assert_allclose(run(None, {"pixels": pixels})[0], wanted, atol=5e-3)


# What an index remembers.


@pytest.mark.parametrize(("asked", "got"), [(None, "int8"), ("int8", "int8"), ("float", "float")])
def test_an_index_keeps_its_precision(
    asked: Precision | None, got: Precision, tmp_path: Path
) -> None:
    other: Precision = "float" if got == "int8" else "int8"
    with MCHIndex.open(tmp_path / "index.mch", precision=asked) as index:
        index.add(PICTURES, progress=False)
        assert index.stats()["precision"] == got
        wanted = load_model("coco-64", precision=got).encode_query(PICTURES[:1])
        np.testing.assert_array_equal(index[0].codes[:1], wanted)
    for model in (None, "coco-64", load_model("coco-64", precision=got)):
        with MCHIndex.open(tmp_path / "index.mch", model) as index:
            assert index.model.precision == got
            assert index.search(PICTURES[3], 1, rank="code")[0].distance == 0
    with pytest.raises(ModelMismatchError, match=f"with precision {got}, not {other}"):
        MCHIndex.open(tmp_path / "index.mch", precision=other)
    with pytest.raises(ModelMismatchError, match="open it without a model"):
        MCHIndex.open(tmp_path / "index.mch", load_model("coco-64", precision=other))


def test_an_index_without_a_precision_has_floats(tmp_path: Path) -> None:
    with MCHIndex.open(tmp_path / "index.mch", precision="float") as index:
        assert "precision" not in index.identity.to_json()  # as earlier versions wrote it
        assert type(index.identity).from_json(index.identity.to_json()).precision == "float"


def test_an_export_keeps_the_precision(tmp_path: Path) -> None:
    for precision in ("float", "int8"):
        with MCHIndex.open(tmp_path / f"{precision}.mch", precision=precision) as index:
            index.add(PICTURES[:2], progress=False)
        with (tmp_path / f"{precision}.jsonl").open("wb") as file:
            export_index(tmp_path / f"{precision}.mch", file)
        import_index(tmp_path / f"{precision}.jsonl", tmp_path / f"{precision}-new.mch")
        with MCHIndex.open(tmp_path / f"{precision}-new.mch") as index:
            assert index.identity.precision == precision
    with pytest.raises(ModelMismatchError, match="create a new index with precision float"):
        import_index(tmp_path / "float.jsonl", tmp_path / "int8.mch")


def test_codes_of_another_int8_graph_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr(Identity, "of_model", _of_another_graph(Identity.of_model))
        with MCHIndex.open(tmp_path / "old.mch", precision="int8") as index:
            index.add(PICTURES[:2], progress=False)
    with MCHIndex.open(tmp_path / "old.mch") as index:
        assert len(index.search(id=0)) == 1  # needs no graph
        with pytest.raises(ModelMismatchError, match=r"another version.*create a new index"):
            index.search(PICTURES[0])
        with pytest.raises(ModelMismatchError, match="another version"):
            index.add(PICTURES[2:3], progress=False)
    assert "another version" in str(verify(tmp_path / "old.mch", model=True).problems)
    with (tmp_path / "old.jsonl").open("wb") as file:
        export_index(tmp_path / "old.mch", file)
    with pytest.raises(ModelMismatchError, match=r"different versions.*add the images again"):
        import_index(tmp_path / "old.jsonl", tmp_path / "new.mch")


def _of_another_graph(
    of_model: Callable[[Encoder, str | None], Identity],
) -> Callable[[Encoder, str | None], Identity]:
    return lambda model, name: replace(of_model(model, name), int8_graph="0" * 64)


def test_a_model_of_ones_own_has_floats(tmp_path: Path) -> None:
    fine_model().save(tmp_path / "model")
    with MCHIndex.open(tmp_path / "index.mch", tmp_path / "model") as index:
        assert index.stats()["precision"] == "float"
    with pytest.raises(ModelError, match="no int8 graph"):
        load_model(tmp_path / "model", precision="int8")
    with pytest.raises(ValueError, match="precision is float or int8, not 'half'"):
        load_model("coco-64", precision="half")  # type: ignore[arg-type]


def test_a_torch_model_fills_an_index_with_floats(tmp_path: Path) -> None:
    model = MCHModel.load("coco-32", device="cpu")
    with MCHIndex.open(tmp_path / "index.mch", model) as index:
        assert index.stats()["precision"] == "float"
    with pytest.raises(ValueError, match="has precision float, not int8"):
        MCHIndex.open(tmp_path / "other.mch", model, precision="int8")


def test_a_folder_that_names_the_first_shared_graph_is_run_by_the_present_one(
    tmp_path: Path,
) -> None:
    folder = Path(shutil.copytree(SHIPPED / "coco-32", tmp_path / "model"))
    earlier = "7eb019a7eb2096f112852c491d73f599459bc65078e3d1bfaf89f3542378f6c7"
    model = GraphModel.load(folder)
    assert model is not None
    now = model._facts.files["backbone"][1]
    text = (folder / GRAPH).read_text()
    (folder / GRAPH).write_text(text.replace(now, earlier))
    old = GraphModel.load(folder)
    assert old is not None
    np.testing.assert_array_equal(old.encode_query(PICTURES[:2]), model.encode_query(PICTURES[:2]))
    (folder / GRAPH).write_text(text.replace(now, "0" * 64))
    other = GraphModel.load(folder)
    assert other is not None
    with pytest.raises(ModelError, match="is not the graph"):
        other.encode_query(PICTURES[:1])
