"""Reads and checks HTML pages."""

import base64
import io
import re
from html.parser import HTMLParser

from PIL import Image

VOID = frozenset({"br", "img", "meta"})
SIDE = 200  # pixels of a picture on a page, at most


class Reader(HTMLParser):
    """Reads a page and fails if elements are not closed in the order in which they were opened."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.seen if name == tag]

    @property
    def words(self) -> str:
        return " ".join("".join(self.text).split())


def check_alone(page: str) -> Reader:
    """Checks that a page is well formed, refers to nothing outside itself and runs no script."""
    read = Reader(page)
    assert page.startswith("<!doctype html>")
    assert not {"script", "link", "iframe", "object", "base"} & {name for name, _ in read.seen}
    for name, attributes in read.seen:
        for key, value in attributes.items():
            assert not key.startswith("on"), (name, key)
            if key in ("src", "href", "xlink:href", "srcset"):
                assert value is not None
                assert value.startswith(("data:image/jpeg;base64,", "#"))
    assert not re.search(r"https?:|file:|url\(|@import", page)
    for image in read.all("img"):
        assert image["alt"]
        data = base64.b64decode(str(image["src"]).partition(",")[2], validate=True)
        with Image.open(io.BytesIO(data)) as one:
            assert one.format == "JPEG"
            assert max(one.size) <= SIDE
            assert (str(one.width), str(one.height)) == (image["width"], image["height"])
    return read
