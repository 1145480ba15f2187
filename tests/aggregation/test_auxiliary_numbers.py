"""Numbers beside an update: one vector of bounded norm, and what its mean says."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from randquant.aggregation import MIN_MEAN_WEIGHT, AuxiliaryNumbers, Number

ANY = st.floats(-1e6, 1e6)
NUMBERS = st.lists(
    st.tuples(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), st.floats(0.01, 0.49)), max_size=3
).map(lambda each: tuple(Number(str(i), low, low + w, s) for i, (low, w, s) in enumerate(each)))


def test_an_infinite_number_is_cut_to_its_bounds_and_nan_is_refused_by_name():
    beside, update = AuxiliaryNumbers(1.0, (Number("loss", 0, 5),)), np.ones(2)
    for value, bound in ((math.inf, 5.0), (-math.inf, 0.0)):
        cut = beside.join(update, {"loss": bound})
        assert np.array_equal(beside.join(update, {"loss": value}), cut)
    with pytest.raises(ValueError, match=r"number 'loss' .* got nan"):
        beside.join(update, {"loss": math.nan})


@given(
    update=st.lists(st.floats(-1e30, 1e30), min_size=1, max_size=6),
    numbers=NUMBERS, values=st.lists(ANY, min_size=3, max_size=3),
    clip_norm=st.floats(1e-3, 1e3), weighted=st.booleans(),
)  # fmt: skip
def test_a_joined_vector_is_within_the_mechanisms_norm(
    update, numbers, values, clip_norm, weighted
):
    # An exact norm: the true one is at most clip_norm, up to the rounding to float32 that the
    # mechanism's own clipping takes off.
    if weighted:
        numbers = (Number("n", 0, 50, 0.3), *numbers)
    beside = AuxiliaryNumbers(clip_norm, numbers, "n" if weighted else None)
    told = {number.name: value for number, value in zip(numbers, [*values, 1.0], strict=False)}
    vector = beside.join(np.array(update), told)
    assert len(vector) == len(update) + len(numbers) == len(update) + beside.extra
    square = sum(Fraction(float(x)) ** 2 for x in vector)
    assert square <= Fraction(clip_norm) ** 2 * (1 + Fraction(1, 2**21))


@given(
    clip_norm=st.floats(0.01, 100.0), size=st.floats(0.0, 0.99), value=st.floats(-3, 5),
    n=st.integers(1, 300), weighted=st.booleans(),
)  # fmt: skip
def test_what_is_joined_comes_apart_again(clip_norm, size, value, n, weighted):
    update = np.array([3.0, -4.0]) / 5 * clip_norm * size
    numbers = Number("value", -3, 5), Number("n", 0, 200, 0.1)
    beside = AuxiliaryNumbers(clip_norm, numbers, weight="n" if weighted else None)
    vector = beside.join(update, {"value": value, "n": n})
    mean, found = beside.separate(vector)
    kept = min(n / 200, 1) / max(min(n / 200, 1), MIN_MEAN_WEIGHT) if weighted else 1
    np.testing.assert_allclose(mean, kept * update, rtol=1e-4, atol=1e-5 * clip_norm)
    np.testing.assert_allclose(found["value"], value, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(found["n"], min(n, 200), rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("weights", [0.0, -1e-12, -3.0])
def test_noise_that_moves_the_mean_weight_to_nothing_or_below_leaves_a_finite_mean(weights):
    """A released mean may lie beyond the bounds: an update is never divided by it, or turned."""
    beside = AuxiliaryNumbers(1.0, (Number("n", 0, 200, 0.5),), weight="n")
    share = math.sqrt(1 - 0.5**2)
    mean, found = beside.separate(np.float32([0.3, -0.1, 0.5 * (2 * weights - 1)]))
    assert found["n"] == pytest.approx(200 * weights, abs=1e-4)
    np.testing.assert_allclose(mean, np.array([0.3, -0.1]) / share / MIN_MEAN_WEIGHT, rtol=1e-5)


@pytest.mark.parametrize("clip_norm", [0.25, 1.0, 40.0])
def test_noise_moves_a_number_by_the_deviation_that_is_stated(clip_norm):
    beside = AuxiliaryNumbers(clip_norm, (Number("value", -3, 5), Number("n", 0, 200, 0.1)))
    vector = beside.join(np.ones(2), {"value": 1.0, "n": 50.0})
    for place, name in ((2, "value"), (3, "n")):
        noisy = vector.copy()
        noisy[place] += 0.125
        moved = beside.separate(noisy)[1][name] - beside.separate(vector)[1][name]
        assert beside.deviation(name, 0.125) == pytest.approx(moved, rel=1e-3)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (
            lambda: AuxiliaryNumbers(1.0, tuple(Number(str(i)) for i in range(25))),
            "add up to less than 1",
        ),
        (lambda: AuxiliaryNumbers(1.0, (Number("a"), Number("a"))), "each number once"),
        (lambda: AuxiliaryNumbers(1.0, (Number("a", -1),), weight="a"), "a number from 0 up"),
        (lambda: AuxiliaryNumbers(1.0, weight="a"), "a number from 0 up"),
        (lambda: Number("a", 1.0, 1.0), "Expected high"),
        (lambda: AuxiliaryNumbers(1.0, (Number("a"),)).join(np.ones(2), {}), "a number 'a'"),
        (
            lambda: AuxiliaryNumbers(1.0, (Number("a"),)).join(np.ones(2), {"a": math.nan}),
            "got nan",
        ),
    ],
)
def test_what_cannot_be_sent_is_refused(make, why):
    with pytest.raises(ValueError, match=why):
        make()
