"""Runs the service with uvicorn."""

from __future__ import annotations

import errno
import gc
import socket
import sys
from collections.abc import Callable

import uvicorn

from mchindex.index.facade import MCHIndex
from mchindex.server.app import create_app
from mchindex.server.protocol import BoundedProtocol
from mchindex.server.settings import Settings

STOPPING = 60  # seconds that what has begun may take after the service was told to stop


def serve(
    index: MCHIndex, settings: Settings, started: Callable[[str], None] = lambda url: None
) -> None:
    """Serves an index until the process is told to stop (SIGINT, SIGTERM), and finishes what has
    begun. `started` gets the address of the page once it can be opened.

    Raises OSError if the address cannot be used.
    """
    server, listener = make_server(index, settings, started)
    # What is imported now stays until the end, so that garbage collection need not look at it.
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20)
    # Threads that compute need the lock of Python again and again. Five milliseconds, the default,
    # would leave a core idle while they wait.
    sys.setswitchinterval(0.0005)
    with listener:
        server.run([listener])


def make_server(
    index: MCHIndex, settings: Settings, started: Callable[[str], None]
) -> tuple[uvicorn.Server, socket.socket]:
    """A server that is not running yet, and the socket that it is to listen on."""
    listener = _listener(settings.host, settings.port)
    app = create_app(index, settings)
    config = uvicorn.Config(
        app, http=BoundedProtocol, loop="uvloop", ws="none", log_level="warning", access_log=False,
        server_header=False, proxy_headers=False, timeout_keep_alive=30,
        timeout_graceful_shutdown=STOPPING,
    )  # fmt: skip
    name = f"[{settings.host}]" if ":" in settings.host else settings.host
    return _Server(config, f"http://{name}:{listener.getsockname()[1]}/", started), listener


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, url: str, started: Callable[[str], None]) -> None:
        super().__init__(config)
        self._url, self._tell = url, started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if not self.should_exit:
            self._tell(self._url)


def _listener(host: str, port: int) -> socket.socket:
    """A socket that listens, so that an address that is in use is known at once."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(2048)
        listener.set_inheritable(False)
    except OSError as error:
        listener.close()
        reason = error.strerror
        if error.errno == errno.EADDRINUSE:
            reason = "another program uses this port: choose another one, such as --port 8001"
        raise OSError(error.errno, reason, f"{host}:{port}") from None
    return listener
