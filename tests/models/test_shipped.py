"""The models that come with the package."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mchindex import MCHIndex
from mchindex.catalogue import SHIPPED, find, listed, shipped_name
from mchindex.datasets.scenes import SceneSource
from mchindex.errors import ModelError, ModelMismatchError
from mchindex.index.identity import Identity
from mchindex.models import MCHModel

NAMES = sorted(folder.name for folder in SHIPPED.iterdir())
PICTURES = [SceneSource(12, seed=3, size=224).image(i) for i in range(12)]


def test_what_ships() -> None:
    assert NAMES == ["coco-32", "coco-64", "coco-64-frozen"]
    assert [m.name for m in listed() if m.ships] == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_model_that_ships(name: str) -> None:
    model = MCHModel.load(name, device="cpu")
    assert model.bits == int(name.split("-")[1])
    assert model.mode == "pooled"  # one pass per image
    assert shipped_name(model.fingerprint) == name
    encoded = model.encode(PICTURES)
    assert set(encoded.images.tolist()) == set(range(len(PICTURES)))
    every = MCHModel.load(name, device="cpu", xi=0.0).encode(PICTURES)
    assert len(PICTURES) <= len(encoded) < len(every)
    np.testing.assert_array_equal(model.encode_query(PICTURES), encoded.codes[encoded.regions == 0])
    one = MCHModel.load(name, device="cpu", sigma=1.0).encode(PICTURES)
    assert len(one) == len(PICTURES)


@pytest.mark.parametrize("name", NAMES)
def test_its_files_are_few_and_small_and_its_card_is_true(name: str) -> None:
    folder = SHIPPED / name
    tuned = ["tuned.onnx"] if name == "coco-64" else []
    assert sorted(f.name for f in folder.iterdir()) == [
        "README.md", "config.json", "graph.json", "hash.onnx", "model.safetensors", "policy.onnx",
        *tuned,
    ]  # fmt: skip
    most = 13_000_000 if tuned else 6_000_000
    assert sum(f.stat().st_size for f in folder.iterdir()) < most
    figures = json.loads((folder / "config.json").read_text())["about"]["figures"]
    card = (folder / "README.md").read_text()
    for way in figures.values():
        assert f"| {way['map']:.3f} | {way['r0']:.4f} | {way['f1_own']:.4f} |" in card
    assert figures["mch"]["map"] > max(
        figures[w]["map"] for w in ("base", "random_keep", "keep_all")
    )
    assert figures["mch"]["r0"] > 1.05 * figures["base"]["r0"]


@pytest.mark.parametrize("name", NAMES)
def test_its_card_says_how_good_its_fine_codes_and_words_are(name: str) -> None:
    about = json.loads((SHIPPED / name / "config.json").read_text())["about"]
    card = (SHIPPED / name / "README.md").read_text()
    ranks, words = about["ranks"], about["words"]
    for rank in ("best", "fine", "code"):
        assert f"| `{rank}` | {ranks[rank]['ndcg']:.3f} | {ranks[rank]['precision']:.3f} |" in card
    assert ranks["best"]["ndcg"] > max(ranks["fine"]["ndcg"], ranks["code"]["ndcg"])
    assert ranks["best"]["itself"] == ranks["fine"]["itself"] == 1
    assert f"| words | {words['words']['map']:.3f} | {words['words']['p10']:.3f} |" in card
    assert words["share"]["map"] >= 0.95


def test_an_index_takes_coco_64_and_copies_nothing(tmp_path: Path) -> None:
    with MCHIndex.open(tmp_path / "a.mch") as index:
        assert index.stats()["model"] == "coco-64"
        index.add(PICTURES)
        assert [hits[0].distance for hits in index.search(PICTURES, k=1)] == [0] * len(PICTURES)
    assert not (tmp_path / "a.mch" / "model").exists()
    with MCHIndex.open(tmp_path / "a.mch") as again:
        assert again.search(PICTURES[5], k=1)[0].id == 5


def test_tuned_blocks_pay() -> None:
    tuned, frozen = (
        json.loads((SHIPPED / name / "config.json").read_text())["about"]
        for name in ("coco-64", "coco-64-frozen")
    )
    for way in ("base", "mch"):
        assert tuned["figures"][way]["map"] > frozen["figures"][way]["map"] + 0.01
    ours, theirs = tuned["ranks"]["best"], frozen["ranks"]["best"]
    assert ours["ndcg"] > theirs["ndcg"] + 0.02
    assert ours["quadrant_in_ten"] > theirs["quadrant_in_ten"] - 0.03


def test_an_index_of_an_earlier_coco_64_keeps_its_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier versions shipped the model that is now coco-64-frozen under the name coco-64."""
    of_model = Identity.of_model
    with monkeypatch.context() as earlier:
        earlier.setattr(
            Identity, "of_model", lambda model, name: replace(of_model(model, name), name="coco-64")
        )
        with MCHIndex.open(tmp_path / "a.mch", model="coco-64-frozen") as index:
            index.add(PICTURES)
    frozen = find("coco-64-frozen")
    for model in (None, "coco-64", "coco-64-frozen", frozen):
        with MCHIndex.open(tmp_path / "a.mch", model=model) as index:
            assert index.stats()["model"] == "coco-64"
            assert index.stats()["fine_bits"] == 256
            assert index.search(PICTURES[5], k=1)[0].score == 1
            assert shipped_name(index.model.fingerprint) == "coco-64-frozen"
    with pytest.raises(ModelMismatchError, match=r"filled by the model coco-64 \("):
        MCHIndex.open(tmp_path / "a.mch", model=SHIPPED / "coco-64")


def test_a_model_that_ships_is_known_by_whatever_path(tmp_path: Path) -> None:
    with MCHIndex.open(tmp_path / "a.mch", model=SHIPPED / "coco-32") as index:
        assert index.stats()["model"] == "coco-32"
    with MCHIndex.open(tmp_path / "a.mch") as again:
        assert again.model.bits == 32


def test_a_folder_of_the_users_own_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MCH_MODELS", str(tmp_path))
    MCHModel.load("coco-32", device="cpu", xi=0.9).save(tmp_path / "strict")
    assert find("strict") == tmp_path / "strict"
    assert MCHModel.load("strict", device="cpu").xi == 0.9
    assert [m.name for m in listed() if not m.ships] == ["strict"]
    with pytest.raises(ModelError, match=f"models by name: {', '.join(NAMES)}, strict"):
        MCHModel.load("nothing-like-it")
