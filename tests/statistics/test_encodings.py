"""Encodings: the stated distance holds for every pair of records, and is nearly reached."""

import math
from fractions import Fraction
from itertools import combinations, product

import numpy as np
import pytest
from scipy.spatial.distance import pdist

from randquant.channels import Key
from randquant.statistics import Cells, Products, Tree, query

AMPLITUDE = 200


def vectors(block, rows, norm, key):
    """The integers of each row by itself."""
    return np.array(
        [block.total(rows[k : k + 1], AMPLITUDE, norm, key.fold_in(k)) for k in range(len(rows))]
    )


def largest(points, norm):
    return pdist(points, "cityblock").max() if norm == "l1" else pdist(points, "sqeuclidean").max()


@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize(
    "block", [Cells(1), Cells(5), *map(Tree, (2, 3, 5, 8, 12, 25, 33, 512))], ids=repr
)
def test_distance_of_cells_is_that_of_the_farthest_pair(block, norm):
    rows = np.arange(block.count + 1)
    found = largest(vectors(block, rows, norm, Key.from_seed(0)), norm)
    assert found == block.distance(AMPLITUDE, norm)


def exact_moments(row, columns, scales):
    """A record's integers before rounding, as fractions of float64 scales."""
    if row is None:
        return [Fraction(0)] * (len(scales) - 1) + [Fraction(scales[-1])]
    x = [Fraction(each) for each in row]
    products = [x[i] * x[j] for i in range(columns) for j in range(i + 1, columns)]
    numbers = [*x, *products, *(each**2 - Fraction(1, 2) for each in x)]
    return [Fraction(scale) * each for scale, each in zip(scales, numbers, strict=False)] + [
        Fraction(0)
    ]


@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("columns", [1, 2, 3])
def test_distance_of_moments_bounds_a_whole_grid_exactly(columns, norm):
    """In fractions, without rounding: all of the room that is left is for rounding."""
    block, grid = Products(columns), {1: 40, 2: 4, 3: 1}[columns]
    rows = [*product(*[[Fraction(k, grid) for k in range(-grid, grid + 1)]] * columns), None]
    scales = block.scales(AMPLITUDE, norm)
    points = [exact_moments(row, columns, scales) for row in rows]
    gaps = [
        [abs(a - b) for a, b in zip(one, other, strict=False)]
        for one, other in combinations(points, 2)
    ]
    largest = max(sum(gap) if norm == "l1" else sum(each**2 for each in gap) for gap in gaps)
    most = block.distance(AMPLITUDE, norm)
    if norm == "l1":
        assert largest + 2 * (block.size - 1) <= most
    else:
        assert math.sqrt(largest) + 2 * math.sqrt(block.size - 1) <= math.sqrt(most)
    assert largest >= 0.8 * (most - 2.1 * block.size * AMPLITUDE**0.5)


@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("block", [Cells(7), Tree(2), Tree(21), Tree(32)], ids=repr)
def test_counts_are_found_exactly_without_noise(block, norm):
    rng = np.random.default_rng(3)
    rows = rng.integers(0, block.count + 1, 500)
    totals = block.total(rows, AMPLITUDE, norm, Key.from_seed(0))
    counts, mixing = block.counts(totals, 500, AMPLITUDE, norm)
    np.testing.assert_allclose(counts, np.bincount(rows, minlength=block.count + 1), atol=1e-9)
    # The noise's part: an error of the totals moves the counts by as much, and not their sum.
    off = rng.normal(size=len(totals)) * 50
    moved, _ = block.counts(totals + off, 500, AMPLITUDE, norm)
    np.testing.assert_allclose(moved - counts, mixing @ off, atol=1e-9)
    assert moved.sum() == pytest.approx(500)


def test_rounding_at_random_has_the_right_mean_and_never_moves_by_more_than_one():
    rows = np.random.default_rng(5).uniform(-1, 1, (4000, 2))
    block = Products(2)
    scales = block.scales(7, "l2")
    for k in range(40):
        exact = [float(each) for each in exact_moments(rows[k], 2, scales)]
        rounded = block.total(rows[k : k + 1], 7, "l2", Key.from_seed(k))
        assert (np.abs(rounded - exact) < 1).all()
    alike = np.tile(rows[:1], (100_000, 1))
    total = block.total(alike, 7, "l2", Key.from_seed(9))
    exact = [float(each) for each in exact_moments(rows[0], 2, scales)]
    bound = math.sqrt(math.log(2 / 1e-7) / (2 * 100_000))  # Hoeffding
    assert np.abs(total / 100_000 - exact).max() < bound
    half = block.total(np.tile([[1.0, -1.0]], (10, 1)), 8, "l1", Key.from_seed(1))
    np.testing.assert_array_equal(half, 10 * np.array([8, -8, -8, 2, 2, 0]))


def test_records_beyond_one_chunk_are_rounded_with_other_words(monkeypatch):
    rows = np.full((64, 1), 0.1234)
    monkeypatch.setattr(query, "CHUNK_SIZE", 32)
    first, both = (
        Products(1).total(rows[:count], 100, "l2", Key.from_seed(2)) for count in (32, 64)
    )
    assert (both - first != first).any()
