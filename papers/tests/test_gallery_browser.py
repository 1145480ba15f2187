"""The gallery in a real browser, at a desktop's and a phone's width, light and dark."""

from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from browsing import until
from playwright.sync_api import Browser, Page

from randquant.reports import CHARTS_FILE

GALLERY = Path(__file__).parents[1] / "docs" / "gallery"
PAGES = sorted(GALLERY.glob("*.html"))
WIDTHS = (1280, 390)


def faults(
    browser: Browser, path: Path, width: int, scheme: str, patience: float = 120
) -> set[str]:
    """What is wrong with a page, by kind; its charts have some seconds to be drawn."""
    context = browser.new_context(viewport={"width": width, "height": 844}, color_scheme=scheme)
    page, found, requests = context.new_page(), set(), []
    page.on("console", lambda m: found.add("console error") if m.type == "error" else None)
    page.on("pageerror", lambda _: found.add("page error"))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(path.as_uri(), wait_until="load")
    if not all_drawn(page, patience):
        found.add("chart without life")
    # A page of the gallery has the script of its charts beside it.
    if set(requests) - {path.as_uri(), (path.parent / CHARTS_FILE).as_uri()}:
        found.add("request")
    if page.evaluate("document.documentElement.scrollWidth") > width:
        found.add("wider than the screen")
    if not all(leads(page, path, target) for target in targets(page)):
        found.add("broken link")
    context.close()
    return found


NEXT = """() => {
  const waiting = [...document.querySelectorAll("figure.chart")].filter(each => !each.view);
  waiting[0]?.scrollIntoView();
  return !waiting.length;
}"""
"""Brings the next chart into view; playwright's own scrolling fails where frames come late."""


def all_drawn(page: Page, seconds: float) -> bool:
    """Whether every chart with data is drawn by the script as it comes into view."""
    return until(page, NEXT, seconds)


def targets(page: Page) -> list[str]:
    return page.eval_on_selector_all("a", "links => links.map(a => a.getAttribute('href'))")


def leads(page: Page, path: Path, target: str) -> bool:
    """Whether a link is relative, and its file and place are there."""
    parts = urlsplit(target)
    if parts.scheme or parts.netloc or parts.path.startswith("/"):
        return False
    if parts.fragment and not parts.path:
        return page.locator(f"[id='{parts.fragment}']").count() == 1
    return (path.parent / unquote(parts.path)).is_file()


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
@pytest.mark.slow
def test_every_page_of_the_gallery(path, browser):
    """Each width once, each scheme once: neither has a layout or links of its own."""
    for width, scheme in zip(WIDTHS, ("light", "dark"), strict=True):
        assert faults(browser, path, width, scheme) == set(), (width, scheme)


PLANTED = {
    "console error": "<script>console.error('here')</script>",
    "page error": "<script>throw Error('here')</script>",
    "chart without life": "<figure class='chart'>dead</figure>",
    "request": "<img src='{beside}'>",
    "wider than the screen": "<p style='width: 2000px'>wide</p>",
    "broken link": "<a href='nowhere.html'>on</a>",
    "broken link to a place": "<a href='#nowhere'>on</a>",
    "broken link to the network": "<a href='https://localhost/'>on</a>",
}


@pytest.mark.parametrize("kind", PLANTED)
@pytest.mark.slow
def test_a_planted_fault_is_found(kind, browser, tmp_path):
    beside, page = tmp_path / "a.svg", tmp_path / "page.html"
    beside.write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    body = PLANTED[kind].format(beside=beside.as_uri())
    page.write_text(f"<!doctype html><title>x</title><body style='background: #fff'>{body}")
    (only,) = faults(browser, page, 390, "light", patience=2)  # no chart here can be drawn
    assert kind.startswith(only)
