"""A Ray of several nodes on this machine."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import pytest

# Token authentication is on. Ray reads this once, when it is first imported.
os.environ["RAY_AUTH_MODE"] = "token"
os.environ["RAY_AUTH_TOKEN"] = os.urandom(16).hex()


@pytest.fixture(scope="module", autouse=True)
def away(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Ray's processes import what is in the folder that a driver was started in: not the sources
    of mchindex, but what was built and installed."""
    with contextlib.chdir(tmp_path_factory.mktemp("away")):
        yield


@pytest.fixture(scope="session")
def nodes() -> Iterator[Any]:
    """Two nodes, to which tests may add others."""
    pytest.importorskip("ray")
    from ray_nodes import Nodes

    with Nodes(2, 2) as started:
        yield started
