"""What is said of a run whose noise comes from a seed, wherever its epsilon is."""

import json
import math

import problems
import pytest
import torch
from interrupted import SMALL
from pages import Page
from torch import nn

import randquant as rq
from randquant import cli
from randquant._internal import round_up
from randquant.aggregation import LocalGaussian
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


def test_what_no_epsilon_covers_is_on_a_commands_page_only_if_it_is_asked_for(trained, tmp_path):
    folder, _, _ = trained
    plain, all_of_it = tmp_path / "plain.html", tmp_path / "all.html"
    assert cli.main(["report", str(folder), "--output", str(plain)]) == 0
    assert cli.main(["report", str(folder), "--output", str(all_of_it), "--uncovered"]) == 0
    left_out = "uncovered=True) shows them"
    assert left_out in Page(plain.read_text()).words
    assert left_out not in Page(all_of_it.read_text()).words


def test_what_was_spent_before_the_first_round_is_named_beside_the_figure():
    spent = rq.Guarantee(0.1, 1e-7, "replace_one", "local", math.inf, 1)
    clients = [(torch.randn(5, 2), torch.tensor([0, 1, 0, 1, 1])) for _ in range(3)]
    run = rq.train(
        nn.Linear(2, 2), clients, mechanism=LocalGaussian(1.0, 6.0), rounds=1, progress=False,
        privacy=rq.Privacy(spent=spent),
    )  # fmt: skip
    assert run.record.summary.spent == spent
    assert f"of it before round 1 {spent}" in repr(run)
    assert run.guarantee.epsilon > rq.account([LocalGaussian(1.0, 6.0).release(6, 1)], 1e-5).epsilon
