"""Flower: what a client counts, and where it stops."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from flower_grid import InProcessGrid, answers_of, counted, over_the_wire
from flower_rounds import (
    STEPS,
    all_refuse,
    ask,
    exact,
    fedavg,
    grid_of,
    mean_of,
    model,
    noisy,
    one_round,
    refusals,
    run,
)
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

from randquant._internal import round_up
from randquant.integrations import QuantizedStrategy, QuantizeMod
from randquant.privacy import account
from randquant.rounds import ACCOUNT_RECORD, Offer, RoundEvent, RoundsFailed, RunAccountant
from randquant.rounds import accountant as accounting


def test_a_client_refuses_what_is_beyond_its_limit_and_counts_what_it_has_answered():
    """A client computes the bound itself, from the channel that came."""
    mechanism = noisy(cohort=4)
    cost = [account([mechanism.release(5, n)], 1e-5, quick=True).epsilon for n in (1, 2, 3)]
    mod = QuantizeMod(epsilon=(cost[1] + cost[2]) / 2, delta=1e-5)
    grid, strategy = grid_of(mod), QuantizedStrategy(fedavg(), mechanism, patience=2)
    with pytest.raises(RoundsFailed, match="2 failures in a row"):
        run(strategy, grid, rounds=9)
    assert strategy.accountant.answers(1) == 2
    assert [answers_of(context) for context in grid.contexts.values()] == [2] * 5
    assert len(refusals(grid)) == 5
    for reason in refusals(grid).values():
        assert f"Expected an offer within epsilon {mod.epsilon}" in reason
        assert round_up(cost[2]) in reason


def test_the_account_of_a_client_outlasts_a_run_in_its_file(tmp_path):
    mechanism = noisy("local")
    cost = account([mechanism.release(5, 2)], 1e-5, quick=True).epsilon
    for first, lost in ((1, set()), (11, set()), (21, {21})):  # each run knows it by another number
        grid = grid_of(QuantizeMod(epsilon=cost + 1e-3), [first, first + 1])
        grid.contexts[first].node_config["randquant-ledger"] = str(tmp_path / "account.json")
        one_round(mechanism, grid=grid)
        assert set(refusals(grid)) == lost


@pytest.mark.parametrize(
    ("own", "said"),
    [({"randquant-epsilon": 0.01}, "epsilon 0.01"), ({"randquant-delta": 1e-9}, "delta 1e-09")],
)
def test_a_node_sets_its_own_limit(own, said):
    limit = account([noisy().release(650, 1)], 1e-5, quick=True).epsilon
    grid = grid_of(QuantizeMod(1.01 * limit))
    grid.contexts[3].node_config |= own
    one_round(noisy(), grid=grid, arrays=model(650))
    assert set(refusals(grid)) == {3}
    assert said in refusals(grid)[3]


def test_what_is_spent_between_the_first_step_and_the_upload_counts(tmp_path):
    """A client that agreed to a sum, and answered another run since, refuses its upload."""
    local = noisy("local")
    one = account([local.release(5, 1)], 1e-5, quick=True).epsilon

    def answers_another(message):
        node = message.metadata.dst_node_id
        ask(other, node, "upload", offer=Offer(local, 5).to_text())

    mod = QuantizeMod(epsilon=1.2 * one)
    grid, other = grid_of(mod, change=("share", answers_another)), grid_of(mod)
    for node in range(1, 6):
        for run_of in (grid, other):
            run_of.contexts[node].node_config["randquant-ledger"] = str(tmp_path / f"{node}.json")
    all_refuse("this client's limit", noisy(cohort=5), grid)


def forget(context, earlier):
    context.state = RecordDict({})


def put_back(context, earlier):
    context.state[ACCOUNT_RECORD] = ConfigRecord(earlier["first"])


def change(context, earlier):
    context.state[ACCOUNT_RECORD].clear()


@pytest.mark.parametrize("spoil", [forget, put_back, change])
def test_an_account_that_a_train_function_spoils_is_kept(spoil):
    mechanism = noisy("local")
    limit = account([mechanism.release(5, 2)], 1e-5, quick=True).epsilon
    app, earlier = ClientApp(), {}

    @app.train(mods=[QuantizeMod(epsilon=limit)])
    def _train(message, context):
        earlier.setdefault("first", dict(context.state[ACCOUNT_RECORD]))
        spoil(context, earlier)
        return Message(RecordDict({"arrays": message.content["arrays"]}), reply_to=message)

    grid = InProcessGrid(app, [1, 2])
    with pytest.raises(RoundsFailed):
        one_round(mechanism, grid=grid, patience=1, rounds=9)
    assert sum(reply.has_content() for *_, reply in grid.seen) == 4
    assert [answers_of(context) for context in grid.contexts.values()] == [2, 2]


@pytest.mark.parametrize("text", ["", "[]", '{"clients": {}}', None])
def test_an_account_that_cannot_be_used_is_refused_and_named_to_nobody(text, tmp_path, caplog):
    path = tmp_path / ("account" if text is not None else "no folder/account")
    if text is not None:
        path.write_text(text)
        path.chmod(0o600)
    grid = grid_of(nodes=[1], config={"randquant-ledger": str(path)})
    reply = ask(grid, 1, "upload", offer=Offer(noisy("local"), 5).to_text())
    assert reply.error.reason == "This client's files cannot be used; its log says why."
    expected = "Expected (.* )?(a|this) client's account" if text is not None else "No such file"
    assert re.search(expected, caplog.text)


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state["offers"].append(state["offers"][0]),
        lambda state: state["clients"].update({"01": {"1": 7}}),
        lambda state: state["clients"]["1"].update({"00": 1}),
        lambda state: state["clients"]["1"].update({"-1": 1}),
        lambda state: state["clients"]["1"].update({"0": 2**53 + 1}),
        lambda state: state["clients"]["1"].update({"2": 1}),
        lambda state: state.update(offers=["[" * 100_000]),
    ],
    ids=["an offer twice", "a client twice", "a count twice", "from behind", "beyond accounting",
         "an offer that is not there", "a deep nest"],
)  # fmt: skip
def test_an_account_that_could_lose_a_count_is_refused(change):
    accountant = RunAccountant(1e-5)
    for offer in (Offer(noisy("local"), 5), Offer(noisy("local"), 6)):
        accountant.compose(RoundEvent(offer, frozenset({1})), 3)
    state = json.loads(json.dumps(accountant.state_dict()))
    other = RunAccountant(1e-5)
    other.load_state_dict(state)
    assert other.answers(1) == 6
    change(state)
    del state["checksum"]
    state["checksum"] = accounting._checksum(state)
    with pytest.raises(ValueError, match="Expected the state of this accountant, but"):
        other.load_state_dict(state)
    assert other.answers(1) == 6


@pytest.mark.parametrize("leaves", [True, False])
@pytest.mark.parametrize("step", STEPS)
def test_a_client_that_is_killed_before_its_state_is_kept_takes_no_step_twice(
    step, leaves, tmp_path
):
    """Before its reply leaves it or after: it is not in the sum, or wholly; it has counted itself.

    A second upload would be under the same masks, and shares sealed again for a server's own keys.
    """
    path, before, again = tmp_path / "account", [RecordDict({})], []

    def fault(at, node, reply):
        if node != 2:
            return [reply]
        if at != step:
            before.append(RecordDict(dict(grid.contexts[2].state)))
            return [reply]
        grid.contexts[2].state = before[-1]
        again.append(grid.app(over_the_wire(grid.seen[-1][2]), grid.contexts[2]))
        return [reply] * leaves

    grid = grid_of(fault=fault)
    grid.contexts[2].node_config["randquant-ledger"] = str(path)
    found, _, _ = one_round(exact(), grid=grid)
    inside = step in ("confirm", "reveal") or (step == "upload" and leaves)
    np.testing.assert_allclose(found, mean_of(range(1, 6) if inside else [1, 3, 4, 5]), atol=1e-6)
    assert counted(path)[0] == (step in STEPS[2:])
    [second] = again
    twice = f"Expected each step of a round once, got '{step}' again."
    assert step == "advertise" or str(second.error.reason) == twice


def test_training_goes_on_with_as_many_clients_as_a_round_needs():
    """One of three is at its limit, and a round of FedAvg needs two."""
    mechanism = noisy("local")
    offer = Offer(mechanism, 5)
    limit = account([offer.release(1, "replace_one", "local")], 1e-5, quick=True).epsilon
    strategy = QuantizedStrategy(fedavg(), mechanism, stop_at_epsilon=limit)
    strategy.accountant.meet([1, 2, 3])
    layout = strategy._layout({"w": np.zeros(5, np.float32)})
    own = strategy.run.offer(layout, strategy.local.buffers)
    strategy.accountant.compose(RoundEvent(own, frozenset({1})))
    run(strategy, grid_of(nodes=[1, 2, 3]))
    assert not strategy.stopped
    assert [(row.asked, row.failed) for row in strategy.history] == [(2, "")]
