import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from streams import recorded

from randquant.aggregation import Rotation, hadamard
from randquant.aggregation.rotation import _signs


@given(st.integers(1, 300), st.integers(1, 4), st.integers(0, 2**64 - 1))
def test_the_inverse_undoes_it_norms_stay_and_means_pass_through(dimension, count, seed):
    rotation = Rotation(dimension, seed)
    x = np.random.default_rng(seed).standard_normal((count, dimension))
    y = rotation.forward(x)
    assert y.shape == (count, rotation.size)
    assert np.abs(np.linalg.norm(y, axis=1) - np.linalg.norm(x, axis=1)).max() < 1e-9
    assert np.abs(rotation.inverse(y) - x).max() < 1e-9
    assert np.abs(rotation.inverse(y.mean(axis=0)) - x.mean(axis=0)).max() < 1e-9


@pytest.mark.parametrize("bits", [0, 1, 2, 3, 8, 13, 14, 15, 17, 18])
def test_it_is_the_textbook_transform_bit_for_bit(bits):
    size, half = 2**bits, 1
    x = np.random.default_rng(bits).standard_normal(size)
    wanted = x.copy()
    while half < size:
        pairs = wanted.reshape(-1, 2, half)
        wanted = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1).ravel()
        half *= 2
    hadamard(x, math.sqrt(size))
    assert np.array_equal(x, wanted / math.sqrt(size))


def test_vectors_laid_out_by_column_are_rotated_too():
    rotation, x = Rotation(20, seed=0), np.random.default_rng(0).standard_normal((3, 32))
    assert np.array_equal(rotation.inverse(np.asfortranarray(x)), rotation.inverse(x))


def test_signs_are_the_bits_of_the_seeds_key():
    """The first of `openssl enc -aes-256-ctr` under the key of seed 1 folded with 'rotation'.

    (`test_keys` tells how such keys are made.) Clients and server must rotate alike for ever.
    """
    stream = bytes.fromhex("877097a0f22047d4")
    bits = [byte >> bit & 1 for byte in stream for bit in range(8)]
    unit = Rotation(64, seed=1).forward(np.eye(64))
    assert np.array_equal(unit[:, 0] * 8, 1 - 2 * np.array(bits))


def test_arguments_and_shared_signs_stay_as_they_are():
    rotation, y = Rotation(16, seed=1), np.arange(16.0)
    rotation.inverse(y)
    rotation.forward(y)
    assert np.array_equal(y, np.arange(16.0))
    with pytest.raises(ValueError, match="read-only"):
        _signs(1, 16)[0] = 0


def test_the_seed_decides():
    x = np.ones(64)
    first = Rotation(64, seed=1).forward(x)
    assert (first == Rotation(64, seed=1).forward(x)).all()
    assert (first != Rotation(64, seed=2).forward(x)).any()
    assert Rotation(2**30, 2**64 - 1).size == 2**30
    for dimension, seed in ((0, 0), (2**30 + 1, 0), (4, -1), (4, 2**64)):
        with pytest.raises(ValueError, match="Expected"):
            Rotation(dimension, seed)


LONG = 2**18
"""Coordinates: more than any table, block or cache that a stream of signs could begin again at."""

FALSE_ALARM = 1e-7


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


def test_a_long_constant_vector_is_spread_over_all_places():
    """Each coordinate is nearly normal, of deviation 1, and so is none beyond the last of so many.

    A stream of signs that begins again after P coordinates leaves all in one of LONG / P places.
    """
    turned = Rotation(LONG, 3005).forward(np.ones(LONG)).reshape(-1)
    assert np.abs(turned).max() < math.sqrt(2 * math.log(2 * LONG / FALSE_ALARM)) * 1.05
    # Squares of normal variables have variance 2; of 64 runs of LONG / 64, and of every 64th.
    for each in (np.square(turned).reshape(64, -1), np.square(turned).reshape(-1, 64).T):
        assert np.abs(each.mean(axis=1) - 1).max() < 6.5 * math.sqrt(2 / (LONG / 64))


@pytest.mark.parametrize("dimension", [40, 300, 9000])
def test_no_word_serves_two_signs_or_two_seeds(dimension):
    streams = []
    for seed in (7001, 7002, 8001):  # of no other test: signs may be kept
        with recorded(public=True) as reads:
            rotation = Rotation(dimension, 9_100_000 + 1000 * dimension + seed)
            rotation.forward(np.ones(dimension))
        assert reads.again == []
        words = sum(read.stop - read.start for read in reads)
        assert 64 * words >= dimension  # a bit for each sign at least
        streams.append(reads.keys)
    assert all(not a & b for a, b in zip(streams, streams[1:] + streams[:1], strict=True))
