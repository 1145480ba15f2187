"""Values are shown by their class: a chart, a page, a table in a notebook; others are refused."""

import dataclasses
import types

import pytest
from made_runs import promise, record
from pages import Page

import randquant as rq
from randquant.reports import DataTable, notebook, pages
from randquant.reports.run import facts as run_facts_table

CHANNEL = rq.rqm(clip=1.5, margin=1.5, levels=16, keep=0.42)


def values():
    yield CHANNEL
    yield rq.certify(CHANNEL)
    yield rq.compare(1.0, 1, 1.0, mechanisms=["rqm"])
    yield rq.plan(9, 100, 10, 5, 8.0, mechanisms=["skellam"], privacy=rq.Privacy(bits=16))


@pytest.mark.parametrize("value", [*values()], ids=lambda value: type(value).__name__)
def test_every_kind_has_a_page_and_a_chart(value, tmp_path):
    path = tmp_path / "page.html"
    path.write_text("old")
    assert rq.report(value, path) == path
    assert [entry.name for entry in tmp_path.iterdir()] == ["page.html"]  # written as a whole
    words = Page(path.read_text()).words
    assert "What is covered, what is not Covered." in words
    assert rq.plot(value).to_dict()["$schema"]


def test_what_has_no_picture_is_refused_by_name(tmp_path):
    for call in (rq.plot, lambda value: rq.report(value, tmp_path / "page.html")):
        with pytest.raises(TypeError, match=r"Expected one of Channel, .*got float"):
            call(8.0)
    assert not [*tmp_path.iterdir()]


def test_a_notebook_shows_each_of_them_by_its_table():
    shown = {}
    html = types.SimpleNamespace(
        for_type_by_name=lambda module, name, function: shown.update({(module, name): function})
    )
    shell = types.SimpleNamespace(
        display_formatter=types.SimpleNamespace(formatters={"text/html": html})
    )
    notebook.register(shell)
    assert len(shown) == len(notebook.HOMES)
    assert "<table" in shown["randquant.channels.channel", "Channel"](CHANNEL)


def test_what_is_not_covered_is_asked_of_runs_only(tmp_path):
    with pytest.raises(ValueError, match="Expected a Run with uncovered=True, got a Channel"):
        rq.report(CHANNEL, tmp_path / "page.html", uncovered=True)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("simulated", [True, False])
def test_a_figure_of_a_simulation_is_called_so_in_a_notebook_too(simulated):
    """Whoever knows the seed subtracts the noise, of a run as of a table."""
    table = rq.statistics({"a": {"x": 1}, "b": {"x": 0}}, 1.0, queries={"x": rq.Mean(0, 1)}, seed=1)
    table = dataclasses.replace(
        table, guarantee=dataclasses.replace(table.guarantee, simulated=simulated)
    )
    guarantee = dataclasses.replace(promise(), simulated=simulated)
    shown = [
        notebook.display(table),
        pages.fragment(DataTable(*facts_of(guarantee), "numbers"), []),
    ]
    for text in shown:
        assert ("simulation from a seed: protects nobody" in text) is simulated


def facts_of(guarantee):
    return run_facts_table(types.SimpleNamespace(record=record(guarantee)))
