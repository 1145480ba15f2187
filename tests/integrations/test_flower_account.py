"""Flower: the server's account, and going on after a restart."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from pathlib import Path

import numpy as np
import pytest
from flower_grid import InProcessGrid, client_app
from flower_rounds import (
    ANYTHING,
    exact,
    fedavg,
    model,
    mover,
    noisy,
    refusals,
    rounds_of,
    run,
    saved_state,
)
from flwr.serverapp.strategy import FedAdam, FedAvgM

import randquant as rq
from randquant.integrations.accountant import RoundEvent, RunAccountant
from randquant.integrations.flower import state
from randquant.integrations.flower.strategy import QuantizedStrategy
from randquant.integrations.offer import Offer
from randquant.privacy.accounting.accountant import account


def test_epsilon_is_that_of_the_accountant_and_training_ends_before_the_limit():
    mechanism = noisy(cohort=5)
    cost = [account([mechanism.release(5, n)], 1e-5, quick=True).epsilon for n in range(1, 6)]
    strategy = QuantizedStrategy(fedavg(), mechanism, stop_at_epsilon=(cost[2] + cost[3]) / 2)
    result = run(strategy, InProcessGrid(client_app(ANYTHING, mover), range(1, 6)), rounds=9)
    assert [m["epsilon"] for m in result.train_metrics_clientapp.values()] == cost[:3]
    assert "before round 4" in strategy.stopped
    found = strategy.accountant.get_privacy_spent()
    assert found == account([mechanism.release(5, 3)], 1e-5)
    assert found.trust == "aggregate"


def test_clients_that_have_spent_their_epsilon_are_left_out_while_others_go_on():
    mechanism = noisy(cohort=3)
    limit = account([mechanism.release(5, 2)], 1e-5, quick=True).epsilon
    inner = fedavg(fraction_train=0.01, min_train_nodes=3, min_available_nodes=3)
    strategy = QuantizedStrategy(inner, mechanism, stop_at_epsilon=limit)
    result = run(strategy, InProcessGrid(client_app(ANYTHING, mover), range(1, 8)), rounds=20)
    counts = [strategy.accountant.answers(n) for n in range(1, 8)]
    assert max(counts) == 2
    assert sum(counts) == 3 * len(result.train_metrics_clientapp)
    assert sum(count < 2 for count in counts) < 3
    assert strategy.accountant.get_epsilon(1e-5) <= limit


def test_a_newcomer_may_be_anyone_who_is_gone():
    """A SuperNode that comes back has another number: what it has spent is not forgotten."""
    strategy = QuantizedStrategy(fedavg(), noisy())
    first = InProcessGrid(client_app(ANYTHING, mover), range(1, 6))
    run(strategy, first, rounds=2)
    second = InProcessGrid(client_app(ANYTHING, mover), [2, 3, 4, 5, 77])
    result = run(strategy, second, rounds=1)
    assert strategy.accountant.answers(77) == 3
    cost = account([noisy().release(5, 3)], 1e-5, quick=True).epsilon
    assert result.train_metrics_clientapp[1]["epsilon"] == cost


def test_a_newcomer_may_be_someone_who_still_seems_to_be_there():
    """A SuperNode that was killed stays listed for a minute."""
    strategy = QuantizedStrategy(fedavg(), noisy())
    grid = InProcessGrid(client_app(ANYTHING, mover), range(1, 6))
    run(strategy, grid, rounds=2)
    both = InProcessGrid(client_app(ANYTHING, mover), [*range(1, 6), 77])
    run(strategy, both, rounds=1)
    assert strategy.accountant.answers(77) == 3


def test_a_newcomer_inherits_the_most_of_each_offer():
    one, two = Offer(noisy(cohort=4), 5), Offer(noisy("local"), 5)
    accountant = RunAccountant(1e-5)
    accountant.compose(RoundEvent(one, frozenset({1})), 3)
    accountant.compose(RoundEvent(two, frozenset({1, 2})))
    accountant.compose(RoundEvent(two, frozenset({2})))
    accountant.meet([5])
    assert accountant.answers(5) == 3 + 2
    stable = RunAccountant(1e-5, stable=True)
    stable.load_state_dict(accountant.state_dict())
    stable.meet([6])
    assert stable.answers(6) == 0


def test_one_process_at_a_time_trains_in_a_folder(tmp_path):
    grid = InProcessGrid(client_app(ANYTHING, mover), range(1, 4))
    held = []

    def second(step, node, reply):
        if not held:
            held.append(1)
            with pytest.raises(BlockingIOError, match="another process is training it"):
                run(QuantizedStrategy(fedavg(), exact(), folder=tmp_path), grid)
        return [reply]

    grid.fault = second
    run(QuantizedStrategy(fedavg(), exact(), folder=tmp_path), grid)
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
    whole = run(
        QuantizedStrategy(make(), exact()),
        InProcessGrid(client_app(ANYTHING, mover), range(1, 4)),
        rounds=5,
    )

    class Killed(BaseException):
        pass

    def fault(found, node, reply):
        if (found, rounds_of(grid)) == (step, number):
            raise Killed
        return [reply]

    grid = InProcessGrid(client_app(ANYTHING, mover), range(1, 4), fault)
    first = QuantizedStrategy(make(), exact(), folder=tmp_path)
    with pytest.raises(Killed):
        run(first, grid, rounds=5)
    grid.fault = None
    second = QuantizedStrategy(make(), exact(), folder=tmp_path)
    evaluated = []
    result = run(second, grid, rounds=5, evaluate_fn=lambda n, arrays: evaluated.append(n))
    assert np.array_equal(result.arrays["w"].numpy(), whole.arrays["w"].numpy())
    lost = step in ("upload", "reveal")
    assert second.accountant.answers(1) == 5 + lost
    assert evaluated == list(range(number - 1, 6))
    assert list(result.train_metrics_clientapp) == list(range(number, 6))
    third = QuantizedStrategy(make(), exact(), folder=tmp_path)
    assert np.array_equal(run(third, grid, rounds=5).arrays["w"].numpy(), whole.arrays["w"].numpy())


def test_a_folder_of_another_run_is_refused(tmp_path):
    grid = InProcessGrid(client_app(ANYTHING, mover), range(1, 4))
    run(QuantizedStrategy(fedavg(), exact(), folder=tmp_path), grid)
    for other in (
        QuantizedStrategy(fedavg(), noisy(cohort=3), folder=tmp_path),
        QuantizedStrategy(FedAdam(fraction_evaluate=0.0), exact(), folder=tmp_path),
        QuantizedStrategy(fedavg(), exact(), folder=tmp_path, delta=1e-6),
    ):
        with pytest.raises(ValueError, match="Expected"):
            run(other, grid)
    good = (tmp_path / "server.state").read_bytes()
    for change in (
        lambda head: head["arrays"][0].__setitem__(0, "model/other"),
        lambda head: head["record"].update(rounds=-1),
        lambda head: head["record"].pop("accountant"),
        lambda head: head["record"].pop("offer"),
    ):
        (tmp_path / "server.state").write_bytes(with_head(good, change))
        with pytest.raises(ValueError, match="Expected"):
            run(QuantizedStrategy(fedavg(), exact(), folder=tmp_path), grid)
    (tmp_path / "server.state").write_bytes(b"PK damaged")
    with pytest.raises(ValueError, match="Expected the state of a run"):
        run(QuantizedStrategy(fedavg(), exact(), folder=tmp_path), grid)


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


@pytest.mark.seldom
def test_the_accountant_composes_what_clients_answered():
    one, two = Offer(noisy(cohort=4), 650), Offer(noisy("local"), 650)
    accountant = RunAccountant(1e-5, max_epsilon=20.0)
    accountant.compose(RoundEvent(one, frozenset({1, 2})), 2)
    assert accountant.get_epsilon(1e-5) == account([one.release(2, "replace_one", "aggregate")],
                                                   1e-5, quick=True).epsilon  # fmt: skip
    accountant.compose(RoundEvent(two, frozenset({2})))
    both = [
        one.mechanism.release(650, 2),
        dataclasses.replace(two.mechanism.release(650, 1), trust="aggregate"),
    ]
    assert accountant.get_epsilon(1e-5) == account(both, 1e-5, quick=True).epsilon
    assert accountant.get_privacy_spent() == account(both, 1e-5)
    assert accountant.num_releases == 3
    epsilon = accountant.get_epsilon(1e-7)
    delta = accountant.get_delta(epsilon)
    assert accountant.get_epsilon(delta) <= epsilon
    assert 0.97e-7 < delta < 1.02e-7
    assert accountant.get_delta(1e9) == 1e-300
    assert accountant.get_epsilon(accountant.get_delta(0.0)) == 0.0
    assert accountant.would_exceed(RoundEvent(two, frozenset({2})), max_epsilon=epsilon)
    assert not accountant.would_exceed(RoundEvent(two, frozenset({3})), max_epsilon=epsilon)

    copy = RunAccountant(1e-5)
    copy.load_state_dict(json.loads(json.dumps(accountant.state_dict())))
    assert copy.state_dict() == accountant.state_dict()
    assert copy.get_privacy_spent() == accountant.get_privacy_spent()
    with pytest.raises(ValueError, match="state of this accountant"):
        RunAccountant(1e-6).load_state_dict(accountant.state_dict())
    with pytest.raises(ValueError, match="state of this accountant"):
        copy.load_state_dict({**accountant.state_dict(), "offers": []})
    with pytest.raises(ValueError, match="Expected max_epsilon"):
        copy.would_exceed(RoundEvent(one, frozenset({1})))


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
