"""Pages in a real browser, and what must hold of all of them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Request

NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
OPTIONS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine")


@contextmanager
def opened_page(
    browser: Browser, *, first_visit: bool = False, **settings: Any
) -> Iterator[tuple[Page, list[str]]]:
    """Yield a page and the list of its errors; only on a first visit does the tour come up by itself."""
    context = browser.new_context(**settings)
    if not first_visit:
        context.add_init_script("localStorage.setItem('imsvd tour', 'seen')")
    page = context.new_page()
    problems: list[str] = []
    page.on("console", lambda said: problems.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("requestfailed", lambda request: problems.extend(failures(request)))
    yield page, problems
    context.close()


def failures(request: Request) -> list[str]:
    """Return why a request failed; one canceled by leaving the page has not failed."""
    return [] if request.failure == "net::ERR_ABORTED" else [f"{request.url}: {request.failure}"]


def open_view(page: Page, address: str, view: str, heading: str | None = None) -> None:
    page.goto(address + view)
    page.locator("main:not([aria-busy]) h1").wait_for()
    if heading is not None:
        assert page.locator("h1").inner_text() == heading


def wait_for_heading(page: Page, heading: str) -> None:
    page.get_by_role("heading", level=1, name=heading, exact=True).wait_for()


def accessibility_problems(page: Page, *rules: str) -> list[str]:
    only = {"runOnly": {"type": "rule", "values": list(rules)}} if rules else {}
    axe_runner = pytest.importorskip("axe_playwright_python.sync_playwright")
    found = axe_runner.Axe().run(page, options={"resultTypes": ["violations"], **only})
    return [
        f"{violation['id']}: {[node['html'][:120] for node in violation['nodes'][:3]]}"
        for violation in found.response["violations"]
    ]


def check_everywhere(page: Page) -> None:
    """Check a page in light and dark, and on a phone."""
    assert accessibility_problems(page) == []
    page.emulate_media(color_scheme="dark", reduced_motion="reduce")
    assert accessibility_problems(page, "color-contrast") == []
    page.set_viewport_size({"width": 360, "height": 640})
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    too_wide = "[...document.querySelectorAll('main *')].filter(e => !e.closest('.scroll') && "
    too_wide += "e.getBoundingClientRect().right > 361).map(e => e.outerHTML.slice(0, 80))"
    assert page.evaluate(too_wide) == []


def focused(page: Page) -> str:
    told: str = page.evaluate("document.activeElement.id || document.activeElement.className")
    return told
