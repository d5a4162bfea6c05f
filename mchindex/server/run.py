"""Runs the service with uvicorn."""

from __future__ import annotations

from mchindex.index.facade import MCHIndex
from mchindex.server.app import create_app
from mchindex.server.settings import Settings


def serve(index: MCHIndex, settings: Settings) -> None:
    """Serves an index until the process is told to stop (SIGINT, SIGTERM)."""
    import uvicorn

    app = create_app(index, settings)
    config = uvicorn.Config(
        app, host=settings.host, port=settings.port, log_level="warning", access_log=False,
        server_header=False, date_header=True, ws="none", http="httptools", loop="uvloop",
        timeout_keep_alive=30, timeout_graceful_shutdown=30, proxy_headers=False,
    )  # fmt: skip
    uvicorn.Server(config).run()
