"""A server's sums: whose answers count, and what those that do not count leave behind."""

from __future__ import annotations

import functools
from types import SimpleNamespace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
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
    WithHelper,
    protocol,
)
from randquant.secure_sums import ProtocolError

SESSION = bytes(16)
KEYLESS = SimpleNamespace(answer=print)
"""A helper that is not asked."""


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


@pytest.mark.parametrize("kind", [AmongClients, functools.partial(WithHelper, KEYLESS)])
def test_the_fewest_clients_of_an_operator_hold_for_updates_that_the_server_sees_too(kind):
    """Its mean has the noise of the clients in it: of one, all of that client's."""
    offer, sums = Offer(VectorMechanism(NOISY, 1.0), 16), kind(least=3)
    with pytest.raises(ProtocolError, match="Expected 3 clients or more in the round, got 2"):
        sums.begin(offer, [1, 2], lambda *_: None)
    begun = sums.begin(offer, [1, 2, 3], lambda *_: None)
    model = {"w": np.zeros(16, np.float32)}
    answers = []
    for client in (1, 2):
        member = Member(client, ClientLimits(1e9), {}, {}, lambda *_: None)
        agreed = member.agree(begun.pending[client], model)
        payload = member.encode(agreed, model, model, {})
        answers.append((client, member.upload(agreed, payload)))
    begun.take(answers)
    with pytest.raises(ProtocolError, match="Expected 3 updates or more, got 2"):
        begun.mean()


OWN = Ed25519PrivateKey.from_private_bytes(bytes(32)).public_key().public_bytes_raw()
WRONG_DIRECTORIES = {
    "as text": ({1: OWN.hex()}, "Expected an identity in 32 bytes"),
    "one client as two": ({1: OWN, 2: OWN}, "one client would count as two"),
    "a key for which anybody can sign": ({1: bytes(32)}, "for which anybody can sign"),
    "no number": ({"1": OWN}, "a client's number"),
}


@pytest.mark.parametrize("kind", [AmongClients, functools.partial(WithHelper, KEYLESS)])
@pytest.mark.parametrize("wrong", WRONG_DIRECTORIES)
def test_a_servers_directory_is_refused_before_any_round(kind, wrong):
    directory, sentence = WRONG_DIRECTORIES[wrong]
    with pytest.raises((TypeError, ValueError), match=sentence):
        kind(directory=directory)
    assert kind(directory={1: OWN}).directory == {1: OWN}
