"""What is said of a run whose noise comes from a seed, wherever its epsilon is."""

import json

import problems
import pytest
from interrupted import SMALL
from pages import Page
from torch import nn

from randquant import cli
from randquant._internal import round_up
from randquant.cli import train as command
from randquant.privacy import SIMULATED
from randquant.reports import render_run
from randquant.reports import run as page
from randquant.training import Run


@pytest.fixture(scope="module", params=[0, None])
def trained(request, tmp_path_factory):
    """A run, and whether it is from a seed."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    config = SMALL.changed(rounds=2, seed=request.param)
    problems.create_run(folder, config)
    return folder, problems.train_run(folder), request.param is not None


def test_it_is_in_the_line_of_the_guarantee(trained):
    folder, run, seeded = trained
    assert str(run.summary.guarantee).endswith(f"; {SIMULATED}" if seeded else "central trust)")
    [line] = [line for line in command.finished_lines(folder, run) if line.startswith("guarantee")]
    assert (SIMULATED in line) == seeded
    assert command.finished_json(folder, run)["guarantee"]["simulated"] is seeded
    assert (SIMULATED in str(page.facts(Run(nn.Identity(), run, folder, declared=2)))) == seeded
    assert (SIMULATED in Page(render_run(run)).words) == seeded


def test_it_is_beside_runs_of_a_list_with_each_figure_under_its_relation(trained, tmp_path, capsys):
    folder, run, seeded = trained
    assert cli.main(["runs", str(folder)]) == 0
    assert (f"run: {SIMULATED}" in capsys.readouterr().out) == seeded
    assert cli.main(["runs", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"][0]["simulated"] is seeded
    output = tmp_path / "both.html"
    assert cli.main(["report", str(folder), str(folder), "--output", str(output)]) == 0
    assert (SIMULATED in output.read_text()) == seeded
    figures = {each.neighboring: round_up(each.epsilon, 4)
               for each in (run.summary.guarantee, run.summary.other_relation)}  # fmt: skip
    words = " ".join(Page(output.read_text()).words.split())
    assert "ε ≤, replace one ε ≤, zero out" in words
    assert f" {figures['replace_one']} {figures['zero_out']} " in words
