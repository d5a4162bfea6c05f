"""Checks the built site: links and anchors lead somewhere, and nothing is loaded from elsewhere."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError

LOADED = {"link", "script", "img", "iframe", "source", "use", "video", "audio"}


class _Page(HTMLParser):
    """The ids of a page, where its links lead, and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.ids.add(value)
            elif name in ("href", "src", "srcset") and value:
                (self.loads if tag in LOADED else self.links).append(value)


def on_post_build(config: MkDocsConfig, **_: Any) -> None:
    problems = find_problems(Path(config.site_dir))
    if problems:
        raise PluginError("\n".join(problems))


def find_problems(site: Path) -> list[str]:
    pages = {path.resolve(): _Page(path.read_text("utf-8")) for path in site.rglob("*.html")}
    problems = []
    for path, page in pages.items():
        if path.name == "404.html":  # its links assume the root of a host
            continue
        name = path.relative_to(site.resolve())
        problems += [f"{name} loads {one}" for one in page.loads if _is_elsewhere(one)]
        for link in {*page.links, *page.loads}:
            if not _is_elsewhere(link) and not _leads(link, path, pages):
                problems.append(f"{name}: {link} leads nowhere")
    for sheet in site.rglob("*.css"):
        found = re.findall(r"(?:url\(|@import )[\"']?((?:https?:)?//[^\"')]+)", sheet.read_text())
        problems += [f"{sheet.relative_to(site)} loads {one}" for one in found]
    return problems


def _is_elsewhere(link: str) -> bool:
    return bool(urlsplit(link).netloc)


def _leads(link: str, path: Path, pages: dict[Path, _Page]) -> bool:
    parts = urlsplit(link)
    if parts.scheme:  # mailto:, data:
        return True
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if target.is_dir():
        target /= "index.html"
    if not target.exists():
        return False
    anchor = unquote(parts.fragment)
    return not anchor or target not in pages or anchor in pages[target].ids
