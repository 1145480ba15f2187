"""Charts: every number that is drawn is the figure's, and pictures are files of their kind."""

import json
import math
import subprocess
import sys
from xml.etree import ElementTree

import pytest
import vega_bundle
from hypothesis import given
from hypothesis import strategies as st

from randquant.reports import (
    Axis,
    BandedCurve,
    Intervals,
    Mark,
    Ranged,
    ScatterPlot,
    Series,
    StackedAreas,
    charts,
    digits,
    figures,
    grouped_bars,
    line_chart,
    pages,
)
from randquant.reports import figure_from_json as checked
from randquant.reports import figure_to_json as plain

SERIES = Series("one", (Mark("a", "run a", 2.0, 60.0, True), Mark("b", "run b", None, 70.0, False)))
RANGES = (
    Ranged("half", 0.5, (0.2, 0.9), (0.4, 0.6), "0.5 (0.2 to 0.9)"),
    Ranged("unknown", None, (0.0, None), (None, None), "unknown"),
)
FIGURES = {
    "lines": line_chart(
        "Lines", [("up", [(1, 2), (2, math.nan), (3, 5)], "c1"), ("", [(1, 1)], "c2 dashed")],
        "round", Axis("ε", zero=True, bound=True), note="A note.",
    ),
    "bars": grouped_bars("Bars", ["−1", "1", "1"], {"x": [0.1, 0.2, 0.7]}, "x", "share"),
    "marks": ScatterPlot(
        title="Marks", series=(SERIES,), x=Axis("ε", log=True, bound=True), y=Axis("accuracy"),
        levels=(("limit", 65.0),),
    ),
    "areas": StackedAreas(
        title="Areas", places=(-1, 0, 0, 1), values=(-1, 1), value="value", x=Axis("x"),
        y=Axis("share"), shares=((0.9, 0.1), (0.5, 0.5), (0.4, 0.6), (0.1, 0.9)),
    ),
    "intervals": Intervals(title="Intervals", rows=RANGES, x=Axis("count")),
    "curve": BandedCurve(
        title="Curve", places=(1.0, 2.0), rows=RANGES, x=Axis("time"), y=Axis("share")
    ),
}  # fmt: skip


@pytest.fixture(params=FIGURES, scope="module")
def figure(request):
    return FIGURES[request.param]


def rows(figure: figures.Figure) -> list[dict]:
    return [
        row for data in json.loads(charts.live(figure))["data"] for row in data.get("values", [])
    ]


def test_a_figure_comes_back_from_json(figure):
    again = checked(json.loads(json.dumps(plain(figure))))
    assert again == figure
    assert hash(again) == hash(figure)


def test_what_is_drawn_are_the_figures_numbers():
    drawn = [(row["d"], row["x"], row["y"]) for row in rows(FIGURES["lines"])]
    assert drawn == [(1, 1, 1), (0, 1, 2), (0, 2, None), (0, 3, 5)]
    assert [row["y"] for row in rows(FIGURES["bars"])] == [0.1, 0.2, 0.7]
    assert len({row["x"] for row in rows(FIGURES["bars"])}) == 3  # equal labels are other slots
    assert [(r["x"], r["y"]) for r in rows(FIGURES["marks"]) if "run" in r] == [(None, 70), (2, 60)]
    assert [row["b"] for row in rows(FIGURES["areas"])][:4] == [0, 0.9, 0, 0.5]
    drawn = [[row[key] for key in "abcde"] for row in rows(FIGURES["intervals"])]
    assert drawn == [[0.2, 0.9, 0.4, 0.6, 0.5], [0, None, None, None, None]]
    assert [row["x"] for row in rows(FIGURES["curve"])] == [1, 2]


def test_the_picture_has_the_figures_heights():
    root = ElementTree.fromstring(charts.svg(FIGURES["bars"]))
    paths = [e.get("d") for e in root.iter("path") if (e.get("fill") or "") == "var(--blue)"]
    heights = [abs(float(d.split("v")[1].split("h")[0])) for d in paths]
    assert heights == pytest.approx([heights[0], 2 * heights[0], 7 * heights[0]], abs=0.6)


@given(st.floats(1e-9, 1e9))
def test_a_bound_is_never_drawn_below_its_value(value):
    assert value <= digits(value, Axis("", bound=True)) <= value * 1.00001
    (line,) = line_chart("", [("", [(1, value)], "c1")], "x", Axis("ε", bound=True)).lines
    assert line.points[0][1] >= value


UP = Axis("ε", bound=True)
BOUNDED = {
    "across": lambda low, high: line_chart("", [("", [(low, 0), (high, 1)], "c1")], UP, "y"),
    "up": lambda low, high: line_chart("", [("", [(1, low), (2, high)], "c1")], "x", UP),
    "bars": lambda low, high: grouped_bars("", ["a", "b"], {"": [low, high]}, "x", UP),
    "marks": lambda low, high: ScatterPlot(
        title="", x=UP, y=Axis("y"),
        series=(Series("", (Mark("a", "", low, 1, True), Mark("b", "", high, 1, True))),),
    ),
    "levels": lambda low, high: ScatterPlot(
        title="", x=Axis("x"), y=UP, levels=(("limit", low), ("other", high)), series=(SERIES,)
    ),
}  # fmt: skip
"""A figure of every kind whose numbers may be bounds, of two of them."""


@pytest.mark.parametrize("kind", BOUNDED)
def test_no_kind_of_figure_shows_a_bound_below_its_value(kind):
    for scale in (1e-3, 1.0, 1e3):
        low, high = scale / 3, 2 * scale / 3 * (1 + 1e-9)
        found = rows(BOUNDED[kind](low, high))
        shown = [value for row in found for value in row.values() if isinstance(value, float)]
        for exact in (low, high):
            near = [value for value in shown if abs(value / exact - 1) < 1e-4]
            assert near
            assert all(exact <= value for value in near)


def test_words_of_a_figure_are_no_code():
    hostile = "</script><script>alert(1)</script>'];alert(1)//"
    figure = line_chart(hostile, [(hostile, [(0, 1), (1, 2)], "c1")], hostile, hostile)
    assert "<" not in charts.live(figure)
    assert json.loads(charts.live(figure))["description"] == hostile
    ElementTree.fromstring(charts.svg(figure))
    assert "<script" not in charts.svg(figure)


WITHOUT = """
import sys
for name in ("altair", "vl_convert"):
    sys.modules[name] = None
import randquant as rq
channel = rq.rqm(clip=1.5, margin=1.5, levels=4, keep=0.42)
from randquant.reports.notebook import display
assert "<table" in display(channel) and "<svg" not in display(channel)
try:
    rq.plot(channel)
except ImportError as error:
    print(error)
"""


def test_a_page_without_the_library_says_everything_but_the_picture(monkeypatch):
    section = pages.Section("Figures", [FIGURES["lines"]])
    drawn = pages.report("t", "kind", "heading", "lead", [section])
    assert "<svg" in drawn
    assert "randquantVega" in drawn
    monkeypatch.setattr(charts, "available", lambda: False)
    plain_page = pages.report("t", "kind", "heading", "lead", [section])
    assert "pip install" in plain_page
    assert "A note." in plain_page
    assert "<script" not in plain_page


def run(code: str) -> str:
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return found.stdout.strip()


def test_without_altair_there_is_a_table_and_one_sentence():
    assert run(WITHOUT) == charts.MISSING


def test_the_package_imports_no_library_of_charts_and_pages():
    code = (
        "import sys, randquant; print(*sorted({'altair', 'vl_convert', 'jinja2'} & {*sys.modules}))"
    )
    assert run(code) == ""


@pytest.mark.slow  # a bundler runs
def test_the_packed_script_is_what_the_library_gives():
    """If it is not: python tests/vega_bundle.py"""
    assert vega_bundle.packed() == (pages.TEMPLATES / "vega.js").read_text(encoding="utf-8")
