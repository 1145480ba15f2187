"""Runs that somebody ends by looking at them: their figure covers every end.

The oracle is dynamic programming over the privacy loss of Gaussian releases, which is a random
walk: the worst rule that may end after any round, for figures that are printed where it ends.
"""

import json
import math

import interrupted
import numpy as np
import pytest
import torch
from scipy.signal import fftconvolve

from randquant import cli
from randquant.aggregation.registry import update_mechanism
from randquant.local_training.local import Local
from randquant.privacy.accounting.accountant import account
from randquant.privacy.accounting.releases import GaussianRelease
from randquant.training.federated import train
from randquant.training.runs import execution
from randquant.training.runs import status as run_status
from randquant.training.runs.folder import read_finished
from randquant.training.server import Server

Z, DELTA = 4.0, 1e-5
STEP = 0.01
"""Of the trapezoidal rule, in nats: half of it moves the results by less than 5 parts in 1e4."""


def realised_delta(figures) -> float:
    """The largest E[(1 - e^(figure - loss))_+] over all rules that end after one of these rounds.

    A round is N(1, z^2) in one world and N(0, z^2) in the other, its loss N(1/2z^2, 1/z^2). For
    an event S of outcomes and ends it is at least P(S) - E'[e^figure; S], which an honest figure
    keeps within delta.
    """
    rounds, mean, deviation = len(figures), 1 / (2 * Z * Z), 1 / Z
    spread = 9 * deviation * math.sqrt(rounds)
    loss = np.arange(-spread, rounds * mean + spread, STEP)
    jumps = np.arange(-round(9 * deviation / STEP), round(9 * deviation / STEP) + 1) * STEP
    weights = np.exp(-(((jumps - mean) / deviation) ** 2) / 2)
    weights /= weights.sum()
    value = np.zeros_like(loss)
    for figure in reversed(figures):
        value = np.maximum(value, -np.expm1(np.minimum(figure - loss, 0)))
        padded = np.pad(value, jumps.size // 2, mode="edge")
        value = fftconvolve(padded, weights[::-1], mode="valid")  # E of the value after a round
    return float(np.interp(0, loss, value))


def accounted(rounds: int) -> float:
    return account([GaussianRelease(Z, 1, rounds)], DELTA).epsilon


def test_the_oracle_gives_an_end_that_was_fixed_its_delta():
    for rounds in (1, 26, 400):
        never = [math.inf] * (rounds - 1)
        assert realised_delta([*never, accounted(rounds)]) == pytest.approx(DELTA, rel=1e-3)


@pytest.mark.parametrize("rounds", [26, 400])
def test_only_the_figure_of_all_declared_rounds_covers_an_end_chosen_by_looking(rounds):
    running = [accounted(number) for number in range(1, rounds + 1)]
    assert realised_delta(running) > 5 * DELTA  # what was printed once
    assert realised_delta([running[-1]] * rounds) <= 1.001 * DELTA


# Through the front doors

PLANNED = 26


def watched(folder, look):
    """Train with `rq.train`, all four clients in all rounds, with a function that sees each."""
    x = torch.randn(4, 3, 2, generator=torch.Generator().manual_seed(0))
    clients = [(part, (part[:, 0] > 0).long()) for part in x]
    mechanism = update_mechanism("gaussian", {"clip_norm": 1.0, "noise_multiplier": Z})
    return train(
        torch.nn.Linear(2, 2),
        clients,
        mechanism=mechanism,
        rounds=PLANNED,
        delta=DELTA,
        local=Local(epochs=1, threads=1),
        folder=folder,
        server=Server(on_round=look),
        progress=False,
    )


def test_no_rule_for_the_end_beats_what_is_printed_at_it(tmp_path):
    """What is stated of the run by whoever stops it here, after each round."""
    printed = []
    run = watched(tmp_path / "run", lambda m: printed.append(run_status.read(tmp_path / "run")))
    figures = [status.epsilon for status in printed]
    assert len(figures) == PLANNED
    assert realised_delta(figures) <= 1.001 * DELTA
    assert {status.guarantee for status in printed} == {None}
    assert run.guarantee is not None
    assert run.guarantee.epsilon == accounted(PLANNED)  # an undisturbed run costs no more
    assert str(run.guarantee) == "epsilon <= 5.81237 at delta = 1e-05 (replace_one, central trust)"


@pytest.mark.parametrize("stop", [RuntimeError("good enough"), KeyboardInterrupt()])
def test_whoever_stops_a_run_is_told_the_figure_of_all_its_rounds(stop, tmp_path, capsys):
    folder = tmp_path / "run"

    def look(metrics):
        if metrics.round == 5:
            raise stop

    with pytest.raises(type(stop)) as raised:
        watched(folder, look)
    said = " ".join([str(raised.value), *getattr(raised.value, "__notes__", [])])
    assert "Its guarantee is that of all rounds that were declared." in said
    assert cli.main(["runs", str(folder), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["runs"][0]
    assert (listed["rounds"], listed["epsilon"]) == (5, accounted(PLANNED))
    page = tmp_path / "page.html"
    assert cli.main(["report", str(folder), str(folder), "--output", str(page)]) == 0
    assert "5.813" in page.read_text()


CONFIG = interrupted.SMALL.changed(population=4, cohort=4, rounds=PLANNED)


@pytest.mark.parametrize("rounds", [5, 9])
def test_fewer_rounds_after_a_look_leave_the_figure_of_those_declared(rounds, tmp_path, capsys):
    folder = tmp_path / "run"
    interrupted.begin(folder, CONFIG, 5)
    line = ["train", "--resume", str(folder), "--quiet"]
    assert cli.main([*line, "--rounds", str(rounds)]) == 0
    said = capsys.readouterr().out
    assert "epsilon <= 5.81237 at delta = 1e-05" in said
    assert f"before round {rounds + 1} of {PLANNED}: the guarantee is of them all" in said
    summary = read_finished(folder).summary
    assert summary.guarantee is not None
    assert (summary.rounds, summary.guarantee.epsilon) == (rounds, accounted(PLANNED))
    assert "5.8123" in (folder / "report.html").read_text()
    assert cli.main(["runs", str(folder), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["runs"][0]
    assert (listed["state"], listed["epsilon"]) == ("finished", accounted(PLANNED))


def test_rounds_are_not_added_after_a_look(tmp_path, capsys):
    folder = tmp_path / "run"
    interrupted.begin(folder, CONFIG, 5)
    line = ["train", "--resume", str(folder), "--quiet", "--json"]
    for changes in (["--rounds", "27"], ["--rounds", "400", "--stop-at-epsilon", "50"]):
        assert cli.main([*line, *changes]) == 2
        assert "at most the 26 rounds declared before the first" in capsys.readouterr().err
    # What was lowered may be raised again, as far as was declared.
    assert cli.main([*line, "--rounds", "7"]) == 0
    assert cli.main([*line, "--rounds", "27"]) == 2
    capsys.readouterr()
    assert cli.main([*line, "--rounds", "26"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["rounds"], result["stopped"]) == (26, "")
    assert result["guarantee"]["epsilon"] == accounted(PLANNED)


def test_ctrl_c_on_the_command_line_says_so(tmp_path, capsys, monkeypatch):
    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    execution.create(tmp_path / "run", CONFIG, overwrite=False)
    monkeypatch.setattr(execution, "_train", interrupt)
    assert cli.main(["train", "--resume", str(tmp_path / "run"), "--quiet"]) == 130
    assert "all declared rounds count" in capsys.readouterr().err
