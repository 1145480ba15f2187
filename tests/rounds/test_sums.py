"""A server's sums: whose answers count, and what those that do not count leave behind."""

from __future__ import annotations

import pytest
from flower_rounds import NOISY

from randquant.aggregation import VectorMechanism
from randquant.rounds import (
    AmongClients,
    ClientLimits,
    Intake,
    Member,
    Offer,
    PlainSum,
    RoundMessage,
    protocol,
)
from randquant.secure_sums import ProtocolError

SESSION = bytes(16)


@pytest.mark.parametrize("second", [b"other", None, ProtocolError("it was cut off")])
def test_a_second_answer_neither_replaces_the_first_nor_refuses_its_client(second):
    requests = dict.fromkeys((1, 2), RoundMessage(protocol.UPLOAD, SESSION))
    first = RoundMessage(protocol.UPLOAD, SESSION, payload=b"first")
    if not isinstance(second, Exception):
        second = RoundMessage(protocol.UPLOAD, SESSION, payload=second)
    refused, lines = {}, []
    taken = Intake(refused, lambda level, line: lines.append(line)).take(
        protocol.UPLOAD, requests, [(1, first), (1, second)], lambda client, each: each.update
    )
    assert taken == {1: b"first"}
    assert refused.keys() == {2}  # which did not answer
    assert any("reply of client 1 to 'upload' dropped" in line for line in lines)


@pytest.mark.parametrize("summed", [True, False])
def test_a_client_that_is_refused_has_no_part_in_a_rounds_seed(summed):
    """It would otherwise bias the seed by leaving, after it has seen who stays."""
    trust, cohort = ("aggregate", 2) if summed else ("local", 1)
    offer = Offer(VectorMechanism(NOISY, 1.0, trust, cohort, coordinates=4), 16)
    begun = (AmongClients().begin if summed else PlainSum)(offer, [1, 2, 3, 4], lambda *_: None)
    answers = {
        client: Member(client, ClientLimits(1e9), {}, {}, lambda *_: None).answer(request)
        for client, request in begun.pending.items()
    }
    spoilt = answers[4]
    inbox = None if summed else spoilt.inbox  # no keys; or a part that is too short
    part = spoilt.part if summed else spoilt.part[:-1]
    answers[4] = RoundMessage(spoilt.step, spoilt.session, part=part, inbox=inbox)
    begun.take(answers.items())
    assert begun.refused.keys() == {4}
    assert begun._draw.close()[1].keys() == {1, 2, 3}
