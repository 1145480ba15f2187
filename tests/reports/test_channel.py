"""A channel's and a certificate's picture and table say what they are."""

import dataclasses
import math

import pytest

import randquant as rq
from randquant.channels import Channel
from randquant.reports import channels

CHANNEL = rq.rqm(clip=1.5, margin=1.5, levels=16, keep=0.42)
JUMP = Channel([-1.0, 0.0, 0.0, 1.0], [1.0, -1.0], [[4, 0], [2, 2], [1, 3], [0, 4]], 4)


def test_a_channel_is_drawn_row_by_row_by_decoded_value():
    (figure,) = channels.channel_figures(CHANNEL)
    assert figure.places == tuple(CHANNEL.inputs)
    assert figure.values == tuple(sorted(CHANNEL.values))
    assert figure.shares == tuple(map(tuple, CHANNEL.probabilities))
    (jump,) = channels.channel_figures(JUMP)
    assert jump.places == (-1.0, 0.0, 0.0, 1.0)
    assert jump.values == (-1.0, 1.0)
    assert jump.shares == ((0.0, 1.0), (0.5, 0.5), (0.75, 0.25), (1.0, 0.0))


@pytest.mark.parametrize("order", [2.0, math.inf])
def test_a_certificate_draws_its_witness(order):
    certificate = rq.certify(CHANNEL, order)
    (figure,) = channels.certificate_figures(certificate)
    for x, (name, heights) in zip(certificate.witness, figure.groups, strict=True):
        weights, total = CHANNEL.mix(x)
        assert heights == tuple(float(weight / total) for weight in weights)
        assert f"{abs(x):g}" in name
    assert figure.title.startswith(f"Worst pair of inputs at order {order:g}".replace("inf", "∞"))
    printed = figure.title.partition("≤ ")[2]
    assert float(printed) >= certificate.epsilon.upper
    assert certificate == rq.certify(CHANNEL, order)
    assert certificate == dataclasses.replace(certificate, channel=JUMP)  # it is only drawn
    assert "channel" not in repr(certificate)


def test_a_certificate_without_its_channel_says_what_to_do():
    bare = rq.Certificate(8.0, rq.Interval(1.0, 2.0), (1.0, -1.0), 0)
    with pytest.raises(ValueError, match="make it by certify"):
        rq.plot(bare)
