"""What clients and server draw in a round: nobody who knows all else of it can foretell it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from flower_rounds import NOISY, ask, exact, grid_of, noisy
from helper_sums import helper_in
from mechanisms_built import built
from nvflare_job import Server, asked, passed, result
from scripted import check_drawn, check_follows

from randquant.aggregation import VectorMechanism
from randquant.integrations import QuantizeFilter
from randquant.rounds import (
    AgreedUpload,
    AmongClients,
    ClientLimits,
    Layout,
    Member,
    Membership,
    Offer,
    PlainSum,
    RoundMessage,
    WithHelper,
    protocol,
)
from randquant.secure_sums import Advert, Terms

DIMENSION, SESSION = 256, bytes(16)
OLD = {"w": np.zeros(DIMENSION, np.float32)}
NEW = {"w": np.linspace(-0.02, 0.02, DIMENSION, dtype=np.float32)}
BUILT = built(cohort=2, some=64)
SOME = "bits of some coordinates"
OFFERED = ("stochastic-rounding", "aggregate bits of whole updates", SOME, "pbm", "skellam",
           "discrete-gaussian", "binomial")  # fmt: skip


def member():
    """Client 1, who has answered nothing yet: in each call the same, as a server may have it."""
    return Member(1, ClientLimits(math.inf), {}, {}, lambda level, line: None)


@pytest.mark.parametrize("name", OFFERED)
def test_the_codes_follow_from_a_key_of_the_system_and_from_nothing_that_others_know(name):
    """Session, number, offer, seed, model and data are the same in each call."""
    offer = Offer(BUILT[name], DIMENSION)
    own = Membership(SESSION, offer.to_text())
    request = RoundMessage(protocol.UPLOAD, SESSION, offer.to_text())
    agreed = AgreedUpload(request, own, offer.mechanism.in_round(7), Layout.from_model(OLD))

    def codes():
        return member().encode(agreed, OLD, NEW, {})

    check_drawn(codes, least=32)


def test_a_clients_part_of_a_rounds_seed_is_its_own():
    offer = Offer(VectorMechanism(NOISY, 1.0, coordinates=4), 16).to_text()
    request = RoundMessage(protocol.ADVERTISE, SESSION, offer, commitment=bytes(32))
    check_drawn(lambda: member().answer(request).part, least=32)


def test_the_keys_that_a_client_advertises_in_a_sum_are_its_own():
    """Three keys of the same client in the same sum; each of them follows from bytes of its own."""
    offer = Offer(exact(), 5)
    text = protocol.terms_text(Terms(SESSION, (1, 2, 3), offer.size, offer.sum_bits(3), 2, 2))
    request = RoundMessage(protocol.ADVERTISE, SESSION, offer.to_text(), text)
    check_drawn(lambda: member().answer(request).peer_messages, least=32 + 64 + 64)
    keys = [Advert.from_bytes(member().answer(request).peer_messages[1]) for _ in range(2)]
    for name in ("sealing", "masking", "seed"):
        assert getattr(keys[0], name) != getattr(keys[1], name)


def test_the_server_draws_sessions_seeds_and_verify_keys(tmp_path):
    some, codes = (
        Offer(BUILT[SOME], DIMENSION),
        Offer(BUILT["aggregate bits of whole updates"], DIMENSION),
    )
    local, log = Offer(noisy("local"), DIMENSION), lambda level, line: None
    helper = helper_in(tmp_path)

    def asks(begun):
        return [(each.session, each.commitment, each.terms) for each in begun.pending.values()]

    check_drawn(lambda: asks(PlainSum(local, [1, 2], log)), least=16)
    check_drawn(lambda: asks(AmongClients().begin(some, [1, 2, 3], log)), least=16 + 32)
    proven = WithHelper(helper, integrity="proven")
    check_drawn(lambda: asks(proven.begin(codes, [1, 2, 3], log)), least=16 + 16)


@pytest.mark.parametrize("engine", ["flower", "nvflare"])
def test_no_engine_gives_its_clients_keys_of_its_own(engine, encoded, tmp_path):
    """The same client, which has forgotten its first answer, to the same request."""
    offer, server = Offer(noisy("local"), 5), Server(tmp_path)
    task, folders = asked(server), iter(range(99))

    def draw():
        encoded.clear()
        if engine == "flower":
            for session in range(20):
                ask(grid_of(nodes=[1]), 1, "upload", bytes([session]), offer=offer.to_text())
        else:
            for _ in range(6):
                site = QuantizeFilter(math.inf, str(tmp_path / f"{next(folders)}"))
                passed(site, "va", task, lambda *_: result())
        assert encoded
        return [payload for _, payload in encoded]

    check_follows(draw)
