"""The bar of long work: on a terminal, after a while, gone at the end."""

import sys
import time

import pytest

from randquant import plan
from randquant._internal import WaitingBar, report, reporting, waiting
from randquant._internal import progress as bars


def wait_for(bar: WaitingBar) -> None:
    deadline = time.monotonic() + 300
    while bar._bars is None and time.monotonic() < deadline:
        time.sleep(0.01)


def test_long_work_is_shown_with_what_was_reported_last(capsys):
    with WaitingBar(shown=True, after=0.0) as bar:
        bar("certifying", 1, 4)
        wait_for(bar)
        bar("composing", 3, 4)
        task = bar._bars._progress.tasks[0]
        assert (task.description, task.completed, task.total) == ("composing", 3, 4)
        bar("unknown", 7, 0)
        (task,) = bar._bars._progress.tasks
        assert (task.description, task.total) == ("unknown", None)  # not of 4
    assert not bar._bars._progress.live.is_started
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("terminal", [False, True])
def test_work_is_shown_on_a_terminal_only(terminal, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    with WaitingBar(after=0.0) as bar:
        if terminal:
            wait_for(bar)
        assert (bar._bars is not None) == terminal


@pytest.mark.parametrize("progress", [True, False])
def test_a_function_shows_a_bar_unless_it_is_told_not_to_or_its_caller_shows_one(
    progress, monkeypatch
):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(bars, "BAR_DELAY_SECONDS", 0.0)
    shown, told = [], []
    monkeypatch.setattr(WaitingBar, "__call__", lambda bar, *step: shown.append(step))

    def work() -> None:
        with waiting(progress):
            report("working", 1, 2)

    work()
    assert shown == [("working", 1, 2)] * progress
    with reporting(lambda *step: told.append(step)):
        work()
    assert told == [("working", 1, 2)]
    assert len(shown) == progress


def test_a_function_is_told_instead_of_a_bar():
    told = []
    with waiting(lambda *step: told.append(step)):
        plan(64, 9, 9, 2, 8.0, mechanisms=["gaussian"])
    assert ("gaussian", 0, 1) in told
    with (
        pytest.raises(TypeError, match="Expected progress to be True or False, got 'no'"),
        waiting("no"),
    ):
        pass


def test_a_notebook_without_widgets_has_a_line_and_no_warning(capsys, monkeypatch):
    """Warnings are errors here; rich would warn at every step."""
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    monkeypatch.setattr(bars, "find_spec", lambda name: None)
    with bars.Bars() as shown:
        for done in range(4):
            shown.show("training", done, 3)
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.count("training") == 1
    assert "3/3" in told.err
