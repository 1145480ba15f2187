"""A hostile server that chooses a model at which some data overflow in training."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from flower_rounds import NOISY

from randquant.aggregation import AuxiliaryNumbers, Number, VectorMechanism
from randquant.rounds import ClientLimits, Member, Offer, RoundMessage, protocol
from randquant.secure_sums import ProtocolError

MODEL = {"weight": np.float32([[1.5e38, 0], [0, 0]]), "bias": np.zeros(2, np.float32)}
NEIGHBOURS = {"small": [[1.0, 0.0], [1.0, 1.0]], "large": [[5.0, 0.0], [1.0, 1.0]]}
"""A client's records in two worlds, which differ in one of them."""


def trained(records):
    """The usual step, which raises nothing: the model after it, and the loss before it."""
    net = torch.nn.Linear(2, 2)
    net.load_state_dict({name: torch.tensor(each) for name, each in MODEL.items()})
    outputs = net(torch.tensor(records))
    loss = torch.nn.functional.cross_entropy(outputs, torch.ones(len(records)).long())
    loss.backward()
    moved = {name: MODEL[name] - each.grad.numpy() for name, each in net.named_parameters()}
    return moved, float(loss.detach())


@pytest.mark.parametrize("numbers", [(), (Number("loss"),)])
@pytest.mark.parametrize("world", NEIGHBOURS)
def test_whether_a_client_answers_does_not_tell_which_data_overflow(world, numbers):
    """A silent client would tell the two worlds apart for certain, at no cost in its account."""
    mechanism, lines = VectorMechanism(NOISY, 1.0), []
    scalars = AuxiliaryNumbers(1.0, numbers) if numbers else None
    offer = Offer(mechanism, 6 + len(numbers), scalars=scalars)
    member = Member(1, ClientLimits(99.0), {}, {}, lambda level, line: lines.append(line))
    agreed = member.agree(RoundMessage(protocol.UPLOAD, bytes(16), offer.to_text()), MODEL)
    new, loss = trained(NEIGHBOURS[world])
    overflows = world == "large"
    assert math.isfinite(loss) != overflows
    answer = member.upload(agreed, member.encode(agreed, MODEL, new, {"loss": loss}))
    member.charge(agreed.membership, protocol.UPLOAD)
    assert len(answer.payload) == 41
    assert any("zeros are sent instead" in line for line in lines) == overflows


@pytest.mark.parametrize("step", [protocol.ADVERTISE, protocol.UPLOAD])
def test_a_client_that_agreed_to_an_offer_refuses_another_in_the_same_round(step):
    """In a later step as in the first: what it has agreed to is what it is charged for."""
    member = Member(1, ClientLimits(99.0), {}, {}, lambda level, line: None)
    offers = [Offer(VectorMechanism(NOISY, norm, coordinates=4), 6).to_text() for norm in (1, 2)]
    first, second = (
        RoundMessage(protocol.ADVERTISE, bytes(16), text, commitment=bytes(32)) for text in offers
    )
    member.answer(first)
    again = replace(second, step=step)
    with pytest.raises(ProtocolError, match="Expected one offer in a round, got a second"):
        member.answer(again) if step == protocol.ADVERTISE else member.agree(again, MODEL)


@pytest.mark.parametrize("world", NEIGHBOURS)
def test_a_number_that_a_client_never_has_is_refused_whatever_its_data(world):
    """A server chooses the numbers: an answer with zeros in one world alone would tell."""
    offer = Offer(VectorMechanism(NOISY, 1.0), 7, scalars=AuxiliaryNumbers(1.0, (Number("age"),)))
    member = Member(1, ClientLimits(99.0), {}, {}, lambda level, line: None)
    agreed = member.agree(RoundMessage(protocol.UPLOAD, bytes(16), offer.to_text()), MODEL)
    new, loss = trained(NEIGHBOURS[world])
    with pytest.raises(ValueError, match="Expected a number 'age' with the update"):
        member.encode(agreed, MODEL, new, {"loss": loss})
