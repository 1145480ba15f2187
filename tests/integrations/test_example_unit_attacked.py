"""Attacks on one example as the unit, on Flower: each succeeded once."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from flower_grid import InProcessGrid
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn
from torch.nn import functional

import randquant as rq
from randquant.aggregation import AdditiveMechanism, clip_to_norm
from randquant.integrations import QuantizedStrategy, QuantizeMod
from randquant.privacy import account, run_release
from randquant.reports import flower as report
from randquant.rounds import Offer, RoundsFailed, RunAccountant
from randquant.rounds.accountant import RoundEvent

N = 100
BOUND = 2 / N + 2**-20
MECHANISM = AdditiveMechanism("skellam", 1.0, 4.0, 3)
"""Integer noise: bits of few clients take half a minute to certify for one example."""


def flat(update):
    return torch.cat([part.reshape(-1) for part in update.values()]).numpy()


def moved(build, one, other, y, loss=lambda: functional.cross_entropy):
    """How far what is encoded moves, or None where it is refused."""
    sent = []
    for x in (one, other):
        torch.manual_seed(0)
        try:
            update = rq.example_update(build(), (x, y), loss(), clip_norm=1.0)
        except ValueError:
            return 0.0
        sent.append(clip_to_norm(flat(update) / N, 1.0).astype(float))
    return np.linalg.norm(sent[0] - sent[1])


class Fallback(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.unknown = nn.Embedding(10, 4), nn.Parameter(torch.ones(4))
        self.head = nn.Linear(4, 2)

    def forward(self, ids):
        try:
            found = self.table(ids).mean(1)
        except IndexError:
            found = self.unknown.expand(len(ids), 4)
        return self.head(found)


class Largest(nn.Module):
    def __init__(self):
        super().__init__()
        self.head, self.seen = nn.Linear(5, 2), 1.0

    def forward(self, x):
        self.seen = max(self.seen, float(x.detach().abs().max()))
        return self.head(x / self.seen)


class OverLargestLoss:
    def __init__(self):
        self.seen = 1.0

    def __call__(self, output, targets):
        value = functional.cross_entropy(output, targets)
        self.seen = max(self.seen, float(value.detach()))
        return value / self.seen


def test_a_caught_error_of_one_example_changes_no_others_gradient():
    draw = torch.Generator().manual_seed(0)
    ids, y = torch.randint(10, (N, 3), generator=draw), torch.randint(2, (N,), generator=draw)
    other = ids.clone()
    other[20, 0] = 10
    assert moved(Fallback, ids, other, y) <= BOUND


@pytest.mark.parametrize("kind", ["module", "loss"])
def test_what_is_kept_of_one_example_changes_no_others_gradient(kind):
    x = torch.randn(N, 5, generator=torch.Generator().manual_seed(0))
    other, y = x.clone(), torch.zeros(N, dtype=torch.long)
    torch.manual_seed(0)
    weight = nn.Linear(5, 2).weight.detach()
    other[20] = -50 * torch.sign(weight[0] - weight[1])
    if kind == "module":
        assert moved(Largest, x, other, y) <= BOUND
    else:
        assert moved(lambda: nn.Linear(5, 2), x, other, y, OverLargestLoss) <= BOUND


def answered(mod, answer):
    app = ClientApp()

    @app.train(mods=[mod])
    def train(message, context):
        return Message(RecordDict(answer()), reply_to=message)

    model = ArrayRecord(nn.Linear(5, 2).state_dict())
    strategy = QuantizedStrategy(None, MECHANISM, examples=N, patience=1)
    try:
        strategy.start(InProcessGrid(app, range(1, 4)), model, num_rounds=1)
    except RoundsFailed:
        return None
    return strategy


def test_a_model_beside_metrics_named_update_is_no_update():
    mod = QuantizeMod(epsilon=math.inf, examples=N, clip_norm=1.0)
    model = ArrayRecord(nn.Linear(5, 2).state_dict())
    assert answered(mod, lambda: {"arrays": model, "update": MetricRecord({"a": 1.0})}) is None


@pytest.mark.parametrize("own", [{}, {"examples": 5, "clip_norm": 1.0}])
def test_a_client_that_counts_otherwise_refuses_what_the_server_prints(own):
    """Else the server's epsilon of one example is not that of this client's examples."""
    name = "update" if own else "arrays"
    model = ArrayRecord(nn.Linear(5, 2).state_dict())
    assert answered(QuantizeMod(epsilon=8.0, **own), lambda: {name: model}) is None


def test_the_line_says_all_datas_own_bound_where_others_are_invented():
    accountant = RunAccountant(1e-5)
    accountant.compose(RoundEvent(Offer(MECHANISM, 12, examples=40), frozenset({1})), 5)
    alone = account([run_release(MECHANISM, 12, 5).under("local")], 1e-5).epsilon
    said = accountant.summary().partition("all data of a client: ")[2]
    figure = float(said.partition("and epsilon <= ")[2].partition(" ")[0])
    assert figure >= alone


def test_the_page_says_whose_guarantee_it_is():
    mod = QuantizeMod(epsilon=math.inf, examples=N, clip_norm=1.0)
    update = ArrayRecord({k: v * 0 for k, v in nn.Linear(5, 2).state_dict().items()})
    strategy = answered(mod, lambda: {"update": update})
    page = report.page(strategy.outcome())
    assert "Guarantee of every client" not in page
    assert "Guarantee of every example, not of all data of a client" in page
