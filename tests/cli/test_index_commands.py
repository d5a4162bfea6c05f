"""The index commands: exit codes, output and error messages."""

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from helpers.camera_files import dng, drawing, heic
from helpers.pictures import write
from helpers.script import run_script
from helpers.small_model import photo, small_model, write_photos
from mchindex import MCHIndex
from mchindex.cli import options as options_file
from mchindex.cli import run
from mchindex.cli.metadata import MetadataByPath
from mchindex.cli.options import conditions, scalar
from mchindex.cli.search import read_box
from mchindex.progress import Display

COMMANDS = ("add", "search", "remove", "info", "models", "verify", "export", "import")
Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, twelve photos and an index of them."""
    root = tmp_path_factory.mktemp("made")
    small_model().save(root / "model")
    write_photos(root / "photos", 12)
    with MCHIndex.open(root / "photos.mch", root / "model") as index:
        index.add(root / "photos", metadata=lambda path: {"year": 2020 + int(path[-5]) % 3})
    return root


@pytest.fixture
def home(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that folder as the current folder. The index has the paths of the originals."""
    home = Path(shutil.copytree(made, tmp_path / "home"))
    monkeypatch.chdir(home)
    monkeypatch.delenv("MCH_INDEX", raising=False)
    monkeypatch.setenv("MCH_MODELS", str(tmp_path / "no models"))
    return home


@pytest.fixture
def empty(home: Path) -> Path:
    """The same folder without an index."""
    shutil.rmtree(home / "photos.mch")
    return home


def lines(capsys: Capture, *arguments: str, code: int = 0) -> list[Any]:
    """The JSON objects that a command prints, one per line."""
    capsys.readouterr()
    assert run(arguments) == code
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def printed(capsys: Capture, *arguments: str, code: int = 0) -> tuple[str, str]:
    """What a command prints on stdout and stderr."""
    capsys.readouterr()
    assert run(arguments) == code
    out, error = capsys.readouterr()
    return out, error


def refusal(capsys: Capture, *arguments: str) -> str:
    """The message of a command that is refused: one line on stderr, exit code 2."""
    out, error = printed(capsys, *arguments, code=2)
    assert out == ""
    assert error.startswith("mch: ")
    assert error.count("\n") == 1
    return error


def metadata(index: Path) -> dict[str, Any]:
    with MCHIndex.open(index) as opened:
        return {os.path.basename(str(image.id)): image.metadata for image in opened.images()}


# Help


@pytest.mark.parametrize("name", COMMANDS)
def test_help(name: str, capsys: Capture) -> None:
    out, _ = printed(capsys, name, "--help")
    assert f"Usage: mch {name}" in out
    assert "Examples:" in out


def test_help_breaks_lines_only_where_the_terminal_ends(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    out, _ = printed(capsys, "search", "--help")
    assert "the region that matched. Exit code 1: nothing was found." in out
    assert any(line.strip() == "mch search dog.jpg" for line in out.splitlines())


def test_main_help_mentions_completion(capsys: Capture) -> None:
    out, _ = printed(capsys, "--help")
    assert "mch --install-completion" in out
    assert all(f" {name} " in out for name in COMMANDS)


def test_help_and_models_import_nothing_heavy(tmp_path: Path) -> None:
    script = (
        "import sys; from mchindex.cli import run; "
        f"codes = [run([name, '--help']) for name in {COMMANDS}]; "
        "heavy = {'torch', 'numpy', 'PIL'} & set(sys.modules); "
        "codes.append(run(['models'])); heavy |= {'torch'} & set(sys.modules); "
        "sys.exit(f'imported {heavy}' if heavy else any(codes))"
    )
    run_script(script, folder=tmp_path)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_completes_commands(shell: str, home: Path) -> None:
    env = os.environ | {
        "PYTHONPATH": str(Path(options_file.__file__).resolve().parents[2]),
        "_MCH_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": "mch se",
        "COMP_CWORD": "1",
        "_TYPER_COMPLETE_ARGS": "mch se",
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    done = subprocess.run(
        [sys.executable, "-m", "mchindex.cli"], env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "search" in done.stdout
    assert "remove" not in done.stdout


def test_the_completion_script_can_be_printed(home: Path) -> None:
    # Typer would otherwise detect the shell that runs the tests, which may not support completion.
    env = os.environ | {
        "PYTHONPATH": str(Path(options_file.__file__).resolve().parents[2]),
        "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1",
    }
    command = [sys.executable, "-m", "mchindex.cli", "--show-completion", "bash"]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip().endswith("-F _mch_completion mch")


# Adding


def test_add_reports_what_it_did(empty: Path, capsys: Capture) -> None:
    write(empty / "photos" / "notes.txt", "not an image")
    (facts,) = lines(capsys, "add", "photos", "--model", "model", "--json")
    took = facts.pop("seconds"), facts.pop("images_per_second")
    assert min(took) > 0
    assert facts == {
        "index": "photos.mch", "images": 12, "added": 12, "replaced": 0, "skipped": 0, "failed": 0,
        "ignored": 1, "pruned": 0, "without_fine": 0, "missing_extras": {},
        "failures": [],
    }  # fmt: skip
    photo(50).save(empty / "photos" / "003.png")
    write_photos(empty / "photos", 1, first=20)
    out, error = printed(capsys, "add", "photos/*.png")
    assert error == ""
    assert "1 added, 1 replaced, 11 unchanged in " in out
    assert "photos.mch: 13 images" in out


def test_add_says_that_a_folder_holds_no_pictures(empty: Path, capsys: Capture) -> None:
    write(empty / "texts" / "notes.txt", "not an image")
    out, error = printed(capsys, "add", "texts", "--model", "model")
    assert out.startswith("0 added, 1 not images (by name)\n")
    assert error == "mch: no pictures found in texts\n"


def test_add_lists_failed_images(empty: Path, capsys: Capture) -> None:
    for i in range(25):
        write(empty / "photos" / f"[bad] {i:02d}.jpg", "not an image")
    arguments = ("add", "photos", "missing.jpg", "--model", "model")
    out, _ = printed(capsys, *arguments, code=1)
    assert "12 added" in out
    assert "26 failed" in out
    assert f"{empty}/photos/[bad] 19.jpg: not an image of a known format" in out
    assert "[bad] 20.jpg" not in out
    assert "… 6 more" in out
    out, _ = printed(capsys, *arguments, "--verbose", code=1)
    assert f"{empty}/missing.jpg: No such file or directory" in out
    assert "more" not in out
    (facts,) = lines(capsys, *arguments, "--json", code=1)
    assert facts["failed"] == len(facts["failures"]) == 26
    assert facts["failures"][-1] == {
        "name": f"{empty}/missing.jpg",
        "reason": "No such file or directory",
    }


def test_add_says_which_extras_are_missing(
    empty: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(25):
        write(empty / "photos" / f"bad {i:02d}.jpg", "not an image")
    for name in ("x.heic", "y.heic"):
        (empty / "photos" / name).write_bytes(heic())
    (empty / "photos" / "z.dng").write_bytes(dng(drawing()))
    arguments = ("add", "photos", "--model", "model")
    reason = 'its format needs an extra: pip install "mchindex[heic]"'
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "pi_heif", None)
        patch.setitem(sys.modules, "rawpy", None)
        out, _ = printed(capsys, *arguments, code=1)
        assert "12 added" in out
        assert '2 images not read: pip install "mchindex[heic]"' in out
        assert '1 image not read: pip install "mchindex[raw]"' in out
        out, _ = printed(capsys, *arguments, "--verbose", code=1)
        assert f"{empty}/photos/y.heic: {reason}" in out
        (facts,) = lines(capsys, *arguments, "--json", code=1)
        assert facts["missing_extras"] == {"heic": 2, "raw": 1}
        assert {"name": f"{empty}/photos/y.heic", "reason": reason} in facts["failures"]
        assert f"photos/x.heic: {reason}" in refusal(capsys, "search", "photos/x.heic")
    out, _ = printed(capsys, *arguments, code=1)
    assert "3 added, 12 unchanged, 25 failed" in out
    assert "mchindex[" not in out
    for query, page in (("x.heic", "page.html"), ("z.dng", "page.png")):
        assert run(["search", f"photos/{query}", "--out", page]) == 0
        assert (empty / page).stat().st_size > 1000


def test_mch_index_names_the_index(
    empty: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("MCH_INDEX", str(empty / "elsewhere.mch"))
    assert run(["add", "photos", "--model", "model", "-q"]) == 0
    assert not (empty / "photos.mch").exists()
    (facts,) = lines(capsys, "info", "--json")
    assert (facts["images"], facts["path"]) == (12, str(empty / "elsewhere.mch"))


def test_metadata_is_read_from_options_and_files(empty: Path, capsys: Capture) -> None:
    write(
        empty / "photos" / "notes.csv",
        '\ufefffile,title,year\n000.png,"a, b",1999\n'
        f"{empty}/photos/001.png,,2001\nsub/../002.png,x,\nabsent.png,,\n",
    )
    arguments = ["add", "photos", "--model", "model", "-q", "--metadata", "year=2024"]
    arguments += ["--metadata", "album=a=b", "--metadata-file", "photos/notes.csv"]
    _, error = printed(capsys, *arguments)
    assert error == "mch: warning: lines of photos/notes.csv that match no image given here: 1\n"
    stored = metadata(empty / "photos.mch")
    assert stored["000.png"] == {"year": 1999, "album": "a=b", "title": "a, b"}
    assert stored["001.png"] == {"year": 2001, "album": "a=b"}
    assert stored["002.png"] == {"year": 2024, "album": "a=b", "title": "x"}
    assert stored["003.png"] == {"year": 2024, "album": "a=b"}
    (answer,) = lines(capsys, "search", "photos/003.png", "--filter", "year<2000", "--json")
    assert [Path(hit["id"]).name for hit in answer["hits"]] == ["000.png"]
    # Values in JSON keep their types. Images that the file does not name keep their metadata.
    write(empty / "m.jsonl", '{"file": "photos/000.png", "tags": ["a", 1]}\n\n')
    assert run(["add", "photos", "-q", "--metadata-file", "m.jsonl"]) == 0
    photo(60).save(empty / "photos" / "003.png")
    (facts,) = lines(capsys, "add", "photos", "--json")
    assert facts["replaced"] == 1
    again = metadata(empty / "photos.mch")
    assert again == stored | {"000.png": {"tags": ["a", 1]}}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("m.csv", "name,x\na,b\n", "m.csv:1: the header has no column named file"),
        ("m.csv", "", "m.csv:1: the header has no column named file"),
        ("m.csv", "file,x\na.png,b,c\n", "m.csv:2: more cells than in the header"),
        ("m.csv", "file,x\n,b\n", "m.csv:2: the line names no file"),
        ("m.csv", "file\na.png\n./a.png\n", "m.csv:3: ./a.png appears twice"),
        ("m.csv", 'file\n"a.png\n', "m.csv:"),
        ("m.jsonl", '{"file": "a"}\n{\n', "m.jsonl:2: "),
        ("m.jsonl", "[]\n", "m.jsonl:1: each line must be an object"),
        ("m.jsonl", '{"file": 3}\n', "m.jsonl:1: the line names no file"),
        ("m.txt", "", "must end in .csv or .jsonl"),
    ],
)
def test_invalid_metadata_files_are_refused(
    empty: Path, capsys: Capture, name: str, content: str, message: str
) -> None:
    write(empty / name, content)
    error = refusal(capsys, "add", "photos", "--model", "model", "--metadata-file", name)
    assert message in error
    assert not (empty / "photos.mch").exists()


def test_a_metadata_file_applies_only_to_the_images_it_names(tmp_path: Path) -> None:
    assert not MetadataByPath([], None)
    assert MetadataByPath([], None)("a.png") is None
    notes = MetadataByPath(["a=1"], write(tmp_path / "m.csv", "file,b\nx.png,2\n"))
    assert notes("other") == {"a": 1}
    assert notes.unused() == 1
    assert notes(str(tmp_path / "x.png")) == {"a": 1, "b": 2}
    assert notes.unused() == 0


def test_add_prunes_only_the_given_folders(empty: Path, capsys: Capture) -> None:
    write_photos(empty / "others", 2)
    assert run(["add", "photos", "others", "--model", "model", "-q"]) == 0
    for file in (empty / "photos" / "001.png", empty / "others" / "001.png"):
        file.unlink()
    (facts,) = lines(capsys, "add", "photos", "--json")
    assert (facts["images"], facts["pruned"]) == (14, 0)
    (facts,) = lines(capsys, "add", "photos", "--prune", "--json")
    assert (facts["images"], facts["pruned"]) == (13, 1)
    assert "--prune needs a folder" in refusal(capsys, "add", "photos/002.png", "--prune")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("nothing.jpg", "nothing.jpg: No such file"),
        ("nothing/*.jpg", "nothing/*.jpg: no file matches this pattern"),
        ("photos --model nonsense", "there is no model nonsense"),
        ("photos --model photos", "there is no model photos"),
        ("photos --metadata album", "expected key=value"),
        ("photos --metadata =x", "expected key=value"),
        ("photos --metadata-file nothing.csv", "nothing.csv: No such file"),
        ("photos --batch 0", "batch"),
        ("photos --wait -1", "wait"),
        ("photos --model model --device nonsense", "device 'nonsense' cannot be used"),
        ("", "PATH..."),
    ],
)
def test_add_refuses_bad_input(empty: Path, capsys: Capture, arguments: str, message: str) -> None:
    assert message in refusal(capsys, "add", *arguments.split())


def test_another_model_is_refused(home: Path, capsys: Capture) -> None:
    small_model(3).save(home / "other")
    error = refusal(capsys, "add", "photos", "--model", "other")
    assert "was filled by" in error
    assert run(["add", "photos/003.png", "--model", "model", "-q"]) == 0


def test_a_missing_index_is_refused(home: Path, capsys: Capture) -> None:
    assert "holds other files" in refusal(capsys, "add", "photos", "-i", "photos", "--model=model")
    for command in (["search", "photos/001.png"], ["remove", "x"], ["info"], ["verify"]):
        assert "there is no index none.mch" in refusal(capsys, *command, "-i", "none.mch")
    assert "there is no index none.mch" in refusal(capsys, "export", "x", "-i", "none.mch")
    assert not (home / "none.mch").exists()


def test_a_second_writer_is_refused(home: Path, capsys: Capture) -> None:
    with MCHIndex.open(home / "photos.mch") as index, index._store.writer():
        id = str(next(iter(index)))
        for command in (["add", "photos"], ["remove", id]):
            said = refusal(capsys, *command, "--wait", "0.1")
            assert "is writing to it" in said
            assert "--wait 60" in said


def test_add_continues_after_ctrl_c(
    empty: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    write_photos(empty / "photos", 200, first=100)
    arguments = ["add", "photos", "--model", "model", "--batch", "1"]
    with monkeypatch.context() as patch:
        press = lambda display, step: signal.raise_signal(signal.SIGINT)  # noqa: E731
        patch.setattr(Display, "__call__", press)
        out, error = printed(capsys, *arguments, code=130)
    with MCHIndex.open("photos.mch") as index:
        before = len(index)
    assert 0 < before < 212
    assert out == ""
    assert error == (
        f"mch: interrupted: photos.mch holds {before} images; run the same command again to "
        "continue\n"
    )
    (facts,) = lines(capsys, *arguments, "--json")
    assert (facts["skipped"], facts["added"]) == (before, 212 - before)


# Searching


def test_search_prints_the_hits(home: Path, capsys: Capture) -> None:
    (answer,) = lines(capsys, "search", "photos/004.png", "-k", "3", "--json")
    assert answer["query"] == "photos/004.png"
    with MCHIndex.open(home / "photos.mch") as index:
        hits = index.search("photos/004.png", 3)
        want = [
            {
                "id": h.id, "score": h.score, "similarity": h.similarity,
                "distance": h.distance, "region": h.region, "box": list(h.box or ()),
                "size": list(h.size or ()), "path": h.path, "metadata": dict(h.metadata),
            }
            for h in hits
        ]  # fmt: skip
        assert answer["hits"] == want
        assert (answer["buckets"], answer["radius"]) == (hits.buckets, hits.radius)
        assert answer["exact"] is True
    out, error = printed(capsys, "search", "photos/004.png", "photos/005.png", "-k", "2")
    assert error == ""
    assert out.count("/photos/004.png") == out.count("/photos/005.png") >= 1
    assert out.count("radius") == 2
    assert "distance" in out


def test_search_by_id_finds_more_like_it(home: Path, capsys: Capture) -> None:
    with MCHIndex.open("photos.mch") as index:
        first = next(index.images())
        index.add_codes([7, 8], np.repeat(first.codes[:1], 2, axis=0))
    (answer,) = lines(capsys, "search", "--id", str(first.id), "--json")
    assert first.id not in [hit["id"] for hit in answer["hits"]]
    (answer,) = lines(capsys, "search", "--id", "7", "--json", "-k", "30")
    ids = [hit["id"] for hit in answer["hits"]]
    assert (answer["query"], 8 in ids, 7 in ids) == (7, True, False)
    out, _ = printed(capsys, "search", "--id", "7", "-k", "20")
    assert "image" in out
    region = first.regions[-1]
    (answer,) = lines(capsys, "search", "--id", str(first.id), "--region", region, "--json")
    assert answer["hits"]
    assert "has no code for 'nowhere'" in refusal(
        capsys, "search", "--id", str(first.id), "--region", "nowhere"
    )
    assert "there is no image 99" in refusal(capsys, "search", "--id", "99")


def test_search_by_a_region_of_the_query(home: Path, capsys: Capture) -> None:
    """A photo is found by the corner of a picture that it was pasted into."""
    paper = Image.new("RGB", (200, 100), "white")
    paper.paste(Image.open("photos/004.png"), (100, 20))
    paper.save("paper.png")
    (answer,) = lines(
        capsys, "search", "paper.png", "--region", "100,20,160,60", "--json", "--max-radius", "0"
    )
    assert any(hit["id"].endswith("004.png") for hit in answer["hits"])
    outside = refusal(capsys, "search", "paper.png", "--region", "0,0,300,300")
    assert "is not within the picture" in outside


@pytest.mark.parametrize("text", ["1,2,3", "a,b,c,d", "0,0,nan,1", "", "1,2,3,4,5"])
def test_invalid_boxes_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected left,top,right,bottom"):
        read_box(text)


def test_search_with_filters(home: Path, capsys: Capture) -> None:
    def years(*filters: str, code: int = 0) -> set[Any]:
        options = [part for f in filters for part in ("--filter", f)]
        arguments = ["search", "photos/004.png", "-k", "50", "--json", *options]
        (answer,) = lines(capsys, *arguments, code=code)
        return {hit["metadata"]["year"] for hit in answer["hits"]}

    assert years("year=2021") == {2021}
    assert years("year=2021", "year=2020") == {2020, 2021}
    assert years("year=1066", code=1) == set()
    assert years("year=2021", "album=x", code=1) == set()
    with MCHIndex.open("photos.mch") as index:
        index.set_metadata(next(iter(index)), {"year": "2021"})
    assert years("year=2021") == {2021, "2021"}
    assert years('year="2021"') == {"2021"}


def test_filter_options_become_conditions() -> None:
    assert conditions([]) is None
    filter = conditions(["a=1", "a=x", "b=true", "c=", "d=1=2"])
    assert filter == {
        "a": {"=": [1, "1", "x"]}, "b": {"=": [True, "true"]}, "c": {"=": [""]},
        "d": {"=": ["1=2"]},
    }  # fmt: skip
    filter = conditions(["year>=2020", "year<2024", "camera.model!=X100", "a>=b=c"])
    assert filter == {
        "year": {">=": [2020, "2020"], "<": [2024, "2024"]},
        "camera.model": {"!=": ["X100"]},
        "a": {">=": ["b=c"]},
    }
    for wrong in ("a", "=1", ">=1"):
        with pytest.raises(ValueError, match=f"--filter {wrong}: expected a comparison"):
            conditions([wrong])
    with pytest.raises(ValueError, match="another >="):
        conditions(["a>=1", "a>=2"])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1), ("-2.5", -2.5), ("true", True), ("null", None), ('"1"', "1"), ("007", "007"),
        ("NaN", "NaN"), ("Infinity", "Infinity"), ("1e999", "1e999"), ("[1]", "[1]"), ("", ""),
        ("9223372036854775808", "9223372036854775808"), ("a b", "a b"), ("{}", "{}"),
    ],
)  # fmt: skip
def test_values_are_read_as_json_scalars_or_text(text: str, value: Any) -> None:
    assert scalar(text) == value
    assert type(scalar(text)) is type(value)


def test_search_exits_with_1_if_nothing_is_found(home: Path, capsys: Capture) -> None:
    out, error = printed(capsys, "search", "photos/004.png", "--filter", "x=y", code=1)
    assert (out, error) == ("nothing found\n", "mch: no image in photos.mch matches --filter\n")
    with MCHIndex.open("none.mch", "model"):
        pass
    out, error = printed(capsys, "search", "photos/004.png", "-i", "none.mch", code=1)
    assert error == "mch: none.mch is empty\n"


def test_search_names_the_limit_that_was_reached(home: Path, capsys: Capture) -> None:
    (answer,) = lines(capsys, "search", "photos/004.png", "--max-radius", "1", "--json", "-k", "50")
    assert {hit["distance"] for hit in answer["hits"]} <= {0, 1}
    (answer,) = lines(capsys, "search", "photos/004.png", "--max-buckets=1", "--json", "-k", "50")
    assert (answer["buckets"], answer["exact"]) == (1, False)
    out, _ = printed(capsys, "search", "photos/004.png", "--max-buckets", "1", "-k", "50")
    assert "(stopped by --max-buckets)" in out
    out, _ = printed(capsys, "search", "photos/004.png", "--max-radius", "1", "-k", "50")
    assert "(stopped by --max-radius)" in out


def test_offset_prints_the_next_page(home: Path, capsys: Capture) -> None:
    (whole,) = lines(capsys, "search", "photos/004.png", "-k", "6", "--json")
    (page,) = lines(capsys, "search", "photos/004.png", "-k", "3", "--offset", "3", "--json")
    assert page["hits"] == whole["hits"][3:]


def test_info_and_remove_take_filters(home: Path, capsys: Capture) -> None:
    with MCHIndex.open("photos.mch") as index:
        for number, id in enumerate(list(index)):
            index.set_metadata(id, {"year": 2015 + number})
    out, _ = printed(capsys, "info", "--filter", "year>=2020")
    assert re.search(r"matching +7\s", out)
    out, _ = printed(capsys, "remove", "--filter", "year<2020")
    assert out == "5 images removed, 7 left\n"
    assert "give the ids of images, or --filter" in refusal(capsys, "remove")
    assert run(["remove", "--filter", "year<2020"]) == 1


def test_backup_copies_the_index(home: Path, capsys: Capture) -> None:
    out, error = printed(capsys, "backup", "copies/photos.mch")
    assert (out, error) == ("12 images copied to copies/photos.mch\n", "")
    assert run(["verify", "-i", "copies/photos.mch"]) == 0
    assert "already exists" in refusal(capsys, "backup", "copies/photos.mch")


def test_search_draws_the_hits(home: Path, capsys: Capture) -> None:
    query = ["search", "photos/004.png", "photos/005.png", "-k", "6", "--columns", "3"]
    assert run([*query, "--out", "deep/grid.png"]) == 0
    with Image.open("deep/grid.png") as grid:
        assert grid.format == "PNG"
        assert grid.width > 800
        assert grid.height > 800
    with MCHIndex.open("photos.mch") as index:
        id = str(next(iter(index)))
    assert run(["search", "--id", id, "--region", "whole", "--out", "grid.jpg"]) == 0
    with Image.open("grid.jpg") as grid:
        assert grid.format == "JPEG"
    assert "must end in .png" in refusal(capsys, "search", "x.png", "--out", "grid.txt")


def test_search_opens_the_drawing(
    home: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(home))
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    _, error = printed(capsys, "search", "photos/004.png", "--open")
    assert error.startswith("mch: there is no desktop to show the picture on: it is in ")
    with Image.open(error.rsplit(" ", 1)[1].strip()) as grid:
        assert grid.format == "PNG"
    viewer = home / "bin" / "xdg-open"
    write(viewer, f'#!/bin/sh\necho "$1" > {home}/seen\n').chmod(0o755)
    monkeypatch.setenv("PATH", f"{viewer.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("DISPLAY", ":9")
    _, error = printed(capsys, "search", "photos/004.png", "--open", "--out", "grid.png")
    assert error == ""
    assert (home / "seen").read_text().strip() == str(home / "grid.png")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "give images to search by, or --id"),
        ("photos/001.png --id 3", "give images to search by, or --id"),
        ("nothing.png", "nothing.png: No such file\n"),
        ("photos/001.png nothing", "nothing: No such file; to search by a word: mch search --text"),
        ("photos", "photos is a folder"),
        ("model/config.json", "not an image"),
        ("photos/001.png -k 0", "-k"),
        ("photos/001.png --region 1,2", "--region 1,2: expected left,top,right,bottom"),
        ("photos/001.png --filter x", "--filter x: expected a comparison"),
        ("photos/001.png --max-radius -1", "max-radius"),
        ("photos/001.png --device nonsense", "device 'nonsense'"),
    ],
)
def test_search_refuses_bad_input(
    home: Path, capsys: Capture, arguments: str, message: str
) -> None:
    assert message in refusal(capsys, "search", *arguments.split())


# Removing and maintenance


def test_remove_takes_ids_and_paths(home: Path, capsys: Capture) -> None:
    with MCHIndex.open("photos.mch") as index:
        first, second, *_ = map(str, index)
        ids: list[str | int] = [7, "8", -9]
        index.add_codes(ids, np.zeros((3, 2), np.uint8))
    out, error = printed(capsys, "remove", first, "7", "8", "nothing")
    assert out == "3 images removed, 12 left\n"
    assert error == "mch: there is no image nothing in photos.mch\n"
    assert run(["remove", "--", "-9"]) == 0
    os.chdir(Path(second).parent)  # a relative path works, too
    assert run(["remove", Path(second).name, "-i", str(home / "photos.mch"), "-q"]) == 0
    out, _ = printed(capsys, "remove", first, "-i", str(home / "photos.mch"), code=1)
    assert out == "0 images removed, 10 left\n"


def test_info_prints_figures(home: Path, capsys: Capture) -> None:
    (facts,) = lines(capsys, "info", "--json")
    assert (facts["images"], facts["bits"], facts["regions"][0]) == (12, 16, "whole")
    out, _ = printed(capsys, "info")
    for word in (f"{facts['codes']} of 16 bits", facts["fingerprint"], "top-left", "on disk"):
        assert word in out


def test_models_lists_models_from_all_folders(
    home: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    about = {"figures": {"base": {"map": 0.1, "r0": 0.1}, "mch": {"map": 0.5, "r0": 0.25}}}
    config = json.loads((home / "model" / "config.json").read_text())
    own, deep = home / "own" / "mine", home / "deep" / "other"
    for folder in (own, deep):
        write(folder / "config.json", json.dumps(config | {"about": about, "policy": None}))
    write(home / "deep" / "strange" / "config.json", '{"method": 3}')
    monkeypatch.setenv("MCH_MODELS", str(home / "own"))
    (listed,) = lines(capsys, "models", "deep", ".", "--json")
    models = {m["name"]: m for m in listed if not m["ships"]}
    assert set(models) == {"mine", "model", "deep/other"}
    assert (models["mine"]["map"], models["mine"]["r0"]) == (0.5, 0.25)
    assert (models["model"]["map"], models["model"]["policy"]) == (None, True)
    assert models["model"]["backbone"] == "small"
    out, _ = printed(capsys, "models", "deep")
    for word in ("mine", "MCH-LSH", " LSH ", "0.500", "0.250", "small at 32 px", "deep/other"):
        assert word in out
    assert "is not a folder" in refusal(capsys, "models", "nowhere")


def test_verify_prints_problems_and_notes(home: Path, capsys: Capture) -> None:
    out, error = printed(capsys, "verify")
    assert (out[:16], error) == ("no problems: 12 ", "")
    write_photos(home / "more", 1, first=30)
    assert run(["add", "more", "-q"]) == 0
    shutil.rmtree(home / "more")
    out, _ = printed(capsys, "verify")
    assert "note: images whose files no longer exist: 1" in out
    shutil.rmtree("photos.mch/model")
    out, _ = printed(capsys, "verify", code=1)
    assert out.startswith("problem: the model ")
    (facts,) = lines(capsys, "verify", "--json", code=1)
    assert (facts["images"], len(facts["problems"])) == (13, 1)


def test_export_and_import(home: Path, capsys: Capture) -> None:
    out, error = printed(capsys, "export", "out.jsonl.gz")
    assert (out, error) == ("12 images written to out.jsonl.gz\n", "")
    assert "--overwrite" in refusal(capsys, "export", "out.jsonl.gz")
    assert run(["export", "out.jsonl.gz", "--overwrite", "-q"]) == 0
    out, _ = printed(capsys, "import", "out.jsonl.gz", "-i", "new.mch", "--model", "model")
    assert out == "12 images added to new.mch\n"
    out, _ = printed(capsys, "import", "out.jsonl.gz", "-i", "new.mch")
    assert out == "0 images added to new.mch, 12 replaced\n"
    assert run(["verify", "-i", "new.mch"]) == 0
    assert "nothing.jsonl: No such file" in refusal(capsys, "import", "nothing.jsonl")
    data = Path("out.jsonl.gz").read_bytes()
    Path("cut.gz").write_bytes(data[:-50])
    assert "cut.gz is truncated" in refusal(capsys, "import", "cut.gz", "-i", "cut.mch")
    assert not Path("cut.mch").exists()
    out, error = printed(capsys, "import", "cut.gz", "-i", "new.mch", "--partial", code=1)
    assert "replaced" in out
    assert error == "mch: cut.gz is truncated or damaged: it may have held more images\n"


def test_export_and_import_use_standard_streams(
    home: Path, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    capsysbinary.readouterr()
    assert run(["export", "-"]) == 0
    out, error = capsysbinary.readouterr()
    assert error == b""
    assert json.loads(out.splitlines()[-1]) == {"end": 12}
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(out)))
    assert run(["import", "-", "-i", "new.mch", "--model", "model"]) == 0
    capsysbinary.readouterr()
    assert run(["export", "-", "-i", "new.mch"]) == 0
    assert capsysbinary.readouterr().out.splitlines()[1:] == out.splitlines()[1:]


def test_a_damaged_index_can_be_rescued(home: Path, capsys: Capture) -> None:
    import sqlite3

    db = sqlite3.connect("photos.mch/index.sqlite", isolation_level=None)
    db.execute("UPDATE images SET codes = zeroblob(20) WHERE key = 5")
    db.execute("UPDATE meta SET value = '{}' WHERE name = 'model'")
    db.close()
    assert "is damaged" in refusal(capsys, "info")
    out, error = printed(capsys, "export", "rescued.jsonl", code=1)
    assert out == "11 images written to rescued.jsonl\n"
    assert error == "mch: photos.mch is damaged: 1 image could not be read\n"
    assert run(["import", "rescued.jsonl", "-i", "new.mch", "--model", "model", "-q"]) == 0
    (facts,) = lines(capsys, "add", "photos", "-i", "new.mch", "--json")
    assert facts["images"] >= 12
    assert run(["verify"]) == 1
    Path("photos.mch/index.sqlite").write_bytes(b"nonsense" * 1000)
    assert "is damaged" in refusal(capsys, "export", "x.jsonl")
    assert not Path("x.jsonl").exists()
    assert run(["verify"]) == 1
