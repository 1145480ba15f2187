"""What every public rotation promises of long updates: signs without an end, groups apart."""

import math

import numpy as np
import pytest
from streams import recorded

from randquant.aggregation.rank.rotations import GroupRotation
from randquant.aggregation.rotation import Rotation

LONG = 2**18
"""Coordinates: more than any table, block or cache that a stream of signs could begin again at."""

FALSE_ALARM = 1e-7

ROTATIONS = {
    "one": lambda dimension, seed, group: Rotation(dimension, 1000 * seed + group),
    "group": GroupRotation,
}


def test_signs_of_a_long_vector_resemble_themselves_nowhere():
    """At no lag: a sum of LONG products of independent signs, at each of LONG / 2 lags."""
    rotation = Rotation(LONG, seed=11)
    one = np.zeros(LONG)
    one[0] = math.sqrt(LONG)
    signs = rotation.inverse(one)  # the transform of the first unit vector is constant
    assert np.allclose(np.abs(signs), 1, rtol=0, atol=1e-9)
    power = np.abs(np.fft.rfft(signs)) ** 2
    at_lags = np.fft.irfft(power)[1 : LONG // 2 + 1]
    assert np.abs(at_lags).max() < math.sqrt(2 * LONG * math.log(LONG / FALSE_ALARM))


@pytest.mark.parametrize("kind", ROTATIONS)
def test_a_long_constant_vector_is_spread_over_all_places(kind):
    """Each coordinate is nearly normal, of deviation 1, and so is none beyond the last of so many.

    A stream of signs that begins again after P coordinates leaves all in one of LONG / P places.
    """
    turned = ROTATIONS[kind](LONG, 3, 5).forward(np.ones(LONG)).reshape(-1)
    assert np.abs(turned).max() < math.sqrt(2 * math.log(2 * LONG / FALSE_ALARM)) * 1.05
    # Squares of normal variables have variance 2; of 64 runs of LONG / 64, and of every 64th.
    for each in (np.square(turned).reshape(64, -1), np.square(turned).reshape(-1, 64).T):
        assert np.abs(each.mean(axis=1) - 1).max() < 6.5 * math.sqrt(2 / (LONG / 64))


@pytest.mark.parametrize("dimension", [40, 300, 9000])
@pytest.mark.parametrize("kind", ROTATIONS)
def test_no_word_serves_two_signs_two_groups_or_two_seeds(kind, dimension):
    streams = []
    for seed, group in ((7, 1), (7, 2), (8, 1)):  # of no other test: signs may be kept
        with recorded(public=True) as reads:
            rotation = ROTATIONS[kind](dimension, 9100 + dimension + seed, group)
            rotation.forward(np.ones(dimension))
        assert reads.again == []
        words = sum(read.stop - read.start for read in reads)
        assert 64 * words >= dimension  # a bit for each sign at least
        streams.append(reads.keys)
    assert all(not a & b for a, b in zip(streams, streams[1:] + streams[:1], strict=True))
