"""The page for everyone: keyboard, screen readers, narrow screens, dark rooms, and failures."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

import mchindex.server
from browser import Served
from helpers.browsing import HOSTILE, NewTab, Serve, Tab, jpeg, scene
from mchindex import MCHIndex

PAGE = Path(mchindex.server.__file__).parent / "page"
LARGEST = 80_000  # bytes of all files together
KEY = "a key that nobody would guess"
VIEWS = {
    "library": "#/",
    "words": "#/search?text=dog",
    "image": "#/image?id={id}",
    "like": '#/search?id={id}&region=[20,20,90,90]&like=["{id}"]&filter={{"album":"summer"}}',
    "nothing": '#/search?text=dog&filter={{"year":1900}}',
    "duplicates": "#/duplicates",
    "add": "#/add",
}


def address(library: MCHIndex, view: str) -> str:
    found = next(str(id) for id in library.ids() if str(id).endswith("scene-07.jpg"))
    return VIEWS[view].format(id=found)


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[MCHIndex]:
    with MCHIndex.open(tmp_path / "empty.mch") as index:
        yield index


def test_the_page_is_small_and_whole() -> None:
    files = list(PAGE.iterdir())
    assert sum(file.stat().st_size for file in files) < LARGEST
    for file in files:
        text = file.read_text("utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|//[\w-]+\.\w", text), f"{file.name} names another host"
        if file.suffix == ".html":
            assert not re.search(r"<script(?![^>]* src=)|<style| style=| on\w+=", text)


@pytest.mark.parametrize("view", VIEWS)
def test_axe_finds_nothing_serious(tab: Tab, library: MCHIndex, view: str, axe: str) -> None:
    page = tab.open(address(library, view))
    if view == "like":
        page.get_by_role("button", name="Choose a part").click()
        page.get_by_text("Filter", exact=True).click()
    page.wait_for_timeout(200)  # colours are compared after pictures have faded in
    page.evaluate(axe)
    found = page.evaluate("async () => (await axe.run()).violations")
    serious = [
        (problem["id"], [node["html"][:120] for node in problem["nodes"]])
        for problem in found
        if problem["impact"] in ("serious", "critical")
    ]
    assert serious == []
    width = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert width[0] <= width[1], "the page is wider than the screen"


def test_axe_finds_nothing_serious_in_dialogs(tab: Tab, axe: str) -> None:
    page = tab.open()
    page.keyboard.press("?")
    dialog = page.get_by_role("dialog", name="How to search")
    expect(dialog).to_be_visible()
    page.evaluate(axe)
    found = page.evaluate("async () => (await axe.run()).violations")
    assert [p["id"] for p in found if p["impact"] in ("serious", "critical")] == []
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()


def test_the_description_of_the_api_is_for_everyone(tab: Tab, axe: str) -> None:
    page = tab.page
    page.goto(f"{tab.url}docs")
    expect(page.get_by_role("heading", name="The HTTP API")).to_be_visible()
    assert page.evaluate("getComputedStyle(document.body).margin") == "0px", "no style is applied"
    page.evaluate(axe)
    found = page.evaluate("async () => (await axe.run()).violations")
    assert [p["id"] for p in found if p["impact"] in ("serious", "critical")] == []
    width = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert width[0] <= width[1], "the page is wider than the screen"


def test_icons_are_lines(tab: Tab) -> None:
    page = tab.open()
    page.wait_for_function("document.querySelector('.find .icon').getBBox().width > 0")
    found = page.locator(".find .icon").first.evaluate(
        "icon => ['fill', 'stroke'].map(name => getComputedStyle(icon)[name])"
    )
    assert found[0] == "none"
    assert found[1] != "none"
    named = {use.get_attribute("href") for use in page.locator("use").all()}
    drawn = (PAGE / "icon.svg").read_text("utf-8")
    assert "style" not in drawn, "the policy of the page forbids it, so it would do nothing"
    for name in named:
        assert f'id="{str(name).partition("#")[2]}"' in drawn


def test_everything_is_reached_by_keyboard(tab: Tab) -> None:
    page = tab.open()
    page.keyboard.press("Tab")
    skip = page.get_by_role("link", name="Skip to the pictures")
    expect(skip).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")  # after the filter
    first = page.locator("[aria-posinset='1'] a")
    expect(first).to_be_focused()
    width = first.evaluate("element => getComputedStyle(element).outlineWidth")
    assert float(width.removesuffix("px")) >= 2, "the focus cannot be seen"
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    focused = page.evaluate("Number(document.activeElement.parentElement.dataset.place)")
    columns = page.evaluate(
        "new Set([...document.querySelectorAll('.library li')]"
        ".map(cell => cell.getBoundingClientRect().left)).size"
    )
    assert focused == 1 + columns
    page.keyboard.press("Enter")
    expect(page.locator(".facts h1")).to_be_visible()
    page.get_by_role("link", name="Find similar").focus()
    page.keyboard.press("Enter")
    hits = page.locator("main > .hits .hit")
    expect(hits.first).to_be_visible()
    hits.first.locator("a").focus()
    page.keyboard.press("ArrowDown")
    assert page.evaluate(
        "document.activeElement.getBoundingClientRect().top"
        " > document.querySelector('.hit').getBoundingClientRect().top + 8"
    )
    name = page.evaluate("document.activeElement.querySelector('img').alt")
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name=f"More like this: {name}")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator(".chip")).to_have_text([f"more like {name}"])


def test_what_happens_is_said(tab: Tab) -> None:
    page = tab.open("#/search?text=dog")
    said = page.get_by_role("status")
    expect(said).to_have_text("24 images shown")
    assert page.title() == "“dog” · Image search"


def test_names_stay_text(tab: Tab) -> None:
    page = tab.open()
    page.get_by_alt_text(HOSTILE).click()
    expect(page.locator(".facts h1")).to_have_text(HOSTILE)


def test_dark_rooms_and_calm_eyes(new_tab: NewTab, served: Served) -> None:
    tab = new_tab(served, reduced_motion="reduce")
    page = tab.open()
    dark = page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    brightness = sum(map(int, re.findall(r"\d+", colour)[:3])) / 3
    assert brightness < 60 if dark else brightness > 200
    page.evaluate("document.body.classList.add('waiting')")
    name = "getComputedStyle(document.querySelector('.top'), '::after').animationName"
    assert page.evaluate(name) == "none"


def test_an_empty_index_says_what_to_do(new_tab: NewTab, serve: Serve, empty: MCHIndex) -> None:
    running = serve(empty)
    page = new_tab(running).open()
    expect(page.get_by_role("heading", level=1)).to_have_text("No pictures yet")
    page.get_by_role("link", name="Add pictures").click()
    expect(page.get_by_role("button", name="Choose files")).to_be_visible()


def test_a_file_that_is_no_picture_is_refused(tab: Tab) -> None:
    tab.forgiven.append("422")
    page = tab.open()
    file: Any = {"name": "notes.jpg", "mimeType": "image/jpeg", "buffer": b"not a picture at all"}
    page.set_input_files("#file", file)
    expect(page.get_by_role("alert")).to_contain_text("cannot be read")
    page.get_by_role("button", name="Close").click()
    expect(page.get_by_role("alert")).to_be_hidden()
    page.set_input_files("#file", file)
    expect(page.get_by_role("alert")).to_be_visible()
    page.get_by_role("link", name="Duplicates").click()  # another view is no place for it
    expect(page.get_by_role("heading", name="Duplicates")).to_be_visible()
    expect(page.get_by_role("alert")).to_be_hidden()


def test_an_image_that_is_gone_is_reported(tab: Tab) -> None:
    tab.forgiven.append("404")
    page = tab.open("#/image?id=nowhere.jpg")
    expect(page.locator(".state")).to_contain_text("nowhere.jpg")


def test_a_service_that_stops_and_returns(new_tab: NewTab, serve: Serve, own: MCHIndex) -> None:
    running = serve(own)
    tab = new_tab(running)
    tab.forgiven.append("ERR_CONNECTION_REFUSED|ERR_EMPTY_RESPONSE|ERR_CONNECTION_RESET")
    page = tab.open()
    running.stop()
    page.goto(tab.url + "#/search?text=dog")
    expect(page.get_by_role("alert")).to_contain_text("does not answer")
    running.start()
    page.get_by_role("button", name="Try again").click()
    expect(page.locator(".hit").first).to_be_visible()
    expect(page.get_by_role("alert")).to_be_hidden()


def test_a_key_is_asked_for_and_kept(new_tab: NewTab, serve: Serve, own: MCHIndex) -> None:
    running = serve(own, key=KEY.replace(" ", "-"))
    tab = new_tab(running)
    tab.forgiven.append("401")
    page = tab.page
    page.goto(tab.url)
    expect(page.get_by_role("dialog", name="This server asks for a key")).to_be_visible()
    page.locator("#key").fill("wrong")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog", name="This key was not accepted")).to_be_visible()
    page.locator("#key").fill(KEY.replace(" ", "-"))
    page.keyboard.press("Enter")
    expect(page.locator(".cell.there").first).to_be_visible()
    tab.search(jpeg(scene(5)))
    page.reload()
    expect(page.locator(".hit").first).to_be_visible()
    expect(page.get_by_role("dialog")).to_be_hidden()
