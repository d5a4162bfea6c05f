"""The documentation site, if `make docs` has built it.

axe finds nothing serious, in light and in dark, and no page asks another host for anything.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser

SITE = Path(__file__).parents[2] / "site"
PAGES = [
    "answers.html",
    "index.html",
    "mch.html",
    "questions.html",
    "reference/commands.html",
    "reference/python.html",
    "tutorial.html",
]

pytestmark = pytest.mark.skipif(not SITE.is_dir(), reason="make docs has not built the site")


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_nothing_serious(browser: Browser, axe: str, name: str, scheme: str) -> None:
    context = browser.new_context(color_scheme="dark" if scheme == "dark" else "light")
    page = context.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto((SITE / name).as_uri())
    page.evaluate(axe)
    found = page.evaluate("async () => (await axe.run()).violations")
    context.close()
    serious = [
        (one["id"], one["nodes"][0]["html"][:200], len(one["nodes"]))
        for one in found
        if one["impact"] in ("serious", "critical")
    ]
    assert serious == []
    assert [url for url in asked if url.startswith("http")] == []
