"""Searching on the page: by words, pictures, parts, several pictures; order, filters, addresses."""

import io
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, expect

from browser import Served
from helpers.browsing import IMAGES, NewTab, Tab, jpeg, scene
from mchindex import MCHIndex


def drag(tab: Tab, frame: Locator, start: tuple[float, float], end: tuple[float, float]) -> None:
    """Drags the mouse over a picture, from and to shares of its sides."""
    frame.scroll_into_view_if_needed()
    box = frame.bounding_box()
    assert box is not None
    mouse = tab.page.mouse
    points = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in (start, end)]
    mouse.move(*points[0])
    mouse.down()
    mouse.move(*points[1], steps=4)
    mouse.up()


def scrolled(tab: Tab, wanted: float) -> float:
    """How far the page is scrolled, once it is near what is wanted or a second has passed."""
    for _ in range(20):
        at = float(tab.page.evaluate("scrollY"))
        if abs(at - wanted) < 2:
            break
        tab.page.wait_for_timeout(50)
    return at


def test_the_library_shows_all_images(tab: Tab) -> None:
    page = tab.open()
    expect(page.get_by_role("heading", level=1)).to_have_text("64 images")
    last = page.locator("[aria-posinset='64'] a")
    page.locator(".cell").first.focus()
    page.keyboard.press("End")
    expect(last).to_be_focused()
    expect(last.get_by_role("img")).to_have_attribute("alt", "scene-59.jpg")


def test_words_are_completed_and_found(tab: Tab) -> None:
    page = tab.open()
    page.keyboard.press("/")
    expect(page.locator("#words")).to_be_focused()
    page.keyboard.type("dog, umbr")
    options = page.locator("#suggestions [role=option]")
    expect(options.first).to_have_text("umbrella")
    page.keyboard.press("ArrowDown")
    expect(page.locator("#words")).to_have_attribute("aria-activedescendant", "word-0")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("“dog, umbrella”")
    assert len(tab.names()) == 24
    expect(options).to_have_count(0)
    expect(page.locator("#visited")).to_contain_text(re.compile(r"Looked at 64 of 64 images.*ms\."))


def test_a_word_that_is_not_known_is_explained(tab: Tab) -> None:
    tab.forgiven.append("422")
    page = tab.open("#/search?text=xyzzyx")
    expect(page.locator(".state")).to_contain_text("does not know the word 'xyzzyx'. Put commas")


def test_going_back_takes_the_words_along(tab: Tab) -> None:
    page = tab.open("#/search?text=dog")
    page.locator("#words").fill("cat")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("“cat”")
    page.locator("#words").fill("ca")
    expect(page.locator("#suggestions")).to_be_visible()
    page.go_back()
    expect(page.get_by_role("heading", level=1)).to_have_text("“dog”")
    expect(page.locator("#words")).to_have_value("dog")
    expect(page.locator("#suggestions")).to_be_hidden()


def test_a_picture_replaces_the_words(tab: Tab) -> None:
    page = tab.open("#/")
    page.locator("#words").fill("dog")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("“dog”")
    expect(page.locator("#words")).to_be_focused()
    page.set_input_files(
        "#file", {"name": "a.jpg", "mimeType": "image/jpeg", "buffer": jpeg(scene(4))}
    )
    expect(page.get_by_role("heading", level=1)).to_have_text("Like your picture")
    expect(page.locator("#words")).to_have_value("")


@pytest.mark.parametrize("way", ["choose", "paste", "drop"])
def test_a_picture_finds_itself(tab: Tab, way: str, tmp_path: Path) -> None:
    page = tab.open()
    if way == "choose":
        with page.expect_file_chooser() as chooser:
            page.locator("#choose").click()
        (tmp_path / "a.jpg").write_bytes(jpeg(scene(7)))
        chooser.value.set_files(tmp_path / "a.jpg")
    elif way == "drop":
        (tmp_path / "a.jpg").write_bytes(jpeg(scene(7)))
        tab.drop([tmp_path / "a.jpg"])
    else:
        page.evaluate(
            """data => {
                const files = new DataTransfer();
                files.items.add(new File([new Uint8Array(data)], "a.jpg", {type: "image/jpeg"}));
                dispatchEvent(new ClipboardEvent("paste", {clipboardData: files}));
            }""",
            list(jpeg(scene(7))),
        )
    page.wait_for_url(re.compile("codes="))
    assert tab.names()[0] == "scene-07.jpg"
    expect(page.locator(".why").first).to_contain_text("same picture")
    expect(page.get_by_alt_text("The picture searched with")).to_be_visible()


def test_reloading_and_sharing_repeat_a_search_by_picture(
    tab: Tab, new_tab: NewTab, served: Served
) -> None:
    tab.open()
    found = tab.search(jpeg(scene(7)))
    address = tab.page.url.removeprefix(tab.url)
    tab.page.reload()
    assert tab.names() == found
    expect(tab.page.get_by_alt_text("The picture searched with")).to_be_visible()
    other = new_tab(served)  # of another person, who does not have the picture
    other.open(address)
    assert other.names() == found


def test_a_part_of_a_picture_that_is_not_in_the_index(tab: Tab) -> None:
    page = tab.open()
    tab.search(jpeg(scene(7)))
    whole = page.url
    drag(tab, page.locator(".asked .frame"), (0.1, 0.1), (0.6, 0.7))
    page.get_by_role("button", name="Search with this part").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Like a part of your picture")
    assert page.url != whole
    expect(page.locator(".asked .outline")).to_be_visible()
    page.go_back()
    expect(page.get_by_role("heading", level=1)).to_have_text("Like your picture")


def test_a_part_of_a_hit_by_mouse(tab: Tab) -> None:
    page = tab.open("#/search?text=dog")
    hit = page.locator(".hit").nth(1)
    name = hit.locator(".name").inner_text()
    drag(tab, hit.locator(".frame"), (0.2, 0.2), (0.8, 0.7))
    assert "text=dog" in page.url, "the drag opened the image"
    page.get_by_role("button", name="Search with this part").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(f"Like a part of {name}")
    assert name not in tab.names()
    expect(page.locator(".asked .outline")).to_be_visible()


def test_a_part_of_a_hit_by_keyboard(tab: Tab) -> None:
    page = tab.open("#/search?text=dog")
    page.locator(".hit a").first.focus()
    page.keyboard.press("ArrowRight")
    hit = page.locator(".hit").nth(1)
    expect(hit.locator("a")).to_be_focused()
    page.keyboard.press("b")
    chosen = page.get_by_role("group", name="Chosen part")
    expect(chosen).to_be_focused()
    before = chosen.bounding_box()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Shift+ArrowDown")
    after = chosen.bounding_box()
    assert before is not None
    assert after is not None
    assert after["x"] < before["x"]
    assert after["height"] > before["height"]
    page.keyboard.press("Escape")
    expect(chosen).to_have_count(0)
    expect(hit.locator("a")).to_be_focused()
    page.keyboard.press("b")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("region="))
    assert len(tab.names()) == 24


def test_the_chosen_part_is_moved_by_mouse_or_finger(tab: Tab) -> None:
    page = tab.open("#/search?text=dog")
    page.locator(".hit a").first.click()
    page.get_by_role("button", name="Choose a part").click()
    chosen = page.get_by_role("group", name="Chosen part")
    before = chosen.bounding_box()
    assert before is not None
    x, y = before["x"] + before["width"] / 2, before["y"] + before["height"] / 2
    if tab.phone:
        client = page.context.new_cdp_session(page)
        for kind, by in (("touchStart", 0), ("touchMove", 20), ("touchMove", 40), ("touchEnd", -1)):
            points = [] if by < 0 else [{"x": x + by, "y": y}]
            client.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
    else:
        drag(tab, chosen, (0.5, 0.5), (0.5 + 40 / before["width"], 0.5))
    after = chosen.bounding_box()
    assert after is not None
    assert after["x"] == pytest.approx(before["x"] + 40, abs=3)
    assert after["width"] == pytest.approx(before["width"], abs=3)
    page.get_by_role("button", name="Search with this part").click()
    page.wait_for_url(re.compile("region="))


def test_more_and_less_like_this(tab: Tab) -> None:
    page = tab.open()
    first = tab.search(jpeg(scene(7)))
    page.get_by_role("button", name=f"More like this: {first[3]}").click()
    chips = page.locator(".chip")
    expect(chips).to_have_text([f"more like {first[3]}"])
    second = tab.names()
    assert first[3] not in second
    page.locator(".hit a").nth(2).focus()
    page.keyboard.press("-")
    expect(chips).to_have_text([f"more like {first[3]}", f"less like {second[2]}"])
    third = tab.names()
    assert second[2] not in third
    page.get_by_role("button", name=f"Remove: less like {second[2]}").click()
    expect(chips).to_have_count(1)
    assert tab.names() == second
    page.go_back()
    expect(chips).to_have_count(2)
    assert tab.names() == third


def test_less_of_a_part(tab: Tab) -> None:
    page = tab.open()
    tab.search(jpeg(scene(7)))
    hit = page.locator(".hit").nth(2)
    name = hit.locator(".name").inner_text()
    drag(tab, hit.locator(".frame"), (0.1, 0.3), (0.7, 0.9))
    page.get_by_role("button", name="Less", exact=True).click()
    expect(page.locator(".chip")).to_have_text([f"less like a part of {name}"])
    assert len(tab.names()) == 24


def test_filters_come_from_the_metadata(tab: Tab, library: MCHIndex) -> None:
    page = tab.open()
    heading = page.get_by_role("heading", level=1)
    album, year = {"album": "summer"}, {"year": {">=": 2015}}
    page.get_by_text("Filter", exact=True).click()
    page.get_by_label("album").select_option("summer")
    expect(page.locator(".chip")).to_have_text(["album: summer"])
    expect(heading).to_have_text(f"{library.count(album)} images")
    page.get_by_text("Filter", exact=True).click()
    page.get_by_label("year, at least").fill("2015")
    page.keyboard.press("Tab")
    expect(page.locator(".chip")).to_have_text(["album: summer", "year: at least 2015"])
    expect(heading).to_have_text(f"{library.count({**album, **year})} images")
    page.reload()
    expect(heading).to_have_text(f"{library.count({**album, **year})} images")
    page.get_by_role("button", name="Remove: album: summer").click()
    expect(heading).to_have_text(f"{library.count(year)} images")


def test_a_search_with_a_filter_finds_only_what_matches(tab: Tab) -> None:
    page = tab.open("#/search?text=dog")
    page.get_by_text("Filter", exact=True).click()
    page.get_by_label("flash").select_option("yes")
    expect(page.locator(".chip")).to_have_text(["flash: yes"])
    names = tab.names()
    numbers = [int((re.findall(r"\d+", name.replace("(1)", "")) or ["0"])[0]) for name in names]
    assert names
    assert all(number % 3 == 0 for number in numbers)


def test_nothing_found(tab: Tab) -> None:
    page = tab.open('#/search?text=dog&filter={"year":1900}')
    expect(page.locator(".state")).to_contain_text("Nothing found")
    page.goto(tab.url + '#/?filter={"year":1900}')
    expect(page.locator(".state")).to_contain_text("No image matches this filter")
    page.get_by_role("link", name="Show all images").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("64 images")


def test_the_order_can_be_chosen(tab: Tab, library: MCHIndex) -> None:
    tab.open()
    picture = jpeg(scene(7))
    best = tab.search(picture)
    tab.page.get_by_label("Code order").check(force=True)
    tab.page.wait_for_url(re.compile("rank=code"))
    expect(tab.page.get_by_label("Code order")).to_be_focused()
    hits = library.search(io.BytesIO(picture), 24, rank="code")
    wanted = [Path(hit.path or "").name for hit in hits]
    assert wanted != best
    expect(tab.page.locator("main > .hits .name")).to_have_text(wanted)
    expect(tab.page.locator("#visited")).to_contain_text(re.compile(r"in [\d,]+ buckets? \(groups"))


def test_more_hits_come_on_scrolling(tab: Tab) -> None:
    page = tab.open("#/search?text=dog")
    hits = page.locator(".hit")
    expect(hits).to_have_count(24)
    page.mouse.wheel(0, 10_000)
    expect(hits).to_have_count(48)
    page.mouse.wheel(0, 10_000)
    expect(hits).to_have_count(IMAGES + 4)
    assert len(set(tab.names())) == IMAGES + 4
    expect(page.get_by_role("button", name="Show more")).to_be_hidden()
    page.locator(".hit a").nth(50).click()
    expect(page.locator(".facts h1")).to_be_visible()
    page.go_back()
    expect(hits).to_have_count(IMAGES + 4)
    assert page.evaluate("scrollY") > 300


def test_one_image(tab: Tab, library: MCHIndex) -> None:
    page = tab.open()
    page.get_by_role("link", name="scene-07.jpg").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("scene-07.jpg")
    stored = library[next(id for id in library.ids() if str(id).endswith("scene-07.jpg"))]
    facts = page.locator(".facts")
    expect(facts).to_contain_text("160 \N{MULTIPLICATION SIGN} 106 pixels")
    expect(facts.locator("dl")).to_contain_text("summer")
    expect(facts.locator("code").first).to_have_text(stored.codes[0].tobytes().hex())
    expect(facts.locator(".parts")).to_contain_text("shared with")
    near = page.locator(".near .hit")
    expect(near).to_have_count(12)
    big = page.locator(".stage img")
    expect(big).to_have_attribute("src", re.compile("picture"))
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    above, below = page.locator(".stage").bounding_box(), page.locator(".near").bounding_box()
    assert above is not None
    assert below is not None
    assert above["y"] + above["height"] <= below["y"]  # the picture covers no others
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("heading", level=1)).to_have_text("scene-08.jpg")
    page.get_by_role("link", name="Previous image").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("scene-07.jpg")
    page.go_back()
    expect(page.get_by_role("heading", level=1)).to_have_text("64 images")


def test_a_stored_part_is_outlined_and_searched_with(tab: Tab) -> None:
    page = tab.open()
    page.get_by_role("link", name="scene-07.jpg").click()
    page.locator(".parts a").first.focus()
    expect(page.locator(".stage .outline")).to_be_visible()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Like a part of scene-07.jpg")
    assert "scene-07.jpg" not in tab.names()


def test_a_part_of_the_large_image(tab: Tab) -> None:
    page = tab.open()
    page.get_by_role("link", name="scene-07.jpg").click()
    expect(page.locator(".near .hit")).to_have_count(12)
    drag(tab, page.locator(".stage .frame"), (0.5, 0.1), (0.9, 0.6))
    page.get_by_role("button", name="Search with this part").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Like a part of scene-07.jpg")
    boxes: Any = re.search(r"region=%5B([\d%C]+)%5D", page.url)
    assert boxes is not None
    x0, y0, x1, y1 = (int(side) for side in boxes[1].split("%2C"))
    assert (x0, y0, x1, y1) == pytest.approx((80, 11, 144, 64), abs=3)


def test_back_returns_to_where_the_grid_was(tab: Tab) -> None:
    page = tab.open()
    page.mouse.wheel(0, 700)
    before = scrolled(tab, 700)
    page.mouse.click(150, 500)
    expect(page.locator(".facts h1")).to_be_visible()
    page.go_back()
    assert scrolled(tab, before) == pytest.approx(before, abs=2)
