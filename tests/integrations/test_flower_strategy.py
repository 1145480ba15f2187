"""Flower: what the server's strategy does with the mean of clients' updates."""

from __future__ import annotations

import math

import numpy as np
import pytest
from flower_grid import InProcessGrid, client_app
from flower_rounds import (
    ANYTHING,
    STEPS,
    exact,
    fedavg,
    grid_of,
    mean_of,
    model,
    noisy,
    one_round,
    planned_as_one_bit,
    run,
)
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import strategy as strategies
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM
from hypothesis import given, settings
from hypothesis import strategies as st

import randquant as rq
from randquant.aggregation import update_mechanism
from randquant.integrations import QuantizedStrategy, QuantizeMod
from randquant.rounds import AmongClients, RoundsFailed, ServerStore
from randquant.secure_sums import Losses


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("trust", ["local", "aggregate"])
@settings(max_examples=12)
@given(
    clients=st.integers(2, 9), dimension=st.integers(1, 40), neighbours=st.sampled_from([None, 4])
)
def test_the_step_is_the_exact_mean_of_the_updates(trust, clients, dimension, neighbours):
    nodes = [7 + 2**63 * (n % 2) + n for n in range(clients)]  # Flower's numbers have 64 bits
    grid = grid_of(QuantizeMod(epsilon=math.inf, all_neighbours=False), nodes)
    sums = AmongClients(neighbours=neighbours)
    found, _, strategy = one_round(exact(trust), grid=grid, sums=sums, arrays=model(dimension))
    np.testing.assert_allclose(found, mean_of(nodes, dimension), atol=1e-6)
    assert [(row.asked, row.dropped) for row in strategy.history] == [(clients, 0)]


@settings(max_examples=12)
@given(data=st.data(), clients=st.integers(4, 8))
def test_whoever_leaves_at_whatever_step_the_rest_is_summed_exactly(data, clients):
    nodes = list(range(1, clients + 1))
    leaves = data.draw(st.dictionaries(st.sampled_from(nodes), st.sampled_from(STEPS), max_size=2))

    def fault(step, node, reply):
        gone = node in leaves and STEPS.index(step) >= STEPS.index(leaves[node])
        return [] if gone else [reply]

    found, _, strategy = one_round(exact(), nodes, fault=fault)
    there = [n for n in nodes if STEPS.index(leaves.get(n, "reveal")) > STEPS.index("upload")]
    shared = [n for n in nodes if STEPS.index(leaves.get(n, "reveal")) > STEPS.index("share")]
    threshold = math.ceil(2 * (clients - 1) / 3)
    answered = [n for n in there if n not in leaves]
    # Of everyone who shared, `threshold` neighbours must answer.
    enough = all(len(set(answered) - {n}) >= threshold for n in shared)
    if enough and len(answered) > threshold:
        np.testing.assert_allclose(found, mean_of(there), atol=1e-6)
        assert strategy.history[0].dropped == clients - len(there)
    else:
        assert strategy.history[0].failed
        assert not found.any()


class Idle(strategies.FedAvg):
    """A strategy that takes no step, as Flower's do where all replies are errors."""

    def aggregate_train(self, server_round, replies):
        return None, None


def test_rounds_without_a_step_have_failed_and_are_paid_for():
    grid = grid_of()
    strategy = QuantizedStrategy(Idle(fraction_evaluate=0.0), exact(), patience=2)
    with pytest.raises(RoundsFailed, match="2 failures in a row, the last: the strategy took no"):
        run(strategy, grid, rounds=9)
    assert [row.failed for row in strategy.history] == ["the strategy took no step"] * 2
    assert strategy.accountant.answers(1) == 2


def test_weights_that_may_be_tied_are_named_before_anybody_is_asked(monkeypatch):
    """A state dict has them under two names: each would get noise of its own.

    What was sent may be tied, or only begin alike, as layers of torch's TransformerEncoder do.
    """
    planned_as_one_bit(monkeypatch)
    weight = np.arange(6, dtype=np.float32)
    arrays = {"in.weight": Array(weight), "bias": Array(np.zeros(6, np.float32))}
    tied = ArrayRecord({**arrays, "out.weight": Array(weight)})
    grid, same = grid_of(nodes=[1, 2, 3]), "Got 'in.weight' and 'out.weight' with the same"
    with pytest.warns(UserWarning, match=same):
        QuantizedStrategy.for_target(epsilon=8.0, rounds=1, cohort=3, model=tied)
    assert not grid.seen
    with pytest.warns(UserWarning, match=same):
        run(QuantizedStrategy(fedavg(), exact()), grid, tied)
    # What is not trained may be the same.
    frozen = QuantizedStrategy(fedavg(), exact(), local=rq.Local(frozen="out.*"))
    assert run(frozen, grid, tied).arrays["out.weight"].numpy().tolist() == weight.tolist()
    once = run(QuantizedStrategy(fedavg(), exact()), grid, ArrayRecord(arrays)).arrays
    assert set(once) == set(arrays)


def test_arrays_keep_their_dtypes_and_counters_their_values():
    arrays = ArrayRecord(
        {
            "half": Array(np.zeros((2, 3), dtype=np.float16)),
            "counter": Array(np.array(7)),
            "double": Array(np.zeros(2)),
            "mask": Array(np.array([True, False])),
        }
    )

    def train(node, name, array):
        return array + np.ones_like(array) if array.dtype.kind in "fi" else ~array

    for strategy in (fedavg(), FedAvgM(fraction_evaluate=0.0, server_learning_rate=0.5)):
        grid = InProcessGrid(client_app(ANYTHING, train), [1, 2, 3])
        found = run(QuantizedStrategy(strategy, exact()), grid, arrays, 2).arrays
        assert {k: (a.dtype, a.shape) for k, a in found.items()} == {
            k: (a.dtype, a.shape) for k, a in arrays.items()
        }
        assert found["counter"].numpy() == 7
        assert found["mask"].numpy().tolist() == [True, False]
        step = 2 * getattr(strategy, "server_learning_rate", 1.0)
        assert found["half"].numpy().tolist() == [[step] * 3] * 2
        assert found["double"].numpy().tolist() == [step] * 2


@pytest.mark.parametrize(
    "make",
    [
        fedavg,
        lambda: FedAdam(fraction_evaluate=0.0, eta=0.1),
        lambda: FedAvgM(fraction_evaluate=0.0, server_learning_rate=0.5, server_momentum=0.5),
    ],
)
def test_a_parameter_without_a_side_is_trained_and_outlasts_a_restart(make, tmp_path):
    """As `nn.Parameter(torch.tensor(1.0))` is: NumPy's arithmetic makes numbers of such arrays."""
    arrays = ArrayRecord(
        {
            "temperature": Array(np.array(1.0, np.float32)),
            "w": Array(np.zeros(2)),
            "num_batches": Array(np.array(7)),
        }
    )
    step = {"temperature": np.float32(1.0), "w": np.array([1.0, -1.0]), "num_batches": 0}
    grid = InProcessGrid(client_app(ANYTHING, lambda _, name, array: array + step[name]), [1, 2, 3])

    def end(folder, *rounds):
        for last in rounds:
            found = run(QuantizedStrategy(make(), exact(), folder=folder), grid, arrays, last)
        return {name: array.numpy() for name, array in found.arrays.items()}

    whole, again = end(tmp_path / "whole", 2), end(tmp_path / "again", 1, 2)
    assert {name: (a.shape, a.dtype) for name, a in whole.items()} == {
        name: (array.shape, array.dtype) for name, array in arrays.items()
    }
    assert whole["num_batches"] == 7
    if make is fedavg:
        assert (whole["temperature"], *whole["w"]) == (3.0, 2.0, -2.0)
    assert whole["temperature"] > 1.0
    assert all(np.array_equal(whole[name], again[name]) for name in whole)


def test_any_strategy_takes_the_step_that_it_would_without_us():
    for make in (
        lambda: FedAdam(fraction_evaluate=0.0, eta=0.1),
        lambda: FedAvgM(fraction_evaluate=0.0, server_learning_rate=0.3, server_momentum=0.5),
        lambda: strategies.FedYogi(fraction_evaluate=0.0),
        lambda: strategies.FedProx(fraction_evaluate=0.0, proximal_mu=0.1),
    ):
        found, grid, _ = one_round(exact(), [1, 2, 3], inner=make(), rounds=3)
        plain, arrays = make(), model()
        for number in range(1, 4):
            (request, *_) = plain.configure_train(number, arrays, ConfigRecord(), grid)
            moved = arrays["w"].numpy() + mean_of([1, 2, 3]).astype(np.float32)
            metrics = MetricRecord({"num-examples": 1.0})
            content = {"arrays": ArrayRecord({"w": Array(moved)}), "metrics": metrics}
            reply = Message(RecordDict(content), reply_to=request)
            arrays, _ = plain.aggregate_train(number, [reply])
        np.testing.assert_allclose(
            found, arrays["w"].numpy(), rtol=1e-5, atol=1e-7, err_msg=str(make())
        )


def test_when_clients_are_asked_the_folder_has_the_rounds_done_their_model_and_this_ones_cost(
    tmp_path,
):
    """A run that is killed then goes on with the round that it was in."""
    nodes, kept = [1, 2, 3], []

    def look(step, node, reply):
        if step == "upload":
            found = ServerStore(tmp_path / "server.sqlite").read()
            asked = found.account["num_releases"]
            kept.append((found.progress["rounds"], asked, found.arrays["model/w"]))
        return [reply]

    one_round(exact(), nodes, fault=look, folder=tmp_path, rounds=3)
    assert [each[:2] for each in kept] == [(n, n + 1) for n in range(3) for _ in nodes]
    for done, _, array in kept:
        np.testing.assert_allclose(array, done * mean_of(nodes), atol=1e-6)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("Krum", {}),
        ("MultiKrum", {}),
        ("Bulyan", {}),
        ("FedMedian", {}),
        ("FedTrimmedAvg", {}),
        ("QFedAvg", {"client_learning_rate": 0.1}),
    ],
)
def test_strategies_that_look_at_each_update_are_refused(name, options):
    with pytest.raises(ValueError, match=f"needs only the mean of updates, got {name}"):
        QuantizedStrategy(getattr(strategies, name)(**options), exact())


def test_what_cannot_be_wrapped_says_so():
    with pytest.raises(ValueError, match="without privacy of its own"):
        QuantizedStrategy(QuantizedStrategy(fedavg(), exact()), exact())
    with pytest.raises(TypeError, match="baselines are for simulation"):
        QuantizedStrategy(fedavg(), update_mechanism("clipped-sgd", {"clip": 1.0}))
    with pytest.raises(ValueError, match="the guarantee needs that many"):
        QuantizedStrategy(fedavg(), exact(cohort=5), sums=AmongClients(least=4))
    with pytest.raises(ValueError, match="a sum of one hides nothing"):
        QuantizedStrategy(fedavg(), exact(cohort=1))


def test_a_function_that_looks_for_clients_metrics_is_refused_before_anybody_has_answered():
    def mean_loss(contents, weight):
        return MetricRecord({"loss": np.mean([each["metrics"]["loss"] for each in contents])})

    with pytest.raises(ValueError, match=r"train_metrics_aggr_fn of FedAvg .* got KeyError\('loss"):
        QuantizedStrategy(fedavg(train_metrics_aggr_fn=mean_loss), exact())
    counts = lambda contents, weight: MetricRecord({"replies": len(contents)})  # noqa: E731
    assert QuantizedStrategy(fedavg(train_metrics_aggr_fn=counts), exact())


def test_no_metric_of_a_strategy_takes_the_place_of_a_figure_of_the_account():
    mine = MetricRecord({"epsilon": 0.0, "clients": 99, "of mine": 7.0})
    strategy = QuantizedStrategy(fedavg(train_metrics_aggr_fn=lambda *_: mine), noisy())
    found = run(strategy, grid_of()).train_metrics_clientapp[1]
    assert found["epsilon"] == strategy.history[0].epsilon > 0
    assert (found["clients"], found["of mine"]) == (5, 7.0)


def test_losses_that_no_graph_withstands_fail_a_round_before_anybody_is_asked(caplog):
    sums = AmongClients(losses=Losses(step=0.1))
    _, _, strategy = one_round(exact(), [1, 2, 3, 4], sums=sums, patience=2)
    assert "Expected losses that 4 clients withstand, got 10% a step" in caplog.text
    assert strategy.accountant.num_releases == 0
    with pytest.raises(ValueError, match="neighbours or losses, got neighbours="):
        AmongClients(losses=Losses(step=0.0), neighbours=4)
    with pytest.raises(TypeError, match="Expected losses to be a Losses, got 6"):
        AmongClients(losses=6)
    with pytest.raises(ValueError, match="Expected neighbours >= 1"):
        AmongClients(neighbours=0)


class Stubborn(FedAvg):
    """Asks the same clients in every round, whoever may take part."""

    def __init__(self, chosen):
        super().__init__(fraction_evaluate=0.0)
        self.chosen = chosen

    def configure_train(self, server_round, arrays, config, grid):
        content = RecordDict({"arrays": arrays, "config": config})
        return [Message(content, node, "train") for node in self.chosen]


@pytest.mark.parametrize(
    ("chosen", "rounds"), [([1, 2, 2], 0), ([1, 2, 99], 0), ([1, 2, 3], 1)],
    ids=["twice", "not there", "beyond its epsilon"],
)  # fmt: skip
def test_whom_a_strategy_may_not_ask_it_does_not_ask(chosen, rounds):
    """It answers twice and is charged once, or answers beyond its limit."""
    [row] = one_round(noisy("local"))[2].history
    _, _, strategy = one_round(
        noisy("local"), inner=Stubborn(chosen), rounds=2, stop_at_epsilon=1.01 * row.epsilon
    )
    asked = [each for each in strategy.history if not each.failed]
    assert len(asked) == rounds == strategy.accountant.num_releases
    for each in strategy.history[rounds:]:
        assert "Expected each client once in a round and within its epsilon" in each.failed
    assert len(strategy.history) == 2
