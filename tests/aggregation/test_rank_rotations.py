"""Rotations of groups: orthogonal, independent, and uniform where updates are short."""

import itertools
import math

import numpy as np
import pytest
from scipy.special import ndtr
from tests.chance import fits, mean_is

from randquant.aggregation.rank.designs import top_sum, two_levels
from randquant.aggregation.rank.rotations import GroupRotation, spread_size
from randquant.aggregation.walsh_hadamard import hadamard


@pytest.mark.parametrize("dimension", [1, 2, 64, 65, 8192, 9000])
def test_rotations_keep_inner_products_and_are_inverted(dimension):
    rotation = GroupRotation(dimension, 5, 9)
    x, y = np.random.default_rng(0).normal(size=(2, dimension))
    turned = rotation.forward(x)
    assert turned.shape == (rotation.size,) == (spread_size(dimension),)
    assert turned @ rotation.forward(y) == pytest.approx(x @ y, rel=1e-11, abs=0)
    assert np.abs(rotation.inverse(turned) - x).max() < 1e-12


def test_groups_and_seeds_have_other_rotations():
    x = np.ones(70)
    first = GroupRotation(70, 1, 1).forward(x)
    assert np.array_equal(first, GroupRotation(70, 1, 1).forward(x))
    for other in (GroupRotation(70, 1, 2), GroupRotation(70, 2, 1)):
        cosine = float(first @ other.forward(x)) / 70
        assert abs(cosine) < 6 / np.sqrt(8192)


def test_short_vectors_are_rotated_uniformly():
    """In the plane: the angle is uniform, and half of the rotations are reflections."""
    turned = [GroupRotation(2, 0, group) for group in range(4000)]
    first, second = (np.array([r.forward(e) for r in turned]) for e in np.eye(2))
    angle = np.arctan2(first[:, 1], first[:, 0]) / (2 * np.pi) % 1
    assert fits((angle * 16).astype(int) % 16, np.full(16, 1 / 16))
    handed = first[:, 0] * second[:, 1] - first[:, 1] * second[:, 0]
    assert np.abs(np.abs(handed) - 1).max() < 1e-12
    assert mean_is(handed, 0.0, 2.0)


def test_long_vectors_are_spread():
    """Coordinates of a spike have the moments of a normal law, which one pass does not give."""
    turned = GroupRotation(10_000, 3, 0).forward(np.eye(1, 10_000)[0]) * 128
    assert abs(np.mean(turned**4) - 3) < 6 * np.sqrt(96 / 16384)


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


def every_rotation(x, passes):
    """The vectors that x is rotated to by all choices of signs."""
    found = [np.asarray(x, dtype=np.float64)]
    choices = list(itertools.product((1.0, -1.0), repeat=len(x)))
    for _ in range(passes):
        turned = []
        for vector, signs in itertools.product(found, choices):
            turned.append(vector * signs)
            hadamard(turned[-1], math.sqrt(len(x)))
        found = turned
    return np.array(found)


@pytest.mark.parametrize("x", [[1.0, 0, 0, 0], [0.6, 0, 0.8, 0], [0.1, -0.5, 0.7, 0.5]], ids=str)
def test_fourth_moments_approach_those_of_uniform_rotations(x):
    """By all signs of two passes, exactly; the deviation shrinks by -2/D a pass."""
    x = np.array(x) / np.linalg.norm(x)
    start, uniform = np.sum(x**4), 3 / 6
    for passes in (1, 2):
        fourth = np.mean(np.sum(every_rotation(x, passes) ** 4, axis=1))
        expected = uniform + (-0.5) ** passes * (start - uniform)
        assert fourth == pytest.approx(expected, rel=1e-12, abs=0)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_mean_of_what_is_decoded_is_the_slope_of_a_norm(count):
    """By all signs of two passes: along the update it is the norm, and in no direction more."""
    passes, generator = 2, np.random.default_rng(3)
    turned = np.stack([every_rotation(axis, passes) for axis in np.eye(4)], axis=-1)

    def norm(v):
        return np.sort(np.abs(turned @ v), axis=1)[:, 4 - count :].sum(axis=1).mean()

    x = generator.normal(size=4)
    scores = turned @ x
    best = np.argsort(-np.abs(scores), axis=1)[:, :count]
    signs = np.zeros_like(scores)
    np.put_along_axis(signs, best, np.take_along_axis(np.sign(scores), best, axis=1), axis=1)
    mean = np.einsum("rij,ri->j", turned, signs) / len(turned)
    slopes = [(norm(x + step) - norm(x - step)) / 2e-6 for step in 1e-6 * np.eye(4)]
    assert mean == pytest.approx(np.array(slopes), abs=1e-8)
    assert mean @ x == pytest.approx(norm(x), rel=1e-12)
    for direction in generator.normal(size=(50, 4)):
        assert mean @ direction <= norm(direction) * (1 + 1e-12)


# What theory/rank.md, Proposition 11, says of signs and Hadamard transforms ---------------------


def excess(threshold):
    """E (|g| - threshold)_+^3 of a normal g."""
    density = math.exp(-(threshold**2) / 2) / math.sqrt(2 * math.pi)
    tail = float(ndtr(-threshold))
    return 2 * ((threshold**2 + 2) * density - (threshold**3 + 3 * threshold) * tail)


def test_signs_exceed_a_threshold_by_no_more_than_normal_numbers():
    """The third power of the excess, by all signs of up to eight numbers."""
    generator = np.random.default_rng(0)
    for count, threshold in itertools.product((1, 2, 3, 8), (0.0, 0.5, 0.99, 1.4, 2.0, 2.7)):
        signs = np.array(list(itertools.product((1.0, -1.0), repeat=count)))
        for y in (np.ones(count), generator.normal(size=count), 0.5 ** np.arange(count)):
            sums = signs @ (y / np.linalg.norm(y))
            found = np.mean(np.maximum(np.abs(sums) - threshold, 0) ** 3)
            assert found <= excess(threshold) * (1 + 1e-12)


def longest(size, epsilon):
    """U / S_k: how much longer than an update a mean may be."""
    count = two_levels(size, epsilon).counts[0]
    thresholds = np.arange(0, 4, 0.01)
    sums = [count * t + count ** (2 / 3) * (size * excess(t)) ** (1 / 3) for t in thresholds]
    return min(min(sums) / math.sqrt(size), math.sqrt(count)) / top_sum(size, count)


def test_a_mean_is_never_much_longer_than_its_updates():
    """The figures of the theory, and that no update and number of passes exceeds them."""
    figures = [math.ceil(1000 * longest(2**13, epsilon)) for epsilon in (1.0, 2.0, 4.0, 8.0)]
    assert figures == [1128, 1122, 1084, 1044]
    size, bound = 256, longest(256, 8.0)
    count = two_levels(size, 8.0).counts[0]
    generator = np.random.default_rng(1)
    for spikes, passes in itertools.product((1, 2, 4, 5, 256), (1, 2, 3)):
        sums = []
        for _ in range(60):
            x = np.zeros(size)
            x[:spikes] = spikes**-0.5
            for _ in range(passes):
                x *= generator.choice((-1.0, 1.0), size)
                hadamard(x, 16.0)
            sums.append(np.sort(np.abs(x))[size - count :].sum() / top_sum(size, count))
        assert np.mean(sums) < bound
