"""A round without an engine: server and clients, and what they say to each other as values."""

import math

import numpy as np
import pytest
from flower_rounds import NOISY, exact, mean_of, steps_of

from randquant.aggregation.vector import VectorMechanism
from randquant.integrations.among_clients import AmongClients
from randquant.integrations.limits import ClientLimits
from randquant.integrations.member import Member
from randquant.integrations.offer import Offer
from randquant.integrations.sums import PlainSum
from randquant.secure_sums.secagg.terms import ProtocolError

CLIENTS = range(1, 6)
MODEL = {"w": np.zeros(5, np.float32)}


def quiet(level, line):
    """A log that nobody reads."""


def members(**options):
    return {n: Member(n, ClientLimits(math.inf), {}, {}, quiet, **options) for n in CLIENTS}


def answer(member, request):
    """A client's answer to any step, with a training that moves the model by `steps_of`."""
    if request.step != "upload":
        return member.answer(request)
    agreed = member.agree(request, MODEL)
    member.charge(agreed.own, request.step)
    payload = member.encode(agreed, MODEL, {"w": steps_of(member.number)}, {})
    return member.upload(agreed, payload)


def played(now, clients, lost=()):
    """The steps of a round; `lost` clients never answer one of these steps."""
    steps = []
    while now.pending:
        steps.append(now.step)
        asked = now.pending.items()
        now.take([(n, answer(clients[n], each)) for n, each in asked if (n, each.step) not in lost])
    return steps


FIVE = ["advertise", "share", "upload", "confirm", "reveal"]


@pytest.mark.parametrize(("trust", "steps"), [("local", ["upload"]), ("aggregate", FIVE)])
def test_a_round_is_values_in_and_a_mean_out(trust, steps):
    clients, said = members(), []
    now = AmongClients().begin(Offer(exact(trust), 5), CLIENTS, lambda *line: said.append(line))
    assert played(now, clients, lost={(2, "upload")}) == steps
    np.testing.assert_allclose(now.mean(), mean_of([1, 3, 4, 5]), atol=1e-6)
    assert now.clients == 4
    assert set(now.refused) == {2}
    assert any("client 2: no reply to 'upload' in time" in line for _, line in said)


@pytest.mark.parametrize("drawn", [True, False])
def test_a_seed_is_drawn_together_or_follows_from_the_session(drawn):
    some = Offer(VectorMechanism(NOISY, 1.0, coordinates=3), 5)
    now = PlainSum(some, CLIENTS, quiet, drawn=drawn)
    assert played(now, members(drawn=drawn)) == ["advertise", "upload"][not drawn :]
    assert now.clients == 5


def test_a_client_that_draws_a_seed_takes_none_that_the_server_has_chosen():
    now = PlainSum(
        Offer(VectorMechanism(NOISY, 1.0, coordinates=3), 5), CLIENTS, quiet, drawn=False
    )
    with pytest.raises(ProtocolError, match="have drawn together, got none"):
        played(now, members())
