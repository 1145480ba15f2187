"""No false report is accepted, and every honest one is.

A false report passes with probability below 2**-150 (docs/theory/vdaf.md), so that no test here
fails by chance.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from vdaf_reports import (
    CRAFTED,
    CTX,
    KEY,
    LENGTH,
    Claimed,
    Report,
    bits,
    flipped,
    prio3,
    random_entries,
    report,
    summed,
    with_share,
)

from randquant.aggregation.vdaf import Histogram, MultihotCountVec, Prio3, Sum, serialization
from randquant.aggregation.vdaf.field import Field64, Field128


@pytest.fixture
def draw():
    return np.random.default_rng(5)


def test_an_honest_report_is_accepted_and_exact(draw):
    for _ in range(100):
        entries = bits(draw)
        assert summed(report(entries, draw), keys=(key := draw.bytes(32), key)) == entries


@pytest.mark.seldom(1)
@pytest.mark.parametrize("craft", [*CRAFTED, random_entries])
def test_a_false_report_is_refused(craft, draw):
    assert [summed(craft(draw)) for _ in range(100)] == [None] * 100


@pytest.mark.slow  # a minute
def test_ten_thousand_honest_reports_and_more_false_ones(draw):
    entries = [bits(draw) for _ in range(10_000)]
    assert [summed(report(each, draw)) for each in entries] == entries
    assert not any(summed(random_entries(draw)) for _ in range(10_000))
    for craft in CRAFTED:
        assert [summed(craft(draw)) for _ in range(1000)] == [None] * 1000, craft.__name__


def test_every_entry_out_of_range_is_refused(draw):
    for at in range(LENGTH):
        for number in (2, -1, 2**32, (Field64.MODULUS + 1) // 2):
            entries = bits(draw)
            entries[at] = number
            assert summed(report(entries, draw)) is None
    opposite = [2, -1] + [0] * (LENGTH - 2)  # which add up to what bits add up to
    assert summed(report(opposite, draw)) is None


def test_every_byte_of_a_report_counts(draw):
    sent = report(bits(draw), draw)
    for agg_id, share in enumerate(sent.shares):
        for at in range(len(share)):
            assert summed(with_share(sent, agg_id, flipped(share, at))) is None, (agg_id, at)
    for at in range(len(sent.public)):
        assert summed(replace(sent, public=flipped(sent.public, at))) is None, at
    for at in range(16):
        assert summed(replace(sent, nonce=flipped(sent.nonce, at))) is None, at


def test_every_byte_between_the_aggregators_counts(draw):
    sent = report(bits(draw), draw)
    size = 8 * prio3().flp.VERIFIER_LEN * 3 + 32
    for at in range(size):
        assert summed(sent, on_verifier=lambda each, at=at: flipped(each, at)) is None, at
    for at in range(32):
        assert summed(sent, on_message=lambda each, at=at: flipped(each, at)) is None, at


def test_messages_of_another_length_are_refused(draw):
    sent = report(bits(draw), draw)
    for change in (lambda part: part[:-1], lambda part: part + b"\0", lambda part: b""):
        for agg_id, share in enumerate(sent.shares):
            assert summed(with_share(sent, agg_id, change(share))) is None
        assert summed(replace(sent, public=change(sent.public))) is None
        assert summed(sent, on_verifier=change) is None
        assert summed(sent, on_message=change) is None
        assert summed(replace(sent, nonce=change(sent.nonce))) is None


def test_numbers_above_the_modulus_are_refused(draw):
    """Two encodings of one number would be two reports with one meaning."""
    sent = report([0] * LENGTH, draw)
    share = Field64.MODULUS.to_bytes(8, "little") + sent.shares[0][8:]
    with pytest.raises(ValueError, match="below the field's modulus"):
        serialization.decode_input_share(prio3(), 0, share)
    assert summed(with_share(sent, 0, share)) is None


def test_aggregators_with_different_keys_refuse_everybody(draw):
    """A key that a client does not know is what makes queries random; both need the same."""
    sent = report(bits(draw), draw)
    assert summed(sent, keys=(KEY, KEY)) is not None
    assert summed(sent, keys=(KEY, flipped(KEY, 3))) is None


def test_a_client_that_knows_the_key_can_cheat(draw):
    """What the draft forbids in section 9.1: here the query's point is known, and passed."""
    client = prio3(Claimed)
    entries, nonce, rand = [5, *[0] * (LENGTH - 1)], draw.bytes(16), draw.bytes(client.RAND_SIZE)
    public, (leader, helper) = client.shard(CTX, entries, nonce, rand)
    states = [
        client.verify_init(KEY, CTX, j, nonce, public, share)
        for j, share in enumerate((leader, helper))
    ]
    verifiers = Field64.vec_add(states[0][1].verifiers_share, states[1][1].verifiers_share)
    flp, proofs, points = (
        client.flp,
        leader.proofs_share.copy(),
        client.query_rands(KEY, CTX, nonce),
    )
    for k in range(3):  # moves the first call's output so that all outputs add up to zero
        wrong = Field64.integers(verifiers[k * flp.VERIFIER_LEN :][:1])[0]
        point = Field64.integers(points[k : k + 1])[0]
        weights = Field64.integers(Field64.lagrange(16, point))
        poly = k * flp.PROOF_LEN + flp.valid.GADGET.ARITY
        # The polynomial's last value is minus the sum of roots times others: an odd one, 1, makes
        # up for what the change of value 2 does to the value at the point.
        roots = Field64.integers(Field64.nth_root_powers(16))
        pulls = [weights[i] - weights[15] * roots[1] * roots[i] for i in (1, 2)]
        other = wrong * pulls[1] * pow(pulls[0], -1, Field64.MODULUS)
        for i, by in ((1, other), (2, -wrong)):
            at = slice(poly + i, poly + i + 1)
            proofs[at] = Field64.vec_add(proofs[at], Field64.of([by]))
    crafted = leader._replace(proofs_share=proofs)
    shares = tuple(bytes(serialization.encode_input_share(client, s)) for s in (crafted, helper))
    sent = Report(nonce, serialization.encode_public_share(public), shares)
    assert summed(sent) == entries
    assert summed(sent, keys=(key := draw.bytes(32), key)) is None


def test_a_report_again_is_the_applications_to_refuse(draw):
    """Steps are functions: the same report has the same answer, which is why nonces are kept."""
    sent = report(bits(draw), draw)
    assert summed(sent) == summed(sent) is not None


def test_other_circuits_refuse_what_is_invalid(draw):
    """Two ones in a histogram, a weight above its limit or misstated, a sum's bit that is none."""

    def accepts(circuit, entries, proofs=1):
        circuit.encode = lambda _: circuit.field.of(entries)
        instance = Prio3(circuit, 4, 2, proofs)
        nonce, rand = draw.bytes(16), draw.bytes(instance.RAND_SIZE)
        public, shares = instance.shard(CTX, None, nonce, rand)
        verifiers = [instance.verify_init(KEY, CTX, j, nonce, public, shares[j])[1] for j in (0, 1)]
        try:
            instance.verifier_shares_to_message(CTX, verifiers)
        except ValueError:
            return False
        return True

    assert accepts(Histogram(Field128, 5, 2), [0, 0, 1, 0, 0])
    for entries in ([0, 1, 1, 0, 0], [0] * 5, [2, -1, 0, 0, 0]):
        assert not accepts(Histogram(Field128, 5, 2), entries)
    assert accepts(MultihotCountVec(Field128, 4, 2, 3), [1, 0, 1, 0, 1, 1])
    for entries in ([1, 1, 1, 0, 1, 1], [1, 0, 1, 0, 0, 1], [1, 0, 1, 0, 2, 0], [2, 0, 0, 0, 1, 1]):
        assert not accepts(MultihotCountVec(Field128, 4, 2, 3), entries)
    assert accepts(Sum(Field64, 5), [1, 0, 1])
    for entries in ([2, 0, 0], [-1, 1, 0], [0, 0, 3]):
        assert not accepts(Sum(Field64, 5), entries)


def test_what_is_decoded_has_exactly_its_length(draw):
    sent, aggregator = report(bits(draw), draw), prio3()
    size = 8 * LENGTH
    decoders = [
        (sent.public, lambda m: serialization.decode_public_share(aggregator, m)),
        (sent.shares[0], lambda m: serialization.decode_input_share(aggregator, 0, m)),
        (sent.shares[1], lambda m: serialization.decode_input_share(aggregator, 1, m)),
        (bytes(32), lambda m: serialization.decode_verifier_message(aggregator, m)),
        (bytes(size), lambda m: serialization.decode_agg_share(aggregator, m)),
    ]
    for message, decode in decoders:
        decode(message)
        for other in (message[:-8], message + bytes(8), b""):
            with pytest.raises(ValueError, match="Expected a message of"):
                decode(other)
