"""Indexes of drawn pictures that are served, and tabs of Chromium that look at them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from browser import Served, chromium, find_chromium
from helpers.browsing import IMAGES, LOOKS, NewTab, Serve, Tab, fill
from mchindex import MCHIndex

ALWAYS = ("desktop-light", "phone-dark")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`make test` runs axe both wide and narrow, and each other flow in one of the two; `make slow`
    runs the rest."""
    for item in items:
        if isinstance(item, pytest.Function) and "new_tab" in item.fixturenames:
            name, look = item.originalname, item.callspec.params["new_tab"]
            often = ALWAYS if "axe" in name else (ALWAYS[len(name) % 2],)
            if look not in often:
                item.add_marker(pytest.mark.slow)


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


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small index, to be copied."""
    root = tmp_path_factory.mktemp("filled")
    fill(root / "pictures", root / "own.mch", 12).close()
    return root / "own.mch"


@pytest.fixture
def own(filled: Path, tmp_path: Path) -> Iterator[MCHIndex]:
    """An index that a test may change. Its files are those of other tests."""
    shutil.copytree(filled, tmp_path / "own.mch")
    with MCHIndex.open(tmp_path / "own.mch") as index:
        yield index


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serves indexes until the tabs that look at them are closed."""
    with ExitStack() as stack:
        yield lambda index, **settings: stack.enter_context(Served(index, **settings))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Closed after each module: while Playwright runs, no other test can start an event loop."""
    if find_chromium() is None:
        pytest.skip("chromium is not installed; make test installs it")
    with chromium() as running:
        yield running


@pytest.fixture(params=LOOKS)
def new_tab(request: pytest.FixtureRequest, browser: Browser, serve: Serve) -> Iterator[NewTab]:
    """Makes tabs that look at a service, in one of the looks. They are closed before it stops."""
    tabs: list[Tab] = []

    def make(running: Served, **options: Any) -> Tab:
        context = browser.new_context(**{**LOOKS[request.param], **options})
        tabs.append(Tab(context.new_page(), running.url, request.param.startswith("phone")))
        return tabs[-1]

    yield make
    try:
        for tab in tabs:
            tab.check()
    finally:
        for tab in tabs:
            tab.page.context.close()


@pytest.fixture
def tab(new_tab: NewTab, served: Served) -> Tab:
    return new_tab(served)


@pytest.fixture(scope="session")
def axe() -> str:
    """axe-core, which checks whether a page can be used by everyone."""
    return (files("axe_playwright_python") / "axe.min.js").read_text("utf-8")
