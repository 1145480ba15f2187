"""Constraints and objectives of a design against other solvers and closed forms."""

import itertools
import math

import numpy as np
import pytest
from scipy.optimize import linprog, minimize

import randquant as rq
from randquant._internal.rounding import round_up
from randquant.mechanisms import design
from randquant.mechanisms.design.constraints import Fisher, Metric, Pure, Renyi, constraint_of
from randquant.mechanisms.design.objectives import MeanError

LEVELS = np.array([-2.6, -0.7, 0.9, 2.4])
VERTICES = np.linspace(-1, 1, 3)


def mean_square(table, vertices=VERTICES, levels=LEVELS):
    """Mean of the squared error, integrated numerically with the midpoint rule."""
    x = (np.arange(2000) + 0.5) / 1000 - 1
    rows = np.stack([np.interp(x, vertices, column) for column in table.T], axis=1)
    return float((rows * (levels - x[:, None]) ** 2).sum(axis=1).mean())


def sequential_quadratic(limit):
    """Least mean square under limit(table) >= 0, by a general non-linear solver."""
    shape = (len(VERTICES), len(LEVELS))
    equal = [
        {"type": "eq", "fun": lambda p: p.reshape(shape).sum(axis=1) - 1},
        {"type": "eq", "fun": lambda p: p.reshape(shape) @ LEVELS - VERTICES},
    ]
    up = (VERTICES - LEVELS[0]) / (LEVELS[-1] - LEVELS[0])
    start = np.full(shape, 0.01)
    start[:, 0] += 0.96 * (1 - up)
    start[:, -1] += 0.96 * up
    units = np.eye(start.size).reshape(-1, *shape)
    cost = np.array([mean_square(unit) for unit in units])  # the mean is linear in the table
    solved = minimize(
        lambda p: cost @ p,
        start.reshape(-1),
        jac=lambda p: cost,
        method="SLSQP",
        bounds=[(1e-7, 1)] * start.size,
        constraints=[*equal, {"type": "ineq", "fun": lambda p: limit(p.reshape(shape))}],
        options={"maxiter": 500, "ftol": 1e-10},
    )
    assert limit(solved.x.reshape(shape)).min() > -1e-6, solved.message
    return solved.fun


@pytest.mark.parametrize(("order", "epsilon"), [(1.5, 0.5), (2.0, 0.8), (8.0, 1.0)])
def test_renyi_equals_a_general_solver(order, epsilon):
    def room(table):
        pairs = itertools.permutations(range(len(table)), 2)
        worst = [(table[v] ** order * table[w] ** (1 - order)).sum() for v, w in pairs]
        return np.array([(order - 1) * epsilon - math.log(value) for value in worst])

    found = design.optimal(1.0, LEVELS, constraint=Renyi(epsilon, order), objective="mse", inputs=3)
    assert found.value == pytest.approx(sequential_quadratic(room), rel=2e-5)
    assert found.dual_bound <= found.value <= found.dual_bound + 1e-4
    certificate = rq.certify(found.channel, order)
    assert certificate == found.certificate
    assert epsilon * (1 - 1e-4) < certificate.epsilon.upper <= epsilon


def test_fisher_equals_a_general_solver():
    def room(table):
        slope = np.diff(table, axis=0)
        ends = [(slope**2 / row).sum(axis=1) for row in (table[:-1], table[1:])]
        return 0.4 - np.concatenate(ends)

    found = design.optimal(1.0, LEVELS, constraint=Fisher(0.4), objective="mse", inputs=3)
    assert found.value == pytest.approx(sequential_quadratic(room), rel=2e-5)
    assert found.dual_bound <= found.value <= found.dual_bound + 1e-4
    assert rq.fisher_information(found.channel).upper <= 0.4


def test_fisher_designs_respect_and_approach_the_cramer_rao_bound():
    # An unbiased estimate of x has variance at least 1/I(x), so its mean is at least 1/epsilon.
    found = design.optimal(
        1.0, [-4.4, -1.2, 1.2, 4.4], constraint=Fisher(0.2), objective="mse", inputs=17
    )
    assert 5.0 < found.dual_bound <= found.value < 5.03


@pytest.mark.parametrize("geometry", ["l1", "l2"])
def test_metric_privacy_equals_the_programme_over_all_pairs(geometry):
    vertices, epsilon = np.linspace(-1, 1, 5), 1.4
    found = design.optimal(
        1.0, LEVELS, constraint=Metric(epsilon, geometry), objective="mse", inputs=5
    )
    objective = MeanError(2).cost(vertices, LEVELS)
    rows = []
    for v, w in itertools.permutations(range(5), 2):
        if geometry == "l1":  # holds between all inputs, not between vertices only
            ratio = (1 + epsilon * 0.5) ** abs(v - w)
        else:
            ratio = math.exp(epsilon * (vertices[v] - vertices[w]) ** 2)
        for code in range(4):
            row = np.zeros((5, 4))
            row[v, code], row[w, code] = 1, -ratio
            rows.append(row.reshape(-1))
    equal = [np.kron(np.eye(5)[v], np.ones(4)) for v in range(5)]
    equal += [np.kron(np.eye(5)[v], LEVELS) for v in range(5)]
    solved = linprog(
        objective.reshape(-1),
        A_ub=rows,
        b_ub=np.zeros(len(rows)),
        A_eq=equal,
        b_eq=[*np.ones(5), *vertices],
    )
    assert found.value == pytest.approx(solved.fun, rel=1e-6)
    certificate = rq.certify_metric(found.channel, geometry)
    assert epsilon * (1 - 1e-6) < certificate.epsilon.upper <= epsilon


def test_worst_variance_equals_the_programme_on_a_dense_grid():
    found = design.optimal(1.0, LEVELS, constraint=Pure(1.2), objective="worst_variance", inputs=9)
    x = np.linspace(-1, 1, 4001)
    measured = rq.moments(found.channel).variance_at(x)
    assert measured.max() <= found.value * (1 + 1e-12)
    assert measured.max() == pytest.approx(found.value, rel=1e-6)
    assert 0 <= found.gap < 1e-5
    # No design for another objective has a smaller worst variance.
    for other in ("mae", "mse"):
        channel = design.optimal(
            1.0, LEVELS, constraint=Pure(1.2), objective=other, inputs=9
        ).channel
        assert rq.moments(channel).variance_max >= found.dual_bound
    # Independently: the bound holds at every point of a grid, one row each.
    vertices = np.linspace(-1, 1, 9)
    hats = np.stack([np.interp(x[::20], vertices, row) for row in np.eye(9)], axis=1)
    tau = -np.ones((len(hats), 1))
    lower = np.kron(np.ones((9, 1)), np.eye(4))
    every, ratio = np.eye(36), math.exp(1.2)
    less = np.block([
        [np.kron(hats, LEVELS[None, :] ** 2), np.zeros((len(hats), 4)), tau],
        [-every, lower, np.zeros((36, 1))],
        [every, -ratio * lower, np.zeros((36, 1))],
    ])  # fmt: skip
    right = np.concatenate([x[::20] ** 2, np.zeros(72)])
    equal = np.block([
        [np.kron(np.eye(9), np.ones((1, 4))), np.zeros((9, 5))],
        [np.kron(np.eye(9), LEVELS[None, :]), np.zeros((9, 5))],
    ])  # fmt: skip
    solved = linprog(
        [*np.zeros(40), 1.0], A_ub=less, b_ub=right, A_eq=equal, b_eq=[*np.ones(9), *vertices]
    )
    assert found.value == pytest.approx(solved.fun, rel=1e-4)


@pytest.mark.seldom
def test_a_cap_is_needed_for_the_mean_absolute_error_and_kept():
    with pytest.raises(ValueError, match="sends a level to infinity"):
        design.optimal(1.0, constraint=Pure(1.0), levels=4)
    found = [
        design.optimal(1.0, constraint=Pure(1.0), levels=4, reach=reach, inputs=17)
        for reach in (2.5, 6.0)
    ]
    assert all(d.channel.values[-1] <= cap for d, cap in zip(found, (2.5, 6.0), strict=True))
    assert found[1].value < found[0].value < 1.75
    with pytest.raises(ValueError, match=r"reach above 2\.1639"):
        design.optimal(1.0, constraint=Pure(1.0), levels=4, reach=2.1)


EVERY = [("pure", None), ("renyi", 3.0), ("l1", None), ("l2", None), ("fisher", None)]


@pytest.mark.parametrize(("name", "order"), EVERY)
def test_no_channel_can_do_with_less_than_the_least_epsilon(name, order):
    least = design.least_epsilon(1.0, LEVELS, constraint_of(name, 1.0, order), inputs=5)
    asked = {"inputs": 5, "objective": "mse"}
    with pytest.raises(ValueError, match=f"above {round_up(least)}"):
        design.optimal(1.0, LEVELS, constraint=constraint_of(name, least * 0.999, order), **asked)
    found = design.optimal(
        1.0, LEVELS, constraint=constraint_of(name, least * 1.01, order), **asked
    )
    assert found.certificate.epsilon.upper <= least * 1.01


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: constraint_of("metric", 1.0), "constraint"),
        (lambda: constraint_of("renyi", 1.0), "order"),
        (lambda: constraint_of("pure", 1.0, 2.0), "order"),
        (lambda: Renyi(1.0, 1.0), "order"),
        (lambda: Renyi(0.0, 2.0), "epsilon"),
        (lambda: Pure(0.0), "epsilon"),
        (lambda: Pure(math.nan), "epsilon"),
        (lambda: Fisher(41.0), "epsilon"),
        (lambda: Metric(1.0, "l3"), "geometry"),
        (lambda: Metric(-1.0, "l1"), "epsilon"),
    ],
)
def test_wrong_constraints_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"levels": 4}, "not both"),
        ({"values": None}, "not both"),
        ({"objective": "worst_variance", "density": [0.0]}, "no density"),
        ({"density": [1.5]}, "clip them"),
        ({"density": []}, "samples"),
        ({"values": None, "levels": 1}, "levels"),
    ],
)
def test_wrong_requests_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        design.optimal(**({"clip": 1.0, "values": [-3.0, 3.0], "constraint": Pure(1.0)} | change))
