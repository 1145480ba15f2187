"""The page of a run in a real browser, from a disk: its charts are drawn, hovered, zoomed."""

import pytest
from browsing import until
from made_runs import promise, record

import randquant as rq
from randquant.reports import render_run

pytestmark = pytest.mark.slow  # a browser

LIVE = "[...document.querySelectorAll('figure.chart')].every(figure => figure.view)"


@pytest.fixture(scope="module")
def text():
    run = record(promise(7.9))
    return render_run(run, run, rq.rqm(clip=1.5, margin=1.5, levels=2, keep=0.42))


@pytest.fixture
def open_page(browser, tmp_path, text):
    path = tmp_path / "report.html"
    path.write_text(text)
    said: list[str] = []
    asked: list[str] = []

    def opened(**options):
        tab = browser.new_context(**options).new_page()
        tab.on("console", lambda message: said.append(message.text))
        tab.on("pageerror", lambda error: said.append(str(error)))
        tab.on("request", lambda request: asked.append(request.url))
        tab.goto(path.as_uri())
        return tab

    yield opened
    assert said == []
    assert set(asked) == {path.as_uri()}


def drawn(tab):
    for figure in tab.locator("figure.chart").all():
        figure.scroll_into_view_if_needed()
    assert until(tab, LIVE)
    first = tab.locator("figure.lines .picture").first
    first.scroll_into_view_if_needed()
    return first


@pytest.mark.parametrize("width", [1280, 390])
def test_every_chart_comes_to_life_and_fits(open_page, width):
    tab = open_page(viewport={"width": width, "height": 844})
    drawn(tab)
    assert tab.locator("figure.chart").count() == 4
    assert tab.evaluate("document.documentElement.scrollWidth") == width
    for picture in tab.locator(".picture svg").all():
        assert picture.bounding_box()["width"] <= width - 40


def test_the_policy_stops_a_script_that_is_not_the_pages(browser, tmp_path, text):
    """The check above can fail: a planted script is refused, and the console says so."""
    path = tmp_path / "report.html"
    planted = "<script>document.title = 'planted'</script></body>"
    path.write_text(text.replace("</body>", planted))
    said: list[str] = []
    tab = browser.new_page()
    tab.on("console", lambda message: said.append(message.text))
    tab.goto(path.as_uri())
    assert tab.title() != "planted"
    assert any("Content Security Policy" in line for line in said)
