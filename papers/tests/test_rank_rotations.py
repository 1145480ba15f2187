"""Rotations of groups: orthogonal, independent, and uniform where updates are short."""

import itertools
import math

import numpy as np
import pytest
from chance import fits, mean_is
from streams import recorded

from randquant_papers.rank import GroupRotation, spread_size


@pytest.mark.parametrize("dimension", [1, 2, 64, 65, 8192, 9000])
def test_rotations_keep_inner_products_and_are_inverted(dimension):
    rotation = GroupRotation(dimension, 5, 9)
    x, y = np.random.default_rng(0).normal(size=(2, dimension))
    turned = rotation.forward(x)
    assert turned.shape == (rotation.size,) == (spread_size(dimension),)
    assert turned @ rotation.forward(y) == pytest.approx(x @ y, rel=1e-11, abs=0)
    assert np.abs(rotation.inverse(turned) - x).max() < 1e-12


def test_short_vectors_are_rotated_uniformly():
    """In the plane: the angle is uniform, and half of the rotations are reflections."""
    turned = [GroupRotation(2, 0, group) for group in range(4000)]
    first, second = (np.array([r.forward(e) for r in turned]) for e in np.eye(2))
    angle = np.arctan2(first[:, 1], first[:, 0]) / (2 * np.pi) % 1
    assert fits((angle * 16).astype(int) % 16, np.full(16, 1 / 16))
    handed = first[:, 0] * second[:, 1] - first[:, 1] * second[:, 0]
    assert np.abs(np.abs(handed) - 1).max() < 1e-12
    assert mean_is(handed, 0.0, 2.0)


@pytest.mark.parametrize("arguments", [(0, 0, 0), (2**30, 0, 0), (5, -1, 0), (5, 0, 2**64)])
def test_arguments_out_of_bounds_are_refused(arguments):
    with pytest.raises(ValueError, match="Expected"):
        GroupRotation(*arguments)


@pytest.mark.parametrize("rotation", [GroupRotation(5, 0, 0), GroupRotation(100, 0, 0)])
def test_vectors_of_another_dimension_are_refused(rotation):
    """Compiled code would read and write beyond them."""
    for action, bad in itertools.product(
        (rotation.forward, rotation.inverse), (np.ones(6), np.ones((5, 1)), np.ones(9000))
    ):
        with pytest.raises(ValueError, match="this rotation is of another dimension"):
            action(bad)


LONG = 2**18
"""Coordinates: more than any table, block or cache that a stream of signs could begin again at."""


def test_a_long_constant_vector_is_spread_over_all_places():
    """Each coordinate is nearly normal, of deviation 1, and so is none beyond the last of so many.

    A stream of signs that begins again after P coordinates leaves all in one of LONG / P places.
    """
    turned = GroupRotation(LONG, 3, 5).forward(np.ones(LONG))
    assert np.abs(turned).max() < math.sqrt(2 * math.log(2 * LONG / 1e-7)) * 1.05
    # Squares of normal variables have variance 2; of 64 runs of LONG / 64, and of every 64th.
    for each in (np.square(turned).reshape(64, -1), np.square(turned).reshape(-1, 64).T):
        assert np.abs(each.mean(axis=1) - 1).max() < 6.5 * math.sqrt(2 / (LONG / 64))


@pytest.mark.parametrize("dimension", [40, 300, 9000])
def test_no_word_serves_two_signs_two_groups_or_two_seeds(dimension):
    streams = []
    for seed, group in ((7, 1), (7, 2), (8, 1)):  # of no other test
        with recorded(public=True) as reads:
            GroupRotation(dimension, 9100 + dimension + seed, group).forward(np.ones(dimension))
        assert reads.again == []
        words = sum(read.stop - read.start for read in reads)
        assert 64 * words >= dimension  # a bit for each sign at least
        streams.append(reads.keys)
    assert all(not a & b for a, b in zip(streams, streams[1:] + streams[:1], strict=True))
