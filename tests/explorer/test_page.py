"""The page in a real browser: every view, deep links, keys, uploads, accessibility."""

from __future__ import annotations

import io
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

import imsvd
from imsvd.datasets import open_source
from imsvd.explorer import create_app
from imsvd.explorer.app import INDEX, STATIC
from tests.explorer.browsing import (
    accessibility_problems,
    check_everywhere,
    focused,
    needs_browser,
    open_view,
    opened_page,
    wait_for_heading,
)
from tests.explorer.served import served

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = needs_browser

VIEWS = {
    "#/": "run",
    "#/runs/0/variables/3": "Variable 3",
    "#/runs/0/units/3/1": "Unit 1 of variable 3",
    "#/runs/0/images": "Images",
    "#/runs/0/images/12?by=features": "Image 12",
    "#/runs/0/dependence?m=1&n=2": "Dependence",
    "#/runs/0/training": "Training",
    "#/compare/0/1": "Compare runs",
    "#/runs/2/variables/0": "Variable 0",
    "#/runs/2/dependence": "Dependence",
}


def made_up_information() -> NDArray[np.float32]:
    """Values that differ in three digits, unlike those of a barely trained run."""
    return np.random.default_rng(0).random((4, 4), dtype=np.float32)


@pytest.fixture(scope="module")
def address(
    explained: Path, explained_photographs: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """Run 0 has shapes, run 1 is a copy of it, run 2 has photographs and only one part."""
    copy = Path(shutil.copytree(explained, tmp_path_factory.mktemp("copy") / "again"))
    np.save(copy / "explanations" / "mutual_information.npy", made_up_information())
    with served(create_app([explained, copy, explained_photographs])) as port:
        yield f"http://127.0.0.1:{port}/"


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_is_complete_and_accessible(page: Page, address: str, view: str) -> None:
    open_view(page, address, view, VIEWS[view])
    assert page.title().endswith("imsvd explorer")
    check_everywhere(page)


def test_the_page_preloads_all_its_modules() -> None:
    named = re.findall(r"/static/([a-z]+\.js)", (STATIC / INDEX).read_text())
    assert sorted(named) == sorted(path.name for path in STATIC.glob("*.js"))


def test_images_have_names_and_load(page: Page, address: str) -> None:
    open_view(page, address, "#/runs/0/images")
    shown = page.locator(".gallery img")
    assert shown.count() == 60
    shown.first.scroll_into_view_if_needed()
    page.wait_for_load_state("networkidle")
    assert shown.first.evaluate("image => image.complete && image.naturalWidth") == 128
    label = open_source("shapes:128").classes[int(open_source("shapes:128").labels[0])]  # type: ignore[index]
    assert shown.first.get_attribute("alt") == f"Image 0, {label}"


def test_from_a_variable_to_a_unit_to_an_image_and_back(page: Page, address: str) -> None:
    open_view(page, address, "#/")
    page.get_by_role("link", name=re.compile("^Variable 2")).click()
    wait_for_heading(page, "Variable 2")
    page.locator(".unit-row h3 a").first.click()
    page.locator("#assigned").wait_for()
    unit = page.url
    page.locator(".gallery a").nth(1).click()
    page.locator("#code").wait_for()
    assert page.locator(".cell").count() == 4
    page.go_back()
    page.locator("#assigned").wait_for()
    assert page.url == unit
    page.reload()
    page.locator("#assigned").wait_for()
    page.go_back()
    wait_for_heading(page, "Variable 2")


def test_a_unit_tells_how_alike_and_how_pure_its_images_are(
    page: Page, address: str, explained: Path
) -> None:
    record = json.loads((explained / "explanations" / "coherence.json").read_text())
    place = max(range(16), key=lambda place: record["units"][place]["images"])
    found = record["units"][place]
    open_view(page, address, f"#/runs/0/units/{place // 4}/{place % 4}")
    said = page.locator("#coherence").inner_text()
    similar, chance = found["monosemanticity"], found["monosemanticity_by_chance"]
    assert f"similarity of {similar:.2f} (random images: {chance:.2f})" in said
    assert f"{100 * found['purity']:.0f}% have its most frequent label" in said
    open_view(page, address, f"#/runs/0/variables/{place // 4}")
    row = page.locator(f".unit-row[aria-label='Unit {place % 4}'] .about").inner_text()
    assert f"similarity {similar:.2f}, purity {100 * found['purity']:.0f}%" in row
    open_view(page, address, "#/runs/2/units/0/0")
    assert page.locator("#coherence").inner_text() == ""


def test_going_back_restores_the_place_in_the_page(page: Page, address: str) -> None:
    page.set_viewport_size({"width": 700, "height": 300})
    open_view(page, address, "#/runs/0/images?page=1")
    assert page.locator(".pager").inner_text().split("\n")[1].strip() == "Page 2 of 3"
    page.evaluate("window.scrollTo(0, 240)")
    page.locator(".gallery a").nth(20).click()
    page.locator("#code").wait_for()
    assert page.evaluate("window.scrollY") == 0
    page.go_back()
    wait_for_heading(page, "Images")
    page.wait_for_timeout(100)
    assert page.evaluate("window.scrollY") >= 240
    assert "page=1" in page.url


def test_pointing_at_an_image_shows_the_evidence(page: Page, address: str) -> None:
    open_view(page, address, "#/runs/0/units/3/1")
    tiles = page.locator(".gallery a")
    tiles.first.hover()
    tiles.first.locator(".map.ready").wait_for()
    assert "/map/3/1?" in str(tiles.first.locator(".map").get_attribute("src"))
    page.mouse.move(0, 0)
    tiles.first.locator(".map").wait_for(state="detached")
    tiles.nth(1).focus()
    tiles.nth(1).locator(".map.ready").wait_for()
    page.keyboard.press("Escape")
    tiles.nth(1).locator(".map").wait_for(state="detached")
    page.get_by_label("Show evidence on all images").check()
    tiles.last.locator(".map.ready").wait_for()
    assert page.locator(".map.ready").count() == tiles.count()


def test_the_first_tap_shows_the_evidence_and_the_second_opens(
    browser: Browser, address: str
) -> None:
    settings: dict[str, Any] = {"has_touch": True, "viewport": {"width": 360, "height": 640}}
    with opened_page(browser, **settings) as (page, problems):
        open_view(page, address, "#/runs/0/units/3/1")
        first = page.locator(".gallery a").first
        first.tap()
        first.locator(".map.ready").wait_for()
        assert page.url.endswith("#/runs/0/units/3/1")
        first.tap()
        page.locator("#code").wait_for()
        open_view(page, address, "#/runs/1/dependence?m=1&n=2")
        box: Any = page.locator("#information").bounding_box()
        page.locator("#information").tap(position={"x": 3, "y": box["height"] - 3})
        page.get_by_role("heading", name="Variables 3 and 0").wait_for()
        assert problems == []


def test_the_page_shows_the_code_of_the_encoder_and_its_evidence(
    page: Page, address: str, explained: Path
) -> None:
    open_view(page, address, "#/runs/0/images/12")
    code = imsvd.load(explained).codes(open_source("shapes:128").read(12)[None])[0].tolist()
    assert page.locator(".cell-unit").all_inner_texts() == [str(unit) for unit in code]
    page.locator(".cell").nth(2).focus()
    page.locator(".stage .map.ready").wait_for()
    said = page.locator(".stage-caption").inner_text()
    assert said.startswith(f"Evidence for unit {code[2]} of variable 2")


def test_neighbors_show_the_units_they_share(page: Page, address: str) -> None:
    open_view(page, address, "#/runs/0/images/12")
    why = page.locator(".why").first
    shared = int(why.inner_text().split()[0])
    why.click()
    reason = page.locator(".reason")
    assert reason.locator(".pairs li").count() == shared
    assert reason.locator("img").first.evaluate("image => image.alt").endswith("in this image")
    page.locator(".cell.shared").first.wait_for()
    # The panel may move the button away from the pointer; the button keeps the focus.
    why.hover()
    page.mouse.move(0, 0)
    assert page.locator(".cell.shared").count() == shared
    page.keyboard.press("Escape")
    assert reason.is_hidden()
    assert why.evaluate("button => button === document.activeElement")
    page.get_by_role("link", name="By features").click()
    page.locator("#by-features[aria-current]").wait_for()
    assert "by=features" in page.url
    assert "similarity" in page.locator(".neighbor").first.inner_text()


def an_image() -> bytes:
    made = io.BytesIO()
    Image.fromarray(np.full((50, 70, 3), (250, 20, 20), dtype=np.uint8)).save(made, "PNG")
    return made.getvalue()


def drop(page: Page, content: bytes, kind: str) -> None:
    """Drop a file onto the page."""
    script = """([bytes, type]) => {
      const carried = new DataTransfer();
      carried.items.add(new File([new Uint8Array(bytes)], "file", { type }));
      for (const name of ["dragover", "drop"]) {
        const options = { dataTransfer: carried, bubbles: true, cancelable: true };
        document.body.dispatchEvent(new DragEvent(name, options));
      }
    }"""
    page.evaluate(script, [list(content), kind])


def test_a_dropped_image_gets_a_code_neighbors_and_an_address(page: Page, address: str) -> None:
    open_view(page, address, "#/runs/0/variables")
    drop(page, an_image(), "image/png")
    wait_for_heading(page, "Your image")
    assert re.search(r"#/runs/0/uploads/[0-9a-f]{32}$", page.url)
    units = page.locator(".cell-unit").all_inner_texts()
    assert len(units) == 4
    assert page.locator(".neighbor").count() == 12
    assert accessibility_problems(page) == []
    page.reload()
    wait_for_heading(page, "Your image")
    assert page.locator(".cell-unit").all_inner_texts() == units
    page.locator(".cell").first.hover()
    page.locator(".stage .map.ready").wait_for()


def test_an_image_can_be_chosen(page: Page, address: str) -> None:
    open_view(page, address, "#/runs/0/images")
    chosen: Any = {"name": "a.png", "mimeType": "image/png", "buffer": an_image()}
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Upload image…").click()
    chooser.value.set_files(chosen)
    wait_for_heading(page, "Your image")


@pytest.mark.parametrize(
    ("view", "sentence"),
    [
        ("#/runs/0/variables/99", "There is no variable 99"),
        ("#/runs/7/variables", "Page not found."),
        ("#/somewhere", "Page not found."),
    ],
)
def test_errors_are_sentences(browser: Browser, address: str, view: str, sentence: str) -> None:
    with opened_page(browser) as (page, _):
        open_view(page, address, view, "Cannot show this page")
        assert sentence in page.get_by_role("alert").inner_text()
        assert accessibility_problems(page) == []


def test_a_file_that_is_no_image_is_refused_with_a_sentence(browser: Browser, address: str) -> None:
    with opened_page(browser) as (page, _):
        open_view(page, address, "#/runs/0/images")
        drop(page, b"no image", "text/plain")
        page.get_by_role("alert").wait_for()
        assert "cannot be read as an image" in page.get_by_role("alert").inner_text()
        page.keyboard.press("Escape")
        page.get_by_role("alert").wait_for(state="detached")
        wait_for_heading(page, "Images")


def test_without_a_joint_matrix_the_page_names_the_command(page: Page, address: str) -> None:
    open_view(page, address, "#/runs/2/dependence")
    assert "imsvd explain" in page.locator(".notice").inner_text()
    assert "--only joint" in page.locator(".notice").inner_text()


def test_keys_reach_everything(page: Page, address: str) -> None:
    open_view(page, address, "#/runs/0/images")
    page.keyboard.press("Tab")
    assert focused(page) == "skip"
    assert page.locator("#skip").bounding_box()["width"] > 50  # type: ignore[index]
    page.keyboard.press("Enter")
    assert focused(page) == "main"
    page.keyboard.press("Tab")
    assert focused(page) == "label"
    page.keyboard.press("Tab")
    place = "[...document.querySelectorAll('.gallery a')].indexOf(document.activeElement)"
    assert page.evaluate(place) == 0
    columns = page.evaluate(
        "new Set([...document.querySelectorAll('.gallery a')].map(a => a.offsetLeft)).size"
    )
    expected = {"ArrowRight": 1, "ArrowDown": 1 + columns, "ArrowLeft": columns, "ArrowUp": 0}
    for key, at in expected.items():
        page.keyboard.press(key)
        assert page.evaluate(place) == at
    page.keyboard.press("End")
    assert page.evaluate(place) == 59
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert page.evaluate(outline) == "solid"
    page.keyboard.press("Enter")
    wait_for_heading(page, "Image 59")
    assert page.evaluate("document.activeElement.tagName") == "H1"


def test_the_heat_map_is_readable_by_keys_and_pointer(page: Page, address: str) -> None:
    values = made_up_information()
    open_view(page, address, "#/runs/1/dependence?m=1&n=2")
    field, reading = page.locator("#information"), page.locator("output").first
    assert reading.inner_text() == f"variables 1 and 2: {values[1, 2]:.3f} nats"
    field.focus()
    for key in ("ArrowDown", "ArrowRight", "ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    assert reading.inner_text() == f"variables 2 and 3: {values[2, 3]:.3f} nats"
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Variables 2 and 3").wait_for()
    assert "m=2&n=3" in page.url
    assert focused(page) == "information"
    box: Any = field.bounding_box()
    field.hover(position={"x": box["width"] / 8, "y": 7 * box["height"] / 8})
    assert reading.inner_text() == f"variables 3 and 0: {values[3, 0]:.3f} nats"
    page.go_back()
    page.get_by_role("heading", name="Variables 1 and 2").wait_for()


def test_a_heat_map_shows_its_values_as_a_table_on_demand(
    page: Page, address: str, explained: Path
) -> None:
    values = np.load(explained / "explanations" / "joint_matrix.npy")[4:8, 8:12]
    open_view(page, address, "#/runs/0/dependence?m=1&n=2")
    section = page.locator("section", has=page.locator("#joint"))
    button = section.get_by_role("button", name="Values as a table")
    button.click()
    cells = section.locator("td").all_inner_texts()
    assert np.allclose([float(cell) for cell in cells], values.ravel(), rtol=0.01)
    page.keyboard.press("Escape")
    assert section.locator("table").is_hidden()
    assert button.get_attribute("aria-expanded") == "false"


def test_training_curves_show_the_recorded_metrics(
    page: Page, address: str, explained: Path
) -> None:
    records = [json.loads(line) for line in (explained / "metrics.jsonl").read_text().splitlines()]
    open_view(page, address, "#/runs/0/training")
    chart = page.locator(".chart-box").first
    assert chart.locator("h2").inner_text() == "Loss"
    assert "ideal, batch limit" in chart.locator(".bound-name").all_text_contents()
    chart.locator(".plot").focus()
    page.keyboard.press("Home")
    said = chart.locator("output").inner_text().replace("−", "-")
    epoch, value = said.removeprefix("Epoch ").split(": ")
    assert int(epoch) == records[0]["epoch"]
    assert float(value) == pytest.approx(records[0]["loss"], rel=0.01)


def test_two_runs_are_shown_side_by_side(page: Page, address: str) -> None:
    open_view(page, address, "#/compare/0/1")
    rows = page.locator("tr", has_text="explained images")
    assert rows.locator("td").all_inner_texts() == ["128", "128", "0"]
    said = page.locator("main").inner_text()
    assert "128 common images" in said
    assert "100% of the units have a partner in the other run" in said
    page.locator("#second").focus()
    page.locator("#second").select_option("2")
    page.get_by_text("explained with different images").wait_for()
    assert page.url.endswith("#/compare/0/2")
    assert focused(page) == "second"
