"""Bounds of a channel do not depend on the end from which its inputs or its codes are counted."""

import math

import numpy as np
import pytest

import randquant as rq
from randquant.privacy.accounting.bell import bell_square
from randquant.privacy.accounting.ratios import ratio_moments
from randquant.privacy.certificates.metric import certify_metric
from randquant.privacy.certificates.sums.sum_curvature import kappa_sum

BITS = {"few ones": (0.1, 0.7), "fewer": (0.05, 0.4), "some": (0.125, 0.375), "near": (0.2, 0.3)}


def bit(low, high):
    chances = [round(end * 2**40) for end in (low, high)]
    weights = [[2**40 - chance, chance] for chance in chances]
    return rq.Channel(np.array([-1.0, 1.0]), np.array([-2.0, 2.0]), np.array(weights), 2**40)


CHANNELS = {
    **{name: bit(*ends) for name, ends in BITS.items()},
    "three codes": rq.Channel(
        np.array([-1.0, 1.0]), np.array([-3.0, 0.0, 1.0]), np.array([[9, 5, 2], [2, 3, 11]]), 16
    ),
    "three vertices": rq.Channel(
        np.array([-1.0, 0.5, 1.0]), np.array([-2.0, 0.0, 2.0]),
        np.array([[12, 3, 1], [5, 6, 5], [1, 9, 6]]), 16,
    ),
}  # fmt: skip


def turned(channel):
    """Every way round: inputs, codes, and both."""
    both = [(-1, 1), (1, -1), (-1, -1)]
    for inputs, codes in both:
        yield rq.Channel(
            inputs * channel.inputs[::inputs], codes * channel.values[::codes],
            channel.weights[::inputs, ::codes], channel.denominator,
        )  # fmt: skip


def bounds(channel, clients):
    """What certificates and accounts of whole updates rest on."""
    moments = ratio_moments(channel, clients)
    return [
        *(rq.certify(channel, order, "replace_one").epsilon.upper for order in (2.5, math.inf)),
        rq.certify(channel, 3.0, "zero_out").epsilon.upper,
        certify_metric(channel, "l1").epsilon.upper,
        *(rq.certify_sum(channel, clients, order).epsilon.upper for order in (2.5, math.inf)),
        rq.certify_sum(channel, clients, 3.0, "zero_out").epsilon.upper,
        *(kappa_sum(channel, clients, order).upper for order in (1.5, 2.5, 8.0)),
        bell_square(channel, clients),
        *(() if moments is None else (moments.second, moments.third, moments.skew, moments.excess)),
        *(() if moments is None else (moments.fifth, moments.sixth, *moments.tilted)),
    ]


@pytest.mark.seldom(1)
@pytest.mark.parametrize("clients", [2, 9])
@pytest.mark.parametrize("name", CHANNELS)
def test_nothing_depends_on_the_end_from_which_one_counts(name, clients):
    channel = CHANNELS[name]
    # Searches of many vertices stop nearby, the same on the same way round only; one end that is
    # left out costs far more.
    stops = 1e-3 if len(channel.inputs) == 2 else 0.1
    expected = pytest.approx(bounds(channel, clients), rel=stops, abs=0)
    for other in turned(channel):
        assert bounds(other, clients) == expected


@pytest.mark.parametrize("clients", [30, 200])
@pytest.mark.parametrize("name", BITS)
def test_many_bits_are_hidden_alike_from_either_end(name, clients):
    channel = CHANNELS[name]
    found = bell_square(channel, clients)
    for other in turned(channel):
        assert bell_square(other, clients) == pytest.approx(found, rel=1e-6, abs=0)
