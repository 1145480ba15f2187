"""One example (one patient) protected on Flower: real messages, a model of torch, a secure sum."""

from __future__ import annotations

import logging
import math

import numpy as np
import pytest
import torch
from flower_grid import InProcessGrid
from flower_rounds import NOISY, all_refuse, refusals
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

import randquant as rq
from randquant.aggregation import VectorMechanism
from randquant.integrations import QuantizedStrategy, QuantizeMod
from randquant.privacy import account, run_release
from randquant.rounds import RoundsFailed

SIZES, EXAMPLES = (10, 30, 80), 40


def site(number):
    draw = torch.Generator().manual_seed(number)
    x = torch.randn((SIZES[number - 1], 5), generator=draw)
    return x, (x @ torch.tensor([1.0, -2.0, 0.5, 0.0, 0.0]) > 0).long()


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))


def sites(mod, name="update", change=lambda update: update):
    """Three sites, each of which sends what `rq.example_update` computes of its data."""
    app = ClientApp()

    @app.train(mods=[mod])
    def train(message, context):
        model = network()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        update = rq.example_update(model, site(context.node_id), clip_norm=1.0)
        return Message(RecordDict({name: ArrayRecord(change(update))}), reply_to=message)

    return InProcessGrid(app, range(1, 4))


def planned(**options):
    return QuantizedStrategy.for_target(**{
        "epsilon": 4.0, "rounds": 6, "cohort": 3, "model": network(), "examples": EXAMPLES,
        **options,
    })  # fmt: skip


@pytest.fixture(scope="module")
def run():
    """A run of six rounds, and its grid."""
    grid = sites(QuantizeMod(epsilon=4.0, delta=1e-5, examples=EXAMPLES, clip_norm=1.0))
    strategy = planned(delta=1e-5)
    result = strategy.start(grid, ArrayRecord(network().state_dict()))
    return strategy, grid, result


def test_three_sites_learn_and_one_patient_has_the_target_as_its_bound(run):
    strategy, grid, result = run
    model = network()
    model.load_state_dict(result.arrays.to_torch_state_dict())
    x, y = map(torch.cat, zip(*map(site, (1, 2, 3)), strict=True))
    before = (network()(x).argmax(1) == y).float().mean()
    after = (model(x).argmax(1) == y).float().mean()
    assert not refusals(grid)
    assert len(strategy.history) == 6
    assert after > max(0.8, before)
    spent = strategy.accountant.get_privacy_spent()
    mechanism = strategy.run.mechanism
    parameters = sum(each.numel() for each in model.parameters())
    assert spent.unit == "example"
    assert spent == account([run_release(mechanism, parameters, 6, examples=EXAMPLES)], 1e-5)
    assert 2.0 < spent.epsilon <= 4.0 < strategy.accountant.client_guarantee().epsilon


def test_the_servers_log_says_whose_bound_it_is(run):
    told = run[0].accountant.summary()
    assert told.startswith("one example: epsilon <= ")
    assert "all data of a client: " in told


def test_a_limit_of_a_patient_ends_a_sites_answers():
    grid = sites(QuantizeMod(epsilon=0.5, delta=1e-5, examples=EXAMPLES, clip_norm=1.0))
    with pytest.raises(RoundsFailed):
        planned(patience=1).start(grid, ArrayRecord(network().state_dict()))
    assert all(
        "within epsilon 0.5, this client's limit" in each for each in refusals(grid).values()
    )


OWN = {"epsilon": math.inf, "examples": EXAMPLES, "clip_norm": 1.0}
NOTHING = {  # what a train function returns that has no bound: (options of the sites, in the log)
    "a model": ({"name": "arrays"}, "an update of clipped gradients, got a model"),
    "16 bits": (
        {"change": lambda update: {n: Array(each.half().numpy()) for n, each in update.items()}},
        "in float32 or float64, got '0.weight' in float16",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NOTHING)
def test_what_has_no_bound_is_not_sent_and_the_sites_own_log_says_why(name, caplog):
    options, reason = NOTHING[name]
    caplog.set_level(logging.WARNING, logger="flwr")
    logging.getLogger("flwr").propagate = True
    grid = sites(QuantizeMod(**OWN), **options)
    all_refuse("", planned().run.mechanism, grid, examples=EXAMPLES,
               arrays=ArrayRecord(network().state_dict()))  # fmt: skip
    assert not any(reason in text for text in refusals(grid).values())  # it may reveal data
    assert reason in caplog.text


def test_a_run_that_goes_on_counts_for_the_same_patient(tmp_path):
    arrays = ArrayRecord(network().state_dict())
    mod = QuantizeMod(**OWN)
    planned(folder=tmp_path).start(sites(mod), arrays, num_rounds=2)
    again = planned(folder=tmp_path)
    again.start(sites(mod), arrays, num_rounds=3)
    spent = again.accountant.get_privacy_spent()
    assert (spent.unit, len(again.history)) == ("example", 3)
    with pytest.raises(ValueError, match=r"."):
        planned(folder=tmp_path, examples=EXAMPLES + 1).start(sites(mod), arrays, num_rounds=4)


def test_a_target_for_an_example_needs_the_public_number_and_allows_no_numbers_beside():
    with pytest.raises(ValueError, match='Expected examples with unit="example"'):
        planned(examples=None, privacy=rq.Privacy(unit="example"))
    with pytest.raises(ValueError, match="numbers"):
        planned(privacy=rq.Privacy(numbers=["accuracy"]))


def test_an_update_may_be_sent_for_a_whole_client_too():
    """It is what a model minus the old one is, without its rounding."""
    mod, arrays = QuantizeMod(epsilon=math.inf), ArrayRecord(network().state_dict())
    strategy = QuantizedStrategy(None, VectorMechanism(NOISY, 1.0, "aggregate", 3))
    result = strategy.start(sites(mod), arrays, num_rounds=1)
    assert not np.array_equal(result.arrays["0.weight"].numpy(), arrays["0.weight"].numpy())
