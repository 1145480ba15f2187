"""The bytes that a round reports are those that a client's messages have on the wire."""

from __future__ import annotations

import pytest
from flower_grid import InProcessGrid, client_app
from flower_rounds import ANYTHING, fedavg, model, mover, noisy, refusals, run
from flwr.common.serde import message_to_proto

from randquant.integrations.flower.messages import PAYLOAD
from randquant.integrations.flower.strategy import QuantizedStrategy


def serialised(message) -> int:
    return len(message_to_proto(message).SerializeToString())


def reported(trust, clients=5, dimension=650, rounds=1, fault=None, caplog=None):
    """(what each round reports, the grid)."""
    grid = InProcessGrid(client_app(ANYTHING, mover), range(1, clients + 1), fault)
    strategy = QuantizedStrategy(fedavg(), noisy(trust))
    result = run(strategy, grid, model(dimension), rounds)
    return result.train_metrics_clientapp, grid


@pytest.mark.seldom(1)
@pytest.mark.parametrize("trust", ["local", "aggregate"])
@pytest.mark.parametrize("dimension", [5, 650])
def test_a_round_reports_what_a_client_really_sends(trust, dimension, caplog):
    """Every message of every client is serialised again here and counted."""
    metrics, grid = reported(trust, dimension=dimension)
    sent = dict.fromkeys(range(1, 6), 0)
    uploads = set()
    for step, node, _, reply in grid.seen:
        sent[node] += serialised(reply)
        if step == "upload":
            uploads.add(len(reply.content[PAYLOAD]["codes"].data))
    assert metrics[1]["sent_bytes"] == max(sent.values())
    assert uploads == {metrics[1]["upload_bytes"]}
    assert metrics[1]["sent_bytes"] > metrics[1]["upload_bytes"]
    [line] = [r.getMessage() for r in caplog.records if "randquant: round 1: ε" in r.getMessage()]
    for name in ("sent_bytes", "upload_bytes", "plain_bytes"):
        assert f" {metrics[1][name]:,} " in line.replace("(", " ")


def test_a_client_that_sends_more_than_it_should_is_counted():
    """Also what is dropped has been sent."""

    def more(step, node, reply):
        if node == 2 and step == "upload":
            reply.content["more"] = model(1000)
        return [reply]

    (usual, _), (metrics, grid) = reported("local"), reported("local", fault=more)
    assert metrics[1]["sent_bytes"] > usual[1]["sent_bytes"] + 4000
    assert not refusals(grid)
