"""Sums of codes that clients prove to be valid: exact, and without those who lie."""

from __future__ import annotations

import dataclasses
import os

import numpy as np
import pytest
from helper_sums import PINNED, codes_of, helper_in, wanted
from proven_sums import (
    COMMITMENT,
    VERIFY_KEY,
    as_prio3,
    lie,
    parts_of,
    proven_messages,
    proven_terms,
    server_of,
    two_randomnesses,
    with_verifier,
)  # fmt: skip
from sum_rounds import signers
from vdaf_reports import flipped

from randquant.secure_sums import (
    LEFT_OUT,
    HelperLimits,
    HelperSum,
    HelperTerms,
    ProtocolError,
    masked_message,
    write_request,
)
from randquant.secure_sums.helper import proven

UNOPENED, UNSIGNED, _, INVALID = LEFT_OUT.values()
CLIENTS = range(6)


@pytest.fixture
def helper(tmp_path):
    return helper_in(tmp_path)


def answered(helper, server):
    """The total, once the helper has answered, and once more to the same request."""
    request = server.request()
    answer = helper.answer(request)
    assert helper.answer(request) == answer
    return server.unmask(answer)


def honest(helper, **options):
    terms = proven_terms(helper, **options)
    codes = codes_of(terms, CLIENTS, terms.largest + 1)
    return terms, codes, proven_messages(terms, codes)


@pytest.mark.parametrize(
    ("largest", "bits"),
    [(1, 12), (2, 12), (3, 9), (4, 17), (15, 12), (200, 1), (200, 2), (200, 9), (200, 32)],
)
def test_the_sum_is_exact_in_the_modulus_of_the_terms(helper, largest, bits):
    terms, codes, messages = honest(helper, largest=largest, bits=bits, dimension=7)
    assert HelperTerms.from_text(terms.to_text()) == terms
    server = server_of(terms, messages)
    total = answered(helper, server)
    assert (total == wanted(codes, CLIENTS, bits)).all()
    assert total.dtype == (np.uint8 if bits <= 8 else np.uint16 if bits <= 16 else np.uint32)
    assert server.clients == set(CLIENTS)
    assert not server.refused
    assert len(messages[0]) == proven.message_bytes(terms)


def test_each_message_has_randomness_of_its_own(helper):
    terms = proven_terms(helper)
    draws = [proven.proven_message(terms, 1, np.ones(5, np.uint8), PINNED) for _ in range(2)]
    for name in ("nonce", "public", "sealed", "share"):
        first, second = (message[parts_of(terms, message)[name]] for message in draws)
        assert first != second
    assert draws[0][-32:] != draws[1][-32:]  # the leader's blind, beside which is the prover's seed


def test_a_client_that_lies_is_left_out_and_named(helper):
    terms, codes, messages = honest(helper)
    half = (2**64 - 2**32 + 2) // 2
    lies = {
        1: [2, 0, 0, 0, 0], 3: [0, -1, 0, 0, 0], 4: [half] * 5, 5: [1000, -999, 0, 1, 0],
    }  # fmt: skip
    messages |= {client: lie(terms, client, entries) for client, entries in lies.items()}
    server = server_of(terms, messages)
    assert (answered(helper, server) == wanted(codes, [0, 2], 10)).all()
    assert server.refused == dict.fromkeys(lies, INVALID)
    assert helper.sums == {0: 1, 2: 1}  # who is left out has released nothing


def test_too_few_valid_codes_are_no_sum(helper):
    terms, _, messages = honest(helper, least=5)
    messages |= {client: lie(terms, client, [2] * 5) for client in (2, 3)}
    server = server_of(terms, messages)
    with pytest.raises(ProtocolError, match="Expected seeds of 5 clients or more"):
        helper.answer(server.request())
    assert helper.sums == {}


@pytest.mark.parametrize("part", ["nonce", "public", "sealed", "share"])
def test_whatever_is_changed_on_the_way_costs_that_client(helper, part):
    terms, codes, messages = honest(helper)
    place = parts_of(terms, messages[2])[part]
    draw = np.random.default_rng(3)
    for at in draw.choice(range(place.start, place.stop), 8, replace=False):
        again = dataclasses.replace(terms, session=os.urandom(8))
        messages = proven_messages(again, codes)
        messages[2] = flipped(messages[2], int(at), int(draw.integers(8)))
        server = server_of(again, messages)
        assert (answered(helper, server) == wanted(codes, set(CLIENTS) - {2}, 10)).all()
        assert list(server.refused) == [2]


def test_a_report_of_another_client_or_session_or_with_other_terms_is_refused(helper):
    terms, codes, messages = honest(helper)
    other = dataclasses.replace(terms, session=b"another")
    copied = {**messages, 7: messages[2]}
    server = server_of(terms, copied)
    assert (answered(helper, server) == wanted(codes, CLIENTS, 10)).all()
    assert server.refused == {7: UNOPENED}
    with pytest.raises(ProtocolError, match="one message of each client"):
        server.add(2, messages[2])
    replayed = server_of(other, messages)
    assert set(replayed.refused) == set(CLIENTS)  # by the server's share alone
    for length in (0, 1, len(messages[2]) - 1, len(messages[2]) + 1):
        with pytest.raises(ProtocolError, match="Expected a message of"):
            HelperSum(other, None, VERIFY_KEY).add(2, (messages[2] + b"\0")[:length])
    for wrong in (b"RQH1" + messages[2][4:], None):
        with pytest.raises(ProtocolError, match="Expected a message"):
            HelperSum(other, None, VERIFY_KEY).add(2, wrong)


def test_two_joint_randomnesses_cost_only_the_client_that_made_them(helper):
    """Prio3 has the helper accept and the server refuse: too late for a sum of one exchange."""
    terms, codes, messages = honest(helper)
    messages[3], seed = two_randomnesses(terms, 3)
    assert as_prio3(terms, messages[3], seed) == [False, True]
    server = server_of(terms, messages)
    assert (answered(helper, server) == wanted(codes, set(CLIENTS) - {3}, 10)).all()
    assert server.refused == {3: INVALID}


def test_identities_are_checked_as_in_every_sum(tmp_path):
    identities, directory = signers(CLIENTS)
    helper = helper_in(tmp_path, directory=directory)
    terms = proven_terms(helper)
    codes = codes_of(terms, CLIENTS, 2)
    messages = proven_messages(terms, codes, identities)
    messages[1] = proven.proven_message(terms, 1, codes[1], PINNED, identities[2])
    server = server_of(terms, messages)
    assert (answered(helper, server) == wanted(codes, set(CLIENTS) - {1}, 10)).all()
    assert server.refused == {1: UNSIGNED}
    assert server_of(proven_terms(helper), {}, directory).clients == set()


def test_a_server_that_changes_a_verifier_share_learns_what_it_knew(helper):
    """The verdict is the same whatever the codes are: in each place a change is noticed."""
    terms = proven_terms(helper, dimension=3)
    places = proven.verifier_bytes(terms) // 8 - 4
    for codes in ([0, 0, 0], [1, 1, 1], [1, 0, 1]):
        array = np.array(codes, np.uint8)
        for place in range(0, places, 3):
            again = dataclasses.replace(terms, session=os.urandom(8))
            server = server_of(again, proven_messages(again, dict.fromkeys(range(3), array)))
            seeds = dict(server._seeds)
            seeds[1] = with_verifier(seeds[1], place)
            server._request = write_request(again, seeds, "", VERIFY_KEY)
            assert (server.unmask(helper.answer(server.request())) == 2 * array).all()
            assert server.refused == {1: INVALID}


def test_a_server_is_answered_for_one_set_of_proofs_only(helper):
    """Another verifier share, key, nonce or public share is another request, or no seal's."""
    terms, codes, messages = honest(helper)
    server = server_of(terms, messages)
    seeds = dict(server._seeds)
    other_key = os.urandom(32)
    with pytest.raises(ProtocolError, match="verification key of the terms"):
        helper.answer(write_request(terms, seeds, "", other_key))
    assert (answered(helper, server) == wanted(codes, CLIENTS, 10)).all()
    for changed in (
        {**seeds, 1: with_verifier(seeds[1], 0)}, {c: seeds[c] for c in range(5)},
        {**seeds, 1: dataclasses.replace(seeds[1], bound=flipped(seeds[1].bound, 3))},
    ):  # fmt: skip
        with pytest.raises(ProtocolError, match="one set of clients in a session"):
            helper.answer(write_request(terms, changed, "", VERIFY_KEY))


def test_a_server_that_changes_nonce_or_public_share_opens_no_seal(helper):
    terms, codes, messages = honest(helper)
    server = server_of(terms, messages)
    seeds = dict(server._seeds)
    for client, at in ((1, 0), (2, 15), (3, 16), (4, 79)):
        bound = flipped(seeds[client].bound, at)
        seeds[client] = dataclasses.replace(seeds[client], bound=bound)
    server._request = write_request(terms, seeds, "", VERIFY_KEY)
    assert (server.unmask(helper.answer(server.request())) == wanted(codes, [0, 5], 10)).all()
    assert server.refused == dict.fromkeys(range(1, 5), UNOPENED)


def test_a_damaged_or_wrong_answer_is_refused(helper):
    terms, _, messages = honest(helper)
    server = server_of(terms, messages)
    answer = helper.answer(server.request())
    for at in range(len(answer)):
        with pytest.raises(ProtocolError):
            server.unmask(flipped(answer, at))
    listed = b""
    wrong = proven.read_total(answer[4:36], listed, answer[40:])
    wrong[2] += np.uint64(7)  # more than six clients can have
    lied = answer[:40] + proven.write_total(answer[4:36], listed, wrong)
    with pytest.raises(ProtocolError, match="totals of 6 at most"):
        server.unmask(lied)
    assert server.unmask(answer).max() <= 6


def test_a_helpers_limit_of_memory_counts_the_bits_of_proven_codes(tmp_path):
    helper = helper_in(tmp_path, HelperLimits(coordinates=15))
    for largest, answers in ((7, True), (8, False)):
        terms, _, messages = honest(helper, largest=largest, dimension=5)
        server = server_of(terms, messages)
        if answers:
            assert server.unmask(helper.answer(server.request())).shape == (5,)
        else:
            with pytest.raises(ProtocolError, match=r"15 bits of proven codes at most.* got 20"):
                helper.answer(server.request())


def test_terms_and_keys_that_do_not_fit_are_refused(helper):
    terms = proven_terms(helper)
    plain = dataclasses.replace(terms, largest=0, commitment=b"")
    codes = np.ones(5, np.uint8)
    with pytest.raises(ValueError, match="verification key of the terms"):
        HelperSum(terms, verify_key=bytes(32))
    for size in (0, 31, 33):  # else each client is told that its message is false
        key = bytes(size)
        short = dataclasses.replace(terms, commitment=proven.verify_key_commitment(key))
        with pytest.raises(ValueError, match="bytes of verify_key"):
            HelperSum(short, verify_key=key)
    with pytest.raises(ValueError, match="use `proven_message`"):
        masked_message(terms, 1, codes, PINNED)
    with pytest.raises(ValueError, match="use `masked_message`"):
        proven.proven_message(plain, 1, codes, PINNED)
    with pytest.raises(ValueError, match="codes of 1 at most"):
        proven.proven_message(terms, 1, 2 * codes, PINNED)
    with pytest.raises(ProtocolError, match="helper that this client knows"):
        proven.proven_message(terms, 1, codes, bytes(32))
    for largest, commitment in (
        (0, COMMITMENT),
        (1, b""),
        (1, COMMITMENT[1:]),
        (2**16, COMMITMENT),
    ):
        with pytest.raises(ValueError, match=r"^Expected "):
            dataclasses.replace(terms, largest=largest, commitment=commitment)
