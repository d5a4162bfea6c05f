"""`mch search` by words."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from helpers.html import check_alone
from helpers.small_model import small_model, write_photos
from mchindex import MCHIndex
from mchindex.cli import run
from mchindex.inference.words import STEPS
from mchindex.models.fine import FineHash
from mchindex.models.words import Words

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The index of six photos, whose model knows three words."""
    root = tmp_path_factory.mktemp("made")
    model, rng = small_model(), torch.Generator().manual_seed(0)
    words = Words(["dog, domestic dog", "sofa"], 32)
    words.vectors.copy_(torch.randint(1, STEPS, words.vectors.shape, generator=rng))
    words.curves.fill_(1.5)
    x = torch.rand(50, model.backbone.dim, generator=rng)
    write_photos(root / "photos", 6)
    with MCHIndex.open(
        root / "photos.mch", replace(model, fine=FineHash.fit(x, 32), words=words)
    ) as i:
        i.add(root / "photos")
    return root / "photos.mch"


def test_words_find_images(made: Path, capsys: Capture) -> None:
    assert run(["search", "--text", "dog, -sofa", "-k", "4", "--index", str(made), "--json"]) == 0
    (answer,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert answer["query"] == "dog, -sofa"
    assert len(answer["hits"]) == 4
    with MCHIndex.open(made) as index:
        assert [h["id"] for h in answer["hits"]] == index.search(text="dog, -sofa", k=4).ids


def test_hits_are_printed_with_their_scores_and_drawn(
    made: Path, tmp_path: Path, capsys: Capture
) -> None:
    out = tmp_path / "hits.png"
    assert run(["search", "--text", "dog", "--index", str(made), "--out", str(out)]) == 0
    text = capsys.readouterr().out
    assert "score" in text
    assert "distance" not in text
    assert "6 images compared" in text
    assert out.stat().st_size > 0


@pytest.mark.parametrize(
    ("text", "reason"), [("dog, -sofa", "dog"), ("Dog, sofa", "dog, sofa"), ("-sofa", "no sofa")]
)
def test_a_page_shows_the_words(
    made: Path, tmp_path: Path, text: str, reason: str, capsys: Capture
) -> None:
    out = tmp_path / "hits.html"
    command = ["search", f"--text={text}", "-k", "2", "--index", str(made), "--out", str(out)]
    assert run(command) == 0
    read = check_alone(out.read_text("utf-8"))
    assert f"1. {reason} score" in read.words
    assert "distance" not in read.words
    assert "no picture" not in read.words
    assert len(read.all("img")) == 2
    assert f"{text} 2 hits, 6 images compared" in read.words


def test_a_page_names_what_pictures_have_in_common(
    made: Path, tmp_path: Path, capsys: Capture
) -> None:
    out, photo = tmp_path / "hits.html", str(made.parent / "photos" / "001.png")
    with MCHIndex.open(made) as index:
        hits = index.search(photo)
        names = index.in_common(hits, photo)
        assert any(names.values())
        reasons = {", ".join(names[hit.id]) for hit in hits[1:]} - {""}
    for query in ([photo], ["--id", photo], ["--like", photo]):
        assert run(["search", *query, "--index", str(made), "--out", str(out)]) == 0
        page = check_alone(out.read_text("utf-8")).words
        assert any(f". {reason} score" in page for reason in reasons)


def test_words_are_listed(made: Path, capsys: Capture) -> None:
    assert run(["search", "--words", "--index", str(made)]) == 0
    assert capsys.readouterr().out.splitlines() == ["dog", "domestic dog", "sofa"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--text", "dgo"], "does not know the word 'dgo', but it knows dog; mch search --words"),
        (["--text", "big dog on sofas"], "but it knows dog, sofa; mch search --words"),
        (["--text", "big dog on sofas"], "and several are separated by commas"),
        (["--text", ","], "must name something"),
        (["--text", "dog", "x.png"], "--text WORDS"),
        (["--text", "dog", "--region", "0,0,1,1"], "--region is a part of a picture"),
        (["--text", "dog", "--max-radius", "3"], "words have none"),
    ],
)
def test_mistakes_are_explained(
    made: Path, arguments: list[str], message: str, capsys: Capture
) -> None:
    assert run(["search", *arguments, "--index", str(made)]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
