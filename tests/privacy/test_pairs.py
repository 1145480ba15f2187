"""All pairs of inputs on a grid: roots of M and S that are convex, boxes that cover all pairs."""

import mpmath
import numpy as np
import pytest

import randquant as rq
from randquant.privacy.certificates.curvature import CellLines
from randquant.privacy.certificates.sums import pairs
from randquant.privacy.certificates.sums.pairs import PairGrid, all_pairs, refined


def moment(p, q, order):
    return sum(a**order * b ** (1 - order) for a, b in zip(p, q, strict=True))


def curvature(p, q, slopes, order):
    """Sum of slope^2 C(p, q): C as the integral of `docs/theory/vector.md`, Proposition 2."""
    total = mpmath.mpf(0)
    for a, b, slope in zip(p, q, slopes, strict=True):
        z = a - b
        value = (a**order * b ** (1 - order) - b - order * z) / ((order - 1) * z * z)
        total += slope * slope * value
    return total


def line(ends, at):
    return [(1 - at) * a + at * b for a, b in zip(*ends, strict=True)]


@pytest.mark.parametrize("order", [3.0, 8.0, 64.0])
def test_roots_are_convex_in_either_input(order):
    mpmath.mp.dps = 60
    random, order = np.random.default_rng(1), mpmath.mpf(order)
    broken = 0
    for _ in range(40):
        drawn = random.dirichlet(np.ones(3) / 2, size=4) * 0.98 + 0.02 / 3
        rows = [[mpmath.mpf(float(v)) for v in row] for row in drawn]
        slopes = [mpmath.mpf(float(v)) for v in random.random(3)]
        for turned in (False, True):

            def both(at, turned=turned, rows=rows):
                moved, fixed = line(rows[:2], at), rows[2]
                return (fixed, moved) if turned else (moved, fixed)

            m = [moment(*both(at), order) for at in (0, mpmath.mpf(1) / 2, 1)]
            s = [curvature(*both(at), slopes, order) for at in (0, mpmath.mpf(1) / 2, 1)]
            for values, root in ((m, 1 / (order - 1)), (s, 1 / (order - 2))):
                first, middle, last = (value**root for value in values)
                assert middle <= (first + last) / 2 * (1 + mpmath.mpf(10) ** -40)
            # A higher root is not convex in p: the powers are as they must be.
            first, middle, last = (value ** (1 / (2 * order + 2)) for value in s)
            broken += middle > (first + last) / 2
    assert broken


def test_a_grid_of_coarse_boxes_bounds_every_pair():
    channel = rq.rqm(1.0, 1.0, 4, 0.42)
    lines = CellLines.of(channel)
    law = np.stack([np.convolve(row, row) for row in lines.weights / lines.denominator])
    sums = CellLines(lines.inputs, law, 1, 1e-13)
    for order in (1.1, 2.5, 8.0, 64.0):
        grid = PairGrid.whole(lines.inputs, order)
        bounds = grid.bounds(grid.logged(grid.evaluate(sums, 20.0)))
        edges = np.append(lines.inputs[0], lines.inputs[0] + np.cumsum(grid.widths))
        random = np.random.default_rng(2)
        for _ in range(300):
            x, y = random.uniform(-1, 1, 2)
            p, q = (
                np.array([np.interp(at, lines.inputs, code) for code in law.T]) for at in (x, y)
            )
            logs = order * np.log(p) - (order - 1) * np.log(q)
            log_moment = logs.max() + np.log(np.exp(logs - logs.max()).sum())
            box = tuple(int(np.searchsorted(edges, at)) - 1 for at in (x, y))
            assert log_moment <= (order - 1) * bounds[box] * (x - y) ** 2 * (1 + 1e-9) + 1e-13


@pytest.mark.parametrize("order", [1.05, 2.0, 2.5, 64.0])
def test_values_of_pairs_are_at_least_the_exact_ones_and_hardly_more(order):
    mpmath.mp.dps = 60
    lines = CellLines.of(rq.rqm(1.0, 1.0, 4, 0.42))
    sums = CellLines(lines.inputs, lines.weights / lines.denominator, 1, 1e-15)
    counts = np.full(len(lines.inputs) - 1, 1024)
    boxes = np.zeros((counts.sum(),) * 2, dtype=bool)
    # Pairs within a part and in parts beside it, for which G is a series, and far ones.
    boxes[[5, 5, 5, 1023, 2000], [5, 7, 2500, 1024, 30]] = True
    grid = PairGrid(lines.inputs, order, counts, boxes)
    found, moments = grid.evaluate(sums, 20.0)
    bent = 1.02 if order == 2.5 else 1.0  # for it is not convex there
    steps = np.diff(sums.weights, axis=0) / np.diff(sums.inputs)[:, None]
    steps = [[mpmath.mpf(float(step)) for step in row] for row in steps]
    cells, first = np.append(grid.cells, grid.cells[-1]), 0

    def row(at):
        part = mpmath.mpf(float(grid.positions[at]))
        return line(
            [[mpmath.mpf(float(v)) for v in sums.weights[cells[at] + k]] for k in (0, 1)], part
        )

    series = 0
    for i, j, found_moment, several in zip(
        grid.first, grid.second, moments, np.diff(grid.start), strict=True
    ):
        begin, first = first, first + several
        if i == j:
            continue
        p, q = row(i), row(j)
        series += max(abs(a / b - 1) for a, b in zip(p, q, strict=True)) * (order + 1) < 1 / 32
        exact = curvature(p, q, [a - b for a, b in zip(p, q, strict=True)], mpmath.mpf(order))
        assert exact <= found_moment <= exact * (1 + 1e-6)
        low = cells[max(min(i, j) - 1, 0)]
        for k in range(several):
            exact = curvature(p, q, steps[low + k], mpmath.mpf(order))
            assert exact <= found[begin + k] <= exact * bent * (1 + 1e-6)
    assert 2 <= series < len(moments)


def test_a_grid_that_may_not_be_finer_keeps_every_pair(monkeypatch):
    lines = CellLines.of(rq.rqm(1.0, 1.0, 4, 0.42))
    sums = CellLines(lines.inputs, lines.weights / lines.denominator, 1, 1e-13)
    monkeypatch.setattr(pairs, "CHEAP", 0.0)
    assert all_pairs(sums, 64.0, 20.0) >= rq.kappa(rq.rqm(1.0, 1.0, 4, 0.42), 64.0).lower


def test_a_finer_grid_is_tighter_and_keeps_every_pair():
    lines = CellLines.of(rq.rqm(1.0, 1.0, 4, 0.42))
    sums = CellLines(lines.inputs, lines.weights / lines.denominator, 1, 1e-13)
    grid = PairGrid.whole(sums.inputs, 64.0)
    coarse = grid.bounds(grid.logged(grid.evaluate(sums, 20.0))).max()
    fine = all_pairs(sums, 64.0, 20.0)
    exact = rq.kappa(rq.rqm(1.0, 1.0, 4, 0.42), 64.0)
    assert exact.lower <= fine <= 1.05 * exact.upper < coarse / 2


def test_a_grid_of_which_every_box_is_cut_leaves_nothing_to_evaluate():
    """Not even at the orders whose values are raised by what neighbouring points differ."""
    lines = CellLines.of(rq.rqm(1.0, 1.0, 4, 0.42))
    sums = CellLines(lines.inputs, lines.weights / lines.denominator, 1, 1e-13)
    for order in (2.0, 2.5, 3.0):
        grid = PairGrid.whole(sums.inputs, order)
        assert [len(some) for some in grid.only(grid.boxes & False).evaluate(sums, 20.0)] == [0, 0]
        exact = rq.kappa(rq.rqm(1.0, 1.0, 4, 0.42), order)
        assert exact.lower <= all_pairs(sums, order, 20.0) <= 1.3 * exact.upper


def test_values_that_overflow_give_no_bound():
    lines = CellLines.of(rq.rqm(1.0, 1.0, 4, 0.42))
    sums = CellLines(lines.inputs, lines.weights / lines.denominator, 1, 1e-13)

    def evaluate(grid, _):
        curvature, moments = grid.evaluate(sums, 20.0)
        curvature[0] = np.nan
        return curvature, moments

    assert refined(sums.inputs, 2.0, evaluate, 0.1, 1.0) == np.inf
    assert pairs.MOST_PARTS < 10**4  # theory/vector-sums.md, Proposition 18
