"""Duplicates and adding on the page."""

import csv
import re
from pathlib import Path
from typing import Any

from playwright.sync_api import expect

from helpers.browsing import NewTab, Serve, fill, jpeg, scene
from mchindex import MCHIndex

KEY = "a-key-that-nobody-would-guess"


def test_duplicates_are_compared_decided_and_exported(
    new_tab: NewTab, serve: Serve, own: MCHIndex
) -> None:
    running = serve(own)
    tab = new_tab(running)
    page = tab.open("#/duplicates")
    groups = page.locator(".group")
    expect(groups).to_have_count(len(own.duplicates()))
    expect(groups.first.locator(".best")).to_have_text("suggested to keep")
    expect(groups.first.locator(".differences").nth(1)).to_contain_text("%")
    copies = page.locator(".copy")
    copies.first.locator("a").focus()
    page.keyboard.press("k")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("d")
    expect(page.locator(".tallybar")).to_contain_text("1 to keep, 1 to discard")
    expect(copies.nth(1)).to_have_class(re.compile("discarded"))
    page.keyboard.press("u")
    expect(page.locator(".tallybar")).to_contain_text("1 to keep, 0 to discard")
    page.get_by_role("button", name="discard the rest").first.click()
    expect(page.locator(".tallybar")).to_contain_text(re.compile("1 to keep, [1-9]"))
    page.wait_for_timeout(200)
    page.reload()
    expect(copies.nth(1)).to_have_class(re.compile("discarded"))
    expect(copies.first.get_by_role("button", name="Keep")).to_have_attribute(
        "aria-pressed", "true"
    )
    with page.expect_download() as download:
        page.get_by_role("button", name="Export the list").click()
    rows = list(csv.DictReader(Path(download.value.path()).read_text("utf-8").splitlines()))
    wanted = own.duplicates()[0]
    assert {row["id"]: row["decision"] for row in rows} == {
        str(id): "keep" if id == wanted.keeper.id else "discard" for id in wanted.ids
    }
    expect(page.get_by_role("button", name="Delete marked files")).to_have_count(0)


def test_files_are_deleted_only_if_the_server_allows_it(
    new_tab: NewTab, serve: Serve, tmp_path: Path
) -> None:
    own = fill(tmp_path / "pictures", tmp_path / "own.mch", 12)
    others = [Path(str(image.path)) for image in own.duplicates()[0].others]
    running = serve(own, key=KEY, allow_delete=True)
    tab = new_tab(running)
    tab.forgiven.append("401")
    page = tab.page
    page.goto(tab.url + "#/duplicates")
    page.locator("#key").fill(KEY)
    page.keyboard.press("Enter")
    page.get_by_role("button", name="discard the rest").first.click()
    page.get_by_role("button", name="Delete marked files").click()
    page.get_by_role("button", name="Cancel").click()
    assert all(file.exists() for file in others)
    page.get_by_role("button", name="Delete marked files").click()
    page.get_by_role("button", name=re.compile(r"Delete \d+ file")).click()
    expect(page.get_by_role("alert")).to_contain_text("deleted")
    assert not any(file.exists() for file in others)


def test_files_are_added_with_failures_by_name(
    new_tab: NewTab, serve: Serve, own: MCHIndex
) -> None:
    before = len(own)
    running = serve(own)
    tab = new_tab(running)
    page = tab.open("#/add")
    files: list[Any] = [
        {"name": f"new-{i}.jpg", "mimeType": "image/jpeg", "buffer": jpeg(scene(100 + i))}
        for i in range(3)
    ]
    broken: Any = {"name": "broken.jpg", "mimeType": "image/jpeg", "buffer": b"no picture"}
    page.set_input_files("#add-files", [*files, broken])
    expect(page.locator(".progress p").first).to_have_text("Done: 3 added, 1 could not be added.")
    expect(page.locator(".names")).to_contain_text("broken.jpg")
    assert len(own) == before + 3
    page.get_by_role("link", name="Show the library").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(f"{before + 3} images")
    expect(page.get_by_alt_text("new-0.jpg")).to_be_visible()


def test_a_folder_is_added(new_tab: NewTab, serve: Serve, own: MCHIndex, tmp_path: Path) -> None:
    folder = tmp_path / "holiday"
    (folder / "beach").mkdir(parents=True)
    (folder / "a.jpg").write_bytes(jpeg(scene(200)))
    (folder / "beach" / "b.jpg").write_bytes(jpeg(scene(201)))
    before = len(own)
    running = serve(own)
    tab = new_tab(running)
    page = tab.open("#/add")
    page.set_input_files("#add-folder", folder)
    expect(page.locator(".progress p").first).to_have_text("Done: 2 added.")
    assert len(own) == before + 2
    (folder / "c.jpg").write_bytes(jpeg(scene(202)))
    tab.drop([folder])
    expect(page.locator(".progress p").first).to_have_text("Done: 1 added, 2 already there.")
    assert any(str(id).endswith("holiday/beach/b.jpg") for id in own.ids())


def test_who_may_only_read_is_told_so(new_tab: NewTab, serve: Serve, own: MCHIndex) -> None:
    running = serve(own, read_key=KEY)
    tab = new_tab(running)
    tab.forgiven.append("401")
    page = tab.page
    page.goto(tab.url + "#/add")
    page.locator("#key").fill(KEY)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("You can look, but not add")
    page.get_by_role("link", name="Duplicates").click()
    expect(page.locator(".copy").first).to_be_visible()
    expect(page.get_by_role("button", name="Keep")).to_have_count(0)
