"""Flower: the server's account, and going on after a restart."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import sqlite3
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from flower_grid import InProcessGrid
from flower_rounds import (
    exact,
    fedavg,
    grid_of,
    model,
    noisy,
    one_round,
    refusals,
    rounds_of,
    run,
)
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM
from pages import Page

import randquant as rq
from randquant import cli
from randquant._internal import files, to_json
from randquant._internal.formatting import round_up
from randquant.integrations import QuantizedStrategy
from randquant.integrations.flower import strategy as flower_strategy
from randquant.privacy import NEIGHBORINGS, account
from randquant.reports.flower import page
from randquant.rounds import ServerStore


def test_epsilon_is_that_of_the_accountant_and_training_ends_before_the_limit():
    mechanism = noisy(cohort=5)
    cost = [account([mechanism.release(5, n)], 1e-5, quick=True).epsilon for n in range(1, 6)]
    limit = (cost[2] + cost[3]) / 2
    _, _, strategy = one_round(mechanism, stop_at_epsilon=limit, rounds=9)
    assert [row.epsilon for row in strategy.history] == cost[:3]
    assert "before round 4" in strategy.stopped
    found = strategy.accountant.get_privacy_spent()
    assert found == account([mechanism.release(5, 3)], 1e-5)
    assert found.trust == "aggregate"


@pytest.mark.parametrize("neighboring", NEIGHBORINGS)
def test_logs_and_page_state_both_figures_that_account_prints(neighboring, capsys, caplog):
    caplog.set_level(logging.INFO, logger="flwr")
    privacy = rq.Privacy(neighboring=neighboring)
    _, _, strategy = one_round(noisy(cohort=5), rounds=2, privacy=privacy)
    words = (
        "account stochastic-rounding --clip 0.3 --levels 2 --margin 0.7 --clip-norm 1 --cohort 5 "
        f"--trust aggregate --dimension 5 --rounds 2 --neighboring {neighboring} --json"
    )
    assert cli.main(words.split()) == 0
    stated = json.loads(capsys.readouterr().out)
    other = stated["other_relation"]
    assert to_json(strategy.accountant.other_relation) == other
    figure = f"(<= {round_up(other['epsilon'])} under {other['neighboring']})"
    said = [record.getMessage() for record in caplog.records]
    for start in (f"randquant: epsilon <= {round_up(stated['epsilon'])} {figure} at delta = 1e-05 ",
                  f"randquant: round 2: ε ≤ {round_up(stated['epsilon'])} {figure}; "):  # fmt: skip
        assert sum(line.startswith(start) for line in said) == 1, start
    words = Page(page(strategy.outcome())).words.replace("\u00a0", " ")
    # On the card and in the paragraph on others' figures.
    change = "left out (zero out)" if other["neighboring"] == "zero_out" else "replaced"
    assert f"ε ≤ {round_up(other['epsilon'])} if one client is {change}" in words
    assert words.count(f"ε ≤ {round_up(other['epsilon'])}") == 2


def test_clients_that_have_spent_their_epsilon_are_left_out_while_others_go_on():
    mechanism = noisy(cohort=3)
    limit = account([mechanism.release(5, 2)], 1e-5, quick=True).epsilon
    inner = fedavg(fraction_train=0.01, min_train_nodes=3, min_available_nodes=3)
    _, _, strategy = one_round(
        mechanism, range(1, 8), inner=inner, rounds=20, stop_at_epsilon=limit
    )
    counts = [strategy.accountant.answers(n) for n in range(1, 8)]
    assert max(counts) == 2
    assert sum(counts) == 3 * len(strategy.history)
    assert sum(count < 2 for count in counts) < 3
    assert strategy.accountant.get_epsilon(1e-5) <= limit


def test_a_newcomer_may_be_anyone_who_is_gone():
    """A SuperNode that comes back has another number: what it has spent is not forgotten."""
    _, _, strategy = one_round(noisy(), rounds=2)
    result = run(strategy, grid_of(nodes=[2, 3, 4, 5, 77]))
    assert strategy.accountant.answers(77) == 3
    cost = account([noisy().release(5, 3)], 1e-5, quick=True).epsilon
    assert result.train_metrics_clientapp[1]["epsilon"] == cost


def test_one_process_at_a_time_trains_in_a_folder(tmp_path):
    held = []

    def second(step, node, reply):
        if not held:
            held.append(1)
            with pytest.raises(BlockingIOError, match="another process is training it"):
                one_round(exact(), grid=grid, folder=tmp_path)
        return [reply]

    grid = grid_of(fault=second)
    one_round(exact(), grid=grid, folder=tmp_path)
    assert held


def test_a_run_stays_in_its_folder_wherever_its_own_code_goes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    strategy = QuantizedStrategy(fedavg(), noisy(), folder="run")
    run(strategy, grid_of(), evaluate_fn=lambda number, arrays: os.chdir(tmp_path / "elsewhere"))
    os.chdir(tmp_path)
    again = QuantizedStrategy(fedavg(), noisy(), folder="run")
    run(again, grid_of(), rounds=2)
    assert [row.round for row in again.history] == [1, 2]
    assert again.accountant.answers(1) == 2
    assert not list((tmp_path / "elsewhere").iterdir())


def adam():
    return FedAdam(fraction_evaluate=0.0, eta=0.1)


def momentum():
    return FedAvgM(fraction_evaluate=0.0, server_learning_rate=0.3, server_momentum=0.5)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(
    ("make", "killed_at"),
    [
        *((adam, each) for each in (("reveal", 4), ("upload", 3), ("share", 1), ("upload", 1))),
        (momentum, ("upload", 3)),
        (fedavg, ("upload", 3)),
    ],
)
def test_a_killed_run_goes_on_as_if_it_had_not_been(make, killed_at, tmp_path):
    """The same steps bit for bit, and every round that was asked for is in the account."""
    step, number = killed_at
    nodes = range(1, 4)
    whole, _, _ = one_round(exact(), nodes, inner=make(), rounds=5)

    class Killed(BaseException):
        pass

    def fault(found, node, reply):
        if (found, rounds_of(grid)) == (step, number):
            raise Killed
        return [reply]

    grid = grid_of(nodes=nodes, fault=fault)
    with pytest.raises(Killed):
        one_round(exact(), grid=grid, inner=make(), folder=tmp_path, rounds=5)
    grid.fault = None
    second = QuantizedStrategy(make(), exact(), folder=tmp_path)
    evaluated = []
    result = run(second, grid, rounds=5, evaluate_fn=lambda n, arrays: evaluated.append(n))
    assert np.array_equal(result.arrays["w"].numpy(), whole)
    lost = step in ("upload", "reveal")
    assert second.accountant.answers(1) == 5 + lost
    assert evaluated == list(range(number - 1, 6))
    assert list(result.train_metrics_clientapp) == list(range(number, 6))
    third, _, _ = one_round(exact(), grid=grid, inner=make(), folder=tmp_path, rounds=5)
    assert np.array_equal(third, whole)


def test_a_folder_of_another_run_is_refused(tmp_path):
    grid, path = grid_of(nodes=range(1, 4)), tmp_path / "server.sqlite"
    one_round(exact(), grid=grid, folder=tmp_path)
    for mechanism, options in (
        (noisy(cohort=3), {}), (exact(), {"inner": FedAdam(fraction_evaluate=0.0)}),
        (exact(), {"delta": 1e-6}),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="Expected"):
            one_round(mechanism, grid=grid, folder=tmp_path, **options)
    good = path.read_bytes()
    stored = ServerStore(path).read()
    for change in (
        {"arrays": {"model/other": stored.arrays["model/w"]}}, {"progress": {"rounds": -1}},
        {"run": {**stored.run, "offer": "another"}}, {"account": {}},
    ):  # fmt: skip
        path.unlink()
        saved(path, replace(stored, **change))
        with pytest.raises(ValueError, match="Expected"):
            one_round(exact(), grid=grid, folder=tmp_path)
    path.write_bytes(b"PK damaged")
    with pytest.raises(OSError, match="file is not a database"):
        one_round(exact(), grid=grid, folder=tmp_path)
    path.write_bytes(good)
    one_round(exact(), grid=grid, folder=tmp_path)


def saved(path, stored):
    """Write a store of one round."""
    store = ServerStore(path)
    store.create(stored.run, stored.account, 0, {})
    store.commit(stored.history[0], stored.progress, stored.arrays)


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM records WHERE name = 'asked'",
        "DELETE FROM rounds WHERE round = 1",
        "DELETE FROM states",
        "UPDATE records SET content = replace(content, '\"rounds\": 2', '\"rounds\": 1')",
        "UPDATE records SET name = 'other' WHERE name = 'asked'",
        "UPDATE rounds SET content = replace(content, '\"asked\": 3', '\"asked\": 2')",
        "UPDATE rounds SET round = 7 WHERE round = 2",
        "UPDATE states SET content = substr(content, 1, length(content) - 1)",
        "UPDATE states SET content = (SELECT content FROM states ORDER BY part LIMIT 1)||x'00'",
    ],
)
def test_a_change_of_a_servers_state_is_noticed(statement, tmp_path):
    grid, path = grid_of(nodes=range(1, 4)), tmp_path / "server.sqlite"
    one_round(exact(), grid=grid, folder=tmp_path, rounds=2)
    good = ServerStore(path).read()
    assert (good.progress["rounds"], len(good.history)) == (2, 2)
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute(statement)
    with pytest.raises(ValueError, match="Expected"):
        ServerStore(path).read()


def test_a_model_of_an_earlier_round_is_not_taken_for_the_last_ones(tmp_path):
    grid, path = grid_of(nodes=range(1, 4)), tmp_path / "server.sqlite"
    kept = []
    for rounds in (1, 2):
        one_round(exact(), grid=grid, folder=tmp_path, rounds=rounds)
        with contextlib.closing(sqlite3.connect(path)) as database:
            kept.append(database.execute("SELECT content FROM states").fetchall())
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE states SET content = ?", kept[0][0])
    with pytest.raises(ValueError, match="its model is of another round"):
        ServerStore(path).read()


def test_rounds_that_failed_before_anybody_was_asked_are_on_record_too(tmp_path):
    lost = []

    def fault(step, node, reply):
        lost.append(step)
        return [reply] * (len(lost) > 3)  # nobody answers the first step of the first round

    grid = grid_of(nodes=range(1, 4), fault=fault)
    one_round(exact(), grid=grid, folder=tmp_path, rounds=2, patience=2)
    rows = ServerStore(tmp_path / "server.sqlite").read().history
    assert [bool(row.failed) for row in rows] == [True, False]


@pytest.mark.parametrize("when", ["upload", "advertise"])
def test_a_state_that_is_deleted_while_the_run_goes_on_is_not_made_anew(when, tmp_path):
    """Before a round is recorded, or charged: there is no file yet in the first step of a run."""
    path = tmp_path / "server.sqlite"

    def fault(step, node, reply):
        if step == when:
            path.unlink(missing_ok=True)
        return [reply]

    grid = grid_of(nodes=range(1, 5), fault=fault)
    # Three of four clients a round: the sum of the second is not prepared in the first.
    inner = FedAvg(fraction_train=0.75, fraction_evaluate=0.0, min_train_nodes=3)
    with pytest.raises(FileNotFoundError, match="deleted or moved while the run went on"):
        one_round(exact(), grid=grid, inner=inner, folder=tmp_path, rounds=2)
    assert not path.exists()


def test_a_second_start_goes_on_with_the_moments_of_the_folder_alone(tmp_path, monkeypatch):
    """The strategy remembers a step that no disk has."""
    grid = grid_of(nodes=range(1, 4))
    whole, _, _ = one_round(exact(), grid=grid, inner=FedAdam(fraction_evaluate=0.0), rounds=2)
    inner = FedAdam(fraction_evaluate=0.0)
    strategy = QuantizedStrategy(inner, exact(), folder=tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(ServerStore, "commit", lambda *_: (_ for _ in ()).throw(OSError("full")))
        with pytest.raises(OSError, match="full"):
            run(strategy, grid, rounds=2)
    result = run(strategy, grid, rounds=2)
    assert np.array_equal(result.arrays["w"].numpy(), whole)


def test_a_last_round_that_is_damaged_while_the_run_goes_on_ends_it(tmp_path):
    """No round can follow it, and it is not told as a failed round."""
    path = tmp_path / "server.sqlite"

    def fault(step, node, reply):
        if (step, rounds_of(grid)) == ("upload", 2):
            with contextlib.closing(sqlite3.connect(path)) as database, database:
                database.execute("UPDATE rounds SET content = 'damaged'")
        return [reply]

    grid = grid_of(nodes=range(1, 4), fault=fault)
    with pytest.raises(OSError, match=r"Expected the last round in .* as it was written"):
        one_round(exact(), grid=grid, folder=tmp_path, rounds=3)


def test_the_arrays_of_a_strategy_come_back_as_they_were():
    strategy, other = FedAdam(), FedAdam()
    strategy.m_t = {"w": np.arange(3.0), "empty": np.zeros((0, 2), dtype=">f4")}
    strategy.v_t = [np.full(2, float(n)) for n in range(12)]
    content = files.pack_arrays({"rounds": 1}, flower_strategy.arrays_in(strategy))
    record, arrays = files.unpack_arrays(content)
    assert record == {"rounds": 1}
    flower_strategy.restore(other, arrays, {})
    assert (other.m_t["w"] == np.arange(3.0)).all()
    assert (other.m_t["empty"].shape, other.m_t["empty"].dtype) == ((0, 2), ">f4")
    assert [part[0] for part in other.v_t] == list(range(12))
    other.m_t["w"] += 1  # it can be stepped with in place


@pytest.mark.parametrize("name", ["aggregate_train/#0", "eta/#0", "other"])
def test_arrays_of_something_else_are_refused_and_change_nothing(name):
    strategy = FedAdam()
    before = dict(vars(strategy))
    with pytest.raises(ValueError, match="Expected arrays that FedAdam remembers, got"):
        flower_strategy.restore(strategy, {"m_t/w": np.zeros(2), name: np.zeros(2)}, {})
    assert vars(strategy) == before


def test_the_two_lines_of_the_docs_run():
    page = (Path(__file__).parents[2] / "docs" / "flower.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    assert len(blocks) == 4
    spaces = [{}, {"mechanism": noisy(), "model": 650, "rq": rq}]
    for block, space in zip(blocks, [*spaces, spaces[1], spaces[1]], strict=True):
        exec(compile(block, "docs/flower.md", "exec"), space)
    assert spaces[1]["strategy"].local.parts == ("head.*",)
    grid = InProcessGrid(spaces[0]["app"], [1, 2])
    fedavg().start(grid, model(), 1)  # no strategy of ours: nothing is sent
    assert len(refusals(grid)) == 2


def test_what_one_client_can_do_is_said_of_those_in_the_mean_after_a_restart_too(tmp_path):
    """Of two rounds, the last of which has lost a client: the others dilute a hostile one less."""
    away = set()

    def fault(step, node, reply):
        return [] if step == "upload" and node in away else [reply]

    grid = grid_of(fault=fault)
    _, _, strategy = one_round(noisy(), grid=grid, folder=tmp_path)
    assert "one hostile client of 5 moves" in strategy.outcome().hostile
    away.add(1)
    _, _, strategy = one_round(noisy(), grid=grid, folder=tmp_path, rounds=2)
    assert strategy.history[-1].dropped == 1
    assert "one hostile client of 4 moves" in strategy.outcome().hostile
    _, _, again = one_round(noisy(), grid=grid, folder=tmp_path, rounds=2)
    assert again.outcome().hostile == strategy.outcome().hostile
