import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

import randquant as rq
from randquant._internal.rounding import round_up
from randquant.mechanisms import design
from randquant.mechanisms.design.constraints import Pure


def all_pairs_optimum(vertices, levels, epsilon, objective) -> float:
    """The same optimum by another programme: every pair of rows, error integrated numerically."""
    count, codes = len(vertices), len(levels)
    x = (np.arange(20_000) + 0.5) / 10_000 - 1
    cell = np.minimum(np.searchsorted(vertices, x, side="right") - 1, count - 2)
    part = (x - vertices[cell]) / (vertices[cell + 1] - vertices[cell])
    error = np.abs(levels - x[:, None]) ** (1 if objective == "mae" else 2) / len(x)
    cost = np.zeros((count, codes))
    np.add.at(cost, cell, error * (1 - part)[:, None])
    np.add.at(cost, cell + 1, error * part[:, None])
    rows = []
    for v, w in itertools.permutations(range(count), 2):
        for i in range(codes):
            row = np.zeros((count, codes))
            row[v, i], row[w, i] = 1, -math.exp(epsilon)
            rows.append(row.reshape(-1))
    equal, right = [], []
    for v in range(count):
        for weight, value in ((np.ones(codes), 1.0), (levels, vertices[v])):
            row = np.zeros((count, codes))
            row[v] = weight
            equal.append(row.reshape(-1))
            right.append(value)
    solved = linprog(cost.reshape(-1), A_ub=rows, b_ub=np.zeros(len(rows)), A_eq=equal, b_eq=right)
    assert solved.status == 0
    return solved.fun


@pytest.mark.parametrize("objective", ["mae", "mse"])
@pytest.mark.parametrize("epsilon", [0.8, 2.0, 5.0])
def test_it_equals_the_programme_over_all_pairs(objective, epsilon):
    levels = np.array([-3.2, -0.7, 0.4, 1.3, 2.9])
    found = design.optimal(1.0, levels, constraint=Pure(epsilon), objective=objective, inputs=5)
    expected = all_pairs_optimum(np.linspace(-1, 1, 5), levels, epsilon, objective)
    assert found.value == pytest.approx(expected, rel=1e-6)
    assert found.dual_bound == pytest.approx(expected, rel=1e-6)


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


def test_no_known_mechanism_on_the_same_levels_is_better():
    channel = rq.rqm(clip=1.0, margin=1.0, levels=16, keep=0.42)
    epsilon = rq.certify(channel).epsilon.upper
    for objective in ("mae", "mse"):
        found = design.optimal(1.0, channel.values, constraint=Pure(epsilon), objective=objective)
        assert found.value < getattr(rq.moments(channel), objective)


def test_it_scales_with_clip():
    unit = design.optimal(1.0, [-3, -0.5, 0.5, 3], constraint=Pure(1.0), objective="mse")
    tiny = design.optimal(1e-3, [-3e-3, -5e-4, 5e-4, 3e-3], constraint=Pure(1.0), objective="mse")
    assert tiny.value == pytest.approx(1e-6 * unit.value, rel=1e-9, abs=0)
    assert tiny.dual_bound == pytest.approx(1e-6 * unit.dual_bound, rel=1e-9, abs=0)


@pytest.mark.parametrize("values", [[-3.0, 3.0], [-2.0, 0.3, 5.0]])
def test_the_least_epsilon_is_the_limit_of_what_is_feasible(values):
    least = design.least_epsilon(1.0, values, Pure(1.0))
    near = design.optimal(1.0, values, constraint=Pure(least * 1.001))
    assert near.certificate.epsilon.upper <= least * 1.001
    with pytest.raises(ValueError, match=f"above {round_up(least)}"):
        design.optimal(1.0, values, constraint=Pure(least * 0.999))
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
    ],
)
def test_what_cannot_be_met_is_named(change, message):
    asked = {"clip": 1.0, "values": [-3.0, 3.0], "constraint": Pure(1.0)} | change
    with pytest.raises(ValueError, match=message):
        design.optimal(**asked)
