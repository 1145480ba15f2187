"""Bytes of an upload, against what clients really send: payloads, and masked vectors of a sum."""

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import randquant as rq
from randquant.aggregation.additive import AdditiveMechanism
from randquant.aggregation.baselines import CentralGaussian, ClippedSGD, LocalGaussian
from randquant.aggregation.coordinate import ChannelMechanism
from randquant.aggregation.registry import all_mechanisms, update_mechanism
from randquant.aggregation.secagg.client import Client
from randquant.aggregation.secagg.server import SumServer
from randquant.aggregation.secagg.terms import Terms
from randquant.aggregation.sign_sgd import SignSGD
from randquant.aggregation.vector import VectorMechanism
from randquant.channels.wire import upload
from randquant.mechanisms.noise.laws import NOISES

BIT = rq.stochastic_rounding(clip=0.5, levels=2, margin=0.5)
CHANNELS = [BIT, rq.rqm(1.5, 1.5, 16, 0.42), rq.pbm(1.5, 0.25, 5), rq.pbm(1.5, 0.1, 99, inputs=5)]
SENT_ONE_BY_ONE = [
    *(ChannelMechanism(channel) for channel in CHANNELS),
    *(VectorMechanism(channel, 1.0) for channel in CHANNELS),
    ClippedSGD(clip=0.1),
    ClippedSGD(clip_norm=0.1),
    CentralGaussian(None, 1.0, 0.1),
    LocalGaussian(0.1, 1.0),
    SignSGD(0.1, 1.0),
]
SUMMED = [
    *(ChannelMechanism(channel, "aggregate", 3) for channel in CHANNELS),
    *(VectorMechanism(channel, 1.0, "aggregate", 3) for channel in CHANNELS),
    *(AdditiveMechanism(kind, 1.0, 2.0, 3, bits) for kind in NOISES for bits in (12, 16)),
]


def masked_vector(size: int, bits: int, clients: int) -> bytes:
    """What one of so many clients really sends to a secure sum."""
    terms = Terms(os.urandom(16), tuple(range(clients)), size, bits, least=2)
    parties = {c: Client(terms, c) for c in terms.clients}
    server = SumServer(terms)
    adverts = server.introduce({c: party.advertise() for c, party in parties.items()})
    sealed = server.forward({c: parties[c].share(found) for c, found in adverts.items()})
    return parties[0].mask(np.zeros(size, dtype=np.uint32), sealed[0])


@pytest.mark.parametrize("dimension", [1, 100, 650])
@pytest.mark.parametrize("mechanism", SENT_ONE_BY_ONE, ids=repr)
def test_what_is_sent_alone_has_the_length_of_its_payload(mechanism, dimension):
    payload = mechanism.encode(np.zeros(dimension, dtype=np.float32), rq.Key.generate())
    assert mechanism.upload_bytes(dimension) == len(payload)
    assert mechanism.upload_bytes(dimension, 40) == len(payload)  # whoever else takes part


@pytest.mark.seldom(1)
@pytest.mark.parametrize("clients", [3, 4, 9])
@pytest.mark.parametrize("mechanism", SUMMED, ids=repr)
def test_what_is_summed_has_the_length_of_a_masked_vector(mechanism, clients):
    """The very bytes that `Client.mask` returns, in a sum with the mechanism's modulus."""
    for dimension in (1, 100):
        if isinstance(mechanism, AdditiveMechanism):
            size, bits = mechanism.plan(dimension).size, mechanism.bits
        else:
            size, bits = mechanism.size(dimension), mechanism.sum_bits(dimension, clients)
            most = clients * (mechanism.channel.levels - 1)
            assert bits <= next(bits for bits in range(1, 33) if most < 2**bits)
        assert mechanism.sum_bits(dimension, clients) == bits
        sent = masked_vector(size, bits, clients)
        assert mechanism.upload_bytes(dimension, clients) == len(sent)


def test_plain_codes_are_not_what_a_secure_sum_takes():
    """The planted error: bytes of the codes, where masked vectors are sent."""
    mechanism = VectorMechanism(BIT, 0.5, "aggregate", 200)
    codes = mechanism.encode(np.zeros(650, dtype=np.float32), rq.Key.generate())
    assert len(codes) == upload.coded(BIT, 1024) == 168
    assert mechanism.upload_bytes(650) == len(masked_vector(1024, 7, 5)) == 936


def test_the_width_holds_every_sum_and_no_more():
    for levels in (2, 3, 16, 256):
        for clients in (1, 2, 40, 200, 1023):
            bits, most = upload.sum_bits(levels, clients), clients * (levels - 1)
            assert 2 ** (bits - 1) <= most < 2**bits


def test_every_registered_baseline_says_its_bytes():
    whole = {name: each for name, each in all_mechanisms().items() if each.whole_update}
    for name, each in whole.items():
        mechanism = update_mechanism(name, each.example or {"clip_norm": 1.0}, cohort=3)
        payload = mechanism.encode(np.zeros(100, dtype=np.float32), rq.Key.generate())
        # Integer noise is sent modulo 2**bits already: masks take no more.
        assert mechanism.upload_bytes(100) == len(payload)


def test_a_round_counts_what_travels():
    """A simulation hands plain codes around; its bytes are those of masked vectors."""
    from randquant.training import models
    from randquant.training.client import Learner
    from randquant.training.cohort import collector
    from randquant.training.data import datasets
    from randquant.training.named import of_dataset

    digits = datasets.load("digits")
    clients = datasets.partition(digits.train_labels, 12, "iid")
    learner = Learner(of_dataset(models.build("softmax", (1, 8, 8), 10, 0), digits, clients))
    for trust, each in (("aggregate", 40 + 4 * 650 // 8), ("local", 40 + -(-650 // 8))):
        mechanism = ChannelMechanism(BIT, trust, 12 if trust == "aggregate" else 1)
        with ThreadPoolExecutor(1) as pool:
            collect = collector(learner, mechanism, pool, 1)
            found = collect(range(12), rq.Key.from_seed(0), 0)
        assert found.bytes_up == 12 * each
