"""Metrics and counts of clients in the same private sum as their updates."""

from __future__ import annotations

import numpy as np
import pytest
from flower_grid import InProcessGrid, client_app
from flower_rounds import ANYTHING, fedavg, model, mover, refusals, steps_of
from flwr.serverapp.strategy import FedAvg

import randquant as rq
from randquant.aggregation import AuxiliaryNumbers, Number, VectorMechanism
from randquant.integrations import HEAD, QuantizedStrategy
from randquant.integrations.flower.messages import PAYLOAD
from randquant.planning import Privacy
from randquant.privacy import account
from randquant.rounds import Membership, Offer
from randquant.secure_sums import ProtocolError

FINE = rq.stochastic_rounding(clip=4.0, levels=64, margin=0.5)  # little noise
NODES = range(1, 7)
NUMBERS = Number("accuracy"), Number("num-examples", 0, 40)


def fine(trust="aggregate", clip_norm=4.0):
    return VectorMechanism(FINE, clip_norm, trust, 4 if trust == "aggregate" else 1)


def grid_with(metrics=lambda node: {"accuracy": node / 10, "num-examples": 10 * node}):
    return InProcessGrid(client_app(ANYTHING, mover, metrics, secret=0.5), NODES)


@pytest.mark.parametrize("trust", ["aggregate", "local"])
@pytest.mark.parametrize("weighted", [False, True])
def test_numbers_arrive_in_the_same_payload_and_weights_are_theirs(trust, weighted):
    grid, weight = grid_with(), "num-examples" if weighted else None
    strategy = QuantizedStrategy(
        fedavg(), fine(trust), privacy=Privacy(numbers=NUMBERS, weighted_by=weight)
    )
    result = strategy.start(grid, model(), 1)
    metrics = result.train_metrics_clientapp[1]
    counts = np.minimum(10 * np.array(NODES), 40)
    for name, true in (("accuracy", 0.35), ("num-examples", counts.mean())):
        assert abs(metrics[name] - true) < 5 * metrics[f"{name}_deviation"]
        assert 0 < metrics[f"{name}_deviation"] < 0.1 * true
    weights = counts if weighted else np.ones(6)
    wanted = np.average([steps_of(n) for n in NODES], axis=0, weights=weights)
    np.testing.assert_allclose(result.arrays["w"].numpy(), wanted, atol=0.3)
    uploads = [(request, reply) for step, _, request, reply in grid.seen if step == "upload"]
    assert {frozenset(reply.content) for _, reply in uploads} == {frozenset({HEAD, PAYLOAD})}
    assert "secret" not in metrics
    # What is accounted is one vector of the update and the numbers.
    guarantee = strategy.accountant.get_privacy_spent()
    release = fine(trust).release(5 + 2, 1, "replace_one")
    assert guarantee.epsilon >= account([release], 1e-5).epsilon * (1 - 1e-9)


@pytest.mark.parametrize("trust", ["aggregate", "local"])
def test_the_noise_of_numbers_is_stated_for_the_clients_in_their_mean(trust):
    """Not for those that the guarantee counts on, who may be fewer."""
    strategy = QuantizedStrategy(fedavg(), fine(trust), privacy=Privacy(numbers=NUMBERS))
    metrics = strategy.start(grid_with(), model(), 1).train_metrics_clientapp[1]
    coordinate = fine(trust).expected_error(5 + 2).deviation(len(NODES))
    for number in NUMBERS:
        wanted = coordinate * (number.high - number.low) / 2 / (number.share * 4.0)
        assert metrics[f"{number.name}_deviation"] == pytest.approx(wanted)


def test_a_client_whose_number_is_nan_sends_zeros():
    """As one whose update is not finite; a zero is the middle of a number's bounds."""
    nan = float("nan")
    grid = grid_with(lambda node: {"accuracy": nan, "num-examples": nan})
    strategy = QuantizedStrategy(fedavg(), fine(), privacy=Privacy(numbers=NUMBERS))
    result = strategy.start(grid, model(), 1)
    assert not refusals(grid)
    found = result.train_metrics_clientapp[1]
    for number in NUMBERS:
        middle, deviation = (number.low + number.high) / 2, found[f"{number.name}_deviation"]
        assert abs(found[number.name] - middle) < 8 * deviation


def test_a_client_without_its_numbers_sends_nothing():
    grid = grid_with(lambda node: {"accuracy": 0.5})
    strategy = QuantizedStrategy(fedavg(), fine(), privacy=Privacy(numbers=NUMBERS))
    result = strategy.start(grid, model(), 1)
    assert not result.train_metrics_clientapp
    assert set(refusals(grid).values()) == {"This client has no update to send; its log says why."}


def test_offers_say_which_numbers_and_are_read_again():
    grid = grid_with()
    strategy = QuantizedStrategy(fedavg(), fine(), privacy=Privacy(
        numbers=NUMBERS, weighted_by="num-examples"))  # fmt: skip
    strategy.start(grid, model(), 1)
    text = grid.seen[0][2].content[HEAD]["offer"]
    offer = Offer.from_text(text)
    assert offer.scalars == strategy.run.scalars
    assert (offer.dimension, offer.update_dimension, offer.scalars.extra) == (7, 5, 2)
    for change in (
        lambda t: t.replace('["accuracy", 0.0', '["accuracy", NaN'),
        lambda t: t.replace('"weight": "num-examples"', '"weight": "other"'),
        lambda t: t.replace(", 0.2]", ", 0.9]"),
    ):
        assert change(text) != text
        with pytest.raises(ValueError, match="Expected an offer"):
            Offer.from_text(change(text))


def test_with_numbers_beside_it_an_offer_counts_for_no_single_example():
    """One example may move a number by its whole range."""
    beside = AuxiliaryNumbers(4.0, NUMBERS)
    offer = Offer(fine(), 7, scalars=beside)
    with pytest.raises(ValueError, match="no numbers with"):
        offer.for_unit(8)
    with pytest.raises(ValueError, match="no numbers with"):
        Offer(fine(), 7, scalars=beside, examples=8)
    with pytest.raises(ProtocolError, match="an offer that can be counted for one example"):
        _ = Membership(b"s" * 16, offer.to_text(), examples=8).offer


def test_mechanisms_that_do_not_clip_in_l2_are_refused():
    coordinates = rq.ChannelMechanism(FINE, "aggregate", 3)
    with pytest.raises(ValueError, match="a mechanism with a clip_norm"):
        QuantizedStrategy(fedavg(), coordinates, privacy=Privacy(numbers=NUMBERS))


def test_evaluation_in_the_clear_is_said(caplog):
    caplog.set_level("WARNING", "flwr")
    said = []
    for share in (0.0, 1.0):
        inner = FedAvg(fraction_evaluate=share)
        QuantizedStrategy(inner, fine()).start(grid_with(), model(), 0)
        said.append("no epsilon covers them" in caplog.text)
    assert said == [False, True]


@pytest.mark.parametrize("numbers", [NUMBERS[0], 3, [3]])
def test_numbers_that_are_no_list_of_them_are_refused(numbers):
    with pytest.raises(TypeError, match=r"Expected .*numbers"):
        Privacy(numbers=numbers)
