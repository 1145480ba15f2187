"""Every setting of a strategy on Flower: changing it changes what it must, and nothing else."""

from __future__ import annotations

import dataclasses
import inspect
import json
import math

import numpy as np
import pytest
from flower_grid import InProcessGrid, client_app
from flower_rounds import ANYTHING, exact, fedavg, grid_of, model, noisy, planned_as_one_bit
from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.serverapp.strategy import FedAdam, FedAvg

import randquant as rq
from randquant.aggregation import AdditiveMechanism
from randquant.integrations import HEAD, ParameterFree, QuantizedStrategy
from randquant.planning import Privacy
from randquant.privacy import Guarantee
from randquant.rounds import AmongClients, Offer
from randquant.secure_sums import Losses

MODEL = ArrayRecord({"stem": Array(np.zeros(3)), "head": Array(np.zeros(2))})
ACCURACY = rq.Number("accuracy")


def first_requests(strategy):
    """The offer and the terms of the first messages, and what Flower is told of them."""
    grid = InProcessGrid(client_app(ANYTHING), range(1, 7))
    sent = []
    grid.send_and_receive = lambda messages, *, timeout=None: sent.append((messages, timeout)) or []
    strategy.configure_train(1, MODEL, ConfigRecord(), grid)
    ([message, *others], timeout) = sent[0]
    head = message.content[HEAD]
    offer, terms = Offer.from_text(head["offer"]), json.loads(head["terms"])
    return offer, {**terms, "clients": len(others) + 1}, timeout


def observed(strategy):
    """All that follows from the settings of a strategy, by name."""
    offer, terms, timeout = first_requests(strategy)
    account, run = strategy.accountant, strategy.run
    return {
        "mechanism": offer.mechanism, "dimension": offer.dimension, "parts": offer.parts,
        "buffers": offer.buffers, "numbers": offer.scalars and offer.scalars.numbers,
        "weight": offer.scalars and offer.scalars.weight, "scaled": offer.scaled,
        "examples": offer.examples, "least": terms["least"], "neighbours": terms["neighbours"],
        "timeout": timeout,
        "limit": account.max_epsilon, "delta": account.delta, "relation": account.neighboring,
        "stable": account.stable, "patience": run.patience,
        "strategy": type(strategy.strategy).__name__,
        "folder": None if run.store is None else run.store.path,
    }  # fmt: skip


def strategy_of(**changes):
    return QuantizedStrategy(**{"strategy": fedavg(), "mechanism": noisy(), **changes})


STRATEGY = {  # setting: [(a value, what changes)]
    "strategy": [(FedAdam(fraction_evaluate=0.0), {"strategy": "FedAdam"}),
                 (ParameterFree(), {"strategy": "ParameterFree", "scaled": True})],
    "mechanism": [(exact(cohort=4), {"mechanism": exact(cohort=4), "least": 4})],
    "stop_at_epsilon": [(1e9, {"limit": 1e9})],
    "delta": [(1e-7, {"delta": 1e-7})],
    "privacy": [
        (Privacy(neighboring="zero_out"), {"relation": "zero_out"}),
        (Privacy(numbers=[ACCURACY]), {"numbers": (ACCURACY,), "dimension": 6}),
        (Privacy(numbers=[ACCURACY], weighted_by="accuracy"),
         {"numbers": (ACCURACY,), "weight": "accuracy", "dimension": 6}),
    ],
    "local": [
        (rq.Local(parts="head"), {"parts": ("head",), "dimension": 2}),
        (rq.Local(frozen="head"), {"parts": ("stem",), "dimension": 3}),
        (rq.Local(buffers="server"), {"buffers": "server"}),
    ],
    "sums": [
        (AmongClients(least=5), {"least": 5}),
        (AmongClients(neighbours=4), {"neighbours": 4}),
        (AmongClients(stable_numbers=True), {"stable": True}),
        (AmongClients(step_timeout=7.0), {"timeout": 7.0}),
    ],
    "folder": [("somewhere", None)],
    "patience": [(9, {"patience": 9})],
    "examples": [(7, {"examples": 7})],
}  # fmt: skip


def test_every_setting_of_a_strategy_is_here():
    settings = [*inspect.signature(QuantizedStrategy.__init__).parameters][1:]
    assert list(STRATEGY) == settings


@pytest.mark.parametrize("name", STRATEGY)
def test_a_setting_of_a_strategy_changes_what_it_must_and_nothing_else(name, tmp_path):
    usual = observed(strategy_of())
    for value, changes in STRATEGY[name]:
        if name == "folder":
            value, changes = tmp_path, {"folder": tmp_path / "server.sqlite"}
        found = observed(strategy_of(**{name: value}))
        assert found == usual | changes != usual, name


def test_every_setting_of_sums_among_clients_is_used():
    """Those that a first message does not show; `directory` is among the tests of sums."""
    shown = {"least", "neighbours", "stable_numbers", "step_timeout"}
    assert {f.name for f in dataclasses.fields(AmongClients)} - shown == {"losses", "directory"}
    chosen = AmongClients(losses=Losses(step=0.01)).degree(1000, lambda level, line: None)
    assert chosen == Losses(step=0.01).graph(1000).neighbours < 999
    keys = {n: bytes([n]) * 32 for n in range(1, 7)}
    begun = AmongClients(directory=keys).begin(Offer(noisy(), 5), [*keys], lambda *_: None)
    assert begun._server._directory == keys


TARGET = {"strategy": None, "epsilon": 8.0, "rounds": 3, "cohort": 6, "model": MODEL}
PLANNED = {  # setting: (a value, what changes of what is planned, what changes of the strategy)
    "strategy": (FedAdam(fraction_evaluate=0.0), {}, {"strategy": "FedAdam", "scaled": False}),
    "epsilon": (4.0, {"epsilon": 4.0}, {"limit": 4.0}),
    "rounds": (5, {"rounds": 5, "participations": 5}, {"rounds": 5}),
    "cohort": (
        5, {"cohort": 5, "population": 5}, {"cohort": 5, "least": 5, "needed": 5, "nodes": 5},
    ),
    "model": (7, {"dimension": 7}, {}),
    "clients": (10**6, {"population": 10**6, "delta": 0.1 / 10**6}, {"delta": 0.1 / 10**6}),
    "dropouts": (1, {"cohort": 5}, {"cohort": 5, "least": 5}),
    "delta": (1e-8, {"delta": 1e-8}, {"delta": 1e-8}),
    "trust": ("local", {"trust": "local"}, {"trust": "local", "cohort": 1, "least": 1}),
    "local": (rq.Local(parts="head"), {"dimension": 2}, {"parts": ("head",)}),
    "examples": (10**4, {"delta": 0.1 / 6e4}, {"delta": 0.1 / 6e4, "examples": 10**4,
                                               "scaled": False}),
    "sums": (AmongClients(stable_numbers=True), {}, {"stable": True}),
    "patience": (9, {}, {"patience": 9}),
}  # fmt: skip
OF_PRIVACY = {
    "neighboring": ("zero_out", {}, {"relation": "zero_out"}),
    "bits": (2, {}, {}),
    "clip_norm": (2.0, {}, {}),
    "coordinates": (2, {}, {"coordinates": 2}),
    "noise": ("helper", {}, {}),  # the mechanism: test_helper_noise.py
    "max_participations": (2, {"participations": 2}, {}),
    "numbers": ((ACCURACY.text,), {"dimension": 6}, {"numbers": (ACCURACY,)}),
    "weighted_by": ("accuracy", {"dimension": 6}, {"numbers": (ACCURACY,), "weight": "accuracy"}),
}
REFUSED = {
    "unit": "example",
    "sampling": "poisson",
    "spent": Guarantee(1.0, 1e-6, "replace_one", "aggregate", math.inf, 1),
}
"""What a target on Flower cannot be for: it is not dropped, but refused."""


def test_every_setting_of_a_target_is_here():
    named = inspect.signature(QuantizedStrategy.for_target).parameters.keys()
    assert PLANNED.keys() - {"local", "sums", "patience"} == named - {"privacy", "options"}
    fields = {field.name for field in dataclasses.fields(Privacy)}
    assert fields == OF_PRIVACY.keys() | REFUSED.keys()


@pytest.fixture
def target(monkeypatch):
    """What is planned for a target, and the strategy that it gives, by name."""
    needs = planned_as_one_bit(monkeypatch)

    def made(**changes):
        strategy = QuantizedStrategy.for_target(**{**TARGET, **changes})
        (need, examples), inner = needs[-1], strategy.strategy
        run, account = strategy.run, strategy.accountant
        layout = strategy._layout({name: array.numpy() for name, array in MODEL.items()})
        offer = run.offer(layout, strategy.local.buffers, strategy.examples)
        assert examples == offer.examples
        assert inner.min_train_nodes == inner.min_available_nodes
        return {f.name: getattr(need, f.name) for f in dataclasses.fields(need)}, {
            "strategy": type(inner).__name__, "scaled": offer.scaled, "limit": account.max_epsilon,
            "delta": account.delta, "relation": account.neighboring, "stable": account.stable,
            "rounds": strategy.rounds, "needed": strategy.needed, "least": strategy.least,
            "nodes": inner.min_train_nodes, "cohort": offer.mechanism.cohort,
            "trust": offer.mechanism.trust, "coordinates": offer.mechanism.coordinates,
            "parts": offer.parts, "patience": run.patience,
            "numbers": offer.scalars and offer.scalars.numbers,
            "weight": offer.scalars and offer.scalars.weight, "examples": offer.examples,
        }  # fmt: skip

    return made


@pytest.mark.parametrize("name", PLANNED)
def test_a_setting_of_a_target_changes_what_is_planned_and_what_is_run(name, target):
    (need, run), (value, planned_for, changes) = target(), PLANNED[name]
    changed = (need | planned_for, run | changes)
    assert target(**{name: value}) == changed != (need, run)


def test_a_client_takes_part_in_no_more_rounds_than_there_are(target):
    need, _ = target(privacy=Privacy(max_participations=9))
    assert need["participations"] == TARGET["rounds"]


def test_under_local_trust_a_lost_client_costs_the_others_no_noise(target):
    assert target(trust="local", dropouts=1)[0] == target(trust="local")[0]


@pytest.mark.parametrize("name", OF_PRIVACY)
def test_a_setting_of_privacy_changes_what_is_planned_and_what_is_run(name, target):
    (need, run), (value, planned_for, changes) = target(), OF_PRIVACY[name]
    beside = {"numbers": [ACCURACY]} if name == "weighted_by" else {}
    privacy = Privacy(**{**beside, name: value})
    assert target(privacy=privacy) == (need | {"privacy": privacy} | planned_for, run | changes)


@pytest.mark.parametrize("name", REFUSED)
def test_a_setting_of_privacy_that_flower_does_not_have_is_refused(name, target):
    with pytest.raises(ValueError, match=f"Expected .*{name}"):
        target(privacy=Privacy(**{name: REFUSED[name]}))


def test_a_target_for_one_example_may_say_so_in_privacy_too(target):
    unit = Privacy(unit="example")
    need, run = target(examples=7)
    assert target(examples=7, privacy=unit) == (need | {"privacy": unit}, run)


class Watching(FedAvg):
    """Keeps the settings that it is called with."""

    def __init__(self):
        super().__init__(fraction_evaluate=1.0)
        self.seen = {}

    def configure_train(self, server_round, arrays, config, grid):
        self.seen["train_config"] = dict(config)
        return super().configure_train(server_round, arrays, config, grid)

    def configure_evaluate(self, server_round, arrays, config, grid):
        self.seen["evaluate_config"] = dict(config)
        return []


def test_every_setting_of_start_reaches_the_wrapped_strategy_and_the_grid():
    """Those that are not here have tests of their own: what they do takes several rounds."""
    elsewhere = {"num_rounds", "statistics", "connect_timeout"}
    inner, grid, evaluated, timeouts = Watching(), grid_of(), [], []
    send = grid.send_and_receive
    grid.send_and_receive = lambda messages, *, timeout=None: (
        timeouts.append(timeout) or send(messages)
    )
    given = {
        "grid": grid, "initial_arrays": model(), "timeout": 7.0,
        "train_config": ConfigRecord({"rate": 0.5}),
        "evaluate_config": ConfigRecord({"batches": 3}),
        "evaluate_fn": lambda number, arrays: evaluated.append(number),
    }  # fmt: skip
    known = inspect.signature(QuantizedStrategy.start).parameters.keys() - {"self"}
    assert known == given.keys() | elsewhere
    QuantizedStrategy(inner, exact("local")).start(num_rounds=1, **given)
    assert inner.seen["train_config"]["rate"] == 0.5
    assert inner.seen["evaluate_config"]["batches"] == 3
    assert (set(timeouts), evaluated) == ({7.0}, [0, 1])


OPEN = {"neighboring", "numbers", "weighted_by"}


@pytest.mark.parametrize("name", sorted({*OF_PRIVACY, *REFUSED} - OPEN))
def test_a_setting_of_privacy_that_a_mechanism_has_already_is_refused_and_not_dropped(name):
    value = REFUSED.get(name) or OF_PRIVACY[name][0]
    with pytest.raises(ValueError, match=f"got a value for {name} too"):
        strategy_of(privacy=Privacy(**{name: value}))


@pytest.mark.parametrize("options", [{"bits": 12}, {"coordinates": 2**14}, {"bits": 2}])
def test_a_strategy_refuses_only_what_no_model_could_take(options):
    """Integer noise for one example: 12 bits are too few for 500 million coordinates only."""
    mechanism = AdditiveMechanism("skellam", 1.0, 4.0, 5, **options)
    if options != {"bits": 2}:
        assert QuantizedStrategy(fedavg(), mechanism, examples=50).examples == 50
        return
    with pytest.raises(ValueError, match="Expected bits > "):
        QuantizedStrategy(fedavg(), mechanism, examples=50)
