"""What is said of a run whose noise comes from a seed, wherever its epsilon is."""

import json

import pytest
import torch

import randquant as rq
from randquant import cli
from randquant.aggregation.registry import update_mechanism
from randquant.cli import progress
from randquant.privacy.guarantee import SIMULATED
from randquant.reports import run_pictures as pictures
from randquant.reports.run import report_run
from randquant.training.config import TrainConfig
from randquant.training.runs import execution

CONFIG = TrainConfig.of(
    "breast-cancer", "softmax", "gaussian", {"clip_norm": 0.5, "noise_multiplier": 4.0},
    population=4, cohort=4, rounds=2, threads=1,
)  # fmt: skip


@pytest.fixture(scope="module", params=[0, None])
def trained(request, tmp_path_factory):
    """A run, and whether it is from a seed."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    config = CONFIG.changed(seed=request.param)
    execution.create(folder, config, overwrite=False)
    return folder, execution.execute(folder), request.param is not None


def test_it_is_in_the_line_of_the_guarantee(trained):
    folder, run, seeded = trained
    assert str(run.summary.guarantee).endswith(f"; {SIMULATED}" if seeded else "central trust)")
    [line] = [line for line in progress.table(folder, run) if line.startswith("guarantee")]
    assert (SIMULATED in line) == seeded
    assert progress.result(folder, run)["guarantee"]["simulated"] is seeded
    assert (SIMULATED in str(pictures.facts(run))) == seeded


def test_it_is_on_top_of_the_report(trained):
    folder, _, seeded = trained
    top, _, _ = report_run(folder).read_text().partition("What the guarantee means")
    assert "Guarantee of the whole run" in top
    assert (SIMULATED in top) == seeded


def test_it_is_beside_runs_of_a_list(trained, tmp_path, capsys):
    folder, _, seeded = trained
    assert cli.main(["runs", str(folder)]) == 0
    assert (f"run: {SIMULATED}" in capsys.readouterr().out) == seeded
    assert cli.main(["runs", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"][0]["simulated"] is seeded
    output = tmp_path / "both.html"
    assert cli.main(["report", str(folder), str(folder), "--output", str(output)]) == 0
    assert (SIMULATED in output.read_text()) == seeded


@pytest.mark.parametrize("seed", [0, None])
def test_a_run_of_ones_own_says_so(seed):
    x = torch.randn(40, 5, 2, generator=torch.Generator().manual_seed(0))
    clients = [(part, (part[:, 0] > 0).long()) for part in x]
    mechanism = update_mechanism("gaussian", {"clip_norm": 1.0, "noise_multiplier": 4.0})
    run = rq.train(torch.nn.Linear(2, 2), clients, mechanism=mechanism, rounds=1, seed=seed)
    assert (SIMULATED in str(run.guarantee)) == (SIMULATED in repr(run)) == (seed is not None)
