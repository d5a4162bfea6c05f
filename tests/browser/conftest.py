"""Indexes of drawn pictures that are served, and tabs of Chromium that look at them."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from browser import Served, chromium, find_chromium
from helpers.browsing import IMAGES, LOOKS, NewTab, Tab, fill
from playwright.sync_api import Browser

from mchindex import MCHIndex

# Each width and each scheme is always tested; the other two pairs take longer than they tell.
ALWAYS = ("desktop-light", "phone-dark")


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MCHIndex]:
    """An index that tests only read."""
    root = tmp_path_factory.mktemp("library")
    with fill(root / "pictures", root / "library.mch", IMAGES) as index:
        yield index


@pytest.fixture(scope="session")
def served(library: MCHIndex) -> Iterator[Served]:
    with Served(library) as running:
        yield running


@pytest.fixture
def own(tmp_path: Path) -> Iterator[MCHIndex]:
    """An index that a test may change."""
    with fill(tmp_path / "pictures", tmp_path / "own.mch", 12) as index:
        yield index


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if find_chromium() is None:
        pytest.skip("chromium is not installed; make test installs it")
    with chromium() as running:
        yield running


@pytest.fixture(params=[
    pytest.param(look, marks=() if look in ALWAYS else pytest.mark.slow) for look in LOOKS
])  # fmt: skip
def new_tab(request: pytest.FixtureRequest, browser: Browser) -> Iterator[NewTab]:
    """Makes tabs that look at a service, in one of the looks."""
    tabs: list[Tab] = []

    def make(running: Served, **options: Any) -> Tab:
        context = browser.new_context(**{**LOOKS[request.param], **options})
        tabs.append(Tab(context.new_page(), running.url, request.param.startswith("phone")))
        return tabs[-1]

    yield make
    for tab in tabs:
        tab.page.context.close()
    for tab in tabs:
        tab.check()


@pytest.fixture
def tab(new_tab: NewTab, served: Served) -> Tab:
    return new_tab(served)


@pytest.fixture(scope="session")
def axe() -> str:
    """axe-core, which checks whether a page can be used by everyone."""
    return (files("axe_playwright_python") / "axe.min.js").read_text("utf-8")
