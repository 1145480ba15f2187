"""Rounds in which a public random subset of the coordinates is sent, with a seed drawn together."""

from __future__ import annotations

import json

import numpy as np
import pytest
from flower_grid import answers_of
from flower_rounds import NOISY, ask, fedavg, grid_of, model, one_round, refusals
from flwr.app import ConfigRecord

from randquant.aggregation import VectorMechanism
from randquant.channels import wire
from randquant.integrations import HEAD, QuantizedStrategy, read_payload
from randquant.rounds import Offer
from randquant.secure_sums.terms import PART_BYTES

DIMENSION, COUNT = 40, 5
BOTH = pytest.mark.parametrize("trust", ["aggregate", "local"])


def some(trust="aggregate", coordinates=COUNT):
    cohort = 3 if trust == "aggregate" else 1
    return VectorMechanism(NOISY, 1.0, trust, cohort, coordinates=coordinates)


def rounds(mechanism, **options):
    """(model afterwards, grid, strategy)"""
    return one_round(mechanism, arrays=model(DIMENSION), **options)


def asked_to_upload(trust):
    """(grid, requests) of a round whose seed is drawn."""
    grid, strategy = grid_of(), QuantizedStrategy(fedavg(), some(trust))
    requests = strategy.configure_train(1, model(DIMENSION), ConfigRecord({}), grid)
    return grid, list(requests)


def charged(grid):
    return [node for node, context in grid.contexts.items() if answers_of(context)]


@BOTH
def test_a_round_takes_the_step_of_its_subset_bit_for_bit(trust, encoded):
    moved, grid, _ = rounds(some(trust))
    assert not refusals(grid)
    [mechanism] = {mechanism for mechanism, _ in encoded}
    assert len(encoded) == 5
    mean = mechanism.mean([payload for _, payload in encoded])
    np.testing.assert_array_equal(moved, mean)
    assert np.linalg.norm(mean) > 0


def test_what_travels_is_paid_for_the_subset_only():
    """Exactly k numbers, without padding, and masks for as many."""
    _, grid, _ = rounds(some())
    sent = [reply.content for step, _, _, reply in grid.seen if step == "upload"]
    bits = some().sum_bits(DIMENSION, 5)
    assert {len(read_payload(content)) for content in sent} == {wire.masked(COUNT, bits)}
    assert wire.masked(COUNT, bits) == some().upload_bytes(DIMENSION, 5)
    assert json.loads(grid.seen[0][2].content[HEAD]["offer"])["coordinates"] == COUNT


@BOTH
def test_a_seed_that_the_server_chooses_after_seeing_parts_is_refused(trust, encoded):
    grid, requests = asked_to_upload(trust)
    for request in requests:
        proof = request.content[HEAD]["proof"]
        request.content[HEAD]["proof"] = bytes(PART_BYTES) + proof[PART_BYTES:]
    replies = grid.send_and_receive(requests)
    assert len(replies) == 5
    assert all("committed to before it saw" in reply.error.reason for reply in replies)
    assert not encoded + charged(grid)


@BOTH
def test_a_seed_without_a_clients_own_part_is_another(trust, encoded):
    """The codes are then of another subset, which their header says."""
    grid, requests = asked_to_upload(trust)
    requests[0].content[HEAD]["proof"] = requests[1].content[HEAD]["proof"]
    grid.send_and_receive(requests)
    seeds = [mechanism.subset_seed for mechanism, _ in encoded]
    assert len(set(seeds)) == 2
    assert seeds.count(seeds[0]) == 1
    with pytest.raises(ValueError, match="another round's subset of coordinates"):
        encoded[1][0].mean([payload for _, payload in encoded[:3]])


def test_offers_are_refused_in_one_sentence_and_cost_nothing(encoded):
    grid = grid_of(nodes=[1])
    text, whole, two = (Offer(some("local", k), 5).to_text() for k in (5, None, 2))
    drawn = "seed of the coordinates that the server"
    for step, fields, reason in (
        ("upload", {"offer": text}, drawn),
        ("advertise", {"offer": text}, "commitment to its part of a seed exactly where"),
        ("advertise", {"offer": text, "commitment": bytes(31)}, "a commitment in 32 bytes"),
        ("advertise", {"offer": text, "commitment": bytes(32)}, ""),
        ("upload", {"offer": whole}, "one offer in a round, got a second, different one"),
        ("advertise", {"offer": two, "commitment": bytes(32)}, "one offer in a round"),
        ("upload", {"proof": bytes(32)}, "committed to before it saw"),
        ("upload", {"proof": b"x"}, "proof of a round's seed"),
        ("upload", {"proof": bytes(5000)}, "parts of a seed in at most"),
        ("upload", {"proof": "text"}, "parts of a seed in at most"),
        ("share", {}, "Expected 'share' in a secure sum, got it in a round without one"),
    ):
        reply = ask(grid, 1, step, b"s", **fields)
        assert reply.has_error() == bool(reason), (step, fields)
        if reason:
            assert reason in reply.error.reason
    assert not encoded + charged(grid)


@pytest.mark.parametrize("size", [0, 31, 33])
@BOTH
def test_a_client_whose_part_has_another_size_is_left_out(trust, size, encoded):
    def fault(step, node, reply):
        if node == 2 and step == "advertise":
            reply.content[HEAD]["part"] = bytes(size)
        return [reply]

    moved, grid, _ = rounds(some(trust), fault=fault)
    assert sorted(node for step, node, *_ in grid.seen if step == "upload") == [1, 3, 4, 5]
    np.testing.assert_array_equal(moved, encoded[0][0].mean([payload for _, payload in encoded]))
