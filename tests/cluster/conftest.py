"""A Ray of several nodes on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

# Ray warns about what it will do differently one day; a worker is not this process.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="session")
def nodes() -> Iterator[Any]:
    """Two nodes, which tests may add to."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        here = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        patch.setenv("PYTHONPATH", os.pathsep.join(p for p in (here, *sys.path) if p))
        cluster = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False}
        )
        cluster.add_node(num_cpus=2)
        try:
            yield cluster
        finally:
            import ray

            ray.shutdown()
            cluster.shutdown()
