"""How far one client moves a decoded mean by valid codes: all that it could send is tried."""

import itertools
import re
from fractions import Fraction

import numpy as np
import pytest
from slow import slow

from randquant.aggregation import (
    AdditiveMechanism,
    ChannelMechanism,
    VectorMechanism,
    describe_influence,
)
from randquant.channels import wire
from randquant.mechanisms import stochastic_rounding
from randquant.secure_sums import proven_bytes

CLIENTS = 50
BIT, THREE = (stochastic_rounding(0.3, levels, 0.7) for levels in (2, 3))


def vectors(channel=BIT, **options):
    return VectorMechanism(channel, 1.0, "aggregate", 2, **options)


MECHANISMS = {
    "coordinates": (ChannelMechanism(THREE, "aggregate", 2), 6, True),
    "rotated": (vectors(), 8, True),
    "rotated, three levels": (vectors(THREE), 8, True),
    "padded": (vectors(), 5, False),
    "subset": (vectors(coordinates=3, subset_seed=4), 8, True),
    "subset, padded": (vectors(coordinates=5, subset_seed=1), 6, False),
}
"""With the dimension, and whether nothing is cut off, so that the bound is attained."""


def furthest(mechanism, dimension):
    """The furthest mean from that of a client with the lowest codes, or others, of all there are.

    The mean is affine in the sum: only differences of two vectors of codes count, in each
    coordinate the whole range or none.
    """
    size, levels = mechanism.size(dimension), mechanism.channel.levels
    bits = wire.sum_bits(levels, CLIENTS)
    others = np.random.default_rng(3).integers(0, levels, (CLIENTS - 1, size)).sum(axis=0)
    found = 0.0
    for signs in itertools.product((-1, 0, 1), repeat=size):
        first = others + np.where(np.array(signs) > 0, levels - 1, 0)
        second = others + np.where(np.array(signs) < 0, levels - 1, 0)
        means = [mechanism.decode(x, CLIENTS, dimension, bits) for x in (first, second)]
        found = max(found, float(np.linalg.norm(means[0].astype(float) - means[1])))
    return found


@pytest.mark.parametrize(
    "name", ["coordinates", "subset", "subset, padded", *slow("rotated, three levels", "padded")]
)
def test_no_valid_codes_move_the_mean_beyond_the_bound(name):
    mechanism, dimension, attained = MECHANISMS[name]
    bound = mechanism.influence(dimension, CLIENTS)
    moved = furthest(mechanism, dimension)
    assert moved <= bound * (1 + 1e-5)
    assert moved >= bound * (1 - 1e-5 if attained else 0.5)


def test_it_falls_with_the_clients_and_is_unknown_without_a_channel():
    mechanism = vectors()
    assert mechanism.influence(8, 100) == mechanism.influence(8, 50) / 2
    with pytest.raises(TypeError, match="no bound of one client's influence"):
        AdditiveMechanism("skellam", 1.0, 4.0, 2).influence(8, 50)
    with pytest.raises(ValueError, match="Expected clients"):
        mechanism.influence(8, 0)


def of_any_vector(mechanism, dimension, clients=CLIENTS):
    """How far apart two sums decode that are not refused, of all totals; the same in each place."""
    bits, size = mechanism.sum_bits(dimension, clients), mechanism.size(dimension)
    possible = range(min(2**bits, clients * (mechanism.channel.levels - 1) + 1))
    means = [mechanism.decode(np.full(size, t), clients, dimension) for t in possible]
    ends = [max(means, key=lambda mean: sign * float(mean[0])) for sign in (1, -1)]
    return float(np.linalg.norm(ends[0].astype(float) - ends[1]))


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("clients", [CLIENTS, 3000])  # of 3000 the sum is in a narrow modulus
def test_the_line_bounds_what_valid_codes_and_any_vector_do(name, clients):
    mechanism, dimension, attained = MECHANISMS[name]
    line = describe_influence(mechanism, dimension, clients)
    valid, anything = map(float, re.findall(r"most (\S+) \(l2\).* codes, (\S+) by any", line)[0])
    assert mechanism.influence(dimension, clients) <= valid
    moved = of_any_vector(mechanism, dimension, clients)
    assert moved <= anything * (1 + 1e-5)
    assert moved >= anything * (0.98 if attained else 0.3)


def test_no_line_says_what_is_not_known():
    assert not describe_influence(AdditiveMechanism("skellam", 1.0, 4.0, 2), 8, 50)
    assert not describe_influence(
        VectorMechanism(BIT, 1.0), 8, 50
    )  # a server that sees codes checks them
    sent = f"with proofs a client sends {proven_bytes(8, 1):,} bytes"
    assert describe_influence(vectors(), 8, 50).endswith(f" the exact mean by at most 0.04; {sent}")
    assert "are not proven; with proofs" in describe_influence(
        ChannelMechanism(THREE, "aggregate", 2), 8, 50
    )


def test_clients_move_the_mean_as_far_as_some_noise_of_all():
    """By 2 m / sqrt(n) lengths of the noise (theory/helper-sums.md, Proposition 12)."""
    mechanism = vectors(stochastic_rounding(2.0, 2, 2.0))
    noise = np.sqrt(8) * mechanism.expected_error(8).deviation(CLIENTS, 0.0)
    assert mechanism.influence(8, CLIENTS) == pytest.approx(2 / np.sqrt(CLIENTS) * noise, rel=0.01)


@pytest.mark.parametrize("clients", [3, 6, 7, 13, 50, 100])
def test_no_bound_of_the_line_is_rounded_down(clients):
    line = describe_influence(vectors(), 8, clients)
    [by_update] = re.findall(r"the exact mean by at most ([^;]+)", line)
    assert Fraction(2, clients) <= Fraction(by_update) <= Fraction(2, clients) * Fraction(101, 100)


def test_a_sum_with_zeros_of_the_absent_is_moved_as_far_as_its_modulus_allows():
    """Of 3,000 summed vectors, divided by the 50 that take part on average."""
    lines = [describe_influence(vectors(), 8, 3000, divisor) for divisor in (None, 50)]
    assert all(line.startswith("one hostile client of 3,000 moves") for line in lines)
    found = r"most (\S+) \(l2\).* codes, (\S+) by any .* mean by at most ([^;]+)"
    plain, padded = (list(map(float, re.findall(found, line)[0])) for line in lines)
    assert padded == pytest.approx([60 * each for each in plain], rel=0.02, abs=0)
