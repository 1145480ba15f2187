"""A noise multiplier is the standard deviation of the noise in a sum, in units of clip_norm."""

import math

import numpy as np
import pytest

import randquant as rq
from randquant.aggregation import (
    AdditiveMechanism,
    CentralGaussian,
    HelperNoise,
    LocalGaussian,
    SignSGD,
)

CLIP_NORM, MULTIPLIER, DIMENSION, CLIENTS = 3.0, 2.5, 4096, 4
ROOT = rq.Key.from_seed(0)
INTEGERS = {
    kind: AdditiveMechanism(kind, CLIP_NORM, MULTIPLIER, CLIENTS, bits=18)
    for kind in ("skellam", "discrete-gaussian", "binomial")
} | {
    "a helper": HelperNoise(CLIP_NORM, MULTIPLIER, CLIENTS, server_noise=False, bits=18),
    "helper and server": HelperNoise(CLIP_NORM, MULTIPLIER, CLIENTS, bits=18),
}
GAUSSIANS = {
    "a server": CentralGaussian(None, MULTIPLIER, CLIP_NORM),
    "a server, coordinates clipped": CentralGaussian(CLIP_NORM / math.sqrt(DIMENSION), MULTIPLIER),
    "each client": LocalGaussian(CLIP_NORM, MULTIPLIER),
}
OVER_EACH_OTHER = {"helper and server": 2, "each client": CLIENTS}
"""Parties whose noise is in a sum, each as wide as the multiplier says; elsewhere one, or clients
who share it."""


@pytest.mark.parametrize("who", [*INTEGERS, *GAUSSIANS])
def test_the_noise_in_a_sum_has_the_deviation_that_its_multiplier_says(who):
    mechanism = (INTEGERS | GAUSSIANS)[who]
    zeros = np.zeros(DIMENSION, dtype=np.float32)  # which round to themselves: noise is left
    payloads = [mechanism.encode(zeros, ROOT.fold_in(client)) for client in range(CLIENTS)]
    drawn = CLIENTS * mechanism.mean(payloads, DIMENSION, ROOT.fold_in("noise"))
    wanted = MULTIPLIER * CLIP_NORM * math.sqrt(OVER_EACH_OTHER.get(who, 1))
    # 6.5 deviations of a deviation: a correct one fails once in 1e10 times.
    assert abs(drawn.std() / wanted - 1) < 6.5 * math.sqrt(0.5 / DIMENSION)
    if mechanism.clip_norm is not None:
        stated = CLIENTS * mechanism.expected_error(DIMENSION).deviation(CLIENTS)
        # The rest is what rounding to the grid may add to the norm, and to the error.
        assert wanted * (1 - 1e-9) <= stated <= wanted * 1.01


def test_the_noise_under_a_sign_has_the_deviation_that_its_multiplier_says():
    mechanism = SignSGD(CLIP_NORM, MULTIPLIER)
    update = np.full(DIMENSION, CLIP_NORM / math.sqrt(DIMENSION), dtype=np.float32)
    ones = sum(
        mechanism.mean([mechanism.encode(update, ROOT.fold_in(k))], DIMENSION) > 0
        for k in range(50)
    )
    # All coordinates are one: the share of + is that of N(x, deviation^2) above 0.
    x, count = CLIP_NORM / math.sqrt(DIMENSION), 50 * DIMENSION
    share = 0.5 * math.erfc(-x / (MULTIPLIER * CLIP_NORM * math.sqrt(2)))
    assert abs(ones.sum() / count - share) < 6.5 * 0.5 / math.sqrt(count)
    assert mechanism.value == MULTIPLIER * CLIP_NORM * math.sqrt(math.pi / 2)


@pytest.mark.parametrize("neighboring", ["zero_out", "replace_one"])
def test_the_account_is_that_of_other_libraries_multiplier(neighboring):
    """`GaussianSteps` counts in clip norms, as Opacus does, whose figures its tests compare."""
    steps = rq.GaussianSteps(neighboring)
    steps.step(noise_multiplier=MULTIPLIER, times=7)
    expected = steps.guarantee(1e-5).epsilon

    def epsilon(mechanism):
        return rq.account([mechanism.release(DIMENSION, 7, neighboring)], 1e-5).epsilon

    for mechanism in (*GAUSSIANS.values(), SignSGD(CLIP_NORM, MULTIPLIER)):
        assert epsilon(mechanism) == pytest.approx(expected, rel=1e-12)
    for mechanism in INTEGERS.values():
        # Nearly Gaussian, whose bound is a little above.
        assert expected <= epsilon(mechanism) <= expected * 1.001


@pytest.mark.parametrize(
    ("kind", "least", "most"),
    [(AdditiveMechanism, 2e-6, 2e6), (HelperNoise, 2e-6, 2e6), (LocalGaussian, 2e-100, 2e100)],
)
def test_the_range_is_in_clip_norms_too(kind, least, most):
    before = ("skellam",) if kind is AdditiveMechanism else ()
    after = () if kind is LocalGaussian else (4,)
    for multiplier in (least, most):
        assert kind(*before, 1.0, multiplier, *after).noise_multiplier == multiplier
    for multiplier in (least * 0.99, most * 1.01):
        with pytest.raises(ValueError, match="noise_multiplier"):
            kind(*before, 1.0, multiplier, *after)
