"""OPTM against brute force over its selection probabilities, and its promises."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import randquant as rq
from randquant.mechanisms import design


def symmetric_optimum(inner, outer, epsilon, count=60):
    """Least error over mirrored selections on (-outer, -inner, inner, outer), by brute force.

    The unknowns are q_2(1), q_3(1), q_3(2); a grid is drawn closer around the best point.
    """
    bins = np.array([-outer, -inner, inner, outer])

    def tables(a, b, c):
        """(n, 4, 4) rows at -1, just below and above -inner, and 0 is covered by symmetry."""
        two = np.stack([a, 1 - a], axis=-1)
        three = np.stack([b, c, 1 - b - c], axis=-1)  # outermost, second, nearest
        rows = []
        for x, left, right in (
            (-1.0, np.ones((len(a), 1)), three[:, ::-1]),
            (-inner, np.ones((len(a), 1)), three[:, ::-1]),
            (-inner, two, two[:, ::-1]),
            (inner, two, two[:, ::-1]),
        ):
            cut = left.shape[1]
            down = (bins[None, cut:] - x) / (bins[None, cut:] - bins[:cut, None])
            low = left * np.einsum("lr,nr->nl", down, right)
            high = right * np.einsum("nl,lr->nr", left, 1 - down)
            rows.append(np.concatenate([low, high], axis=1))
        return np.stack(rows, axis=1)

    def errors(table):
        total = 0
        for low, high, first, second in ((-1.0, -inner, 0, 1), (-inner, inner, 2, 3)):
            # Simpson's rule: probability times distance is quadratic within a cell
            middle = (low + high) / 2
            p = (table[:, first], (table[:, first] + table[:, second]) / 2, table[:, second])
            part = sum(
                share * (q * np.abs(bins - x)).sum(axis=1)
                for share, q, x in zip((1, 4, 1), p, (low, middle, high), strict=True)
            )
            total = total + part * (high - low) / 6 * (2 if first == 0 else 1)
        return total / 2

    ranges, best = [(1e-9, 1.0)] * 3, (math.inf, None)
    for _ in range(12):
        axes = [np.linspace(max(low, 1e-9), min(high, 1), count) for low, high in ranges]
        a, b, c = (part.reshape(-1) for part in np.meshgrid(*axes, indexing="ij"))
        inside = b + c < 1
        a, b, c = a[inside], b[inside], c[inside]
        table = tables(a, b, c)
        both = np.concatenate([table, table[:, :, ::-1]], axis=1)  # mirror images
        private = (both.max(axis=1) <= math.exp(epsilon) * both.min(axis=1) * (1 + 1e-12)).all(
            axis=1
        )
        error = np.where(private, errors(table), math.inf)
        k = int(error.argmin())
        if error[k] < best[0]:
            best = (float(error[k]), (a[k], b[k], c[k]))
        if best[1] is not None:
            widths = [(high - low) / 6 for low, high in ranges]
            ranges = [(x - w, x + w) for x, w in zip(best[1], widths, strict=True)]
    return best[0]


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
    brute = symmetric_optimum(inner, outer, epsilon)
    assert brute == pytest.approx(optimum, rel=1e-4)
    channel = rq.optm(1.0, [-outer, -inner, inner, outer], epsilon)
    error = rq.moments(channel).mae
    # Selections that are no mirror images of each other may do better than the symmetric ones.
    assert error <= optimum * (1 + 1e-4)
    assert error < published
    assert rq.certify(channel).epsilon.upper <= epsilon


bins_of = st.lists(st.floats(-0.95, 0.95), min_size=0, max_size=4).map(
    lambda inner: np.unique(np.round([-2.5, *(2.5 * x for x in inner), 2.5], 2))
)


@settings(max_examples=4, deadline=None)
@given(bins_of, st.floats(0.9, 5))
@pytest.mark.slow
def test_its_promises_hold_for_some_bins(bins, epsilon):
    assert_promises_hold(bins, epsilon)


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(bins_of, st.floats(0.9, 5))
def test_its_promises_hold_for_any_bins(bins, epsilon):
    assert_promises_hold(bins, epsilon)


def assert_promises_hold(bins, epsilon):
    channel = rq.optm(1.0, bins, epsilon)
    measured = rq.moments(channel)
    assert rq.certify(channel).epsilon.upper <= epsilon
    assert measured.bias_max < 1e-8
    assert measured.mae >= design.optimal(
        1.0, bins, constraint=design.Pure(epsilon), inputs=257
    ).dual_bound * (1 - 1e-3)


@pytest.mark.parametrize("gamma", [0.0, 2.0])
@pytest.mark.slow
def test_it_is_no_worse_than_erm_on_the_same_bins(gamma):
    bins = [-2.7, -1.0, -0.4, 0.4, 1.0, 2.7]
    erm = rq.erm(1.0, bins, gamma)
    found = rq.optm(1.0, bins, rq.certify(erm).epsilon.upper)
    assert rq.moments(found).mae <= rq.moments(erm).mae * (1 + 1e-6)


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
