"""Runs that somebody ends by looking at them: their figure is that of all declared rounds."""

import json
import math

import interrupted
import problems
import pytest
import torch

from randquant import cli
from randquant.aggregation import update_mechanism
from randquant.cli import train as command
from randquant.local_training import Local
from randquant.privacy import GaussianRelease, Guarantee, account
from randquant.privacy.accounting import ledger
from randquant.reports import report_run
from randquant.training import Server, read_finished, read_run, train
from randquant.training.run_store import SentRounds, Status

Z, DELTA = 8.0, 1e-5


def accounted(rounds: int) -> float:
    return account([GaussianRelease(Z / 2, 1, rounds)], DELTA).epsilon


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


def test_what_is_printed_at_any_end_is_the_figure_of_all_declared_rounds(tmp_path):
    """What is stated of the run by whoever stops it here, after each round."""
    printed = []
    run = watched(tmp_path / "run", lambda m: printed.append(read_run(tmp_path / "run")))
    assert [status.epsilon for status in printed] == [accounted(PLANNED)] * PLANNED
    assert [status.rounds for status in printed] == list(range(1, PLANNED + 1))
    assert {status.guarantee for status in printed} == {None}
    assert run.guarantee is not None
    assert run.guarantee.epsilon == accounted(PLANNED)  # an undisturbed run costs no more
    assert str(run.guarantee) == "epsilon <= 5.81237 at delta = 1e-05 (replace_one, central trust)"


@pytest.mark.parametrize("declared", ["replace_one", "zero_out"])
@pytest.mark.parametrize("now", ["replace_one", "zero_out"])
def test_a_figure_for_zeros_is_none_for_any_two_updates(declared, now, tmp_path):
    """Of a run that was switched to other neighbours, and has not gone on since."""
    config = problems.config_of(
        "digits", "softmax", "rqm", population=10, cohort=4, neighboring=now
    )
    sent = SentRounds("", "", 1, 5, 5, 2.0, DELTA, declared)
    found = Status(tmp_path, "unfinished", config, sent_rounds=sent).epsilon
    assert found == (math.inf if (declared, now) == ("zero_out", "replace_one") else 2.0)


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
    run = problems.train_run(folder, changes={"rounds": rounds})
    report_run(folder)
    said = "\n".join(command.finished_lines(folder, run))
    assert "epsilon <= 5.81237 at delta = 1e-05" in said
    assert f"before round {rounds + 1} of {PLANNED}: the guarantee is of them all" in said
    summary = read_finished(folder).summary
    assert summary.guarantee is not None
    assert (summary.rounds, summary.guarantee.epsilon) == (rounds, accounted(PLANNED))
    assert "5.8123" in (folder / "report.html").read_text()
    assert cli.main(["runs", str(folder), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["runs"][0]
    assert (listed["state"], listed["epsilon"]) == ("finished", accounted(PLANNED))


def test_where_nobody_sees_who_takes_part_fewer_rounds_cost_all_those_declared(
    tmp_path, monkeypatch
):
    def account(releases, delta, *, quick=False):
        (release,) = releases
        return Guarantee(0.1 * release.rounds, delta, "replace_one", "model", 2.0, 1, hidden=True)

    monkeypatch.setattr(ledger, "account", account)
    config = CONFIG.changed(trust="model", cohort=2, rounds=6)
    interrupted.begin(tmp_path / "run", config, 2)
    run = problems.train_run(tmp_path / "run", changes={"rounds": 3})
    assert (run.rounds, run.summary.guarantee.epsilon) == (3, 0.1 * 6)


def test_rounds_are_not_added_after_a_look(tmp_path):
    folder = tmp_path / "run"
    interrupted.begin(folder, CONFIG, 5)
    for changes in ({"rounds": 27}, {"rounds": 400, "stop_at_epsilon": 50.0}):
        with pytest.raises(ValueError, match="at most the 26 rounds declared before the first"):
            problems.train_run(folder, changes=changes)
    # What was lowered may be raised again, as far as was declared.
    problems.train_run(folder, changes={"rounds": 7})
    with pytest.raises(ValueError, match="at most the 26 rounds"):
        problems.train_run(folder, changes={"rounds": 27})
    summary = problems.train_run(folder, changes={"rounds": 26}).summary
    assert (summary.rounds, summary.stopped) == (26, "")
    assert summary.guarantee is not None
    assert summary.guarantee.epsilon == accounted(PLANNED)
