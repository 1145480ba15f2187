"""The page of a run in a real browser, from a disk: its charts are drawn, hovered, zoomed."""

import pytest
from browsing import until

import randquant as rq
from randquant.privacy.guarantee import Guarantee
from randquant.reports.run import render
from randquant.training.config import TrainConfig
from randquant.training.records import RoundMetrics, RunRecord, RunSummary

pytestmark = pytest.mark.slow  # a browser

METRICS = [
    RoundMetrics(
        round=at,
        accuracy=0.9 - 0.8 / at,
        loss=0.4 + 2 / at,
        train_loss=0.5,
        bytes_up=14600,
        seconds_gradient=0.3,
        seconds_protect=0.2,
        seconds_evaluate=0.1,
    )
    for at in range(1, 31)
]
SUMMARY = RunSummary(
    0.873,
    0.41,
    650,
    365,
    4.49,
    75,
    Guarantee(7.9, 1e-5, "replace_one", "local", 8.0, 48750),
    18.2,
    60,
)
RUN = RunRecord(
    TrainConfig.of("digits", "softmax", "rqm", {"clip": 1.5}, rounds=30), METRICS, SUMMARY
)


LIVE = "[...document.querySelectorAll('figure.chart')].every(figure => figure.view)"
DOMAIN = "document.querySelector('figure.lines').view.scale('x').domain()"


@pytest.fixture(scope="module")
def text():
    return render(RUN, RUN, rq.rqm(clip=1.5, margin=1.5, levels=2, keep=0.42))


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
    tab.set_viewport_size({"width": 700, "height": 844})
    assert until(
        tab,
        "[...document.querySelectorAll('.picture')].every("
        "each => Math.abs(each.querySelector('svg').getBoundingClientRect().width"
        " - each.clientWidth) <= 1)",
    )


def test_pointing_shows_the_numbers_of_the_nearest_point(open_page):
    tab = open_page(viewport={"width": 1280, "height": 900})
    box = drawn(tab).bounding_box()
    for moved in range(100):  # until the script listens
        tab.mouse.move(box["x"] + 0.97 * box["width"], box["y"] + 0.4 * box["height"] + moved % 2)
        if tab.locator(".tip").is_visible():
            break
        tab.wait_for_timeout(100)
    shown = tab.locator(".tip").inner_text().split("\n")
    shown = [line for line in shown if line]
    assert shown == ["line: this run (rqm)", "round: 29", "accuracy, %: 87.2414"]
    tab.mouse.move(5, 5)
    tab.locator(".tip").wait_for(state="hidden")


def test_shift_and_the_wheel_zoom_and_a_double_click_returns(open_page):
    tab = open_page(viewport={"width": 1280, "height": 900})
    picture = drawn(tab)
    box = picture.bounding_box()
    tab.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    whole = tab.evaluate(DOMAIN)
    tab.mouse.wheel(0, 10)  # the page scrolls
    tab.wait_for_timeout(100)
    assert tab.evaluate(DOMAIN) == whole
    tab.keyboard.down("Shift")
    tab.mouse.wheel(0, -200)
    tab.keyboard.up("Shift")
    assert until(tab, f"{DOMAIN}[1] - {DOMAIN}[0] < 0.95 * {whole[1] - whole[0]}")
    tab.mouse.dblclick(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert until(tab, f"{DOMAIN}[1] === {whole[1]} && {DOMAIN}[0] === {whole[0]}")


def test_without_a_script_every_picture_is_there(open_page):
    tab = open_page(viewport={"width": 390, "height": 844}, java_script_enabled=False)
    assert tab.locator("figure.chart svg").count() == 4
    for picture in tab.locator("figure.chart svg").all():
        assert 100 < picture.bounding_box()["width"] <= 350


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
