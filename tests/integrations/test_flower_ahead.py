"""Handshakes that travel with the round before: three messages a round, and what a server gains."""

from __future__ import annotations

import json
import math
from collections import Counter

import numpy as np
import pytest
from flower_grid import InProcessGrid, client_app, over_the_wire
from flower_rounds import (
    ANYTHING,
    exact,
    fedavg,
    mean_of,
    model,
    mover,
    run,
    steps_of,
)
from flwr.app import RecordDict
from flwr.serverapp.strategy import FedAdam, FedAvg

from randquant.integrations.flower.ledger import SPENT
from randquant.integrations.flower.membership import SUM
from randquant.integrations.flower.messages import HEAD, INBOX, NEXT
from randquant.integrations.flower.strategy import QuantizedStrategy

NODES = range(1, 6)
NEXT_HEAD, NEXT_INBOX = NEXT[HEAD], NEXT[INBOX]


def a_grid(nodes=NODES, fault=None, mod=ANYTHING, train=mover):
    """A grid that notes every batch of messages that was sent, and what clients keep."""
    grid = InProcessGrid(client_app(mod, train), nodes, fault)
    grid.batches, grid.kept = [], Counter()
    send = grid.send_and_receive

    def noted(messages, *, timeout=None):
        sent = list(messages)
        if sent:
            heads = [m.content[HEAD] for m in sent]
            grid.batches.append(Counter(f"{h['step']}" for h in heads))
        replies = send(sent, timeout=timeout)
        for node, context in grid.contexts.items():
            kept = sum(name.startswith(SUM) for name in context.state)
            grid.kept[node] = max(grid.kept[node], kept)
        return replies

    grid.send_and_receive = noted
    return grid


def strategy_of(mechanism=None, inner=None, **options):
    options = {"handshake": "ahead", "patience": 1, **options}
    return QuantizedStrategy(inner or fedavg(), mechanism or exact(), **options)


def test_a_round_takes_three_messages_after_the_first_and_every_mean_is_exact():
    grid, means = a_grid(), []
    run(
        strategy_of(), grid, rounds=4,
        evaluate_fn=lambda number, arrays: means.append(arrays["w"].numpy()),
    )  # fmt: skip
    sent = [dict(batch) for batch in grid.batches]
    assert sent == [
        {step: 5} for step in ("advertise", "share", *("upload", "confirm", "reveal") * 4)
    ]
    for number, found in enumerate(means):
        np.testing.assert_allclose(found, number * mean_of(NODES), atol=1e-5)
    assert max(grid.kept.values()) == 2
    for context in grid.contexts.values():
        assert set(context.state) == {SPENT}
    with pytest.raises(ValueError, match="handshake"):
        strategy_of(handshake="later")
