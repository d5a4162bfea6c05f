"""A Ray of several nodes on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def nodes() -> Iterator[Any]:
    """Two nodes, to which tests may add others. Token authentication is on."""
    pytest.importorskip("ray")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", os.urandom(16).hex())
        import ray
        from ray.cluster_utils import Cluster

        cluster: Any = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False}
        )
        cluster.add_node(num_cpus=2)
        try:
            yield cluster
        finally:
            ray.shutdown()
            cluster.shutdown()
