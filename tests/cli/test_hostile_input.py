"""Names, values and files that a careful user would not give: no command shows a traceback."""

import contextlib
import json
import os
import pty
import select
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mchindex
from helpers.small_model import small_model, write_photos
from mchindex import MCHIndex
from mchindex.cli import run, show
from mchindex.cli.metadata import MetadataByPath
from mchindex.storage.records import Row, code_type
from mchindex.storage.store import Store

Capture = pytest.CaptureFixture[str]
HOME = str(Path(mchindex.__file__).resolve().parents[1])
NOT_UTF8 = os.fsdecode(b"caf\xe9.jpg")
ODD_NAMES = (
    ":cat:.jpg", "[bold]x.jpg", "[link=x].jpg", "esc\x1b[31m.jpg", "bell\x07.jpg", "c1\x9b1m.jpg",
    "new\nline.jpg", "bidi\u202egpj.jpg", "isolate\u2066.jpg", "back\\.jpg", "é.jpg", "{0}%s.jpg",
)  # fmt: skip
BIG, LONG = "9" * 30, "x" * 100_000


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, pictures with odd names and an index of them, and odd files."""
    root = tmp_path_factory.mktemp("made")
    small_model().save(root / "model")
    write_photos(root / "photos", len(ODD_NAMES))
    for file, name in zip(sorted((root / "photos").iterdir()), ODD_NAMES, strict=True):
        file.rename(root / "photos" / name)
    shutil.copy(root / "photos" / ODD_NAMES[0], root / "photos" / NOT_UTF8)
    with MCHIndex.open(root / "photos.mch", root / "model") as index:
        index.add(root / "photos", metadata={"a": "\x1b[31m:cat:[bold]"})
    return root


@pytest.fixture
def home(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = Path(shutil.copytree(made, tmp_path / "home"))
    monkeypatch.chdir(home)
    monkeypatch.delenv("MCH_INDEX", raising=False)
    monkeypatch.setenv("MCH_MODELS", str(tmp_path / "no models"))
    (home / "folder").mkdir()
    (home / "empty").touch()
    (home / "deep.jsonl").write_text("[" * 5000 + "\n")
    (home / "inf.jsonl").write_text('{"file": "a.jpg"}\n{"file": "b.jpg", "a": 1e999}\n')
    (home / "half.jsonl").write_text('{"file": "a.jpg", "a": "\\ud800"}\n')
    for name in ("pipe", "pipe.jpg", "pipe.csv", "pipe.jsonl", "pipe.png", "pipe.svg"):
        os.mkfifo(home / name)
    return home


def mch(
    *arguments: str, folder: Path, environment: dict[str, str] | None = None, **options: Any
) -> subprocess.CompletedProcess[bytes]:
    """Runs `mch` in a process of its own."""
    command = [sys.executable, "-m", "mchindex.cli", *arguments]
    variables = os.environ | {"PYTHONPATH": HOME, "OMP_NUM_THREADS": "1"} | (environment or {})
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    options |= {"cwd": folder, "env": variables, "timeout": 120}
    run_it: Any = subprocess.run
    done: subprocess.CompletedProcess[bytes] = run_it(command, **options)
    return done


# Output


def assert_safe(text: str) -> None:
    """Asserts that a terminal shows the text as it is."""
    assert not set(text) & set("\x1b\x07\x9b\u202e\u2066\x7f\r")
    assert not any(0xD800 <= ord(char) < 0xE000 for char in text)


SEARCH = ("search", f"photos/{ODD_NAMES[0]}", "-k", "50")


def test_names_are_printed_without_markup_and_control_characters(
    home: Path, capsys: Capture
) -> None:
    assert run(SEARCH) == 0
    out, _ = capsys.readouterr()
    assert_safe(out)
    for name in (":cat:.jpg", "[bold]x.jpg", "[link=x].jpg", "esc\\x1b[31m.jpg", "c1\\x9b1m.jpg",
                 "new\\x0aline.jpg", "bidi\\u202egpj.jpg", "back\\.jpg", "é.jpg"):  # fmt: skip
        assert name in out
    assert run([*SEARCH, SEARCH[1]]) == 0  # with titles
    assert_safe(capsys.readouterr().out)


@pytest.mark.parametrize("encoding", ["ascii", "ascii:strict", "latin-1:strict", "utf-8:strict"])
def test_output_never_fails_on_a_name(home: Path, encoding: str) -> None:
    for arguments in (("add", "photos"), ("add", "photos", "--json"), SEARCH, (*SEARCH, "--json")):
        done = mch(*arguments, folder=home, environment={"PYTHONIOENCODING": encoding})
        assert done.returncode == (1 if arguments[0] == "add" else 0), done.stderr
        out = done.stdout.decode("utf-8" if "--json" in arguments else encoding.split(":")[0])
        assert_safe(out)
        if "--json" in arguments:
            facts = json.loads(out)
            if arguments[0] == "add":
                (failure,) = facts["failures"]
                name = os.fsencode(failure["name"])
                assert os.path.basename(name) == b"caf\xe9.jpg"
            else:
                found = {os.path.basename(hit["path"]) for hit in facts["hits"]}
                assert found == set(ODD_NAMES)
                assert facts["hits"][0]["metadata"] == {"a": "\x1b[31m:cat:[bold]"}
        elif arguments[0] == "add":
            assert "caf\\udce9.jpg" in out


def test_a_c_locale_prints_every_name(home: Path) -> None:
    locale = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    done = mch(*SEARCH, folder=home, environment=locale)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"\\xe9.jpg" in done.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ("search", "--id", "\x1b[31m:cat:"),
        ("search", "\x1b[31m.jpg"),
        ("search", os.fsdecode(b"\xff\x9b.jpg")),
        ("remove", "\x1b]0;title\x07"),
        ("info", "--index", "\u202e[bold]"),
        ("export", "x", "--index", "\x1b[2J"),
        ("import", "\x1b[2J"),
        ("models", "\x1b[2J"),
        ("methods", "\x1b[2J"),
        ("add", "photos", "--metadata", "\x1b[2J"),
        ("add", "photos", "--metadata", "a=" + os.fsdecode(b"\xff")),
        ("\x1b[2J",),
        ("info", "--\x1b[2J"),
        ("search", SEARCH[1], "-k", "\x1b[2J"),
        ("search", SEARCH[1], "--filter", "\x1b[2J"),
    ],
)
def test_messages_have_no_control_characters(
    home: Path, capsys: Capture, arguments: tuple[str, ...]
) -> None:
    assert run(arguments) in (1, 2)
    out, error = capsys.readouterr()
    assert error.startswith("mch: ")
    assert_safe(out + error)


@given(st.text(st.characters(codec=None)))
def test_clean_text_can_be_printed_anywhere(text: str) -> None:
    clean = show.clean(text)
    clean.encode()
    assert show.clean(clean) == clean
    assert_safe(clean)
    assert clean.isprintable() or any(not char.isprintable() for char in text)


def print_json(capsys: Capture, value: Any) -> Any:
    show.print_json(value)

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(capsys.readouterr().out, parse_constant=refuse)


@settings(max_examples=100)
@given(text=st.text(st.characters(codec=None)))
def test_text_can_be_recovered_from_json(text: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        printed: list[str] = []
        patch.setattr("typer.echo", printed.append)
        show.print_json({text: text})
    assert json.loads(printed[0]) == {text: text}
    assert_safe(printed[0])
    assert "\n" not in printed[0]


def test_numbers_that_are_not_finite_are_printed_as_null(capsys: Capture) -> None:
    value = {"a": [float("inf"), 1.5, {"b": float("nan")}], "c": -float("inf"), "d": "é"}
    want = {"a": [None, 1.5, {"b": None}], "c": None, "d": "é"}
    assert print_json(capsys, value) == want
    deep: Any = float("nan")
    for _ in range(50_000):
        deep = [deep]
    print_json(capsys, {"deep": deep})
    while isinstance(deep, list):  # freed level by level
        deep = deep[0]


@pytest.mark.filterwarnings("ignore:the metadata of image 'three' cannot be read")
def test_bad_metadata_in_a_store_are_reported_and_not_printed(home: Path, capsys: Capture) -> None:
    """Earlier versions imported such metadata."""
    bad = {"one": '{"a": Infinity}', "two": '{"a": 1e999, "b": 1}', "three": "{"}
    with MCHIndex.open(home / "photos.mch") as index:
        entries = np.zeros(1, code_type(index.bits)).tobytes()
    with contextlib.closing(Store(home / "photos.mch")) as store, store.writer():
        store.insert([Row(id, entries, metadata=text) for id, text in bad.items()])
    assert run([*SEARCH, "--json"]) == 0
    out = capsys.readouterr().out
    hits = {hit["id"]: hit["metadata"] for hit in json.loads(out)["hits"]}
    assert len(hits) == len(ODD_NAMES) + 3
    assert "Infinity" not in out
    assert "NaN" not in out
    assert run([*SEARCH, "--json", "--filter", "a!=5"]) == 0
    assert len(json.loads(capsys.readouterr().out)["hits"]) >= len(ODD_NAMES)
    assert run(["export", "out.jsonl"]) == 1
    out, error = capsys.readouterr()
    assert f"{len(ODD_NAMES)} images written" in out
    assert all(f"image '{id}': its metadata are not valid JSON" in error for id in bad)
    assert "3 images could not be read" in error
    assert run(["import", "out.jsonl", "--index", "new.mch", "--model", "model"]) == 0


# Standard streams


COMMANDS = [
    ("--help",), ("info",), ("models", "--json"), SEARCH, ("export", "-"), ("add", "photos"),
    ("export", "out.jsonl", "--overwrite"),
]  # fmt: skip


@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda words: words[0])
def test_closed_and_full_streams(home: Path, arguments: tuple[str, ...]) -> None:
    def closing(*numbers: int) -> Callable[[], None]:
        def close() -> None:
            for number in numbers:
                os.close(number)

        return close

    done = mch(*arguments, folder=home, stdout=None, preexec_fn=closing(1))
    assert b"Traceback" not in done.stderr
    assert b"Exception ignored" not in done.stderr
    if arguments == ("export", "-"):
        assert (done.returncode, done.stderr) == (
            2,
            b"mch: stdout is closed: name a file to write to\n",
        )
    mch(*arguments, folder=home, stdin=None, stdout=None, stderr=None, preexec_fn=closing(0, 1, 2))
    done = mch(*arguments, folder=home, stderr=None, preexec_fn=closing(2))
    assert b"Traceback" not in done.stdout
    with open("/dev/full", "wb") as full:
        done = mch(*arguments, folder=home, stdout=full)
    assert b"Traceback" not in done.stderr
    assert b"Exception ignored" not in done.stderr
    assert b"No space left on device" in done.stderr
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "wb") as gone:
        done = mch(*arguments, folder=home, stdout=gone)
    assert b"Traceback" not in done.stderr
    assert b"Exception ignored" not in done.stderr
    assert b"Errno" not in done.stderr


def test_import_from_a_closed_stdin(home: Path) -> None:
    done = mch("import", "-", folder=home, stdin=None, preexec_fn=lambda: os.close(0))
    assert (done.returncode, done.stderr) == (2, b"mch: stdin is closed: name a file to read\n")


@pytest.mark.parametrize("how", ["/dev/stdin", "-", "<(cat out.jsonl)", "pipe"])
def test_import_from_a_pipe(home: Path, how: str) -> None:
    assert mch("export", "out.jsonl", folder=home).returncode == 0
    command = f"exec {sys.executable} -m mchindex.cli import {how} --index new --model model"
    with open(home / "out.jsonl", "rb") as stdin:
        done = subprocess.run(
            ["bash", "-c", command if how != "-" else f"cat | {command}"],
            stdin=stdin,
            cwd=home,
            env=os.environ | {"PYTHONPATH": HOME},
            capture_output=True,
            timeout=120,
        )
    if how == "pipe":  # nobody writes to it
        assert (done.returncode, done.stderr) == (2, b"mch: pipe: not a regular file\n")
    else:
        assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("terminal", ["dumb", "xterm", "", "unknown"])
def test_progress_and_errors_on_terminals(home: Path, terminal: str) -> None:
    main, other = pty.openpty()
    seen = bytearray()

    def read() -> None:
        with contextlib.suppress(OSError):
            while select.select([main], [], [], 60)[0] and (some := os.read(main, 4096)):
                seen.extend(some)

    reader = threading.Thread(target=read)
    reader.start()
    environment = {"TERM": terminal, "PYTHONIOENCODING": "ascii"}
    add = ("add", "photos", "--index", "new", "--model", "model")
    for arguments, code in ((add, 1), (("add", "nothing"), 2)):
        done = mch(*arguments, folder=home, environment=environment, stdout=other, stderr=other)
        assert done.returncode == code
    os.close(other)
    reader.join()
    os.close(main)
    assert b"Traceback" not in seen
    assert b"12 added" in seen.replace(b"\x1b[1m", b"").replace(b"\x1b[0m", b"")
    assert b"mch: nothing: No such file" in seen


# Bad invocations


INVOCATIONS = [
    *(f"{{search}} {options}" for options in (
        "-k 0", "-k x", "-k 1.5", "-k ''", "--offset -1", "--max-radius x", "--max-buckets 0",
        f"--max-radius {BIG}", f"--max-buckets {BIG}", "--out folder", "--out folder/x.xyz",
        "--out folder.png/../folder", f"--out {LONG}.png", "--out pipe.png", "--out empty/x.png",
        "--region 1,2", "--region nan,0,1,1", "--region 5,5,1,1", "--region 0,0,1e300,1e300",
        f"--region {LONG}", "--filter x", "--filter ''", "--filter a>true", f"--threads {BIG}",
        "--threads 0", "--device nope", "--index folder", "--index empty", "--index pipe",
        f"--index {LONG}", "--index ''", "--id 5",
    )),
    "search", "search nothing", "search folder", "search empty", "search ''", f"search {LONG}",
    "search --id nope", f"search --id {BIG}", f"search --id {LONG}", "search --id ''",
    "search --id photos/:cat:.jpg --region nope",
    "add", "add nothing", "add ''", f"add {LONG}", "add photos --index new --codes x",
    "add photos --metadata x", "add photos --metadata =5", "add photos --metadata-file nothing",
    "add photos --metadata-file nothing.csv", "add photos --metadata-file folder",
    "add photos --metadata-file pipe.csv", "add photos --metadata-file pipe.jsonl",
    "add photos --metadata-file deep.jsonl", "add photos --metadata-file inf.jsonl",
    "add photos --metadata-file half.jsonl", "add photos --batch 0", "add photos --wait -1",
    "add photos --index new --model nope", "add photos --model model --index empty",
    "add photos --model model --index /dev/null", f"add photos --model model --index {LONG}",
    "add --prune empty", f"add photos --threads {BIG}",
    "remove", "remove --filter x", "remove a --filter a=1", "remove --index nothing x",
    "info x", "info --filter x", "info --index nothing", "info --index ''", "verify --index folder",
    "verify x", "backup photos.mch", "backup empty", f"backup {LONG}", "backup folder/../model",
    "export", "export photos.mch", "export folder --overwrite", "export pipe --overwrite",
    "export pipe", "export /dev/null --overwrite", "export empty", "export nothing/x",
    f"export {LONG}", "export x --index empty", "export ''",
    "import", "import nothing", "import folder", "import empty", "import pipe", "import deep.jsonl",
    "import inf.jsonl", f"import {LONG}", "import photos/:cat:.jpg", "import ''",
    "import empty --index empty",
    "models nothing", "models empty", f"models {LONG}", "models pipe", "methods nope",
    "eval", "eval nothing --data folder", "eval model --data nope", "eval model --data scenes:0",
    "eval model --data scenes:x", "eval pipe --data scenes:20",
    "eval model --data scenes:20 --sigma nan", "eval model --data scenes:20 --xi 5",
    "eval model --data scenes:20 --plot pipe.svg", "eval model --data scenes:20 --plot folder",
    "eval model --data coco:nothing", f"eval model --data {LONG}", "eval model --data ''",
    "train", "train --data nope --out new", "train --data scenes:20 --out empty",
    "train --data scenes:20 --out new --bits 7", f"train --data scenes:20 --out new --bits {BIG}",
    "train --data scenes:20 --out new --sigma nan", "train --data scenes:20 --out new --xi nan",
    "train --data scenes:20 --out new --set x", "train --data scenes:20 --out new --set lr=x",
    "train --data scenes:20 --out new --layout x", "train --data scenes:20 --out new --layout ''",
    "train --data scenes:20 --out new --layout grid:0x0",
    f"train --data scenes:20 --out new --size {BIG}", f"demo --images {BIG}",
    f"train --data scenes:20 --out new --seed {BIG}", f"demo --seed {BIG}",
    "eval model --data scenes:20 --split deep.jsonl", "eval model --data scenes:20 --split pipe",
    f"add photos --batch {BIG}",
    f"train --data scenes:20 --out new --layout grid:{'9' * 5000}x1",
    "demo --images x", "demo --photos nothing", "demo --photos empty",
    "demo --images 5 --photos photos", "nope", "--nope", "''", LONG,
]  # fmt: skip


@pytest.mark.parametrize("line", INVOCATIONS, ids=lambda line: line[:60])
def test_a_bad_invocation_gets_a_message(home: Path, capsys: Capture, line: str) -> None:
    arguments = ["" if word == "''" else word for word in line.split()]
    if arguments[:1] == ["{search}"]:
        arguments[:1] = SEARCH[:2]
    assert run(arguments) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error.startswith("mch: ")
    assert error.count("\n") == 1
    assert not (home / "new").exists()


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("deep.jsonl", "deep.jsonl:1: it is nested more than 100 levels deep"),
        ("inf.jsonl", "inf.jsonl:2: 1e999 is too large a number"),
        ("half.jsonl", "half.jsonl:1: .*surrogates"),
    ],
)
def test_the_message_names_the_line_of_a_metadata_file(home: Path, file: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MetadataByPath([], Path(file))


def test_a_metadata_file_may_start_with_a_byte_order_mark(tmp_path: Path) -> None:
    for file, text in (("m.jsonl", '{"file": "a.jpg", "n": 1}\n'), ("m.csv", "file,n\na.jpg,1\n")):
        (tmp_path / file).write_text(text, "utf-8-sig")
        (own,) = MetadataByPath([], tmp_path / file).own.values()
        assert str(own["n"]) == "1"


def test_too_many_hits_are_not_drawn(
    home: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mchindex.cli.search.DRAWN", 5)
    assert run([*SEARCH, "--out", "x.png"]) == 2
    assert "a drawing can show 5 hits" in capsys.readouterr().err
    assert run([*SEARCH, "-k", "5", "--columns", BIG, "--out", "x.png"]) == 0
    assert (home / "x.png").stat().st_size > 1000


def test_a_drawing_that_its_format_cannot_hold(
    home: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from PIL import Image

    monkeypatch.setattr(
        "mchindex.index.grid.draw_grid", lambda *_, **__: Image.new("RGB", (70_000, 2))
    )
    assert run([*SEARCH, "--out", "x.jpg"]) == 2
    assert "--out x.jpg: the drawing, 70000 x 2 pixels, cannot be saved" in capsys.readouterr().err
    assert not (home / "x.jpg").exists()


def test_more_hits_than_images(home: Path, capsys: Capture) -> None:
    assert run([*SEARCH, "-k", BIG, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["hits"]) == len(ODD_NAMES)
    assert run([*SEARCH, "--offset", BIG]) == 1


@pytest.mark.parametrize("arguments", [("models",), ("info",), SEARCH, ("verify",)])
def test_a_user_without_a_home(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, arguments: tuple[str, ...]
) -> None:
    def unknown(_: int) -> None:
        raise KeyError("no such user")

    for name in ("HOME", "MCH_MODELS", "MCH_CACHE", "XDG_DATA_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", unknown)
    assert run(arguments) == 0
    assert capsys.readouterr().err == ""
