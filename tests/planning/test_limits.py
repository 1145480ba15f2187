"""Limits and expected errors, against numbers computed another way and against simulation."""

import math

import mpmath
import numpy as np
import pytest

import randquant as rq
from randquant.aggregation import (
    AdditiveMechanism,
    CentralGaussian,
    LocalGaussian,
    SignSGD,
    VectorMechanism,
)
from randquant.channels import Key
from randquant.mechanisms import UpdateSetting
from randquant.planning import gaussian_multiplier, update_family


@pytest.mark.parametrize(("epsilon", "delta"), [(1e-3, 1e-9), (1.0, 1e-5), (8.0, 1e-6), (1e4, 0.1)])
def test_the_gaussian_limit_is_exact(epsilon, delta):
    multiplier = gaussian_multiplier(epsilon, delta, 4) / 2
    with mpmath.workdps(60):
        half, far = 1 / (2 * mpmath.mpf(multiplier)), epsilon * mpmath.mpf(multiplier)
        failure = mpmath.ncdf(half - far) - mpmath.exp(epsilon) * mpmath.ncdf(-half - far)
        assert float(failure) == pytest.approx(delta, rel=1e-5, abs=0)


COHORT, DIMENSION = 8, 3000


def deviation(mechanism, dimension, cohort):
    return mechanism.expected_error(dimension).deviation(cohort)


def gain(mechanism, dimension):
    return mechanism.expected_error(dimension).gain


SIMULATED = [
    VectorMechanism(rq.stochastic_rounding(0.0625, 2, 0.2), 1.0),
    VectorMechanism(rq.rqm(0.0625, 0.1, 16, 0.42), 1.0, "aggregate", COHORT),
    VectorMechanism(rq.pbm(0.0625, 0.3, 15), 1.0, "aggregate", COHORT),
    VectorMechanism(rq.stochastic_rounding(0.0625, 4, 0.1), 1.0),
    VectorMechanism(rq.stochastic_rounding(0.02, 16), 1.0),  # much is clipped
    VectorMechanism(rq.imvu(0.0625, 2, 1.0), 1.0),
    VectorMechanism(rq.qmgeo(0.0625, 8, 0.3, 0.1), 1.0),  # biased
    AdditiveMechanism("skellam", 1.0, 4.0, COHORT, bits=16),
    AdditiveMechanism("discrete-gaussian", 1.0, 0.04, COHORT, bits=8),  # a coarse grid
    LocalGaussian(1.0, 1.0),
    SignSGD(1.0, 0.02),
    SignSGD(1.0, 2.0),
    CentralGaussian(None, 0.6, 1.0),
]


@pytest.mark.parametrize("mechanism", SIMULATED, ids=lambda m: type(m).__name__)
def test_deviations_are_those_of_the_real_pipeline(mechanism):
    """Eight clients send the same update, encoded and decoded for real.

    A mean of 6,000 squares of normal errors has a relative deviation of 0.018, its root of 0.009.
    """
    update = np.random.default_rng(7).standard_normal(DIMENSION).astype(np.float32)
    update /= np.linalg.norm(update) * np.float32(1 + 1e-6)
    errors = []
    for repeat in range(2):
        root = Key.from_seed(repeat)
        payloads = [mechanism.encode(update, root.fold_in("c", c)) for c in range(COHORT)]
        mean = mechanism.mean(payloads, DIMENSION, root.fold_in("server"))
        errors.append(mean / gain(mechanism, DIMENSION) - update)
    found = math.sqrt(float(np.mean(np.square(errors))))
    assert found == pytest.approx(deviation(mechanism, DIMENSION, COHORT), rel=0.05)


def test_a_vector_that_says_nothing_has_no_finite_deviation():
    weights = np.array([[2, 2], [2, 2]])
    nothing = rq.Channel(np.array([-1.0, 1.0]), np.array([-1.0, 1.0]), weights, 4)
    assert deviation(VectorMechanism(nothing, 1.0), 1, 8) == math.inf


def test_levels_that_are_near_are_clipped_closer():
    """Less privacy is lost to the clip, for the same levels; and more noise is more private."""
    near, many = (
        update_family("stochastic-rounding", UpdateSetting(1024, n, 1)) for n in (9, 20_000)
    )
    settings = [near.parameters(t) for t in np.linspace(1.05, 9, 400)]
    assert settings[0]["clip"] == pytest.approx(3 / 32, rel=1e-5, abs=0)
    assert settings[-1] == many.parameters(9)
    assert settings[-1]["clip"] == 4 / 32
    assert many.parameters(1.5)["clip"] == 4 / 32
    variances = [(s["clip"] + s["margin"]) ** 2 - s["clip"] ** 2 for s in settings]
    assert (np.diff(variances) > 0).all()
