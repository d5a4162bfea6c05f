"""`mch serve`: what it refuses to start with, and that it starts."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import mchindex
from helpers.service import draw
from mchindex import MCHIndex
from mchindex.cli import run
from mchindex.cli.serve import announce

KEY = "0123456789abcdef"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("MCH_SERVE_KEY", "MCH_SERVE_READ_KEY"):
        monkeypatch.delenv(name, raising=False)
    MCHIndex.open(tmp_path / "codes.mch", bits=32).close()
    return tmp_path / "codes.mch"


def refusal(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert run(["serve", *map(str, arguments)]) == 2
    return capsys.readouterr().err


def test_what_is_not_safe_is_refused(
    index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "a key is needed" in refusal(capsys, index, "--host", "0.0.0.0")
    assert "needs a key" in refusal(capsys, index, "--allow-delete")
    (tmp_path / "key").write_text("short")
    assert "at least 16 characters" in refusal(capsys, index, "--key-file", tmp_path / "key")
    (tmp_path / "key").write_bytes(b"\xff" * 20)
    assert "keys are ASCII" in refusal(capsys, index, "--key-file", tmp_path / "key")
    assert "No such file" in refusal(capsys, index, "--key-file", tmp_path / "none")
    assert "there is no index" in refusal(capsys, tmp_path / "none")


def test_a_port_that_is_taken_is_named(index: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = refusal(capsys, index, "--port", port)
    assert f"127.0.0.1:{port}: another program uses this port" in said
    assert "--port 8001" in said


def test_an_address_that_means_all_is_shown_as_one_to_open(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    announce("http://0.0.0.0:8000/", 1, True)
    assert "1 image at http://localhost:8000/" in capsys.readouterr().out
    assert opened == ["http://localhost:8000/"]


def test_a_missing_extra_is_named(index: Path) -> None:
    script = (
        "import sys; import importlib.util as u; found = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'fastapi' else found(name, *a)\n"
        f"from mchindex.cli import run; sys.exit(run(['serve', {str(index)!r}]))"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", script], capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(Path(mchindex.__file__).parents[1])},
    )  # fmt: skip
    assert done.returncode == 2
    assert "pip install 'mchindex[serve]'" in done.stderr


def test_the_demo_ends_in_a_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[tuple[Path, int]] = []
    monkeypatch.setattr("mchindex.cli.demo.serve_index", lambda *given: served.append(given))
    draw(tmp_path / "pictures", 0, 12)
    arguments = ["demo", "--photos", str(tmp_path / "pictures"), "--out", str(tmp_path / "out")]
    assert run([*arguments, "--serve", "--port", "8123", "--quiet"]) == 0
    assert served == [(tmp_path / "out" / "photos.mch", 8123)]


def test_a_demo_is_served_on_this_machine(
    tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mchindex.cli.serve import serve_index
    from mchindex.index import MCHIndex
    from mchindex.server import run as running
    from mchindex.server.settings import Settings

    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)

    def serve(index: MCHIndex, settings: Settings, started: Callable[[str], None]) -> None:
        assert len(index) == 0
        started(f"http://{settings.host}:{settings.port}/")

    monkeypatch.setattr(running, "serve", serve)
    serve_index(index, 8123)
    assert opened == ["http://127.0.0.1:8123/"]
