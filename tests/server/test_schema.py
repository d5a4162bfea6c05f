"""Schemathesis: requests made from the OpenAPI description, with a key and without."""

import subprocess
import sys
from pathlib import Path

import pytest

from helpers.service import KEY, Service, running


def attack(service: Service, *options: str) -> None:
    """Fails if an answer is an error of the service, or is not as described."""
    done = subprocess.run(
        [
            sys.executable, "-m", "schemathesis.cli", "run", f"{service.url}openapi.json",
            "--no-color", "--generation-deterministic",
            "--request-timeout", "30",
            "--warnings", "off", "--exclude-checks", "positive_data_acceptance", *options,
        ],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert "Tested: 1" in done.stdout
    assert service.client.get("/livez").status_code == 200


LONG = pytest.mark.slow


@pytest.mark.parametrize(
    ("has_key", "options"),
    [
        (True, ["--max-examples=2"]),
        (False, ["--max-examples=2", "--phases=fuzzing"]),
        pytest.param(True, ["--max-time=60"], marks=LONG),
        pytest.param(False, ["--max-time=60"], marks=LONG),
    ],
)
def test_requests_that_follow_the_description(
    own: Path, tmp_path: Path, has_key: bool, options: list[str]
) -> None:
    """A caller without the key gets nothing but 401, so a few requests will do, mostly."""
    with running(own, key=KEY, uploads=tmp_path / "kept") as service:
        before = service.ids()
        attack(service, *options, *(["-H", f"api-key: {KEY}"] if has_key else []))
        assert [id for id in service.ids() if id not in before] == [] or has_key
        if not has_key:
            assert service.ids() == before
            assert not (tmp_path / "kept").exists()
