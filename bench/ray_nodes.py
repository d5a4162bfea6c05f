"""A Ray of several nodes on this machine, in a folder of its own.

Ray gives the processes of a node fixed times to start, which they exceed on a busy machine: 15
seconds for the agents to tell their ports, after which the node ends. So the ports are chosen here,
the times that can be set are longer, and a node that did not start is started again.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TRIES = 4
PATIENT = {
    "RAY_gcs_server_port_wait_time_s": "300",
    "RAY_gcs_server_request_timeout_seconds": "300",
    "RAY_agent_register_timeout_ms": "300000",
    "RAY_health_check_timeout_ms": "120000",
    "RAY_worker_register_timeout_seconds": "300",
}
AGENTS = (
    "metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port",
    "runtime_env_agent_port",
)  # fmt: skip


class Nodes:
    """Nodes, of which the first is the head. Call `close`, or use it in a `with` statement."""

    def __init__(self, *cores: int) -> None:
        """Starts one node for each number of cores."""
        self.folder = tempfile.mkdtemp(prefix="mch-")  # short: the paths of sockets are limited
        self._before = {name: os.environ.get(name) for name in (*PATIENT, "RAY_TMPDIR")}
        os.environ.update(PATIENT, RAY_TMPDIR=self.folder)
        try:
            from ray.cluster_utils import Cluster

            head, *others = cores
            self._cluster: Any = _patiently(
                lambda: Cluster(
                    initialize_head=True,
                    head_node_args={"num_cpus": head, "include_dashboard": False, **_ports()},
                )
            )
            for number in others:
                self.add(number)
        except BaseException:
            self.close()
            raise

    @property
    def address(self) -> str:
        found: str = self._cluster.address
        return found

    @property
    def workers(self) -> list[Any]:
        """All nodes but the head."""
        return list(self._cluster.worker_nodes)

    def add(self, cores: int) -> Any:
        """Starts another node, which `remove` takes."""
        return _patiently(lambda: self._cluster.add_node(num_cpus=cores, **_ports()))

    def remove(self, node: Any) -> None:
        """Kills the processes of a node."""
        self._cluster.remove_node(node, allow_graceful=False)

    def close(self) -> None:
        """Ends all nodes, whatever has become of them."""
        import ray

        with contextlib.suppress(Exception):
            ray.shutdown()
        with contextlib.suppress(Exception):
            self._cluster.shutdown()
        end_processes(self.folder)
        shutil.rmtree(self.folder, ignore_errors=True)
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    def __enter__(self) -> Nodes:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def processes(folder: str) -> list[int]:
    """The processes of the Ray that has its files in a folder."""
    wanted = f"RAY_TMPDIR={folder}".encode()
    return [pid for pid in map(_number, Path("/proc").glob("[0-9]*")) if _has(pid, wanted)]


def end_processes(folder: str) -> None:
    """Ends the processes of the Ray that has its files in a folder. The command `ray stop` would
    end those of all others, too."""
    while left := processes(folder):
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)


def _number(process: Path) -> int:
    return int(process.name)


def _has(pid: int, variable: bytes) -> bool:
    """Whether another process runs with an environment variable; one that has ended has none."""
    try:
        there = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return pid != os.getpid() and variable in there


def _patiently(start: Callable[[], Any]) -> Any:
    for tries_left in reversed(range(TRIES)):
        try:
            return start()
        except Exception:  # Ray's own are of this type
            if not tries_left:
                raise
    raise AssertionError


def choose_ports(parameters: Any, head: bool) -> None:
    """The same for the command `ray start`, which calls what RAY_START_HOOK names."""
    from ray._private import ray_constants

    ports = _ports()
    parameters.update(**ports)
    if head:
        parameters.ray_client_server_port = None
        ray_constants.DEFAULT_PORT = 0  # any that is free


def _ports() -> dict[str, int]:
    """Ports for the agents of a node, which neither the system nor Ray hands out."""
    found: dict[str, int] = {}
    while len(found) < len(AGENTS):
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as taken, contextlib.suppress(OSError):
            taken.bind(("", port))
            if port not in found.values():
                found[AGENTS[len(found)]] = port
    return found
