"""OPTM against another solver over its selection probabilities, and its promises."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

import randquant as rq
from randquant.mechanisms import design


def symmetric_optimum(inner, outer, epsilon) -> float:
    """Least error over mirrored selections on (-outer, -inner, inner, outer)."""

    def channel(selection):
        far, farthest, middle = selection
        two, three = [far, 1 - far], [farthest, middle, 1 - farthest - middle]
        bins = [-outer, -inner, inner, outer]
        return rq.two_bins(1.0, bins, [[1.0], two, three], [three[::-1], two[::-1], [1.0]])

    def room(selection):
        logs = np.log(channel(selection).probabilities)
        return (epsilon - np.abs(logs[:, None] - logs)).reshape(-1)

    solved = minimize(
        lambda selection: rq.moments(channel(selection)).mae,
        [0.3] * 3,
        method="SLSQP",
        bounds=[(1e-6, 1 - 1e-6)] * 3,
        constraints=[
            {"type": "ineq", "fun": room},
            {"type": "ineq", "fun": lambda selection: 1 - 1e-9 - selection[1] - selection[2]},
        ],
        options={"ftol": 1e-9},
    )
    assert room(solved.x).min() > -1e-9, solved.message
    return solved.fun


@pytest.mark.parametrize(
    ("epsilon", "inner", "outer", "optimum", "published"),
    [
        (1.0, 0.5, 3.0, 1.87714, 1.882),
        (0.5, 0.4, 6.0, 3.896995, 3.904),
        (1.5, 0.5, 3.0, 1.17281, 1.179),
    ],
)
@pytest.mark.slow
def test_it_reaches_the_optimum_of_the_family(epsilon, inner, outer, optimum, published):
    assert symmetric_optimum(inner, outer, epsilon) == pytest.approx(optimum, rel=1e-5)
    channel = rq.optm(1.0, [-outer, -inner, inner, outer], epsilon)
    error = rq.moments(channel).mae
    # Selections that are no mirror images of each other may do better than the symmetric ones.
    assert error <= optimum * (1 + 1e-4)
    assert error < published
    assert rq.certify(channel).epsilon.upper <= epsilon


bins_of = st.lists(st.floats(-0.95, 0.95), min_size=0, max_size=4).map(
    lambda inner: np.unique(np.round([-2.5, *(2.5 * x for x in inner), 2.5], 2))
)


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(bins_of, st.floats(0.9, 5))
def test_its_promises_hold_for_any_bins(bins, epsilon):
    channel = rq.optm(1.0, bins, epsilon)
    measured = rq.moments(channel)
    assert rq.certify(channel).epsilon.upper <= epsilon
    assert measured.bias_max < 1e-8
    least = design.optimal(1.0, bins, constraint=design.Pure(epsilon), inputs=257).dual_bound
    assert measured.mae >= least * (1 - 1e-3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bins": [-0.9, 0, 3]}, "cover"),
        ({"bins": [3, 0, -3]}, "increasing"),
        ({"epsilon": 0.5}, r"above 0\.693148, the least of any unbiased"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"density": []}, "samples"),
        ({"reach": 4.0}, "number of bins"),
        ({"bins": 4}, "sends a bin to infinity"),
        ({"bins": 4, "reach": 2.0}, "reach above"),
        ({"bins": 1, "reach": 4.0}, "bins"),
    ],
)
def test_what_cannot_be_met_is_named(change, message):
    with pytest.raises(ValueError, match=message):
        rq.optm(**({"clip": 1.0, "bins": [-3, -0.5, 0.5, 3], "epsilon": 1.0} | change))
