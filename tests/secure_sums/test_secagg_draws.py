"""What parties of a secure sum draw: it follows from the operating system's bytes alone.

Everybody who knows the terms, the number, the codes, the keys of others and the state before a step
could else take a client's masks off.
"""

from __future__ import annotations

import numpy as np
import pytest
from helper_sums import PINNED, helper_in, terms_of
from scripted import check_drawn, check_follows, scripted

from randquant.secure_sums import (
    SEED_BYTES,
    SUITES,
    Client,
    Draw,
    JointSeed,
    Terms,
    masked_message,
    prio3_for,
    proven_message,
    read_message,
    read_proven,
    verify_key_commitment,
)

TERMS = Terms(bytes(16), (1, 2, 3, 4), dimension=5, bits=10, least=2, neighbours=3)
CODES = np.arange(40, dtype=np.uint8) % 2


def test_a_clients_secrets_in_a_sum_are_drawn():
    check_drawn(lambda: Client(TERMS, 1).to_bytes(), least=32 + 64 + 64)


def test_a_client_shares_its_secrets_by_fresh_polynomials_and_seals_them_under_fresh_nonces():
    """Also where its secrets and the keys of others are the same: a restored client shares anew."""
    adverts = {number: Client(TERMS, number).advertise() for number in (2, 3, 4)}
    client = Client(TERMS, 1)
    client.advertise()
    saved = client.to_bytes()
    scalars = 4 * (TERMS.threshold - 1) + 2  # of two secrets' polynomials, and of two drawn ones
    least = 64 * scalars + 12 * len(adverts)
    again = iter([Client.from_bytes(TERMS, saved) for _ in range(99)])
    check_drawn(lambda: next(again).share(adverts), least)


def test_both_parties_of_a_seed_draw_their_part():
    check_drawn(lambda: Draw(bytes(16)).commitment, least=32)
    check_drawn(lambda: JointSeed(bytes(16)).request, least=32)


@pytest.mark.parametrize("suite", SUITES)
def test_a_message_to_a_helper_is_masked_by_a_drawn_seed(suite, tmp_path):
    """OpenSSL draws what seals it: the same seed is sealed differently each time."""
    helper = helper_in(tmp_path, suite=suite)
    terms = terms_of(helper, dimension=40)

    def message():
        return read_message(terms, masked_message(terms, 1, CODES, PINNED))

    check_drawn(lambda: message()[1], least=SEED_BYTES)
    with scripted(1):
        one = message()[0].sealed
    with scripted(1):
        assert message()[0].sealed != one


def test_a_proven_message_is_split_by_drawn_seeds_and_has_a_drawn_nonce(tmp_path):
    terms = terms_of(
        helper_in(tmp_path),
        dimension=40,
        bits=10,
        largest=1,
        commitment=verify_key_commitment(bytes(32)),
    )

    def sent():
        message = proven_message(terms, 1, CODES, PINNED)
        return message, read_proven(terms, message)[0]

    def unsealed():
        message, read = sent()
        return message.replace(read.sealed, b"")

    nonce = prio3_for(terms).NONCE_SIZE
    check_drawn(unsealed, least=SEED_BYTES + nonce + SEED_BYTES)
    check_follows(lambda: sent()[1].bound[:nonce])
