"""No false report is accepted, and every honest one is.

A false report passes with probability below 2**-150 (docs/theory/vdaf.md), so that no test here
fails by chance.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from vdaf_reports import (
    KEY,
    LENGTH,
    bits,
    flipped,
    prio3,
    report,
    summed,
    with_share,
)

from randquant.secure_sums import Field64


@pytest.fixture
def draw():
    return np.random.default_rng(5)


def test_an_honest_report_is_accepted_and_exact(draw):
    for _ in range(100):
        entries = bits(draw)
        assert summed(report(entries, draw), keys=(key := draw.bytes(32), key)) == entries


def test_every_entry_out_of_range_is_refused(draw):
    for at in range(LENGTH):
        for number in (2, -1, 2**32, (Field64.MODULUS + 1) // 2):
            entries = bits(draw)
            entries[at] = number
            assert summed(report(entries, draw)) is None
    opposite = [2, -1] + [0] * (LENGTH - 2)  # which add up to what bits add up to
    assert summed(report(opposite, draw)) is None


def test_a_measurement_with_the_proofs_of_another_is_refused(draw):
    """The liar's shares but for the proofs, under either report's public share and nonce."""
    bad, good = report([2] + [0] * (LENGTH - 1), draw), report(bits(draw), draw)
    leader = bad.shares[0][: 8 * LENGTH] + good.shares[0][8 * LENGTH :]
    for kept, other in ((bad, good), (good, bad)):
        crafted = with_share(kept, 0, leader)
        assert summed(crafted) is None
        assert summed(replace(crafted, nonce=other.nonce)) is None
        assert summed(with_share(kept, 1, other.shares[1])) is None


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
    for change in (
        lambda part: part[:-1], lambda part: part + b"\0", lambda part: b"",
        lambda part: part[:-8], lambda part: part + bytes(8),
    ):  # fmt: skip
        for agg_id, share in enumerate(sent.shares):
            assert summed(with_share(sent, agg_id, change(share))) is None
        assert summed(replace(sent, public=change(sent.public))) is None
        assert summed(sent, on_verifier=change) is None
        assert summed(sent, on_message=change) is None
        assert summed(replace(sent, nonce=change(sent.nonce))) is None


def test_aggregators_with_different_keys_or_contexts_refuse_everybody(draw):
    """A key that a client does not know is what makes queries random; both need the same."""
    sent = report(bits(draw), draw)
    assert summed(sent, keys=(KEY, KEY)) is not None
    assert summed(sent, keys=(KEY, flipped(KEY, 3))) is None
    assert summed(sent, ctx=b"another session") is None


def test_a_report_again_is_the_applications_to_refuse(draw):
    """Steps are functions: the same report has the same answer, which is why nonces are kept."""
    sent = report(bits(draw), draw)
    assert summed(sent) == summed(sent) is not None
