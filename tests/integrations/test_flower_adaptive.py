"""Rounds in which as many coordinates are sent as the means before them call for."""

from __future__ import annotations

import json
import math

import pytest
from flower_grid import InProcessGrid, client_app
from flower_rounds import (
    ANYTHING,
    NOISY,
    ask,
    changed_offer,
    changed_request,
    fedavg,
    model,
    refusals,
    run,
)

import randquant as rq
from randquant.aggregation.adaptive import AdaptiveMechanism
from randquant.aggregation.vector import VectorMechanism
from randquant.channels.wire import upload
from randquant.integrations.accountant import RoundEvent, RunAccountant
from randquant.integrations.flower.messages import PAYLOAD, read_payload
from randquant.integrations.flower.mod import QuantizeMod
from randquant.integrations.flower.strategy import QuantizedStrategy
from randquant.integrations.offer import Offer

DIMENSION, CLIENTS, ALL, FEW = 40, 5, 64, 32
BOTH = pytest.mark.parametrize("trust", ["aggregate", "local"])


def adaptive(trust="aggregate"):
    """What is left out matters where all clients move alike, and not where none moves.

    Zeros are codes, and are sent as they are: the mean is then zero.
    """
    cohort = 3 if trust == "aggregate" else 1
    coarse, fine = (rq.stochastic_rounding(clip=0.5, levels=n, margin=0.5) for n in (9, 17))
    return AdaptiveMechanism(
        (
            VectorMechanism(coarse, 1.0, trust, cohort),
            VectorMechanism(fine, 1.0, trust, cohort, coordinates=FEW),
        )
    )


def still(node, name, array):
    return array


def alike(node, name, array):
    return array + 1


def grid_of(train, mod=ANYTHING, fault=None):
    return InProcessGrid(client_app(mod, train), range(1, CLIENTS + 1), fault)


def sent(grid, trust):
    """How many numbers each round's clients sent, by the bytes that they take."""
    offers = [Offer(AdaptiveMechanism(adaptive(trust).choices, n), DIMENSION) for n in (0, 1)]
    numbers = {
        each.plain_bytes
        if trust == "local"
        else upload.masked(each.size, each.bits(CLIENTS)): each.size
        for each in offers
    }
    uploads = [reply.content for step, _, _, reply in grid.seen if step == "upload"]
    sizes = [numbers[len(read_payload(content))] for content in uploads if PAYLOAD in content]
    assert all(len(set(sizes[i : i + CLIENTS])) == 1 for i in range(0, len(sizes), CLIENTS))
    return sizes[::CLIENTS]


@BOTH
def test_the_number_follows_the_means(trust):
    for train, expected in ((still, [ALL, FEW, FEW]), (alike, [ALL, ALL, ALL])):
        grid = grid_of(train)
        run(QuantizedStrategy(fedavg(), adaptive(trust)), grid, model(DIMENSION), 3)
        assert not refusals(grid)
        assert sent(grid, trust) == expected


def test_accounts_count_the_costliest_choice_whatever_was_offered():
    loud = rq.stochastic_rounding(clip=0.3, levels=2, margin=0.5)
    choices = (
        VectorMechanism(NOISY, 1.0, "aggregate", 3),
        VectorMechanism(loud, 1.0, "aggregate", 3, coordinates=FEW),
    )
    accountant, mechanism = RunAccountant(1e-5), AdaptiveMechanism(choices)
    for chosen in (0, 1, 0):
        offer = Offer(AdaptiveMechanism(choices, chosen), DIMENSION)
        accountant.compose(RoundEvent(offer, frozenset({1})))
    stated = rq.account([mechanism.release(DIMENSION, 3)], 1e-5).epsilon
    assert accountant.get_privacy_spent().epsilon == pytest.approx(stated, rel=1e-12)
    assert math.isfinite(stated)


def test_a_server_that_starts_again_goes_on_with_the_same_number(tmp_path):
    mechanism = adaptive()
    run(QuantizedStrategy(fedavg(), mechanism, folder=tmp_path), grid_of(still), model(DIMENSION))
    grid = grid_of(still)
    again = QuantizedStrategy(fedavg(), mechanism, folder=tmp_path)
    run(again, grid, model(DIMENSION), 2)
    assert sent(grid, "aggregate") == [FEW]


def test_a_client_refuses_numbers_beyond_its_own_bounds():
    grid = grid_of(still, QuantizeMod(epsilon=math.inf, coordinates=(40, 64)))
    run(QuantizedStrategy(fedavg(), adaptive("local")), grid, model(DIMENSION), 2)
    assert sent(grid, "local") == [ALL]
    assert set(refusals(grid).values()) == {
        "Expected an offer to send 40 to 64 coordinates, as this client demands, got 32."
    }
    for wrong in ((5, 4), (0, 4), (1.5, 2)):
        with pytest.raises((TypeError, ValueError), match=r"coordinates|fewest"):
            QuantizeMod(epsilon=8.0, coordinates=wrong)


def test_another_number_within_a_round_is_refused_and_costs_nothing():
    grid, mechanism = grid_of(still), adaptive("local")
    few = mechanism.adapted((0.0,), DIMENSION, CLIENTS)
    offers = [Offer(each, DIMENSION).to_text() for each in (few, mechanism)]
    first = ask(grid, 1, "advertise", b"s", offer=offers[0], commitment=bytes(32))
    assert not first.has_error()
    for step in ("advertise", "upload"):
        reply = ask(grid, 1, step, b"s", offer=offers[1])
        assert "one offer in a round, got another in the same" in reply.error.reason


def test_a_choice_that_is_told_to_one_client_only_leaves_it_out():
    """All others send as many as the server counts on."""
    mechanism, grid = adaptive(), grid_of(alike)

    def change(message):
        if message.metadata.dst_node_id == 2:
            changed_offer(message, lambda record: record.update(chosen=1))

    changed_request(grid, "advertise", change)
    run(QuantizedStrategy(fedavg(), mechanism), grid, model(DIMENSION))
    assert sorted(node for step, node, *_ in grid.seen if step == "upload") == [1, 3, 4, 5]
    assert "Expected a modulus of" in refusals(grid)[2]


@pytest.mark.parametrize(
    "change",
    [
        {"chosen": 2}, {"chosen": -1}, {"chosen": "0"}, {"choices": []}, {"choices": 3},
        {"channel": 1},
    ],
)  # fmt: skip
def test_an_offer_of_no_choice_is_none(change):
    text = Offer(adaptive(), DIMENSION).to_text()
    assert Offer.from_text(text) == Offer(adaptive(), DIMENSION)
    with pytest.raises(ValueError, match=r"^Expected an offer of this package's version"):
        Offer.from_text(json.dumps({**json.loads(text), **change}))
