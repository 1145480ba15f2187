"""Flower: the server's account, and going on after a restart."""

from __future__ import annotations

import hashlib
import json
import re
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
    saved_state,
)
from flwr.serverapp.strategy import FedAdam, FedAvgM

import randquant as rq
from randquant.integrations import Offer, QuantizedStrategy, RoundEvent, RunAccountant
from randquant.integrations.flower import state
from randquant.privacy import account


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


@pytest.mark.parametrize(
    "make",
    [
        lambda: FedAdam(fraction_evaluate=0.0, eta=0.1),
        lambda: FedAvgM(fraction_evaluate=0.0, server_learning_rate=0.3, server_momentum=0.5),
        fedavg,
    ],
)
@pytest.mark.parametrize("killed_at", [("upload", 3), ("share", 3), ("reveal", 4), ("upload", 1)])
@pytest.mark.slow
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
    grid, path = grid_of(nodes=range(1, 4)), tmp_path / "server.state"
    one_round(exact(), grid=grid, folder=tmp_path)
    for mechanism, options in (
        (noisy(cohort=3), {}), (exact(), {"inner": FedAdam(fraction_evaluate=0.0)}),
        (exact(), {"delta": 1e-6}),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="Expected"):
            one_round(mechanism, grid=grid, folder=tmp_path, **options)
    good = path.read_bytes()
    for changed in (
        with_head(good, lambda head: head["arrays"][0].__setitem__(0, "model/other")),
        with_head(good, lambda head: head["record"].update(rounds=-1)),
        with_head(good, lambda head: head["record"].pop("accountant")),
        with_head(good, lambda head: head["record"].pop("offer")),
        b"PK damaged",
    ):
        path.write_bytes(changed)
        with pytest.raises(ValueError, match="Expected"):
            one_round(exact(), grid=grid, folder=tmp_path)


def with_head(data: bytes, change) -> bytes:
    """The same state with another head, and a right checksum."""
    size = int.from_bytes(data[40:48], "little")
    head = json.loads(data[48 : 48 + size])
    change(head)
    text = json.dumps(head).encode()
    body = len(text).to_bytes(8, "little") + text + data[48 + size :]
    return data[:8] + hashlib.sha256(body).digest() + body


def test_a_state_comes_back_as_it_was(tmp_path):
    path, strategy = tmp_path / "state", FedAdam()
    saved_state(path)
    record, model, _ = state.load(path, strategy)
    assert record == {"rounds": 1}
    assert (model["w"].numpy() == np.arange(6.0).reshape(2, 3)).all()
    assert model["n"].numpy().shape == ()
    assert (strategy.m_t["w"] == np.arange(3.0)).all()
    assert (strategy.m_t["empty"].shape, strategy.m_t["empty"].dtype) == ((0, 2), ">f4")
    assert [part[0] for part in strategy.v_t] == list(range(12))
    strategy.m_t["w"] += 1  # it can be stepped with in place


@pytest.mark.parametrize(
    "change",
    [
        lambda head: head["arrays"][0].__setitem__(2, [10**12]),
        lambda head: head["arrays"][0].__setitem__(2, [-2, -3]),
        lambda head: head["arrays"][0].__setitem__(1, "|O8"),
        lambda head: head["arrays"][0].__setitem__(1, "<f8,<f8"),
        lambda head: head["arrays"][-1].__setitem__(0, "inner/aggregate_train/#0"),
        lambda head: head["arrays"][-1].__setitem__(0, "inner/eta/#0"),
        lambda head: head["arrays"][-1].__setitem__(0, "other"),
        lambda head: head["arrays"][-1].__setitem__(0, "model/w"),
        lambda head: head["arrays"].pop(),
        lambda head: head.update(record=[]),
    ],
)
def test_a_state_of_something_else_is_refused_and_changes_nothing(change, tmp_path):
    path, strategy = tmp_path / "state", FedAdam()
    path.write_bytes(with_head(saved_state(path), change))
    before = dict(vars(strategy))
    with pytest.raises(ValueError, match="Expected the state of a run in"):
        state.load(path, strategy)
    assert vars(strategy) == before


@pytest.mark.slow
def test_a_delta_is_the_inverse_of_an_epsilon():
    event = RoundEvent(Offer(noisy("local"), 650), frozenset({2}))
    accountant = RunAccountant(1e-5, max_epsilon=20.0)
    accountant.compose(event)
    epsilon = accountant.get_epsilon(1e-7)
    delta = accountant.get_delta(epsilon)
    assert accountant.get_epsilon(delta) <= epsilon
    assert 0.97e-7 < delta < 1.02e-7
    assert accountant.get_delta(1e9) == 1e-300
    assert accountant.get_epsilon(accountant.get_delta(0.0)) == 0.0
    assert accountant.would_exceed(event, max_epsilon=epsilon)
    with pytest.raises(ValueError, match="Expected max_epsilon"):
        RunAccountant(1e-5).would_exceed(event)


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
