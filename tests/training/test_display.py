"""The bar of long work: on a terminal, after a while, gone at the end."""

import sys
import time

import pytest

from randquant import cli
from randquant.training.display import WaitingBar


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
        assert bar._bars._progress.tasks[0].description == "unknown"
    assert not bar._bars._progress.live.is_started
    assert capsys.readouterr().out == ""


def test_short_work_shows_nothing(capsys):
    with WaitingBar(shown=True, after=60.0) as bar:
        bar("certifying", 1, 4)
    assert bar._bars is None
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("terminal", [False, True])
def test_work_is_shown_on_a_terminal_only(terminal, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    with WaitingBar(after=0.0) as bar:
        if terminal:
            wait_for(bar)
        assert (bar._bars is not None) == terminal


def test_a_bar_is_gone_when_work_fails():
    bar = WaitingBar(shown=True, after=0.0)

    def work() -> None:
        with bar:
            wait_for(bar)
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        work()
    assert not bar._bars._progress.live.is_started


def test_a_command_reports_its_work(monkeypatch):
    seen = []
    monkeypatch.setattr(WaitingBar, "__call__", lambda bar, *step: seen.append(step))
    line = "plan --dimension 64 --population 9 --cohort 9 --rounds 2 --epsilon 8"
    assert cli.main([*line.split(), "--mechanisms", "gaussian"]) == 0
    assert ("gaussian", 0, 1) in seen
    assert seen[-1][1:] == (1, 1)
