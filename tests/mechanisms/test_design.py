"""Designs of channels against other solvers and closed forms, and what is refused."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog, minimize

import randquant as rq
from randquant._internal import round_up
from randquant.mechanisms import Fisher, Metric, Pure, Renyi, design, named_constraint

LEVELS = np.array([-2.6, -0.7, 0.9, 2.4])
FIVE, NINE = np.linspace(-1, 1, 5), np.linspace(-1, 1, 9)


def hats(vertices, x):
    """(vertices, x) the share of each vertex in the row at x."""
    return np.stack([np.interp(x, vertices, row) for row in np.eye(len(vertices))])


def mean_cost(vertices, levels, power):
    """(vertices, codes) of the mean of |error|**power, integrated with the midpoint rule."""
    x = (np.arange(20_000) + 0.5) / 10_000 - 1
    return hats(vertices, x) @ np.abs(levels - x[:, None]) ** power / len(x)


def limits(vertices, levels, ratio) -> dict:
    """Constraints of `linprog`: unbiased rows, with a largest ratio for every pair of vertices."""
    count = len(vertices)
    units = np.eye(count * len(levels)).reshape(count, len(levels), -1)
    pairs = itertools.permutations(range(count), 2)
    less = np.concatenate([units[v] - ratio(vertices[v], vertices[w]) * units[w] for v, w in pairs])
    equal = np.concatenate([units.sum(axis=1), np.einsum("vix,i->vx", units, levels)])
    right = [*np.ones(count), *vertices]
    return {"A_ub": less, "b_ub": np.zeros(len(less)), "A_eq": equal, "b_eq": right}


def optimum(vertices, levels, ratio, power) -> float:
    """Least mean error by a linear programme over all pairs of rows."""
    cost = mean_cost(vertices, levels, power).reshape(-1)
    solved = linprog(cost, **limits(vertices, levels, ratio))
    assert solved.status == 0
    return solved.fun


def sequential_quadratic(limit):
    """Least mean square of 3 rows under limit(table) >= 0, by a general non-linear solver."""
    vertices = np.linspace(-1, 1, 3)
    shape = (len(vertices), len(LEVELS))
    equal = [
        {"type": "eq", "fun": lambda p: p.reshape(shape).sum(axis=1) - 1},
        {"type": "eq", "fun": lambda p: p.reshape(shape) @ LEVELS - vertices},
    ]
    up = (vertices - LEVELS[0]) / (LEVELS[-1] - LEVELS[0])
    start = np.full(shape, 0.01)
    start[:, 0] += 0.96 * (1 - up)
    start[:, -1] += 0.96 * up
    cost = mean_cost(vertices, LEVELS, 2).reshape(-1)
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


@pytest.mark.parametrize("objective", ["mae", "mse"])
@pytest.mark.parametrize("epsilon", [0.8, 2.0, 5.0])
def test_it_equals_the_programme_over_all_pairs(objective, epsilon):
    levels = np.array([-3.2, -0.7, 0.4, 1.3, 2.9])
    found = design.optimal(1.0, levels, constraint=Pure(epsilon), objective=objective, inputs=5)
    power = {"mae": 1, "mse": 2}[objective]
    expected = optimum(FIVE, levels, lambda *_: math.exp(epsilon), power)
    assert found.value == pytest.approx(expected, rel=1e-6)
    assert found.dual_bound == pytest.approx(expected, rel=1e-6)


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


@pytest.mark.parametrize("geometry", ["l1", "l2"])
def test_metric_privacy_equals_the_programme_over_all_pairs(geometry):
    epsilon = 1.4
    found = design.optimal(
        1.0, LEVELS, constraint=Metric(epsilon, geometry), objective="mse", inputs=5
    )

    def ratio(x, other):
        if geometry == "l1":  # holds between all inputs, not between vertices only
            return (1 + epsilon * 0.5) ** round(2 * abs(x - other))
        return math.exp(epsilon * (x - other) ** 2)

    assert found.value == pytest.approx(optimum(FIVE, LEVELS, ratio, 2), rel=1e-6)
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
    x = x[::20]
    at = np.einsum("vx,i->xvi", hats(NINE, x), LEVELS**2).reshape(len(x), -1)
    linear = limits(NINE, LEVELS, lambda *_: math.exp(1.2))
    pairs = np.pad(linear["A_ub"], ((0, 0), (0, 1)))
    linear["A_ub"] = np.concatenate([pairs, np.pad(at, ((0, 0), (0, 1)), constant_values=-1)])
    linear["b_ub"] = [*linear["b_ub"], *x**2]
    linear["A_eq"] = np.pad(linear["A_eq"], ((0, 0), (0, 1)))
    solved = linprog([*np.zeros(36), 1.0], **linear)
    assert found.value == pytest.approx(solved.fun, rel=1e-4)


levels_of = st.lists(st.floats(-0.95, 0.95), min_size=0, max_size=6).map(
    lambda inner: np.unique(np.round([-2.5, *(2.5 * x for x in inner), 2.5], 3))
)


@settings(max_examples=40)
@given(levels_of, st.floats(0.9, 6), st.sampled_from(["mae", "mse"]), st.integers(2, 20))
def test_the_promises_hold_for_any_levels(levels, epsilon, objective, inputs):
    found = design.optimal(
        1.0, levels, constraint=Pure(epsilon), objective=objective, inputs=inputs
    )
    measured = rq.moments(found.channel)
    assert found.certificate.epsilon.upper <= epsilon
    assert rq.certify(found.channel) == found.certificate
    assert found.value == getattr(measured, objective)
    assert measured.bias_max < 1e-9
    assert -1e-12 <= found.gap < 1e-4


def test_it_scales_with_clip():
    unit = design.optimal(1.0, [-3, -0.5, 0.5, 3], constraint=Pure(1.0), objective="mse")
    tiny = design.optimal(1e-3, [-3e-3, -5e-4, 5e-4, 3e-3], constraint=Pure(1.0), objective="mse")
    assert tiny.value == pytest.approx(1e-6 * unit.value, rel=1e-9, abs=0)
    assert tiny.dual_bound == pytest.approx(1e-6 * unit.dual_bound, rel=1e-9, abs=0)


@pytest.mark.slow
def test_searched_levels_stay_within_their_reach():
    found = design.optimal(1.0, constraint=Pure(1.0), levels=4, reach=2.5, inputs=17)
    assert found.channel.values[-1] <= 2.5
    assert found.value < 1.75


EVERY = [("pure", None), ("renyi", 3.0), ("l1", None), ("l2", None), ("fisher", None)]


@pytest.mark.parametrize(("name", "order"), EVERY)
def test_no_channel_can_do_with_less_than_the_least_epsilon(name, order):
    least = design.least_epsilon(1.0, LEVELS, named_constraint(name, 1.0, order), inputs=5)
    asked = {"inputs": 5, "objective": "mse"}
    with pytest.raises(ValueError, match=f"above {round_up(least)}"):
        design.optimal(
            1.0, LEVELS, constraint=named_constraint(name, least * 0.999, order), **asked
        )
    found = design.optimal(
        1.0, LEVELS, constraint=named_constraint(name, least * 1.01, order), **asked
    )
    assert found.certificate.epsilon.upper <= least * 1.01


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: named_constraint("metric", 1.0), "constraint"),
        (lambda: named_constraint("renyi", 1.0), "order"),
        (lambda: named_constraint("pure", 1.0, 2.0), "order"),
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


def test_the_least_epsilon_of_two_levels_is_known():
    outer = rq.rqm(1.0, 2.0, 2, 1.0)  # the two outermost levels ±3 alone
    assert rq.certify(outer).epsilon.upper == pytest.approx(
        design.least_epsilon(1.0, [-3, 3], Pure(1.0)), rel=1e-12, abs=0
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"values": [-3.0, 0.9]}, r"beyond \[-clip"),
        ({"values": [-1.0, 3.0]}, r"beyond \[-clip"),
        ({"values": [3.0, -3.0]}, "increasing"),
        ({"values": [2.0]}, "2 to 256"),
        ({"values": [-3.0, math.nan]}, "finite"),
        ({"constraint": Pure(0.1)}, "outermost values outward"),
        ({"objective": "mode"}, "objective"),
        ({"inputs": 1}, "inputs"),
        ({"clip": 0.0}, "clip"),
        ({"levels": 4}, "not both"),
        ({"values": None}, "not both"),
        ({"reach": 5.0, "lattice": True}, "with values, got reach, lattice:"),
        ({"symmetric": False}, "with values, got symmetric:"),
        ({"objective": "worst_variance", "density": [0.0]}, "no density"),
        ({"density": [1.5]}, "clip them"),
        ({"density": []}, "samples"),
        ({"values": None, "levels": 1}, "levels"),
        ({"values": None, "levels": 4}, "sends a level to infinity"),
        ({"values": None, "levels": 4, "reach": 2.1}, r"reach above 2\.1639"),
    ],
)
def test_what_cannot_be_met_is_named(change, message):
    asked = {"clip": 1.0, "values": [-3.0, 3.0], "constraint": Pure(1.0)} | change
    with pytest.raises(ValueError, match=message):
        design.optimal(**asked)
