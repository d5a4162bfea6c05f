"""A service in a thread, and Chromium to look at its page."""

from __future__ import annotations

import shutil
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mchindex import MCHIndex
from mchindex.server.app import create_app
from mchindex.server.settings import Settings

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# Chromium must not look for updates, and root cannot use its sandbox.
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
DESKTOP: dict[str, Any] = {"viewport": {"width": 1280, "height": 800}}
PHONE: dict[str, Any] = {
    "viewport": {"width": 390, "height": 844},
    "has_touch": True,
    "is_mobile": True,
}


def find_chromium() -> str | None:
    """The path of Debian's Chromium; None if it is not installed."""
    return shutil.which("chromium")


@contextmanager
def chromium(arguments: Sequence[str] = ()) -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    path = find_chromium()
    if path is None:
        raise SystemExit("chromium is not installed: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path, args=[*ARGUMENTS, *arguments], chromium_sandbox=False
        )
        try:
            yield browser
        finally:
            browser.close()


class Served:
    """An index that is served on a free port of this machine. It can be stopped and started."""

    def __init__(self, index: MCHIndex, **settings: Any) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port: int = free.getsockname()[1]
        self._index, self._settings = index, Settings(port=self._port, **settings)
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/"

    def start(self) -> None:
        import uvicorn

        config = uvicorn.Config(
            create_app(self._index, self._settings), port=self._port, log_level="error", ws="none"
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run)
        self._thread.start()
        while not self._server.started:
            if not self._thread.is_alive():
                raise RuntimeError("the service did not start")
            time.sleep(0.01)

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join()

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()
