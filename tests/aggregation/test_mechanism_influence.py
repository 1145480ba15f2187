"""How far one client moves a decoded mean by valid codes: all that it could send is tried."""

import itertools

import numpy as np
import pytest

from randquant.aggregation.additive import AdditiveMechanism
from randquant.aggregation.coordinate import ChannelMechanism
from randquant.aggregation.vector import VectorMechanism
from randquant.channels.wire import upload
from randquant.mechanisms import stochastic_rounding

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
    bits = upload.sum_bits(levels, CLIENTS)
    others = np.random.default_rng(3).integers(0, levels, (CLIENTS - 1, size)).sum(axis=0)
    found = 0.0
    for signs in itertools.product((-1, 0, 1), repeat=size):
        first = others + np.where(np.array(signs) > 0, levels - 1, 0)
        second = others + np.where(np.array(signs) < 0, levels - 1, 0)
        means = [mechanism.decode(x, CLIENTS, dimension, bits) for x in (first, second)]
        found = max(found, float(np.linalg.norm(means[0].astype(float) - means[1])))
    return found


@pytest.mark.parametrize("name", MECHANISMS)
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
        AdditiveMechanism("skellam", 1.0, 2.0, 2).influence(8, 50)
    with pytest.raises(ValueError, match="Expected clients"):
        mechanism.influence(8, 0)
