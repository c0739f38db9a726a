"""The explorer for a person, in a real browser: the tour, what to do next, names and stars, saved pages."""

from __future__ import annotations

import csv
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from imsvd.explorer import create_app, open_run
from imsvd.explorer.records import unit as unit_record
from imsvd.index import Index
from imsvd.index.names import FILE_NAME, Notes, note, read_notes
from imsvd.index.storage import write_manifest
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
expect = pytest.importorskip("playwright.sync_api").expect

HINTS = 5
VIEWS = {
    "#/runs/0/variables": "Variables",
    "#/runs/0/variables/3": "Units",
    "#/runs/0/units/3/1": "Images",
    "#/runs/0/images": "Images",
    "#/runs/0/images/12?by=features": "Neighbors",
    "#/runs/0/dependence?m=1&n=2": "Pairs of variables",
    "#/runs/0/training": "Curves",
    "#/compare/0/1": "Results",
    "#/indexes/0/search?q=0.2": "Images found",
    "#/indexes/0/duplicates": "Groups",
    "#/indexes/0/drift?a=split:train&b=split:test": "Variables",
}


@pytest.fixture
def run(explained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(explained, tmp_path / "run"))


@pytest.fixture
def own(run: Path) -> Iterator[str]:
    """An explorer of one run that the test may change."""
    with served(create_app([run])) as port:
        yield f"http://127.0.0.1:{port}/"


@pytest.fixture(scope="module")
def address(explained: Path, planted: Index) -> Iterator[str]:
    with served(create_app([explained, explained, planted.path])) as port:
        yield f"http://127.0.0.1:{port}/"


def saved(page: Page, item: str, to: Path) -> str:
    """Save the page by its menu; return the name that the file would get."""
    page.locator("#save-view").click()
    with page.expect_download() as saving:
        page.get_by_role("button", name=item, exact=True).click()
    saving.value.save_as(to)
    page.locator("#save-menu").wait_for(state="hidden")
    assert focused(page) == "save-view"
    return saving.value.suggested_filename


def go(page: Page, address: str, view: str, heading: str) -> None:
    """Change the view without loading the page again."""
    page.goto(address + view)
    wait_for_heading(page, heading)


def table(path: Path) -> list[list[str]]:
    return list(csv.reader(path.read_text(encoding="utf-8-sig").splitlines()))


def test_the_tour_comes_once_and_can_be_called_again(browser: Browser, address: str) -> None:
    with opened_page(browser, first_visit=True) as (page, problems):
        open_view(page, address, "#/")
        tour = page.locator("#tour")
        assert tour.is_visible()
        assert focused(page) == ""  # it comes up without taking the focus
        headings = []
        for number in range(1, HINTS + 1):
            assert f"Hint {number} of {HINTS}" in tour.inner_text()
            assert page.locator(".pointed-out").count() == 1
            assert accessibility_problems(page) == []
            headings.append(tour.locator("h2").inner_text())
            page.locator("#tour-next").click()
        assert len(set(headings)) == HINTS
        assert tour.is_hidden()
        assert page.locator(".pointed-out").count() == 0
        page.reload()
        page.locator("main h1").wait_for()
        assert tour.is_hidden()
        page.locator("#tour-button").press("Enter")
        assert focused(page) == "tour-title"
        page.locator("#tour-next").press("Enter")
        page.locator("#tour-back").press("Enter")
        assert tour.locator("h2").inner_text() == headings[0]
        page.keyboard.press("Escape")
        assert tour.is_hidden()
        assert focused(page) == "tour-button"
        assert problems == []


def test_a_skipped_tour_stays_away_and_an_index_has_its_own(
    browser: Browser, planted: Index
) -> None:
    with (
        served(create_app([planted.path])) as port,
        opened_page(browser, first_visit=True) as (page, problems),
    ):
        open_view(page, f"http://127.0.0.1:{port}/", "#/", "Search")
        assert page.locator("#query.pointed-out").count() == 1
        check_everywhere(page)
        page.keyboard.press("Escape")
        assert page.locator("#tour").is_hidden()
        page.reload()
        page.locator("main h1").wait_for()
        assert page.locator("#tour").is_hidden()
        assert problems == []


def test_an_open_tour_survives_a_change_of_the_page(browser: Browser, address: str) -> None:
    with opened_page(browser, first_visit=True) as (page, _):
        open_view(page, address, "#/")
        page.locator("#tour-next").click()
        page.locator(".card").first.click()
        wait_for_heading(page, "Variable 0")
        assert "Hint 2 of 5" in page.locator("#tour").inner_text()
        assert page.locator(".unit-row.pointed-out").count() == 1


def test_an_empty_folder_leads_to_the_first_commands(page: Page, tmp_path: Path) -> None:
    with served(create_app([tmp_path])) as port:
        open_view(page, f"http://127.0.0.1:{port}/", "", "Nothing to explore yet")
        said = page.locator("main").inner_text()
        assert f"{tmp_path} holds no run and no index." in said
        commands = page.locator(".command code").all_inner_texts()
        assert "imsvd demo" in commands
        assert any(text.startswith("imsvd discretize") for text in commands)
        assert page.locator("#tour").is_hidden()
        check_everywhere(page)


def test_a_folder_of_photographs_is_put_into_the_commands(
    page: Page, photographs: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(photographs / "left", tmp_path / "my photos"))
    with served(create_app([folder])) as port:
        open_view(page, f"http://127.0.0.1:{port}/", "#/", "Nothing to explore yet")
        commands = page.locator(".command code").all_inner_texts()
        assert commands[1] == f"imsvd explain runs/photos '{folder}'"


def test_a_run_that_is_not_ready_is_told_with_its_command(
    page: Page, explained: Path, trained: Path, tmp_path: Path
) -> None:
    shutil.copytree(trained, tmp_path / "new")
    with served(create_app([tmp_path])) as port:
        open_view(page, f"http://127.0.0.1:{port}/", "#/", "Nothing to explore yet")
        assert f"imsvd explain {tmp_path / 'new'}" in page.locator(".notice").inner_text()
    shutil.copytree(explained, tmp_path / "ready")
    with served(create_app([tmp_path])) as port:
        open_view(page, f"http://127.0.0.1:{port}/", "#/", "ready")
        page.get_by_role("button", name="1 more run or index is not ready").click()
        assert "has not been explained yet" in page.locator(".notice").inner_text()


def test_a_unit_is_named_and_starred_by_keys(page: Page, own: str, run: Path) -> None:
    open_view(page, own, "#/runs/0/units/3/1", "Unit 1 of variable 3")
    page.locator("#rename").press("Enter")
    assert focused(page) == "name-field"
    for refused in ('say "no"', " 12.3 "):
        page.locator("#name-field").fill(refused)
        page.keyboard.press("Enter")
        assert page.locator("#name-field:invalid").count() == 1
    page.locator("#name-field").fill("stripes")
    page.keyboard.press("Enter")
    wait_for_heading(page, "Unit 1 of variable 3: stripes")
    assert focused(page) == "rename"
    star = page.locator("#star-3-1")
    star.press("Space")
    expect(star).to_have_attribute("aria-pressed", "true")
    check_everywhere(page)
    assert read_notes(run) == Notes({"3.1": "stripes"}, ("3.1",))
    page.set_viewport_size({"width": 1000, "height": 800})
    go(page, own, "#/runs/0/variables/3", "Variable 3")
    page.get_by_role("link", name="Unit 1: stripes").wait_for()
    go(page, own, "#/runs/0/variables", "run")
    page.get_by_role("link", name="★ Unit 3.1: stripes").click()
    wait_for_heading(page, "Unit 1 of variable 3: stripes")
    page.locator("#star-3-1").click()
    expect(page.locator("#star-3-1")).to_have_attribute("aria-pressed", "false")
    page.locator("#rename").click()
    page.locator("#name-field").fill("")
    page.locator("#name-save").click()
    wait_for_heading(page, "Unit 1 of variable 3")
    assert read_notes(run) == Notes({}, ())


def test_names_from_the_command_line_are_on_every_page(page: Page, own: str, run: Path) -> None:
    opened = open_run(run)
    code = opened.encodings.codes[opened.row(12)].tolist()
    open_view(page, own, "#/runs/0/variables", "run")
    note(run, "2", opened.units, name="texture", starred=True)
    note(run, f"2.{code[2]}", opened.units, name="stripes")
    go(page, own, "#/runs/0/images/12", "Image 12")
    cell = page.locator(".cell").nth(2)
    assert cell.locator(".cell-name").inner_text() == "stripes"
    assert cell.get_attribute("title") == "texture: stripes"
    check_everywhere(page)
    page.set_viewport_size({"width": 1000, "height": 800})
    go(page, own, "#/runs/0/variables?show=starred", "run")
    assert page.locator(".card h3").all_inner_texts() == ["★ Variable 2: texture"]
    go(page, own, "#/runs/0/variables/2", "Variable 2: texture")


def test_lists_of_nothing_starred_or_named_say_how_to_fill_them(page: Page, own: str) -> None:
    open_view(page, own, "#/runs/0/variables")
    assert page.locator("#starred").count() == 0
    page.locator("#show").select_option("starred")
    page.get_by_text("Nothing is starred yet").wait_for()
    page.locator("#show").select_option("named")
    page.get_by_text("Nothing has a name yet").wait_for()


def test_a_damaged_file_of_names_does_not_hide_the_page(
    browser: Browser, own: str, run: Path
) -> None:
    (run / FILE_NAME).write_text("{")
    with opened_page(browser) as (page, _):
        open_view(page, own, "#/runs/0/units/3/1", "Unit 1 of variable 3")
        assert str(run / FILE_NAME) in page.get_by_role("alert").first.inner_text()
        page.locator("#star-3-1").click()
        expect(page.locator(".titled [role=alert]")).to_contain_text("repair or delete it")
        expect(page.locator("#star-3-1")).to_have_attribute("aria-pressed", "false")


def test_a_search_knows_a_name_given_on_a_page(
    page: Page, run: Path, planted: Index, tmp_path: Path
) -> None:
    index = Path(shutil.copytree(planted.path, tmp_path / "photos.index"))
    write_manifest(index, planted.manifest.model_copy(update={"run": str(run)}))
    with served(create_app([run, index])) as port:
        address = f"http://127.0.0.1:{port}/"
        open_view(page, address, "#/indexes/0/search?q=0.1")
        go(page, address, "#/runs/0/units/0/1", "Unit 1 of variable 0")
        page.locator("#rename").click()
        page.locator("#name-field").fill("zebra")
        page.keyboard.press("Enter")
        wait_for_heading(page, "Unit 1 of variable 0: zebra")
        page.get_by_role("link", name="Search", exact=True).click()
        page.locator("#query").fill("zebra")
        page.keyboard.press("Enter")
        page.get_by_role("heading", name="60 images found").wait_for()
        assert page.locator(".reasons").first.inner_text() == "0.1 zebra"


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_is_saved_as_a_picture_and_as_a_table(
    page: Page, address: str, tmp_path: Path, view: str
) -> None:
    page.set_viewport_size({"width": 900, "height": 600})
    open_view(page, address, view)
    page.locator("progress").wait_for(state="detached")
    assert saved(page, "This page as a picture (PNG)", tmp_path / "page.png").endswith(".png")
    with Image.open(tmp_path / "page.png") as picture:
        assert picture.format == "PNG"
        assert picture.width == 1800
        pixels = np.asarray(picture.convert("RGB")).reshape(-1, 3)
    paper, ink = (251, 250, 247), (30, 34, 40)
    assert (pixels == paper).all(1).mean() > 0.2
    assert (pixels == ink).all(1).any()
    name = saved(page, f"{VIEWS[view]} as a table (CSV)", tmp_path / "table.csv")
    assert re.fullmatch(r"[a-z0-9-]+\.csv", name)
    headings, *rows = table(tmp_path / "table.csv")
    assert rows
    assert {len(row) for row in rows} == {len(headings)}


def test_a_saved_table_has_all_images_and_a_saved_picture_shows_them(
    page: Page, address: str, explained: Path, tmp_path: Path
) -> None:
    opened = open_run(explained)
    wanted = max(
        (unit_record(opened, 3, unit, 0, 200) for unit in range(4)), key=lambda item: item["total"]
    )
    open_view(page, address, f"#/runs/0/units/3/{wanted['unit']}")
    saved(page, "Images as a table (CSV)", tmp_path / "images.csv")
    headings, *rows = table(tmp_path / "images.csv")
    assert headings == ["image", "file", "label", "confidence"]
    assert [[int(row[0]), row[1], row[2], float(row[3])] for row in rows] == [
        [item["image"], item["name"], item["label"], item["score"]] for item in wanted["images"]
    ]
    box: Any = page.locator(".gallery .frame").first.bounding_box()
    first = page.locator(".gallery img").first
    first.evaluate("image => image.decode()")
    shown = np.asarray(
        Image.open(_written(tmp_path / "frame.png", first.screenshot())).convert("RGB")
    ).astype(float)
    saved(page, "This page as a picture (PNG)", tmp_path / "page.png")
    with Image.open(tmp_path / "page.png") as picture:
        small = picture.convert("RGB").resize((picture.width // 2, picture.height // 2))
    pixels = np.asarray(small).astype(float)
    size, left = round(box["width"]), round(box["x"])
    inside = slice(8, size - 8)
    distances = [
        np.abs(pixels[top : top + size, left : left + size][inside, inside] - shown[inside, inside])
        .mean()
        .item()
        for top in range(pixels.shape[0] - size)
    ]
    assert min(distances) < 4


def _written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_text_in_a_table_cannot_run_as_a_formula(page: Page, own: str, run: Path) -> None:
    note(run, "3.1", (4, 4, 4, 4), name="=1+2, three")
    open_view(page, own, "#/runs/0/variables/3")
    saved(page, "Units as a table (CSV)", run / "units.csv")
    assert (run / "units.csv").read_bytes().startswith("\ufeffvariable,unit,name".encode())
    rows = {row[1]: row for row in table(run / "units.csv")}
    assert rows["1"][2] == "'=1+2, three"


def test_the_menu_closes_by_escape_and_by_a_click_elsewhere(page: Page, address: str) -> None:
    open_view(page, address, "#/runs/0/variables")
    menu = page.locator("#save-menu")
    page.locator("#save-view").press("Enter")
    assert accessibility_problems(page) == []
    page.keyboard.press("Tab")
    page.keyboard.press("Escape")
    assert menu.is_hidden()
    assert focused(page) == "save-view"
    page.locator("#save-view").click()
    page.locator("h2").first.click()
    assert menu.is_hidden()


@pytest.mark.parametrize(
    "view", ["#/runs/0/variables", "#/runs/0/variables/3", "#/runs/0/dependence?m=1&n=2"]
)
def test_formulas_wait_behind_a_detail(page: Page, address: str, view: str) -> None:
    open_view(page, address, view)
    words = page.locator("main").inner_text()
    assert not re.search(r"Σ|log |\bln\b|NMI|entropy|mutual information|cosine", words)
    page.get_by_role("button", name="In formulas").first.click()
    assert re.search(r"Σ|NMI", page.locator(".formulas").first.inner_text())
    assert accessibility_problems(page) == []
