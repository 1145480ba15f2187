"""Flower from a target: a strategy in one line, and what it says before the first round."""

import re
from pathlib import Path

import numpy as np
import pytest
from flower_grid import InProcessGrid, client_app
from flower_rounds import (
    ANYTHING,
    exact,
    fedavg,
    grid_of,
    model,
    mover,
    noisy,
    planned_as_one_bit,
    rounds_of,
    run,
)
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.serverapp.strategy import FedAvg
from helper_sums import helper_in
from pages import Page, drawn

import randquant as rq
from randquant.integrations import QuantizedStrategy, QuantizeMod, TooFewNodes
from randquant.reports.flower import page
from randquant.rounds import AmongClients, History, RoundRow, WithHelper
from randquant.secure_sums import Losses

TARGET = {"epsilon": 8.0, "rounds": 3, "cohort": 6, "model": 650}
SPENT = rq.Guarantee(7.8, 1e-5, "replace_one", "aggregate", 2.0, 1950)


def planned(inner=None, **changes):
    return QuantizedStrategy.for_target(inner or fedavg(), **{**TARGET, **changes})


def test_the_planned_rounds_run_and_spend_the_target_and_the_next_round_is_refused():
    # One more round would exceed it: the noise is calibrated, and the limit is in force.
    strategy = planned()
    run(strategy, grid_of(QuantizeMod(epsilon=8.0), range(1, 8)), model(650), rounds=4)
    assert [row.round for row in strategy.history] == [1, 2, 3]
    assert 7.5 < strategy.accountant.get_privacy_spent().epsilon <= 8.0
    assert "before round 4" in strategy.stopped
    two = planned(rounds=2).start(grid_of(nodes=range(1, 7)), model(650))
    assert len(two.train_metrics_clientapp) == 2


def test_a_cohort_larger_than_the_nodes_is_refused_before_anybody_is_asked_unless_they_come():
    grid = grid_of(nodes=range(1, 7))
    grid.offline = {5, 6}
    with pytest.raises(TooFewNodes, match="got 4 within 0 s: connect 2 more"):
        run(planned(), grid, model(650), connect_timeout=0.0)
    assert not grid.seen
    nodes, looks = grid.get_node_ids, []

    def later():
        looks.append(1)
        grid.offline = set() if len(looks) > 1 else {6}
        return nodes()

    grid.get_node_ids = later
    assert run(planned(), grid, model(650), connect_timeout=5.0).train_metrics_clientapp


@pytest.mark.parametrize(
    ("nodes", "strategy", "said"),
    [
        (
            1,
            fedavg(),
            "Expected 2 nodes .*FedAvg waits for them without end.* got 1 .* connect 1 more",
        ),
        (3, fedavg(min_available_nodes=5), "Expected 5 nodes .* got 3 .* to 3"),
        (
            1,
            FedAvg(min_train_nodes=1, min_available_nodes=1, fraction_evaluate=1.0),
            "Expected 2 nodes .* min_evaluate_nodes to 1",
        ),
    ],
)
def test_nobody_waits_without_end_for_nodes_that_the_strategy_wants(nodes, strategy, said):
    grid = grid_of(nodes=range(nodes))
    with pytest.raises(TooFewNodes, match=said):
        run(QuantizedStrategy(strategy, exact("local")), grid, connect_timeout=0.0)
    assert not grid.seen


def test_one_node_is_enough_where_one_was_planned(monkeypatch):
    planned_as_one_bit(monkeypatch)
    target = {**TARGET, "cohort": 1, "trust": "local", "model": 5, "epsilon": 99.0}
    strategy = QuantizedStrategy.for_target(**target)
    assert list(run(strategy, grid_of(nodes=[1]), rounds=1).train_metrics_clientapp) == [1]


@pytest.mark.parametrize(("helped", "most"), [(False, 1), (True, 4)])
def test_as_many_dropouts_are_planned_for_as_a_sum_withstands(helped, most, monkeypatch, tmp_path):
    """Among six clients two thirds of five neighbours must stay; with a helper any two clients."""
    planned_as_one_bit(monkeypatch)
    sums = WithHelper(helper_in(tmp_path)) if helped else AmongClients()
    assert planned(sums=sums, dropouts=most).least == 6 - most
    with pytest.raises(ValueError, match=f"Expected dropouts <= {most}"):
        planned(sums=sums, dropouts=most + 1)


@pytest.mark.parametrize(
    ("privacy", "said"),
    [
        ({}, "nothing: all clients count alike"),
        ({"numbers": [rq.Number("n", 0, 9)], "weighted_by": "n"}, "n"),
    ],
)
def test_the_summary_says_by_what_clients_are_weighted(privacy, said, caplog):
    inner = fedavg()
    QuantizedStrategy(inner, noisy(), privacy=rq.Privacy(**privacy)).summary()
    assert f"Weighted by: '{said}'" in caplog.text
    assert inner.weighted_by_key == "num-examples"  # the wrapped strategy is as it was


def test_clients_of_one_process_do_not_all_say_the_same(caplog):
    """Of a simulation: one line of their accounts a round, and not one for each client."""
    run(QuantizedStrategy(fedavg(), noisy()), grid_of(), rounds=2)
    said = [r.getMessage() for r in caplog.records if "answers so far" in r.getMessage()]
    assert len(said) == len(set(said)) == 2


def test_a_strategy_that_selects_too_few_is_refused_before_anybody_is_asked():
    grid = InProcessGrid(client_app(ANYTHING, mover), range(1, 11))
    strategy = QuantizedStrategy(fedavg(fraction_train=0.2), exact(cohort=4))
    with pytest.raises(TooFewNodes, match="selects 2 of 10: set min_train_nodes=4"):
        run(strategy, grid)
    assert not grid.seen
    assert run(
        planned(fedavg(fraction_train=0.2)), grid, model(650)
    ).train_metrics_clientapp  # it is raised


@pytest.mark.parametrize(("own", "raised"), [(2, 6), (6, 6), (9, 9)])
def test_the_fewest_nodes_of_a_strategy_are_raised_to_the_cohort_and_never_lowered(own, raised):
    for name in ("min_train_nodes", "min_available_nodes"):
        made = planned(fedavg(**{name: own})).strategy
        assert getattr(made, name) == raised


def test_a_model_with_a_batch_norm_is_refused_when_it_is_planned():
    arrays = {"w": Array(np.zeros(650)), "norm.running_var": Array(np.ones(3))}
    with pytest.raises(ValueError, match="use GroupNorm or LayerNorm"):
        planned(model=ArrayRecord(arrays))
    frozen = rq.Local(buffers="frozen")
    assert planned(model=ArrayRecord(arrays), local=frozen).local == frozen
    with pytest.raises(TypeError, match="Expected model to be an ArrayRecord"):
        planned(model="a model")


def test_a_useless_target_is_a_warning_that_says_how_many_clients_it_takes(caplog):
    planned()
    found = re.search(r"it would take about ([\d,]+) clients, all of them in", caplog.text)
    assert found is not None
    caplog.clear()
    planned(cohort=int(found[1]) + 1)
    assert "on the task" not in caplog.text


@pytest.mark.parametrize("trust", ["aggregate", "local"])
def test_a_target_is_met_and_used_up_under_its_own_trust(trust):
    mechanism = planned(trust=trust, model=100, epsilon=20.0).run.mechanism
    assert mechanism.trust == trust
    assert 19.0 < rq.account([mechanism.release(100, 3)], 1e-5).epsilon <= 20.0


@pytest.mark.parametrize("trust", ["model", "central", "Local"])
def test_a_trust_that_no_server_on_an_engine_can_have_is_refused(trust):
    with pytest.raises(ValueError, match=f"one of aggregate, local; got '{trust}'"):
        planned(trust=trust)


def test_losses_that_no_graph_withstands_are_refused_when_it_is_planned():
    with pytest.raises(ValueError, match="Expected losses that 12 clients withstand, got 10% a"):
        planned(cohort=12, sums=AmongClients(losses=Losses(step=0.1)))
    sums = AmongClients(losses=Losses(step=0.0))
    assert planned(cohort=12, sums=sums).sums == sums


def test_the_page_of_a_run_has_every_round_and_outlives_a_restart(tmp_path, monkeypatch):
    planned_as_one_bit(monkeypatch)

    def fault(step, node, reply):
        return [] if node == 6 and rounds_of(grid) == 2 and step == "upload" else [reply]

    grid = grid_of(nodes=range(1, 7), fault=fault)
    options = {"epsilon": 1e6, "dropouts": 1, "folder": tmp_path}
    run(planned(**options), grid, model(650), rounds=1)
    again = planned(**options)
    run(again, grid, model(650), rounds=3)
    assert [(row.round, row.asked, row.dropped) for row in again.history] == [
        (1, 6, 0), (2, 6, 1), (3, 6, 0),
    ]  # fmt: skip
    found = Page(page(again.outcome()))
    assert "Dropouts: 1 of 18 requests" in found.words
    for row in again.history:
        assert f"{row.sent_bytes:,}" in found.words


def test_the_page_says_what_was_spent_what_it_assumes_and_what_was_measured():
    rows = [RoundRow(n, 2.6 * n, 50, 1, 18_800, 808, 168) for n in (1, 2, 3)]
    assumes = "if every sum has at least 48 honest others, and epsilon <= 300 if"
    measured = {1: {"accuracy": 0.5}, 3: {"accuracy": 0.83203}}
    words = Page(page(History("FedAvg", rows, SPENT, measured, 8.0, assumes))).words
    for said in (
        "83.20 % measured by the server after round 3", "ε ≤ 7.8 at δ = 1e−5 target: ε ≤ 8",
        "Dropouts: 3 of 150 requests", "a server that sees only sums of a cohort's codes",
        "ε ≤ 7.8 if every sum has at least 48 honest others, and ε ≤ 300 if",
        "Not covered. The server sees who takes part",
        "Of the 18.8 kB that a client sent in a round, 808 bytes are its update, hidden in the sum",
    ):  # fmt: skip
        assert said in words
    words = Page(page(History("FedAvg", rows, SPENT, {2: {"clients' accuracy": 0.25}}))).words
    assert "25.00 % mean of its clients, with noise, of the model before round 2" in words
    measured = {3: {"accuracy": 1, "words": "none", "counts": [4, 5]}}
    assert History("FedAvg", rows, SPENT, measured).measured == {3: {"accuracy": 1.0}}
    assert "Accuracy Not measured" in Page(page(History("FedAvg", [], SPENT, {}))).words


def test_a_round_whose_messages_are_not_counted_says_what_the_update_had():
    told = RoundRow(2, 0.5, 4, 0, 0, 200, 200).line()
    assert told.startswith(
        "round 2: ε ≤ 0.5; 4 clients, 0 dropped; a client's update had 200 bytes"
    )


def test_failed_rounds_and_hostile_names_are_shown_as_text():
    rows = [RoundRow(1, 3.00001, 6, 6, failed="<script>alert(1)</script>")]
    found = Page(page(History("<b>", rows, SPENT, {1: {"<u>": 0.5}})))
    assert "<script>alert(1)</script>" in found.words
    assert "attack reaches" not in found.words
    assert "u" not in found.tags


def test_no_chart_of_a_run_draws_an_epsilon_below_its_value():
    rows = [RoundRow(n, 10.0**n / 3, 6, 0) for n in range(-3, 5)]
    shown = {
        row["x"]: row["y"] for row in drawn(page(History("FedAvg", rows, SPENT))) if "y" in row
    }
    assert shown.keys() == {row.round for row in rows}
    for row in rows:
        assert row.epsilon <= shown[row.round] <= row.epsilon * 1.00001


DOCS = (Path(__file__).parents[2] / "docs" / "flower.md").read_text()


@pytest.mark.slow
def test_the_recipe_of_the_docs_runs_as_printed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    client, server = re.findall(r"```python\n(.*?)```", DOCS, flags=re.DOTALL)[:2]
    names: dict = {"trained": _trained}
    exec(compile(client.replace("...", "return trained(message)"), "docs", "exec"), names)
    grid = InProcessGrid(names["app"], range(1, 41))
    names = {}
    exec(compile(server, "docs", "exec"), names)
    names["app"](grid, Context(1, 0, {}, RecordDict(), {}))
    text = Page((tmp_path / "runs" / "ours" / "report.html").read_text()).words
    assert "10 rounds, 0 failed" in text
    epsilon = re.search(r"ε ≤ ([\d.]+) at", text)
    assert epsilon is not None
    assert 7.5 < float(epsilon[1]) <= 8.0


def _trained(message):
    arrays = {n: Array(a.numpy() + np.float32(0.01)) for n, a in message.content["arrays"].items()}
    return Message(RecordDict({"arrays": ArrayRecord(arrays)}), reply_to=message)


def test_noise_of_few_bits_takes_numbers_beside_too():
    """Its sum would overflow in many more coordinates than the model has."""
    numbers = rq.Privacy(numbers=[rq.Number("accuracy")])
    made = planned(epsilon=1000, rounds=4, cohort=2, privacy=numbers).run
    assert made.mechanism.expected_error(651).deviation(2) > 0
    with pytest.raises(ValueError, match="bits"):
        made.mechanism.expected_error(2**29)
