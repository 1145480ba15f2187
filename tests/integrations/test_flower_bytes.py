"""The bytes that a round reports are those that a client's messages have on the wire."""

from __future__ import annotations

from collections import Counter

import pytest
from flower_rounds import fedavg, grid_of, model, noisy, refusals, run
from flwr.common.serde import message_to_proto

from randquant.integrations import QuantizedStrategy
from randquant.integrations.flower.messages import PAYLOAD


@pytest.mark.parametrize("trust", ["local", "aggregate"])
@pytest.mark.parametrize("dimension", [5, 650])
def test_a_round_reports_what_a_client_really_sends(trust, dimension, caplog):
    """Every message of every client is serialised again here and counted."""
    metrics, grid = reported(trust, dimension)
    sent, uploads = Counter(), set()
    for step, node, _, reply in grid.seen:
        sent[node] += message_to_proto(reply).ByteSize()
        if step == "upload":
            uploads.add(len(reply.content[PAYLOAD]["codes"].data))
    assert metrics["sent_bytes"] == max(sent.values())
    assert uploads == {metrics["upload_bytes"]}
    assert metrics["sent_bytes"] > metrics["upload_bytes"]
    [line] = [r.getMessage() for r in caplog.records if "randquant: round 1: ε" in r.getMessage()]
    for name in ("sent_bytes", "upload_bytes", "plain_bytes"):
        assert f" {metrics[name]:,} " in line.replace("(", " ")


def reported(trust, dimension=650, fault=None):
    """(what a round reports, the grid)."""
    grid = grid_of(fault=fault)
    result = run(QuantizedStrategy(fedavg(), noisy(trust)), grid, model(dimension))
    return result.train_metrics_clientapp[1], grid


def test_a_client_that_sends_more_than_it_should_is_counted():
    """Also what is dropped has been sent."""

    def more(step, node, reply):
        if node == 2 and step == "upload":
            reply.content["more"] = model(1000)
        return [reply]

    (usual, _), (metrics, grid) = reported("local"), reported("local", fault=more)
    assert metrics["sent_bytes"] > usual["sent_bytes"] + 4000
    assert not refusals(grid)
