"""A sweep's page: whole without its script, and alive with it."""

import dataclasses
import math
from pathlib import Path

import made_runs
import pytest
from made_runs import measured, promise
from pages import Page, check_charts, drawn

from randquant.training import RunStatus as Status
from randquant_papers.configuration import PaperConfig
from randquant_papers.sweep import page
from randquant_papers.sweep.summary import as_json, as_text, results

CONFIG = PaperConfig.of("digits", "softmax", "rqm", {"clip": 0.03, "keep": 0.4}, rounds=1)
HOSTILE = "<script>alert('1')</script>"


def finished(name, accuracy, epsilon, trust="aggregate", **changes) -> Status:
    guarantee = None if epsilon is None else promise(epsilon, trust)
    figures = measured(1, accuracy, bytes_up=1234)
    return made_runs.finished(Path("/sweep") / name, CONFIG.changed(**changes), guarantee, figures)


RUNS = [
    finished("a", 0.80, 2.00001, parameters={"clip": 0.03, "keep": 0.3}),
    finished("b", 0.90, 8.0),
    finished("c", 0.85, 9.0, seed=1),
    finished("d", 0.70, 1.0, "central", mechanism="gaussian", parameters={}),
    finished("e", 0.88, 6.0, "central", mechanism="gaussian", parameters={}, seed=1),
    finished("f", 0.95, None, mechanism="clipped-sgd", parameters={}),
    finished("g", 0.94, math.inf, seed=2),
    Status(Path("/sweep/h"), "failed", CONFIG, error=f"it diverged {HOSTILE}"),
    Status(Path("/sweep/i"), "unfinished", CONFIG.changed(dataset=HOSTILE)),
]
TEXT = page.render(f"a sweep {HOSTILE}", results(RUNS))


def marks() -> list[dict]:
    return [row for row in drawn(TEXT) if "run" in row]


def test_every_finished_run_is_drawn_and_listed():
    (chart,) = check_charts(TEXT)
    assert sorted(row["run"] for row in marks()) == [*"abcdefg"]
    described = {e.get("aria-label") for e in chart.iter() if e.get("aria-roledescription")}
    assert described >= {row["t"] for row in marks()}
    assert sum("no finite ε" in (text or "") for text in described) == 1
    for name in "abcdefg":
        assert TEXT.count(f'data-run="{name}"') == 1  # in the table
    for name in "hi":
        assert f'data-run="{name}"' not in TEXT
    words = Page(TEXT).words
    for word in ("it diverged", "biased upward", "without privacy", "∞", "2.001"):
        assert word in words
    assert "9 runs: 7 finished, 1 failed, 1 unfinished." in words
    assert "rqm, aggregate trust" in words


def test_full_marks_are_the_frontier():
    assert {row["run"] for row in marks() if row["best"]} == {"a", "b", "d", "e"}
    assert {row["run"] for row in marks() if row["x"] is None} == {"f", "g"}
    assert results(RUNS).best_of == {
        "gaussian, central trust": ["d", "e"],
        "rqm, aggregate trust": ["a", "b"],
    }


def test_seeds_are_averaged():
    several = [
        finished("a", 0.80, 2.0, seed=0),
        finished("b", 0.90, 3.0, seed=1),
        finished("c", 0.95, 2.5, parameters={"clip": 0.1}),  # one seed: perhaps luck
        finished("d", 0.70, 9.0, parameters={"clip": 2, "keep": 0.4}, seed=0),
        finished("e", 0.76, 9.0, parameters={"keep": 0.4, "clip": 2.0}, seed=1),  # the same
        finished("f", 0.93, None, mechanism="clipped-sgd", parameters={}, seed=0),
        finished("g", 0.95, None, mechanism="clipped-sgd", parameters={}, seed=1),
        dataclasses.replace(finished("h", 0.1, 2.0, seed=2), state="unfinished"),
    ]
    found = results(several)
    shown = [([run.folder.name for run in a.runs], a.epsilon, a.best) for a in found.averages]
    assert shown == [
        (["a", "b"], 3.0, True), (["d", "e"], 9.0, False), (["f", "g"], None, False),
    ]  # fmt: skip
    assert found.averages[0].accuracy == pytest.approx(0.85)
    assert found.averages[0].deviation == pytest.approx(0.1 / math.sqrt(2))
    words = Page(page.render("sweep", found)).words
    for word in ("Means over seeds", "85.00", "7.07", "73.00"):
        assert word in words
    text = "\n".join(as_text(Path("/sweep"), found))
    assert "0.8500" in text
    assert [len(a["runs"]) for a in as_json(Path("/sweep"), found)["averages"]] == [2, 2, 2]
    single = results(RUNS[:2])
    assert "Means over seeds" not in page.render("sweep", single)
    assert "means over seeds" not in "\n".join(as_text(Path("/sweep"), single))
