"""Takes the pictures of the page in docs/: drawn landscapes, an index of them, and Chromium.

python bench/screenshots.py
"""

from __future__ import annotations

import io
import tempfile
from pathlib import Path
from typing import Any, Literal

from PIL import Image
from playwright.sync_api import Browser, Page

from browser import DESKTOP, Served, chromium
from common import progress, script
from landscapes import landscape
from mchindex import MCHIndex

DOCS = Path(__file__).parents[1] / "docs"
IMAGES = 240
SHAPES = [(640, 480), (640, 427), (480, 600), (640, 480), (560, 560)]
CUT = 11  # the picture of which a part is searched with
COPIED = (11,)
CHOSEN = ((0.49, 0.25), (0.89, 0.85))  # corners of the part that is chosen in it


def draw(folder: Path) -> None:
    """Pictures of several shapes, and some of them again, smaller or in other quality."""
    for i in range(IMAGES):
        width, height = SHAPES[i % len(SHAPES)]
        image = landscape(i, width, height)
        image.save(folder / f"landscape-{i:03d}.jpg", quality=92)
        if i in COPIED:
            small = image.resize((width // 2, height // 2))
            small.save(folder / f"landscape-{i:03d}-small.jpg", quality=80)
            image.save(folder / f"landscape-{i:03d}-sent.jpg", quality=35)


def album(path: Any) -> dict[str, Any]:
    number = int(Path(str(path)).stem.split("-")[1])
    return {"album": "summer" if number % 3 else "winter", "year": 2016 + number % 8}


def tab(browser: Browser, colours: Literal["light", "dark"]) -> Page:
    return browser.new_context(**DESKTOP, color_scheme=colours).new_page()


def save(page: Page, name: str) -> None:
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(300)  # pictures fade in
    path = DOCS / name
    Image.open(io.BytesIO(page.screenshot())).convert("RGB").save(path, quality=72, method=6)
    progress(f"wrote {path}: {path.stat().st_size:,} bytes")


def main() -> None:
    script(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "drawn")
        folder.mkdir()
        draw(folder)
        with MCHIndex.open(Path(name, "drawn.mch")) as index:
            files = sorted(folder.iterdir())
            index.add(files, [f"drawn/{file.name}" for file in files], metadata=album)
            with Served(index) as served, chromium() as browser:
                page = tab(browser, "light")
                with Image.open(folder / f"landscape-{CUT:03d}.jpg") as image:
                    width, height = image.size
                    part = image.crop((width // 8, height // 8, width, height))
                    stream = io.BytesIO()
                    part.save(stream, "JPEG", quality=90)
                file: Any = {"name": "a.jpg", "mimeType": "image/jpeg", "buffer": stream.getvalue()}
                for _ in range(2):  # the first search loads the network
                    page.goto(f"{served.url}#/")
                    page.wait_for_selector(".there")
                    page.set_input_files("#file", file)
                    page.wait_for_selector(".hit")
                page.get_by_text("same picture").first.wait_for()
                save(page, "page-search.webp")
                page = tab(browser, "dark")
                page.goto(f"{served.url}#/image?id=drawn/landscape-{CUT:03d}.jpg")
                page.wait_for_selector(".near .hit")
                frame = page.locator(".stage .frame").bounding_box()
                assert frame is not None
                for (across, down), act in zip(
                    CHOSEN, (page.mouse.down, page.mouse.up), strict=True
                ):
                    x = frame["x"] + across * frame["width"]
                    y = frame["y"] + down * frame["height"]
                    page.mouse.move(x, y, steps=4)
                    act()
                save(page, "page-image.webp")


if __name__ == "__main__":
    main()
