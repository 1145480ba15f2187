"""What somebody else's channels may cost is known from their sizes, and honest ones may."""

from __future__ import annotations

import numpy as np
import pytest

import randquant as rq
from randquant.aggregation import from_record
from randquant.channels import Channel
from randquant.privacy import check_work
from randquant.privacy.certificates import coordinate

HONEST = [
    (rq.stochastic_rounding(clip=0.3, levels=2, margin=0.7), 131_072),
    (rq.rqm(clip=0.3, margin=0.3, levels=16, keep=0.42), 40),
    (rq.rqm(clip=0.3, margin=0.3, levels=16, keep=0.42), 20_000),
    (rq.rqm(clip=0.3, margin=0.3, levels=32, keep=0.42), 1000),
    (rq.pbm(clip=0.3, theta=0.2, trials=16, inputs=65), 10_000),
    (rq.pbm(clip=0.3, theta=0.2, trials=64, inputs=65), 1000),
    (rq.pbm(clip=0.3, theta=0.2, trials=255, inputs=65), 1),
    (rq.stochastic_rounding(clip=4.0, levels=64, margin=0.5), 40),
]


def of_size(vertices, codes):
    weights = np.ones((vertices, codes), dtype=np.int64)
    weights[:, 0] += np.arange(vertices)
    denominator = 1 << (vertices + codes).bit_length()
    weights[:, codes // 2] += denominator - weights.sum(axis=1)
    inputs, values = np.linspace(-1, 1, vertices), np.linspace(-1, 1, codes)
    return Channel(inputs, values, weights, denominator)


@pytest.mark.parametrize("place", range(len(HONEST)))
def test_honest_channels_are_admitted(place):
    channel, clients = HONEST[place]
    check_work(channel, clients)


@pytest.mark.parametrize(
    ("vertices", "codes", "clients"),
    [
        (300, 128, 40),
        (100, 32, 40),
        (2, 256, 1000),
        (10, 64, 20_000),
        (1000, 256, 1),
        (90, 16, 40),
        (250, 16, 40),
        (180, 8, 40),
        (2000, 2, 40),
        (3900, 2, 1),
        (4, 100, 40),
    ],
)
def test_channels_that_take_minutes_are_refused(vertices, codes, clients):
    """Each takes more than a minute on one core, or gigabytes."""
    reason = f"too long, with {vertices} inputs, {codes} codes and {clients} clients in a sum"
    with pytest.raises(ValueError, match=reason):
        check_work(of_size(vertices, codes), clients)


@pytest.mark.parametrize("certificate", [None, rq.certify_metric(HONEST[0][0], "fisher")])
def test_a_channel_is_refused_before_the_work_of_certifying_it(certificate, monkeypatch):
    def worked(*arguments):
        raise AssertionError

    def refuse(channel):
        raise ValueError("it would take too long")

    record = coordinate.channel_record(HONEST[0][0], certificate)
    for name in ("certify", "certify_metric"):
        monkeypatch.setattr(coordinate, name, worked)
    with pytest.raises(ValueError, match="it would take too long"):
        coordinate.channel_from_record(record, "in an offer", refuse)


@pytest.mark.parametrize("trust", ["local", "aggregate"])
def test_the_work_of_a_strangers_mechanism_is_that_of_its_sums(trust):
    channel = rq.rqm(clip=0.3, margin=0.3, levels=64, keep=0.42)
    check_work(channel, 1)
    record = rq.VectorMechanism(channel, 1.0, trust, 10 if trust == "aggregate" else 1).record()
    if trust == "local":
        assert from_record(record, bounded=True).channel == channel
        return
    with pytest.raises(ValueError, match="64 codes and 10 clients in a sum"):
        from_record(record, bounded=True)


def test_sums_are_infinite_at_once_only_for_updates_that_are_clipped_as_a_whole():
    check_work(HONEST[-1][0], 40)
    with pytest.raises(ValueError, match="too long"):
        check_work(HONEST[-1][0], 40, clipped=False)
