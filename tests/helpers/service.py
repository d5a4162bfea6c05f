"""A service that runs in a thread, on a real socket, and pictures for it."""

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from mchindex import MCHIndex
from mchindex.datasets.scenes import SceneSource
from mchindex.server.run import make_server
from mchindex.server.settings import Limits, Settings

KEY, READ_KEY = "k" * 20, "r" * 20
PICTURES = 12


def draw(folder: Path, first: int, count: int) -> list[Path]:
    """Drawn scenes as JPEG files."""
    source = SceneSource(first + count, 0, 160)
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for number in range(first, first + count):
        files.append(folder / f"scene {number}.jpg")
        source.image(number).save(files[-1], quality=90)
    return files


def make_library(folder: Path) -> Path:
    """A folder of pictures, two of them copies, and their index."""
    files = draw(folder / "pictures", 0, PICTURES)
    copy = folder / "pictures" / "copy of 3.jpg"
    shutil.copy(files[3], copy)
    with MCHIndex.open(folder / "photos.mch") as index:
        index.add(
            [*files, copy],
            metadata=lambda path: {"year": 2000 + len(Path(path).name), "album": "drawn"},
            progress=False,
        )
    return folder / "photos.mch"


@dataclass
class Service:
    """A service that is running."""

    url: str
    index: MCHIndex
    client: httpx.Client

    @property
    def port(self) -> int:
        port = httpx.URL(self.url).port
        assert port is not None
        return port

    def ids(self) -> list[str]:
        return [str(id) for id in self.index]

    def search(self, **asked: Any) -> Any:
        response = self.client.post("/v1/search", json=asked)
        assert response.status_code == 200, response.text
        return response.json()


@contextmanager
def running(
    folder: Path,
    limits: Limits | None = None,
    opened: Callable[..., MCHIndex] = MCHIndex.open,
    **settings: Any,
) -> Iterator[Service]:
    chosen = Settings(port=0, limits=limits or Limits(), **settings)
    told = threading.Event()
    urls: list[str] = []

    def started(url: str) -> None:
        urls.append(url)
        told.set()

    with opened(folder, create=False, wait=5.0) as index:
        server, listener = make_server(index, chosen, started)
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            assert told.wait(30)
            headers = {} if chosen.key is None else {"api-key": chosen.key}
            with httpx.Client(base_url=urls[0], headers=headers, timeout=60) as client:
                while "the model is being loaded" in client.get("/readyz").text:
                    time.sleep(0.01)
                yield Service(urls[0], index, client)
        finally:
            server.should_exit = True
            thread.join(60)
            listener.close()
        assert not thread.is_alive()


def problem(response: httpx.Response, status: int) -> str:
    """The detail of a problem, which must be one."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    body = response.json()
    assert set(body) == {"type", "title", "status", "detail"}
    assert body["status"] == status
    assert "Traceback" not in response.text
    return str(body["detail"])
