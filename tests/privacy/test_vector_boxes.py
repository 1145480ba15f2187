"""The bound of a single box of pairs, against exact pairs inside it.

A search over many boxes hides a box whose bound is too small: its neighbours' bounds are above.
"""

from fractions import Fraction

import numpy as np
import pytest
from oracle import steepness

from randquant.privacy.certificates.curvature import CellLines
from randquant.privacy.certificates.vector import BoxSearch

STEPS = 16
"""Positions tried along each side of a box, but for its ends."""


def lines_of(inputs, ups, denominator) -> CellLines:
    """Two codes: `ups` are the weights of the first at the inputs."""
    weights = np.array([[up, denominator - up] for up in ups])
    return CellLines(np.array(inputs), weights, denominator)


def most_inside(lines: CellLines, order: float, cells, sides) -> Fraction:
    """The largest exact steepness of the pairs on a grid of a box."""
    inputs = [Fraction(float(end)) for end in lines.inputs]
    along = []
    for cell, side in zip(cells, sides, strict=True):
        begin, end = (Fraction(part) for part in side)
        parts = {begin + (end - begin) * step / STEPS for step in range(STEPS + 1)}
        along.append({inputs[cell] + part * (inputs[cell + 1] - inputs[cell]) for part in parts})
    pairs = [(x, other) for x in along[0] for other in along[1] if x != other]
    return max(steepness(lines, x, other, order) for x, other in pairs)


# A rare code that becomes likely: between the rare end and the rest of a cell the divergence is
# nearly proportional to distance.
RARE = lines_of([-1.0, -0.5, 1.0], [2, 3, 900], 1024)
EVEN = lines_of([-1.0, 1.0], [1, 15], 16)
STEP = lines_of([-1.0, -0.5, 0.5, 1.0], [4, 4, 12, 12], 16)


@pytest.mark.parametrize(
    ("lines", "order", "cells", "sides"),
    [
        pytest.param(RARE, 1.01, (1, 0), [(0, 1), (0, 0)], id="steepest between its corners"),
        pytest.param(RARE, 1.01, (0, 1), [(0, 2**-10), (0, 1)], id="the other way round"),
        pytest.param(EVEN, 2.1, (0, 0), [(0, 1), (0.5, 0.5)], id="not convex, a little above 2"),
        pytest.param(EVEN, 2.5, (0, 0), [(0.25, 0.75), (0.5, 0.5)], id="not convex, at 2.5"),
        pytest.param(EVEN, 2.5, (0, 0), [(0, 1), (7 / 16, 9 / 16)], id="one side inside the other"),
        pytest.param(EVEN, 8.0, (0, 0), [(0.25, 0.75), (0, 1)], id="pairs that meet at order 8"),
        pytest.param(STEP, 1.1, (0, 2), [(0, 1), (0, 1)], id="all change in the cell between"),
        pytest.param(STEP, 40.0, (2, 0), [(0, 0.5), (0.5, 1)], id="that cell at order 40"),
    ],
)
def test_no_pair_inside_a_box_exceeds_its_bound(lines, order, cells, sides):
    bound = BoxSearch(lines, order, 0.0)._bound(np.array([cells]), np.array([sides], dtype=float))
    assert most_inside(lines, order, cells, sides) <= bound[0] < np.inf


@pytest.mark.seldom(1)
@pytest.mark.parametrize("ups", [[4, 4, 12, 12], [1, 8, 8, 15], [15, 8, 8, 1], [2, 8, 2, 8]])
@pytest.mark.parametrize("order", [1.5, 2.5, 40.0])
def test_pairs_of_cells_settled_at_the_start_count(ups, order):
    """A generous tolerance settles all pairs of cells that do not touch from their corners."""
    lines = lines_of([-1.0, -0.9375, 0.9375, 1.0], ups, 16)
    search = BoxSearch(lines, order, 0.0, tolerance=1e6)
    kept = {tuple(cells) for cells in search._roots()[0].tolist()}
    assert kept == {(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (2, 1), (2, 2)}
    for cells in ((0, 2), (2, 0)):
        assert most_inside(lines, order, cells, [(0, 1), (0, 1)]) <= search.dropped
