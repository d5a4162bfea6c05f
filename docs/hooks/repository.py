"""Brings pages from outside docs/ into the site, and mends links between the two.

On GitHub, a link leads from one file of the repository to another. On the site, the README is the
home page, some files outside docs/ are pages, and a link to any other file, such as a source file,
becomes plain text.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
# Where each file of the repository is on the site.
BROUGHT = {
    "README.md": "index.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "bench/README.md": "bench/README.md",
}
PICTURES = ".svg", ".png", ".webp"
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path, uri in BROUGHT.items():
        files.append(File.generated(config, uri, content=(ROOT / path).read_text("utf-8")))
    for picture in sorted((ROOT / "bench" / "results").iterdir()):
        if picture.suffix in PICTURES:
            uri = f"bench/results/{picture.name}"
            files.append(File.generated(config, uri, content=picture.read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links of the repository become links of the site, outside blocks of code."""
    own = page.file.src_uri
    place = next((path for path, uri in BROUGHT.items() if uri == own), f"docs/{own}")

    def mended(link: re.Match[str]) -> str:
        mark, text, target = link.groups()
        path, _, anchor = target.partition("#")
        if "://" in target or target.startswith("mailto:") or not path:
            return link[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(place), path))
        uri = BROUGHT.get(path, path.removeprefix("docs/"))
        if files.get_file_from_path(uri) is None:
            if not (ROOT / path).exists():
                return link[0]  # mkdocs reports it
            return text
        there = posixpath.relpath(uri, posixpath.dirname(own) or ".")
        return f"{mark}[{text}]({there}{'#' + anchor if anchor else ''})"

    parts, end = [], 0
    for block in CODE.finditer(markdown):
        parts += [LINK.sub(mended, markdown[end : block.start()]), block[0]]
        end = block.end()
    return "".join([*parts, LINK.sub(mended, markdown[end:])])
