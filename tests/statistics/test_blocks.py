"""Encodings: the stated distance holds for every pair of records, and is nearly reached."""

import numpy as np
import pytest
from scipy.spatial.distance import pdist

from randquant.channels.keys import Key
from randquant.statistics.blocks import Cells, Products, Tree

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
    "block", [Cells(1), Cells(5), *map(Tree, (2, 3, 5, 8, 12, 25, 33))], ids=repr
)
def test_distance_of_cells_is_that_of_the_farthest_pair(block, norm):
    rows = np.arange(block.count + 1)
    found = largest(vectors(block, rows, norm, Key.from_seed(0)), norm)
    assert found == block.distance(AMPLITUDE, norm)


@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("columns", [1, 2, 3, 4])
def test_distance_of_moments_bounds_every_pair(columns, norm):
    rng = np.random.default_rng(columns)
    ends = np.array(np.meshgrid(*[[-1.0, 0.0, 1.0]] * columns)).reshape(columns, -1).T
    rows = np.vstack([ends, rng.uniform(-1, 1, (400, columns)), np.full((1, columns), np.nan)])
    block = Products(columns)
    found = largest(vectors(block, rows, norm, Key.from_seed(0)), norm)
    assert 0.5 * block.distance(AMPLITUDE, norm) < found <= block.distance(AMPLITUDE, norm)


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
