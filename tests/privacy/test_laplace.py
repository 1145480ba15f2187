"""Releases with discrete Laplace noise, against every outcome of small cases."""

import math
from itertools import product

import mpmath
import numpy as np
import pytest

from randquant.mechanisms import Skellam
from randquant.privacy import LaplaceRelease, NoiseRelease, account


def law(scale: float, reach: int) -> dict[int, float]:
    p = math.exp(-1 / scale)
    return {k: (1 - p) / (1 + p) * p ** abs(k) for k in range(-reach, reach + 1)}


def outcomes(scale: float, shifts: tuple[int, ...], reach: int = 60) -> np.ndarray:
    """Probabilities of all outcomes in two worlds, (count, 2): vectors this far apart."""
    one = law(scale, reach + max(map(abs, shifts)))
    inner = range(-reach, reach + 1)
    return np.array(
        [
            [
                math.prod(one[k] for k in ks),
                math.prod(one[k - s] for k, s in zip(ks, shifts, strict=False)),
            ]
            for ks in product(inner, repeat=len(shifts))
        ]
    )


def release(scale, distance, dimension=1, rounds=1, **more):
    return LaplaceRelease(scale, distance, 0.0, 1, dimension, rounds, trust="local", **more)


@pytest.mark.parametrize(
    ("scale", "shifts"), [(0.7, (1,)), (3.0, (2, -2)), (3.0, (0, 4)), (5.0, (3, 1))]
)
def test_pure_epsilon_is_the_largest_loss_and_renyi_bounds_every_order(scale, shifts):
    bound = release(scale, sum(map(abs, shifts)), len(shifts))
    p, q = outcomes(scale, shifts).T
    largest = np.log(p / q).max() * (1 - 1e-12)
    assert largest <= bound.renyi(math.inf) <= largest * (1 + 1e-9)
    for order in (1.01, 1.5, 2.0, 8.0, 40.0):
        exact = math.log(np.sum(p * (p / q) ** (order - 1))) / (order - 1)
        assert exact <= bound.renyi(order)
    assert bound.renyi(1.01) < 0.8 * bound.renyi(math.inf)


def tail_delta(p: np.ndarray, q: np.ndarray, rounds: int, epsilon: float) -> float:
    """Exact delta of so many rounds: the law of the loss, which takes few values, convolved."""
    losses = np.round(np.log(p / q), 9)
    values, place = np.unique(losses, return_inverse=True)
    masses = np.bincount(place, weights=p)
    law = {0.0: 1.0}
    for _ in range(rounds):
        following: dict[float, float] = {}
        for (one, m), (other, w) in product(law.items(), zip(values, masses, strict=False)):
            loss = round(one + other, 8)
            following[loss] = following.get(loss, 0.0) + m * w
        law = following
    return sum(m * max(0.0, 1 - math.exp(epsilon - loss)) for loss, m in law.items())


@pytest.mark.parametrize("rounds", [1, 3, 12])
@pytest.mark.parametrize("delta", [1e-6, 1e-3, 0.05])
@pytest.mark.parametrize(("scale", "shifts"), [(2.0, (2,)), (4.0, (2, -1)), (20.0, (1,))])
def test_account_is_above_the_exact_hockey_stick_of_all_outcomes(scale, shifts, delta, rounds):
    p, q = outcomes(scale, shifts, 120 if len(shifts) == 1 else 40).T
    stated = account([release(scale, sum(map(abs, shifts)), len(shifts), rounds)], delta).epsilon
    assert tail_delta(p, q, rounds, stated) <= delta * (1 + 1e-6)
    assert tail_delta(q, p, rounds, stated) <= delta * (1 + 1e-6)
    # The comparison with Gaussian noise is what helps.
    if (rounds, delta, scale) == (12, 0.05, 20):
        assert stated < 0.7 * rounds * release(scale, sum(map(abs, shifts))).epsilon


@pytest.mark.parametrize("epsilon", [1e-9, 1e-4, 0.3, 1.0, 5.0, 40.0, 300.0, 760.0])
def test_the_gaussian_that_dominates_is_rounded_up(epsilon):
    """Proposition 3, to 60 digits: at mu = -2 Phi^-1(1/(1 + e^epsilon)) both meet in the corner."""
    with mpmath.workdps(60):
        found = release(1 / epsilon, 1)
        mu = mpmath.sqrt(mpmath.mpf(found.squared_mu))
        corner = 1 / (1 + mpmath.exp(mpmath.mpf(found.epsilon)))
        assert mpmath.ncdf(-mu / 2) <= corner  # mu is large enough
        assert mpmath.ncdf(-(mu * (1 - mpmath.mpf("1e-9")) - mpmath.mpf("1e-10")) / 2) > corner


def test_noise_of_others_is_not_counted_under_local_or_central_trust():
    for trust in ("local", "central"):
        with pytest.raises(ValueError, match=r"^Expected cohort=1"):
            LaplaceRelease(1.0, 1, 0.0, 5, 1, 1, trust=trust)
        with pytest.raises(ValueError, match=r"^Expected cohort=1"):
            NoiseRelease(Skellam(50.0), 5, 1, 1, 1, trust=trust)
        assert NoiseRelease(Skellam(50.0), 1, 1, 1, 1, trust=trust).trust == trust


def test_one_share_of_the_noise_by_itself_promises_nothing():
    """It is mostly zero: its law is not that of the sum's noise."""
    shared = LaplaceRelease(10.0, 5, 0.0, cohort=5, dimension=3, rounds=1)
    assert account([shared.under("aggregate")], 1e-6).epsilon <= 0.5 * (1 + 1e-12)
    assert account([shared.under("local")], 1e-6).epsilon == math.inf
    whole = LaplaceRelease(10.0, 5, 0.0, cohort=1, dimension=3, rounds=1)
    assert account([whole.under("local")], 1e-6).epsilon <= 0.5 * (1 + 1e-12)


def test_one_account_does_not_mix_examples_with_clients():
    one = release(2.0, 1, one_example=True)
    assert account([one, one], 1e-6).unit == "example"
    with pytest.raises(ValueError, match=r"^Expected releases under one unit"):
        account([one, release(2.0, 1)], 1e-6)
    with pytest.raises(TypeError, match=r"^Expected one_example to be True or False"):
        release(2.0, 1, one_example="person")
