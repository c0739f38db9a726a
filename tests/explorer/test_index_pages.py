"""Indexes in a real browser: searches, counts to narrow them, lists to save, duplicates by keys."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from imsvd.explorer import create_app
from imsvd.index import Index
from tests.explorer.browsing import (
    accessibility_problems,
    check_everywhere,
    focused,
    needs_browser,
    open_view,
    opened_page,
)
from tests.explorer.served import served

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = needs_browser
expect = pytest.importorskip("playwright.sync_api").expect

VIEWS = {
    "#/": "Search",
    "#/indexes/0/search?q=0.1+%26+stripes&like=2&unlike=5": "Search",
    "#/indexes/0/duplicates": "Duplicates",
    "#/indexes/0/drift?a=split:train&b=split:test": "Drift",
}


@pytest.fixture(scope="module")
def address(planted: Index) -> Iterator[str]:
    with served(create_app([planted.path, planted.path])) as port:
        yield f"http://127.0.0.1:{port}/"


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_is_complete_and_accessible(page: Page, address: str, view: str) -> None:
    open_view(page, address, view, VIEWS[view])
    page.locator("progress").wait_for(state="detached")
    check_everywhere(page)


def found(page: Page) -> str:
    page.locator("main:not([aria-busy]) h1").wait_for()
    return page.locator("#found").inner_text()


def test_a_query_is_completed_by_keys_and_becomes_a_deep_link(
    page: Page, address: str, planted: Index
) -> None:
    open_view(page, address, "#/")
    assert found(page) == "All 120 images"
    page.locator("#query").press_sequentially("0.1 & !label:p")
    choices = page.locator("#query-choices [role=option]")
    expect(choices).to_have_text(['label:"polar bear"'])  # after those of shorter beginnings
    assert page.locator("#query").get_attribute("aria-expanded") == "true"
    assert accessibility_problems(page) == []
    page.keyboard.press("ArrowDown")
    chosen = page.locator("#query").get_attribute("aria-activedescendant")
    assert page.locator(f"#{chosen}").get_attribute("aria-selected") == "true"
    page.keyboard.press("Enter")
    query = '0.1 & !label:"polar bear"'
    assert page.locator("#query").input_value() == query + " "
    page.keyboard.press("Enter")
    total = planted.search(query).total
    page.get_by_role("heading", name=f"{total} images found, most confident first").wait_for()
    assert focused(page) == "query"
    assert page.locator(".reasons").first.inner_text() == "0.1, not label:polar bear"
    page.reload()
    assert found(page).startswith(f"{total} images found")
    assert page.locator("#query").input_value() == query
    page.locator(".result img").first.evaluate("image => image.decode()")
    page.go_back()
    page.get_by_role("heading", name="All 120 images").wait_for()


def test_a_mistake_is_shown_with_its_position(browser: Browser, address: str) -> None:
    with opened_page(browser) as (page, _):
        open_view(page, address, "#/indexes/0/search?q=0.1+%26+(zebra")
        said = page.get_by_role("alert").inner_text()
        assert "The query cannot be understood at character 8: no unit is called 'zebra'" in said
        query, caret = said.splitlines()[-2:]
        assert query[caret.index("^") :] == "zebra"
        assert page.locator("#query").get_attribute("aria-invalid") == "true"
        assert accessibility_problems(page) == []
        page.locator("#query").fill("(" * 80)
        page.keyboard.press("Enter")
        page.get_by_text("at most 40 nested").wait_for()
        page.locator("#query").fill("0.1 | 0.2")
        page.keyboard.press("Enter")
        page.get_by_role("heading", name="120 images found").wait_for()


def test_counts_narrow_the_search(page: Page, address: str, planted: Index) -> None:
    open_view(page, address, "#/indexes/0/search?q=0.1+%7C+0.2")
    page.get_by_role("link", name="not 0.2: only images without it").click()
    page.get_by_role("heading", name="60 images found").wait_for()
    assert page.locator("#query").input_value() == "(0.1 | 0.2) & !0.2"
    total = planted.search("0.1 & label:cat").total
    link = page.get_by_role("link", name="and label:cat: only images with it")
    assert f"{total} (" in str(link.locator("xpath=..").inner_text())
    link.click()
    page.get_by_role("heading", name=f"{total} images found").wait_for()
    assert focused(page) == "and-label-cat"


def test_a_result_leads_to_images_like_it(page: Page, address: str) -> None:
    open_view(page, address, "#/indexes/0/search?q=split:train")
    page.get_by_role("link", name="Like this: 00002.jpg", exact=True).click()
    page.get_by_role("heading", name="59 images, most alike first").wait_for()
    names = page.locator(".result-name").all_inner_texts()
    assert set(names[:2]) == {"00003.jpg", "00004.jpg"}
    assert "shares 8 of 8 units" in page.locator(".reasons").first.inner_text()
    page.get_by_role("link", name="Remove 00002.jpg").click()
    page.get_by_role("heading", name="60 images found").wait_for()


def test_what_is_found_or_selected_is_saved(
    page: Page, address: str, planted: Index, tmp_path: Path
) -> None:
    open_view(page, address, "#/indexes/0/search?q=0.2")
    with page.expect_download() as saving:
        page.get_by_role("button", name="Save list of 60 paths").click()
    assert saving.value.suggested_filename == "photos-images.txt"
    saving.value.save_as(tmp_path / "all.txt")
    wanted = [item.path for item in planted.search("0.2", count=0).items]
    assert (tmp_path / "all.txt").read_text().splitlines() == wanted
    boxes = page.locator(".result input")
    boxes.nth(2).check()
    boxes.nth(0).check()
    open_view(page, address, "#/indexes/0/search?q=0.2+%26+split:test")
    assert page.locator(".result input:checked").count() == 2
    with page.expect_download() as saving:
        page.get_by_role("button", name="Save 2 selected").click()
    saving.value.save_as(tmp_path / "some.txt")
    assert (tmp_path / "some.txt").read_text().splitlines() == [wanted[2], wanted[0]]
    page.get_by_role("button", name="Clear selection").click()
    assert page.locator(".result input:checked").count() == 0
    assert focused(page) == "save-found"


def test_a_search_without_results_says_what_to_do(page: Page, address: str) -> None:
    open_view(page, address, "#/indexes/0/search?q=0.1+%26+0.2")
    assert "Remove a term" in page.locator(".notice").inner_text()
    page.get_by_role("link", name="Show all images").click()
    page.get_by_role("heading", name=re.compile("All 120")).wait_for()


def test_duplicates_are_gone_through_by_keys(
    page: Page, address: str, planted: Index, tmp_path: Path
) -> None:
    open_view(page, address, "#/indexes/0/duplicates")
    page.get_by_role("heading", name="Group 1 of 2").wait_for()
    assert page.locator(".copy").count() == 3
    kept = [box.is_checked() for box in page.locator(".copy input").all()]
    assert kept == [True, False, False]
    page.keyboard.press("1")
    page.keyboard.press("3")
    page.keyboard.press("ArrowRight")
    page.get_by_role("heading", name="Group 2 of 2").wait_for()
    assert page.locator(".copy").count() == 2
    assert "same file" in page.locator(".copy").nth(1).inner_text()
    page.keyboard.press("ArrowLeft")
    page.get_by_role("heading", name="Group 1 of 2").wait_for()
    page.reload()
    page.get_by_role("heading", name="Group 1 of 2").wait_for()
    assert [box.is_checked() for box in page.locator(".copy input").all()] == [False, False, True]
    with page.expect_download() as saving:
        page.get_by_role("button", name="Save list of copies to keep").click()
    assert saving.value.suggested_filename == "photos-kept.txt"
    saving.value.save_as(tmp_path / "kept.txt")
    groups = planted.duplicates().groups
    wanted = [groups[0][2].path, groups[1][0].path]
    assert (tmp_path / "kept.txt").read_text().splitlines() == wanted
    page.locator("#scope").select_option(label="between train and test")
    page.get_by_text("nothing leaks").wait_for()
    assert "first=train&second=test" in page.url


def test_limits_of_duplicates_are_set_on_the_page_and_are_part_of_the_link(
    page: Page, address: str, planted: Index
) -> None:
    open_view(page, address, "#/indexes/0/duplicates")
    page.get_by_role("heading", name="Group 1 of 2").wait_for()
    kept = [box.is_checked() for box in page.locator(".copy input").all()]
    field = page.get_by_label("Variables that may differ")
    field.fill("1")  # typed digits are no marks
    assert [box.is_checked() for box in page.locator(".copy input").all()] == kept
    field.fill("3")
    field.press("Enter")
    page.get_by_text("codes differ in at most 3 variables").wait_for()
    assert "within=3" in page.url
    groups = len(planted.duplicates(within=3))
    page.get_by_role("heading", name=f"Group 1 of {groups}").wait_for()
    page.locator("#scope").select_option(label="between train and test")
    page.wait_for_url(re.compile("first=train&second=test&within=3"))
    assert page.get_by_label("Least cosine of features").count() == (
        planted.manifest.features is not None
    )


def test_drift_names_what_moved_and_shows_it(page: Page, address: str) -> None:
    open_view(page, address, "#/indexes/0/drift")
    page.get_by_role("link", name="Compare train with test").click()
    page.locator("#verdict").wait_for()
    assert "The sets differ" in page.locator("#verdict").inner_text()
    page.get_by_role("heading", name="Variable 0: 100% of images moved").wait_for()
    assert page.locator("#set-a").input_value() == "split:train"
    row = page.locator(".unit-row", has=page.get_by_role("link", name="0.2", exact=True))
    assert "0% → 100%" in row.inner_text()
    assert row.locator("img").count() == 12
    row.locator("img").first.evaluate("image => image.decode()")
    page.locator("#set-b").fill("split:train")
    page.keyboard.press("Enter")
    page.get_by_text("Choose two sets to compare").wait_for()
    page.go_back()
    page.locator("#verdict").wait_for()
    row.get_by_role("link", name="0.2", exact=True).click()
    page.get_by_role("heading", name="60 images found").wait_for()
