"""Bytes of an upload, against what clients really send: payloads, and masked vectors of a sum."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import problems
from sum_rounds import Round, terms_of

import randquant as rq
from randquant.aggregation import ChannelMechanism, VectorMechanism
from randquant.channels import wire

BIT = rq.stochastic_rounding(clip=0.5, levels=2, margin=0.5)


def test_plain_codes_are_not_what_a_secure_sum_takes():
    """The planted error: bytes of the codes, where masked vectors are sent."""
    mechanism = VectorMechanism(BIT, 0.5, "aggregate", 200)
    codes = mechanism.encode(np.zeros(650, dtype=np.float32), rq.Key.generate())
    assert len(codes) == wire.coded(BIT, 1024) == 168
    played = Round(terms_of(5, dimension=1024, bits=7))
    sent = played.clients[0].mask(played.vectors[0], played.shared()[0])
    assert mechanism.upload_bytes(650) == len(sent) == 936


def test_the_width_holds_every_sum_and_no_more():
    for levels in (2, 3, 16, 256):
        for clients in (1, 2, 40, 200, 1023):
            bits, most = wire.sum_bits(levels, clients), clients * (levels - 1)
            assert 2 ** (bits - 1) <= most < 2**bits


def test_a_round_counts_what_travels():
    """A simulation hands plain codes around; its bytes are those of masked vectors."""
    from randquant.local_training import Learner
    from randquant.training import RoundCollector

    learner = Learner(problems.problem("digits", "softmax", 12))
    for trust, each in (("aggregate", 40 + 4 * 650 // 8), ("local", 40 + -(-650 // 8))):
        mechanism = ChannelMechanism(BIT, trust, 12 if trust == "aggregate" else 1)
        with ThreadPoolExecutor(1) as pool:
            collect = RoundCollector(learner, mechanism, pool, 1)
            found = collect(range(12), rq.Key.from_seed(0), 0)
        assert found.bytes_up == 12 * each
