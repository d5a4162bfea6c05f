"""A library that all tests of the service share, and one of its own for tests that change it."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.service import Service, make_library, running


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with pictures and their index."""
    return make_library(tmp_path_factory.mktemp("library"))


@pytest.fixture(scope="session")
def service(library: Path) -> Iterator[Service]:
    """A service without a key, for tests that change nothing."""
    with running(library) as found:
        yield found


@pytest.fixture
def own(library: Path, tmp_path: Path) -> Path:
    """An index that a test may change; its pictures are those of the library."""
    return Path(shutil.copytree(library, tmp_path / "photos.mch"))
