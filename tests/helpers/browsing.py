"""Drawn pictures, an index of them, and tabs of Chromium that look at its page."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import ConsoleMessage, Page, Request, Response

from browser import DESKTOP, PHONE, Served
from mchindex import MCHIndex
from mchindex.datasets.scenes import SceneSource

IMAGES = 60
COPIES = {3: 1, 10: 2, 17: 1}  # how many copies there are of which picture
SIDE = 160
SHAPES = [(160, 160), (160, 120), (120, 160), (160, 106)]
HOSTILE = "<img src=x onerror=alert(1)>.jpg"  # a name of a file that must stay text


def scene(i: int) -> Image.Image:
    width, height = SHAPES[i % len(SHAPES)]
    left, top = (SIDE - width) // 2, (SIDE - height) // 2
    drawn = SceneSource(1000, seed=5, size=SIDE).image(i)
    return drawn.crop((left, top, left + width, top + height))


def jpeg(image: Image.Image, quality: int = 90) -> bytes:
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=quality)
    return stream.getvalue()


def draw_pictures(folder: Path, count: int) -> None:
    folder.mkdir()
    for i in range(count):
        name = HOSTILE if i == 0 else f"scene-{i:02d}.jpg"
        (folder / name).write_bytes(jpeg(scene(i)))
    for i, copies in COPIES.items():
        for copy in range(copies if i < count else 0):
            small = scene(i).resize((SHAPES[i % 4][0] - 20 * copy, SHAPES[i % 4][1] - 20 * copy))
            (folder / f"scene-{i:02d}-copy-{copy}.jpg").write_bytes(jpeg(small, 80 - 20 * copy))


def metadata(path: Any) -> dict[str, Any]:
    number = int((re.findall(r"\d+", Path(str(path)).name) or ["0"])[0])
    return {
        "album": "summer" if number % 2 else "winter",
        "year": 2000 + number % 20,
        "flash": number % 3 == 0,
    }


def fill(folder: Path, index: Path, count: int) -> MCHIndex:
    """An index of drawn pictures, with metadata and duplicates."""
    draw_pictures(folder, count)
    filled = MCHIndex.open(index)
    filled.add(folder, metadata=metadata, progress=False)
    return filled


@dataclass
class Tab:
    """A page of the browser, and everything that it complained about."""

    page: Page
    url: str
    phone: bool
    complaints: list[str] = field(default_factory=list)
    answers: list[Response] = field(default_factory=list)
    forgiven: list[str] = field(default_factory=list)  # patterns of complaints that a test causes

    def __post_init__(self) -> None:
        self.page.set_default_timeout(10_000)
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", self._request)
        self.page.on("response", lambda answer: self.answers.append(answer))

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.text} ({message.location.get('url')})")

    def _request(self, request: Request) -> None:
        if not request.url.startswith((self.url, "blob:")):
            self.complaints.append(f"a request to another host: {request.url}")

    def open(self, address: str = "") -> Page:
        """Goes to a view and waits until it is drawn."""
        self.page.goto(self.url + address)
        self.settle()
        return self.page

    def settle(self) -> None:
        """Waits until a view is drawn."""
        self.page.wait_for_selector(".cell.there, .hit, .copy, .stage img, .state, .zone")

    def names(self) -> list[str]:
        """The file names of the hits, best first."""
        self.page.wait_for_selector(".hit .name")
        return self.page.locator("main > .hits .name").all_inner_texts()

    def search(self, picture: bytes, name: str = "query.jpg") -> list[str]:
        """Searches with a picture that is not in the index."""
        file: Any = {"name": name, "mimeType": "image/jpeg", "buffer": picture}
        self.page.set_input_files("#file", file)
        self.page.wait_for_url(re.compile("#/search"))
        return self.names()

    def drop(self, paths: list[Path]) -> None:
        """Drops files or folders on the page, as a file manager does."""
        client = self.page.context.new_cdp_session(self.page)
        data = {"items": [], "files": [str(path) for path in paths], "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            client.send("Input.dispatchDragEvent", {"type": kind, "x": 200, "y": 300, "data": data})

    def check(self) -> None:
        """Nothing went wrong that the test did not cause."""
        patterns = "|".join(self.forgiven)
        left = [text for text in self.complaints if not patterns or not re.search(patterns, text)]
        assert not left, (left, [answer.text() for answer in self.answers if answer.status >= 400])


LOOKS = {
    f"{size}-{colours}": {**kind, "color_scheme": colours}
    for size, kind in (("desktop", DESKTOP), ("phone", PHONE))
    for colours in ("light", "dark")
}
NewTab = Callable[..., Tab]
Serve = Callable[..., Served]
